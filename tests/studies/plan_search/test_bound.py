"""Bounds: no simulation undercuts them, and a bound that is wrong is found out."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from support import scenarios, spaces
from support.campaigns import TIMES, thinned
from system.fuzzing import valid

from hybrid_des import collectives
from hybrid_des.analysis.metrics import summary
from hybrid_des.analysis.step_times import step_times
from hybrid_des.cluster import topologies
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.cheapest_times import CheapestTimes, inside_ops
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.errors import HybridDesError, Refusal
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import PlanRequest
from hybrid_des.planning.lowering import planned_peaks
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.plan_search import bound
from hybrid_des.studies.plan_search.bound import least_step
from hybrid_des.studies.plan_search.least_times import _stages_per_rank, first_bound

BATCHES = 3 * TIMES  # of random scenarios


def taken(result):
    """Picoseconds of a step, on average."""
    return Fraction(step_times(result.timeline).total, result.scenario.steps)


def inside_of(scenario, parts):
    """The least times of collectives inside ops."""
    return inside_ops(parts.fabric, scenario.cluster.sharing, scenario.parallel.layout.shared)


def violations(values):
    """What of a scenario is below its bound."""
    scenario = scenario_from(values)
    try:
        parts = parts_of(scenario)
        ranks = costs_per_rank(CostBasis.of(scenario), parts.times)
        first, priced = first_bound(scenario, ranks), first_bound(scenario, ranks, inside_of(scenario, parts))
        result = run(scenario)
    except HybridDesError:
        return None  # an algorithm refuses these sizes
    held = summary(result)["peak_memory_bytes"]
    planned = planned_peaks(parts.plan, parts.costs)
    return [
        name
        for name, wrong in {
            "step": least_step(scenario, parts) > taken(result),
            "first": first.time > taken(result),
            "priced": not first.time <= priced.time <= taken(result),
            "memory at first": any(least > most for least, most in zip(first.held, held, strict=bool(first.held))),
            "planned memory": planned != held,
        }.items()
        if wrong
    ]


@pytest.mark.parametrize("batch", thinned(range(BATCHES), slow=range(1, BATCHES)))
def test_no_random_scenario_undercuts_its_bounds(batch):
    found = [violations(valid.scenario(Random(seed))) for seed in range(40 * batch, 40 * batch + 40)]
    assert sum(one is not None for one in found) > 30
    assert not any(found)


@pytest.mark.parametrize("batch", thinned(range(2 * BATCHES), slow=range(1, 2 * BATCHES)))
def test_no_random_model_undercuts_its_bounds(batch):
    found = [violations(spaces.random_model(Random(seed))) for seed in range(10 * batch, 10 * batch + 10)]
    assert sum(one is not None for one in found) > 5
    assert not any(found)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", schedules.names())
def test_no_schedule_undercuts_its_bounds(kind, overlap):
    chunks = {"chunks": 2} if schedules.find(kind).facts["many_chunks"] else {}
    values = scenarios.values(
        kind, 4, 8, 2,
        cluster={"gpus_per_node": 4, "nodes": 2, "infiniband": {"bandwidth": "1 GB/s"}},
        schedule=chunks,
        workload={"activation": "1 MB", "parameters": 1e6, "optimizer": "1 ms"},
        gradients={"overlap": overlap, "bucket": "1 MB"},
    )  # fmt: skip
    assert violations(values) == []


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize(
    "topology", thinned([name for name in topologies.names() if name != "links"], slow=["direct", "rails"])
)
@pytest.mark.parametrize("algorithm", [name for name in collectives.algorithms() if name != "measured"])
def test_no_collective_undercuts_its_bounds_on_any_wiring(algorithm, topology, sharing):
    slow = {"bandwidth": "1 GB/s", "latency": "5 us"}
    nics = {"infiniband": {**slow, "nics_per_node": 4}, **({} if topology == "pcie" else {"nvlink": slow})}
    values = scenarios.values(
        "1f1b", 2, 4, 4,
        cluster={"gpus_per_node": 4, "nodes": 2, "topology": topology, "sharing": sharing, **nics},
        workload={"activation": "1 MB", "parameters": 1e6},
        gradients={"algorithm": algorithm},
    )  # fmt: skip
    assert not violations(values)


def test_a_rank_updates_after_its_own_reduction():
    """The first rank reduces for long and updates quickly, the second reduces nothing and updates for long."""
    values = scenarios.values(
        "1f1b", 2, 2, 2,
        cluster={
            "nodes": [{"count": 1}, {"count": 1, "speed": 0.1}], "gpus_per_node": 2, "nvlink": {"bandwidth": "1 GB/s"},
        },
        parallel={"order": ["tensor", "data", "pipeline"]},
        workload={"per": "rank", "parameters": [5e8, 1000], "optimizer": "100 ms"},
    )  # fmt: skip
    scenario = scenario_from(values)
    step = taken(run(scenario))
    assert 0.99 * step < least_step(scenario, parts_of(scenario)) <= step


def test_the_generated_scenarios_meet_all_schedules_and_wirings():
    drawn = [valid.scenario(Random(seed)) for seed in range(40 * BATCHES)]
    assert {one["schedule"]["kind"] for one in drawn} == set(schedules.names())
    assert {one["cluster"]["topology"] for one in drawn} == set(topologies.names())


@pytest.mark.parametrize("kind", schedules.names())
def test_stages_grow_with_the_ranks_of_every_schedule(kind):
    many = schedules.find(kind).facts["many_chunks"] or schedules.find(kind).facts["chunks"] is not None
    compared = 0
    for chunks in (1, 2, 4) if many else (1,):
        for pipeline in (2, 4, 8):
            try:
                plan = schedules.make_plan(kind, PlanRequest(pipeline, 2 * pipeline, chunks))
            except Refusal:
                continue  # this schedule has as many chunks as it says
            assert plan.stages == pipeline * _stages_per_rank(kind, None, chunks)
            compared += 1
    assert compared >= 3


def test_a_measured_collective_takes_at_least_what_its_table_says(write):
    table = write("bytes,time_us\n1000,5000\n4000000,9000\n", "table.csv")
    values = scenarios.values(
        "1f1b", 1, 1, 2, workload={"parameters": 1e6}, gradients={"algorithm": "measured", "table": str(table)}
    )
    scenario = scenario_from(values)
    assert least_step(scenario, parts_of(scenario)) == taken(run(scenario)) == 12 * 10**9


def test_without_contention_the_bound_is_the_time():
    cable = {"bandwidth": "inf", "latency": "100 us"}  # on which nothing waits
    for kind in ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b"):
        chunks = {"chunks": 2} if kind == "interleaved-1f1b" else {}
        scenario = scenarios.scenario(
            kind, 4, 8, schedule=chunks, cluster={"nvlink": cable}, workload={"activation": "1 MB"}
        )
        assert least_step(scenario, parts_of(scenario)) == taken(run(scenario))


@pytest.mark.parametrize("mode", ["replay", "messages"])
@pytest.mark.parametrize("speed", [0.5, 2])
def test_collectives_are_bounded_at_any_speed_of_the_gpus(speed, mode):
    """Tensor ranks that wait for each other nearly always: half as fast, the step is hardly longer."""
    slow = {"bandwidth": "100 MB/s", "latency": "5 us"}
    values = spaces.of_model(
        cluster={"gpu": spaces.CUSTOM, "nodes": [{"speed": speed}], "gpus_per_node": 4, "nvlink": slow},
        parallel={"tensor": 4}, tensor_traffic=mode,
    )  # fmt: skip
    assert violations(values) == []
    scenario = scenario_from(values)
    parts = parts_of(scenario)
    priced = first_bound(scenario, costs_per_rank(CostBasis.of(scenario), parts.times), inside_of(scenario, parts))
    assert priced.time > 0.5 * taken(run(scenario))


def caught(monkeypatch, planted):
    """How often bounds are found to be wrong while one of their parts is another."""
    planted(monkeypatch)
    found = [violations(valid.scenario(Random(seed))) for seed in range(40)]
    return Counter(name for one in found if one for name in one)


@pytest.mark.slow
def test_a_bound_that_counts_messages_twice_is_caught(monkeypatch):
    honest = CheapestTimes._message

    def planted(patch):
        patch.setattr(CheapestTimes, "_message", lambda self, *ends: 2 * honest(self, *ends))

    assert caught(monkeypatch, planted)["step"]


def test_a_bound_that_forgets_overlap_is_caught(monkeypatch):
    honest = bound.IdleWalk.__init__

    def late(self, scenario, parts, *more, **how):
        honest(self, scenario, replace(parts, programs=replace(parts.lowering, overlap=False)), *more, **how)

    def planted(patch):
        patch.setattr(bound.IdleWalk, "__init__", late)

    assert caught(monkeypatch, planted)["step"]
