"""Folds in NVLink domains: expert ranks that turn within theirs, folded against not."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from support.campaigns import TIMES, thinned
from support.domain_foldings import domain_values
from support.foldings import differences, run_of

from hybrid_des.analysis.metrics import summary
from hybrid_des.collectives.permutation import channel_images
from hybrid_des.errors import HybridDesError
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import Fold, FoldedAxis
from hybrid_des.layout import Layout
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run

DOMAINS = [  # pipeline ranks, replicas, expert ranks, GPUs per node, simulated replicas
    (2, 4, 4, 8, 1), (4, 4, 2, 8, 2), (2, 8, 8, 8, 1), (4, 2, 2, 4, 1),
    *(pytest.param(domain, marks=pytest.mark.slow) for domain in ((1, 8, 4, 4, 4), (4, 8, 4, 8, 4), (4, 4, 4, 8, 2))),
]  # fmt: skip


@pytest.mark.parametrize("dispatcher", ["all-to-all", "per-node"])
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_expert_ranks_turn_within_their_nvlink_domain(domain, sharing, dispatcher):
    pipeline, data, expert, node, keep = domain
    values = {
        "model": {"base": "qwen3-30b-a3b", "layers": 4, "sequence": 1024}, "sharding": "zero-1", "batch": 4 * data,
        "cluster": {"gpu": "h100", "nodes": pipeline * data // node, "gpus_per_node": node, "sharing": sharing},
        "parallel": {"pipeline": pipeline, "data": data, "expert": expert}, "experts": {"dispatcher": dispatcher},
        "schedule": {"kind": "1f1b", "microbatch_size": 1}, "tensor_traffic": "messages", "record": "compute",
        "gradients": {"algorithm": "ring", "pad": True, "overlap": data % 3 == 1, "bucket_rule": "megatron"},
    }  # fmt: skip
    folded, whole = run(load({**values, "fold": keep})), run(load({**values, "fold": "off"}), by_messages=True)
    assert folded.fold is not None and folded.fold.kept("data") == keep
    one, other = (
        {**summary(each), "wall_s": 0, "events": 0, "ranks_simulated": 0, "shortcuts": 0} for each in (folded, whole)
    )
    assert one == other


def test_exchanges_of_unequal_parts_do_not_turn():
    """Where some experts are more wanted than others, expert ranks send different amounts to each other."""
    values = {
        "model": {"base": "qwen3-30b-a3b", "layers": 4, "sequence": 1024}, "sharding": "zero-1", "batch": 8,
        "cluster": {"gpu": "h100", "nodes": 1}, "parallel": {"pipeline": 2, "data": 4, "expert": 4}, "fold": 1,
        "schedule": {"kind": "1f1b", "microbatch_size": 1}, "tensor_traffic": "messages",
        "gradients": {"algorithm": "ring", "pad": True}, "experts": {"dispatcher": "per-node", "concentration": 1},
    }  # fmt: skip
    with pytest.raises(FoldRefusal, match="send different amounts"):
        run(load(values))


@pytest.mark.parametrize(("nodes", "width", "expert"), thinned([(4, 4, 2), (2, 8, 4), (2, 64, 32)], slow=[(2, 64, 32)]))
def test_padded_domains_with_replayed_exchanges_fold_to_one_replica(nodes, width, expert):
    """Of 64 GPUs and 32 expert ranks too, on 64 channels: a turn of the domain takes each channel to the next one."""
    values = {
        "model": {"base": "qwen3-30b-a3b", "layers": 4, "sequence": 1024}, "sharding": "zero-1", "record": "compute",
        "cluster": {"gpu": "gb200", "nodes": nodes, "gpus_per_node": width}, "batch": 2 * nodes * width,
        "parallel": {"data": nodes * width, "expert": expert}, "tensor_traffic": "replay",
        "schedule": {"kind": "1f1b", "microbatch_size": 1}, "overlap": {"parameters": True},
        "gradients": {"bucket": "400 MB", "codec": "bf16", "overlap": True, "pad": True}, "fold": 1,
    }  # fmt: skip
    folded = run(load(values))
    assert folded.fold is not None and folded.fold.kept("data") == 1
    if width < 64:  # a million messages in every reduction, if all are sent
        whole = run(load({**values, "fold": "off"}), by_messages=True)
        one, other = (
            {**summary(each), "wall_s": 0, "events": 0, "ranks_simulated": 0, "shortcuts": 0}
            for each in (folded, whole)
        )
        assert one == other


def test_images_of_images_must_send_the_same():
    """The experts of replicas 1, 3 and 5 become those of 2, 4 and 0: turned, and three pieces are not equal."""
    values = {
        "cluster": {"gpu": "a100-80gb", "nodes": 6, "gpus_per_node": 2, "infiniband": {"nics_per_node": 1}},
        "model": {
            "layers": 4, "hidden": 64, "heads": 8, "ffn": 128, "vocab": 1000, "sequence": 64,
            "experts": {"count": 8, "active": 2, "ffn": 64},
        },
        "parallel": {"pipeline": 2, "data": 6, "order": ["tensor", "pipeline", "data"], "expert": 2},
        "schedule": {"kind": "1f1b", "microbatches": 2}, "tensor_traffic": "replay",
        "gradients": {"algorithm": "hierarchical", "codec": "bf16", "pad": True},
    }  # fmt: skip
    with pytest.raises(FoldRefusal, match="the 3 pieces of 32,768 gradients differ in size"):
        run_of(values, 1)


CAMPAIGNS = 3 * TIMES
EACH = 8


def forced(values):
    """Each number of replicas that can be simulated for all, with the folded run."""
    replicas = values["parallel"]["data"]
    for keep in (keep for keep in range(1, replicas) if replicas % keep == 0):
        try:
            yield keep, run_of(values, keep)
        except FoldRefusal:
            continue


@pytest.mark.parametrize("campaign", thinned(range(CAMPAIGNS), slow=[1, 2]))
def test_replicas_folded_within_nodes_equal_unfolded_ones(campaign):
    reached = Counter()
    for seed in range(campaign * EACH, (campaign + 1) * EACH):
        values = domain_values(Random(seed))
        try:
            whole = run_of(values, "off")
        except HybridDesError:
            continue
        for keep, folded in forced(values):
            assert not differences(folded, whole), (seed, keep)
            reached[len(folded.run.fold.folded_axes)] += 1
    assert reached[2]


def test_digits_of_an_axis_fold_apart():
    layout = Layout({"tensor": 2, "data": 8, "pipeline": 2}, ("tensor", "data", "pipeline"))
    fold = Fold(layout, [FoldedAxis("data", 2, block=1, size=4), FoldedAxis("data", 1, block=4, size=2)])
    assert (fold.order, fold.kept("data"), fold.kept("tensor")) == (4, 2, 2)
    assert fold.ranks == [0, 1, 2, 3, 16, 17, 18, 19]
    places = [fold.move(2 * place, (1, 1)) // 2 for place in range(8)]
    assert places == [6, 7, 4, 5, 2, 3, 0, 1]
    assert {fold.representative(rank)[0] for rank in range(32)} == set(fold.ranks)
    assert all(fold.move(*fold.representative(rank)) == rank for rank in range(32))


def test_a_channel_becomes_that_of_the_next_adapter():
    rings = [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], [2, 0, 1, 5, 3, 4]]  # two nodes, an adapter per place
    within, across = np.array([1, 2, 0, 4, 5, 3]), np.array([3, 4, 5, 0, 1, 2])
    assert channel_images(within, rings, rings) == [(1, 0), (2, 0), (0, 0)]
    assert channel_images(across, rings, rings) == [(0, 3), (1, 3), (2, 3)]
    assert channel_images(np.array([1, 0, 2, 4, 3, 5]), rings, rings) is None
    assert channel_images(within, rings[:1], rings[:1]) is None  # a single ring leaves through one adapter only


def test_small_runs_with_many_messages_fold_and_show_all_ranks(monkeypatch):
    values = {
        "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 4}, "parallel": {"pipeline": 2, "data": 4},
        "schedule": {"kind": "1f1b", "microbatches": 4}, "gradients": {"pad": True, "codec": "bf16"},
        "model": {"layers": 4, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024, "sequence": 256},
    }  # fmt: skip
    whole = run_of(values, "auto")
    monkeypatch.setattr("hybrid_des.scenario.sizes.MESSAGES_FOLDED", 1)
    folded = run_of(values, "auto")
    assert folded.run.events < whole.run.events / 3
    own = {"events": 0, "wall_s": 0, "shortcuts": 0}
    assert {**folded.summary, **own} == {**whole.summary, **own}
    columns = list(whole.timeline)
    assert folded.timeline.sort_values(columns, ignore_index=True).equals(
        whole.timeline.sort_values(columns, ignore_index=True)
    )
    assert list(folded.run.peak_memory) == list(whole.run.peak_memory)
