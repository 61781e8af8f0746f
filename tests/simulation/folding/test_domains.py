"""Folds in NVLink domains: expert ranks that turn within theirs, folded against not."""

import pytest

from hybrid_des.analysis.metrics import summary
from hybrid_des.scenario.loading import load
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.run import run

DOMAINS = [  # pipeline ranks, replicas, expert ranks, GPUs per node, simulated replicas
    (2, 4, 4, 8, 1), (4, 4, 4, 8, 2), (4, 4, 2, 8, 2), (2, 8, 8, 8, 1), (1, 8, 4, 4, 4), (4, 8, 4, 8, 4),
    (4, 2, 2, 4, 1),
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
    folded, whole = (run(load({**values, "fold": fold})) for fold in (keep, "off"))
    assert folded.fold is not None and folded.fold.kept("data") == keep
    one, other = ({**summary(each), "wall_s": 0, "events": 0, "ranks_simulated": 0} for each in (folded, whole))
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
