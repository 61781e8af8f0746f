"""Folded runs are unfolded ones: every key of the summary, and every row of the timeline."""

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.foldings import both_of, differences, run_of, scenario_values
from support.layered_foldings import model_values, spanning_values

from hybrid_des.analysis.counterfactual.attribution import work_of_ranks
from hybrid_des.analysis.counterfactual.what_if import Part, Variant, at_the_mean, kinds_in, part_at
from hybrid_des.scenario import sizes

SPANNING = (12, 15, 16, 19, 28)  # seeds that fold, of several wirings and schedules
CAMPAIGNS = 5 * TIMES
EACH = 6
# seeds of small models, each with axes along which it folds
LAYERED = {
    12: ["tensor"],
    98: ["data", "tensor", "context"],
    70: ["data", "tensor"],
    27: ["data"],
    30: ["data", "tensor"],
    32: ["data", "tensor"],
    39: ["tensor"],
    44: ["data", "tensor", "context"],
    46: ["data"],
    49: ["tensor"],
    51: ["data", "tensor", "context"],
    58: ["tensor"],
    86: ["context"],
}


@pytest.fixture(autouse=True)
def _fold_however_small(monkeypatch):
    monkeypatch.setattr(sizes, "FOLDED_FROM", 2)


def folded(values):
    """A run that folds, and is the unfolded one."""
    run = run_of(values, "auto")
    assert run.run.fold is not None
    assert not differences(run, run_of(values, "off"))
    return run


@pytest.mark.parametrize("campaign", thinned(range(CAMPAIGNS), slow=[2, 4]))
def test_folded_runs_equal_unfolded_ones(campaign):
    reached = Counter()
    for seed in range(campaign * EACH, (campaign + 1) * EACH):
        if (both := both_of(scenario_values(Random(seed)))) is None:
            reached["impossible"] += 1
            continue
        run, whole = both
        reached[run.run.fold is not None] += 1
        if run.run.fold is not None:
            assert not differences(run, whole), f"seed {seed}"
    assert reached[True] >= 1


@pytest.mark.parametrize("seed", thinned(LAYERED, slow=[12, 46, 51, 70]))
def test_folded_tensor_and_context_ranks_equal_unfolded_ones(seed):
    run = folded(model_values(Random(seed)))
    assert {folded.axis for folded in run.run.fold.folded_axes} >= set(LAYERED[seed])


def test_folded_fair_flows_drain_in_any_order():
    """A seed at which flows of slightly different ends drain in one picosecond, in another order when folded."""
    folded(scenario_values(Random(20487)))


@pytest.mark.parametrize("seed", thinned(SPANNING, slow=[28, 16]))
def test_folded_fair_runs_with_spanning_tensor_ranks_equal_unfolded(seed):
    folded(spanning_values(Random(seed)))


def model(**sections):
    return {
        "cluster": {"gpu": "h100", "nodes": 4, **sections.pop("cluster", {})},
        "model": {"layers": 4, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024, "sequence": 256},
        "parallel": {"tensor": 8, "pipeline": 2, "data": 2},
        "schedule": {"kind": "1f1b", "microbatches": 2},
        "gradients": {"pad": True, "codec": "bf16"},
        **sections,
    }


@pytest.mark.parametrize(("adapters", "kept"), [(8, 1), (1, 8)])
def test_tensor_ranks_fold_where_each_has_an_adapter(adapters, kept):
    run = folded(model(cluster={"infiniband": {"nics_per_node": adapters}}))
    assert (run.run.fold.kept("tensor"), run.run.fold.kept("data")) == (kept, 1)


def test_tensor_ranks_fold_where_replicas_do_not():
    run = folded(model() | {"gradients": {"algorithm": "double-binary-tree"}})
    assert (run.run.fold.kept("tensor"), run.run.fold.kept("data")) == (1, 2)
    assert run.run.unfolded == "ranks 0 and 8: the members of double-binary-tree do not all do the same"


def mixed(**sections):
    return {
        "cluster": {"nodes": 4, **sections.pop("cluster", {})},
        "parallel": {"pipeline": 2, "data": 16},
        "schedule": {"kind": "1f1b", "microbatches": 4},
        "workload": {"forward": "1 ms", "backward": "2 ms", "activation": "1 MB", "parameters": 960_000},
        "gradients": {"overlap": True, "bucket": "1 MB", **sections.pop("gradients", {})},
        **sections,
    }


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize(
    ("gradients", "replicas"),
    [
        ({"algorithm": "ring"}, 1),  # a channel per adapter: those of a rank are those of the next, one further
        ({"algorithm": "ring", "channels": 1}, 8),  # it passes from node to node, through the last rank of eight
        pytest.param({"algorithm": "ring", "channels": 4}, 2, marks=pytest.mark.slow),
        ({"algorithm": "hierarchical"}, 1),
        ({"algorithm": "halving-doubling"}, 1),
        ({"algorithm": "recursive-doubling"}, 1),
    ],
    ids=str,
)
def test_the_fewest_replicas_are_simulated(gradients, replicas, sharing):
    run = folded(mixed(cluster={"sharing": sharing}, gradients=gradients, steps=2))
    assert run.summary["ranks_simulated"] == 2 * replicas


@pytest.mark.parametrize("level", thinned(["zero-1", "zero-2", "zero-3"], slow=["zero-1"]))
@pytest.mark.parametrize("pipeline", [1, 2])
def test_sharded_optimizers_fold(level, pipeline):
    values = mixed(sharding=level, parallel={"pipeline": pipeline, "data": 16}, overlap={"parameters": True})
    if pipeline == 1:
        del values["gradients"]["bucket"]
    values["gradients"]["overlap"] = level == "zero-2"
    run = folded(values)
    assert run.summary["ranks_simulated"] == pipeline


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_measured_all_reduces_fold_to_one_replica_a_node(tmp_path, sharing):
    (tmp_path / "t.csv").write_text("bytes,time_us\n1000,50\n10000000,900\n", encoding="utf-8")
    measured = {"algorithm": "measured", "table": str(tmp_path / "t.csv")}
    folded(mixed(gradients=measured, cluster={"sharing": sharing}))


def test_padded_buckets_fold_where_others_do_not():
    values = mixed(workload={"forward": "1 ms", "backward": "2 ms", "parameters": 999_983})
    assert run_of(values, "auto").run.fold is None
    values["gradients"]["pad"] = True
    run, whole = run_of(values, "auto"), run_of(values, "off")
    assert run.summary["ranks_simulated"] == 2
    assert not differences(run, whole)
    buckets = 4 * 16 * 8  # of a stage: 999,983 gradients of 4 bytes in buckets of at most 1 MB, each on eight channels
    assert whole.summary["bytes_gradients"] % (2 * 2 * 15 * buckets) == 0


def test_a_table_of_all_replicas_is_the_unfolded_one():
    values = mixed(gradients={"channels": 1})
    run, whole = run_of(values, "auto"), run_of(values, "off")
    assert len(run.timeline) * 2 == len(whole.timeline)
    assert run.table(all_replicas=True).equals(whole.timeline)
    assert whole.table(all_replicas=True) is whole.timeline
    assert run.table() is run.timeline


# Ranks that share experts are places along the replicas, and fold with them where their exchanges look alike.


@pytest.mark.parametrize(
    ("algorithm", "exchange", "replicas"),
    [
        ("ring", "replay", 1),
        ("halving-doubling", "messages", 4),  # partners in pairs, tokens around: halves of a group suit both
        ("halving-doubling", "replay", 1),
        ("recursive-doubling", "replay", 1),
    ],
)
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_expert_ranks_fold_where_all_do_the_same(algorithm, exchange, replicas, sharing):
    model = {"layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 1024, "sequence": 256}
    values = {
        "cluster": {"gpu": "h100", "nodes": 4, "sharing": sharing},
        "model": model | {"experts": {"count": 8, "active": 2, "ffn": 128}},
        "parallel": {"pipeline": 2, "data": 16, "expert": 8},
        "schedule": {"kind": "1f1b", "microbatches": 2},
        "gradients": {"algorithm": algorithm, "pad": True, "codec": "bf16", "overlap": True},
        "tensor_traffic": exchange,
    }
    run = folded(values)
    assert run.summary["ranks_simulated"] == 2 * replicas


def what_ifs(at):
    """Changes that are the same for all replicas."""
    place = part_at(at, 0)
    yield place.scaled(at, Fraction(3, 4))
    yield from (kind.scaled(at, Fraction(9, 10)) for kind in kinds_in(at))
    yield at.with_retime(at_the_mean(at, place.members)).with_retime(at_the_mean(at))
    yield at.without_queueing()
    yield at.without_queueing().with_all_links(None).with_latency(Fraction(0))


@pytest.mark.slow
def test_folded_what_ifs_equal_unfolded_ones():
    reached = 0
    for seed in range(2 * EACH * TIMES):
        both = both_of(scenario_values(Random(seed)))
        if both is None or both[0].run.fold is None:
            continue
        for one, other in zip(*(what_ifs(Variant.of(result.run)) for result in both), strict=True):
            run, whole = one.simulated(), other.simulated()
            assert whole.fold is None
            assert run.duration == whole.duration, f"seed {seed}"
            assert work_of_ranks(run).tolist() == work_of_ranks(whole).tolist()
            reached += run.fold is not None
    assert reached >= 10


def test_a_rank_that_is_quicker_by_itself_is_not_folded():
    at = Variant.of(run_of(mixed(), 8).run)
    quicker = Part("rank", "rank 1", {1}).scaled(at, Fraction(1, 2)).simulated()
    assert quicker.fold is None
    assert quicker.unfolded == "ops of rank 9 take other times than those of rank 1"
