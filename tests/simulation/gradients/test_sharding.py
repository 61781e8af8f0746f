"""Sharded optimizers: what travels among replicas, when, and how much of it is exposed."""

from collections import Counter
from random import Random

import pytest
from support.campaigns import TIMES, thinned
from support.foldings import both_of, differences, scenario_values
from support.sharded import MS, PARAMETERS, SHARDED, scenario, waits
from support.sizes import chunks_of

from hybrid_des import collectives
from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.table import table as table_of
from hybrid_des.pipeline import schedules
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario import sizes
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.plan_search.bound import least_step

HALVED = [name for name in collectives.all_reduces(halves=True) if name != "nccl"]  # which has latencies of its own


def test_zero_1_moves_the_bytes_of_an_all_reduce():
    whole, sharded = (run(scenario(name, gradients={"codec": "bf16"})) for name in ("none", "zero-1"))
    assert sharded.bytes_gradients == sharded.bytes_parameters
    assert sharded.bytes_gradients + sharded.bytes_parameters == whole.bytes_gradients
    assert sharded.duration == whole.duration
    assert sharded.messages == whole.messages


def test_32_bit_gradients_are_scattered_and_16_bit_parameters_gathered():
    result = run(scenario("zero-1"))
    assert result.bytes_gradients == 3 * 4 * PARAMETERS
    assert result.bytes_parameters == 3 * 2 * PARAMETERS
    assert result.duration == 2 * 6 * MS + 3 * MS + 3 * MS // 2


@pytest.mark.parametrize("algorithm", HALVED)
def test_zero_1_scatters_and_gathers_by_any_algorithm_with_halves(algorithm):
    """On one node without latency, all of them are bound by (n−1)/n of the bytes on a port."""
    pieces = {"pieces": 4} if algorithm == "hierarchical" else {}  # equal ones
    result = run(scenario("zero-1", gradients={"algorithm": algorithm, **pieces}))
    assert (result.bytes_gradients, result.bytes_parameters) == (3 * 4 * PARAMETERS, 3 * 2 * PARAMETERS)
    assert result.duration == 2 * 6 * MS + 3 * MS + 3 * MS // 2
    scatter, _ = collectives.phases_of(algorithm)
    assert {scatter, "parameters"} <= set(table_of(result.timeline)["kind"])
    assert result.algorithm == algorithm


@pytest.mark.parametrize(("latency", "nics"), [("1 us", 4), ("1 ms", 4), ("1 ms", 1)])
def test_auto_takes_the_algorithm_whose_halves_are_fastest(latency, nics):
    def one(algorithm):
        cluster = {"nodes": 2, "gpus_per_node": 4, "infiniband": {"latency": latency, "nics_per_node": nics}}
        return run(scenario("zero-1", d=8, cluster=cluster, gradients={"algorithm": algorithm, "overlap": False}))

    chosen, each = one("auto"), {name: one(name).duration for name in HALVED}
    assert chosen.duration == each[chosen.algorithm] == min(each.values()) < max(each.values())


@pytest.mark.slow
def test_folded_halves_equal_unfolded_ones_and_keep_the_bound(monkeypatch):
    monkeypatch.setattr(sizes, "FOLDED_FROM", 2)
    reached = Counter()
    for seed in range(40 * TIMES):
        values = scenario_values(rng := Random(seed))
        algorithm = rng.choice(HALVED[:2])
        kept = {"codec", "overlap", "bucket", "bucket_rule", "pad"} | ({"pieces"} if algorithm == HALVED[1] else set())
        values["gradients"] = {key: one for key, one in values["gradients"].items() if key in kept}
        values["gradients"]["algorithm"] = algorithm
        values |= {"sharding": "zero-1", "overlap": {"parameters": rng.random() < 0.5}}
        if (both := both_of(values)) is None:
            continue
        one, whole = both
        ran = whole.run.scenario
        assert least_step(ran, parts_of(ran)) <= whole.run.duration // ran.steps
        if one.run.fold is not None:
            reached[algorithm] += 1
            assert not differences(one, whole), f"seed {seed}"
    assert set(reached) == set(HALVED[:2])


def test_without_overlap_parameters_are_gathered_after_the_optimizer():
    result = run(scenario("zero-1", workload={"optimizer": "4 ms"}))
    gathers = result.timeline.gathers
    assert gathers["start"].tolist() == [16 * MS] * 4  # 12 ms of compute, 3 ms of gradients, 1 ms of a shard's update
    assert waits(result) == [(16 * MS, 16 * MS + 3 * MS // 2)]
    figures = summary(result)
    assert figures["idle_s"]["parameter_gather"] == pytest.approx(1.5e-3)
    assert figures["parameter_communication_s"] == {"exposed": pytest.approx(1.5e-3), "hidden": 0}


def test_gathers_ahead_hide_behind_the_first_forward():
    """Rank 3 of 4 receives its first micro-batch after 6 ms, when its 250,000 parameters are there."""
    result = run(scenario("zero-1", p=4, m=4, ahead=True, workload={"activation": 8}))
    gathers = result.timeline.gathers
    assert set(gathers["start"].tolist()) == {0}
    assert waits(result, rank=0) == [(0, 3 * MS // 2)]
    assert waits(result, rank=15) == []
    figures = summary(result)
    assert figures["parameter_communication_s"]["exposed"] == pytest.approx(1.5e-3 / 4)
    assert figures["parameter_communication_s"]["hidden"] == pytest.approx(1.5e-3 * 3 / 4)


def test_every_step_gathers_ahead_of_its_own_forwards():
    result = run(scenario("zero-1", ahead=True, steps=3))
    assert result.timeline.gathers["step"].tolist().count(2) == 4
    assert result.bytes_parameters == 3 * 3 * 2 * PARAMETERS


def test_zero_2_scatters_after_every_micro_batch():
    waiting, hidden = (run(scenario("zero-2", m=3, gradients={"overlap": overlap})) for overlap in (False, True))
    assert waiting.bytes_gradients == hidden.bytes_gradients == 3 * 3 * 4 * PARAMETERS
    gather = 3 * MS // 2
    assert waiting.duration == 3 * (6 + 3) * MS + gather
    assert hidden.duration == 3 * 6 * MS + 3 * MS + gather
    assert summary(waiting)["gradient_communication_s"] == {"exposed": pytest.approx(9e-3), "hidden": 0}
    found = summary(hidden)["gradient_communication_s"]
    assert found == {"exposed": pytest.approx(3e-3), "hidden": pytest.approx(6e-3)}


def test_in_a_pipeline_zero_2_scatters_once():
    once = run(scenario("zero-2", p=2, m=4))
    assert once.bytes_gradients == 2 * 3 * 4 * PARAMETERS


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("sharding", thinned(SHARDED, slow=["zero-2"]))
@pytest.mark.parametrize("kind", schedules.names())
def test_every_schedule_shards_every_stage_once(kind, sharding, ahead):
    sections = {"schedule": {"chunks": chunks_of(kind)}, "gradients": {"overlap": ahead}}
    result = run(scenario(sharding, kind, p=4, m=8, d=2, ahead=ahead, **sections))
    copies = len(result.plan.paths)
    assert result.bytes_gradients == (2 * copies - 1) * 4 * 4 * PARAMETERS
    assert 2 * result.bytes_parameters == result.bytes_gradients
    rows = result.timeline.gathers
    assert len(rows["rank"]) == 2 * sum(len(result.plan.chunks_of(rank)) for rank in range(4))
    figures = summary(result)
    assert sum(figures["idle_s"].values(), figures["busy_s"]) == figures["step_time_s"]
    assert figures["idle_s"]["pipeline_message"] == 0


def test_ops_wait_for_the_parameters_of_their_own_stage():
    """Interleaved: chunk 1 of rank 0 is stage 2, gathered after stage 0."""
    result = run(scenario("zero-1", "interleaved-1f1b", p=2, m=2, ahead=True, schedule={"chunks": 2}))
    ops = table_of(result.timeline)
    mine = ops[(ops["rank"] == 0) & (ops["kind"] == "F")]
    rows = result.timeline.gathers
    for stage in (0, 2):
        gathered = rows["end"][(rows["rank"] == 0) & (rows["stage"] == stage)]
        assert round(mine[mine["stage"] == stage]["start_s"].min() * 1e12) >= gathered[0]


def test_timeline_and_summary_name_gathers_only_where_there_are_some():
    plain, sharded = run(scenario()), run(scenario("zero-1"))
    kinds = [set(table_of(one.timeline)["kind"]) for one in (plain, sharded)]
    assert kinds[1] - kinds[0] == {"ring-reduce-scatter", "parameters"}
    more = summary(sharded).keys() - summary(plain).keys()
    assert more == {"bytes_parameters", "parameter_communication_s"}


def test_a_workload_divides_bytes_and_the_optimizer_step():
    def held(sharding, **memory):
        return parts_of(scenario(sharding, workload={"optimizer": "4 ms", "memory": memory})).costs

    assert held("none").resident == (16 * PARAMETERS,)
    assert held("zero-1").resident == ((2 + 2 + 3) * PARAMETERS,)
    assert held("zero-2", per_parameter=18).resident == ((2 + 1 + 3) * PARAMETERS,)
    assert held("none").optimizer == (4 * MS,) and held("zero-1").optimizer == (MS,)


def test_full_recomputation_keeps_the_message_only():
    memory = {"activation": "10 MB"}
    plain, full = (
        run(scenario(recompute=recompute, workload={"activation": "1 MB", "memory": memory}))
        for recompute in ("none", "full")
    )
    assert full.duration == plain.duration + 2 * 2 * MS
    assert plain.peak_memory[0] == 16 * PARAMETERS + 10 * 10**6
    assert full.peak_memory[0] == 16 * PARAMETERS + (1 + 10) * 10**6  # one micro-batch is computed again at a time
    many, few = (
        run(scenario(recompute=recompute, p=4, m=8, workload={"activation": "1 MB", "memory": memory}))
        for recompute in ("none", "full")
    )
    assert many.peak_memory[0] - few.peak_memory[0] == (4 * 10 - (4 * 1 + 10)) * 10**6


@pytest.mark.parametrize("sharding", thinned(SHARDED, slow=["zero-2"]))
@pytest.mark.parametrize("kind", [kind for kind in schedules.names() if kind not in ("chimera", "dualpipe")])
def test_every_schedule_shards_on_a_single_rank(kind, sharding):
    sections = {"schedule": {"chunks": chunks_of(kind)}, "gradients": {"overlap": True}}
    result = run(scenario(sharding, kind, p=1, m=4, d=2, ahead=True, **sections))
    scatters = 1 if sharding == "zero-1" else 4
    assert result.bytes_gradients == scatters * 4 * PARAMETERS
    assert result.bytes_parameters == (2 * 4 if sharding == "zero-3" else 1) * 2 * PARAMETERS
    figures = summary(result)
    assert sum(figures["idle_s"].values(), figures["busy_s"]) == figures["step_time_s"]
    assert min(figures["idle_s"].values()) >= 0


def test_a_forward_waits_for_each_bucket_when_it_gets_there():
    """Four buckets of 250,000 parameters under DDP's rule: 0.375 ms each, needed after 0, ¼, ½ and ¾ of 2 ms."""
    gradients = {"bucket": "1 MB", "bucket_rule": "ddp"}
    result = run(scenario("zero-1", ahead=True, gradients=gradients))
    assert waits(result) == [(0, 375 * MS // 1000)]
    slow = run(scenario("zero-1", ahead=True, gradients=gradients, workload={"forward": "1 ms"}))
    eighths = [8 * (end - start) / MS for start, end in waits(slow)]
    assert eighths == [3, 1, 1, 1]
    whole = run(scenario("zero-1", ahead=True, gradients={"bucket": "1 MB"}))
    assert sum(end - start for start, end in waits(whole)) == 1500 * MS // 1000
    assert result.bytes_parameters == whole.bytes_parameters == 3 * 2 * PARAMETERS
