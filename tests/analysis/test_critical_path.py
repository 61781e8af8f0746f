"""Laws of the graph of causes, on random scenarios of every schedule, topology, collective and sharing."""

from collections import Counter
from functools import cache
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import support.scenarios
from support.cause_chains import both_ways
from support.domain_foldings import domain_values
from support.paths import SCENARIOS
from support.tables import from_table
from system.fuzzing.valid import scenario

from hybrid_des import collectives
from hybrid_des.analysis.counterfactual.first_order import first_order
from hybrid_des.analysis.counterfactual.what_if import Variant, builder_of, variant_of
from hybrid_des.analysis.critical_path import paths
from hybrid_des.analysis.critical_path.graph import graph_of, lags_with
from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.paths import count_paths, critical_path
from hybrid_des.analysis.critical_path.rows import released_by
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import change_of, class_spans
from hybrid_des.analysis.critical_path.traced import Traced, traced_run
from hybrid_des.analysis.idle import account
from hybrid_des.analysis.step_times import step_times
from hybrid_des.cluster import topologies
from hybrid_des.cluster.time_table import TimeTable
from hybrid_des.engine import clock, long_rows
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run

# with these, every schedule, topology, collective and sharing; 343 seeds took 20 s
SEEDS = sorted({*range(40), 41, 44, 45} - {1, 25, 26, 33})  # of those four, a collective refuses the groups
SHIPPED = ("llama3.1-8b_8", "vit-l_8", "prototype_4gpu", "contention_slower", "dgx1_cube_mesh", "measured")
TABLE = TimeTable(((1000, 10**7), (10**10, 10**11)))  # bytes and picoseconds


@cache
def traced(case):
    """A traced run with its slack."""
    return Slack.of(graph_of(traced_run(scenario_of(case))))


def scenario_of(case):
    """A random scenario by its seed, a shipped one by its name, or one with all-reduces of measured times."""
    if isinstance(case, int):
        return load(scenario(Random(case)))
    if case != "measured":
        return load(SCENARIOS / f"{case}.yaml")
    measured = {"algorithm": "measured", "table": TABLE, "overlap": True, "bucket": "100 MB"}
    workload = {"forward": "10 ms", "backward": "25 ms", "activation": "50 MB", "parameters": "1e8"}
    return support.scenarios.scenario("1f1b", 4, 8, 2, gradients=measured, workload=workload)


def test_the_scenarios_are_of_everything_there_is():
    seen = {"schedule": set(), "topology": set(), "sharing": set(), "collective": set()}
    for one in (load(scenario(Random(seed))) for seed in SEEDS):
        seen["schedule"].add(one.schedule.kind)
        seen["topology"].add(one.cluster.topology)
        seen["sharing"].add(one.cluster.sharing)
        seen["collective"] |= {one.gradients.algorithm} if one.parallel.data > 1 else set()
    assert seen["schedule"] == set(schedules.names())
    assert seen["topology"] == set(topologies.names())
    assert seen["sharing"] == {"fifo", "fair"}
    assert seen["collective"] == {*collectives.all_reduce_names()} - {
        "measured",
        "nccl",
    }  # which have scenarios of their own


@pytest.fixture(params=[*SEEDS, *SHIPPED])
def slack(request):
    return traced(request.param)


def test_recomputed_times_are_the_recorded_ones(slack):
    graph = slack.graph
    assert (graph.edges.cause < graph.edges.point).all()
    assert (graph.recomputed() == graph.time).all()
    ops, (start, end) = graph.timeline.ops, graph.at_op
    assert (graph.time[start] == ops["start"]).all()
    assert (graph.time[end] == ops["end"]).all()


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@from_table
def test_perturbed_runs_are_recomputed_too(perturbation, sharing):
    more = ["parallel.order=[tensor, data, pipeline]", "schedule.microbatches=8", f"cluster.sharing={sharing}"]
    graph = graph_of(traced_run(load(SCENARIOS / "h100_2x8.yaml", [*more, perturbation])))
    assert (graph.recomputed() == graph.time).all()


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_parts_of_slow_messages_sum_to_their_time(sharing):
    """Times on links that become slower along a route do not fit into 32 bits."""
    cluster = {"nodes": 4, "gpus_per_node": 1, "topology": "leaf-spine", "leaf_size": 2, "oversubscription": 4}
    network = {"infiniband": {"bandwidth": "1 GB/s", "latency": "1 us"}, "sharing": sharing}
    values = {
        "cluster": {**cluster, **network},
        "parallel": {"pipeline": 4},
        "schedule": {"kind": "1f1b", "microbatches": 2},
    }
    graph = graph_of(traced_run(load({**values, "workload": {"forward": 1, "backward": 2, "activation": "8 GB"}})))
    of_messages = graph.edges.activity() >= len(graph.timeline.ops["step"])
    parts = graph.edges.parts()
    assert (sum(parts.values()) == graph.edges.lag())[of_messages].all()
    assert (sharing == "fair" or parts["transfer"].min() < -(2**32)) and graph.edges.lag().max() > 2**32


def test_pieces_of_the_path_tile_the_run(slack):
    path = critical_path(slack.graph)
    assert (path[0].start, path[-1].end) == (0, slack.graph.duration)
    assert all(a.end == b.start for a, b in pairwise(path))
    assert all(piece.end - piece.start == sum(piece[3:]) for piece in path)
    assert count_paths(slack) >= 1


def test_idle_pieces_sum_to_the_idle_time_of_the_summary(slack):
    timeline = slack.graph.timeline
    parts = account(timeline, step_times(timeline))
    busy = parts.pop("busy")
    causes, ranks = Counter(), Counter()
    for piece in IdleTime(slack.graph).pieces():
        causes[piece.cause] += piece.end - piece.start
        ranks[piece.rank] += piece.end - piece.start
    assert {cause: time for cause, time in parts.items() if time} == dict(causes)
    assert sum(ranks.values()) == slack.graph.duration * timeline.layout.ranks - busy
    if not len(timeline.waits["rank"]):
        ops = timeline.ops
        computes = np.bincount(ops["rank"], ops["end"] - ops["start"], minlength=timeline.layout.ranks)
        assert all(ranks[rank] == slack.graph.duration - int(time) for rank, time in enumerate(computes))


@pytest.mark.parametrize("name", ["prototype_12gpu", "h100_2x8"])
def test_a_trace_in_files_gives_the_same_graph(name, monkeypatch):
    scenario = load(SCENARIOS / f"{name}.yaml")
    graph = graph_of(traced_run(scenario))
    monkeypatch.setattr(clock, "BEAT", 16)
    for size, value in (("KEPT", 50), ("BLOCK", 16)):
        monkeypatch.setattr(long_rows, size, value)
    run = traced_run(scenario)
    assert run.trace.points.in_file and run.trace.sends.in_file and run.trace.rows.in_file
    again = graph_of(run)
    for column in ("cause", "point", "sort", "owner"):
        assert np.array_equal(getattr(graph.edges, column), getattr(again.edges, column))
    assert np.array_equal(graph.time, again.time)


def test_chains_are_those_walked_edge_by_edge(slack, monkeypatch):
    monkeypatch.setattr(paths, "TOGETHER", 3)
    found, walked = both_ways(IdleTime(slack.graph), 0, every=10)
    assert found == walked


@pytest.mark.parametrize("seed", [1007, 1008])  # where a rank waits until a step ends, and all others for the next one
def test_waits_of_one_point_share_a_chain(seed):
    idle = IdleTime(graph_of(traced_run(scenario_from(domain_values(Random(seed))))))
    assert len(np.unique(idle._waits["point"])) < len(idle._firsts)
    found, walked = both_ways(idle, 0, every=1)
    assert found == walked


def test_total_float_is_at_least_free_float(slack):
    assert (slack.free_of_ops >= 0).all()
    assert (slack.free_of_messages >= 0).all()
    assert (slack.of_ops >= slack.free_of_ops).all()
    assert (slack.of_messages >= slack.free_of_messages).all()


def test_drag_is_what_an_op_without_duration_saves(slack):
    graph = slack.graph
    drag = slack.drag_of_ops
    ops = graph.timeline.ops
    assert (drag <= ops["end"] - ops["start"]).all()
    pieces = Counter(graph.edges.rows.value.tolist())
    for op in [op for op in np.argsort(-drag, kind="stable").tolist() if pieces[op] == 1][:4]:
        without = graph.recomputed(np.where(graph.edges.activity() == op, 0, graph.edges.lag()))
        assert without[-1] == graph.duration - drag[op]


def test_an_op_may_be_late_by_its_total_float(slack):
    graph = slack.graph
    for op in np.argsort(-slack.of_ops, kind="stable").tolist()[:3]:
        edges = np.flatnonzero(graph.edges.activity() == op)
        if len(edges):
            late = graph.edges.lag()
            late[edges[0]] += slack.of_ops[op]
            assert graph.recomputed(late)[-1] == graph.duration
            late[edges[0]] += 1
            assert graph.recomputed(late)[-1] == graph.duration + 1


def test_classes_bound_what_scaling_them_does(slack):
    graph, edges = slack.graph, slack.critical
    for name, span in class_spans(slack).items():
        assert 0 <= span.least <= span.most <= graph.duration, name
    computes = (graph.edges.activity() >= 0) & (graph.edges.activity() < len(graph.timeline.ops["step"]))
    for kind in np.unique(graph.timeline.op_rows()["kind"]).tolist():
        mine = computes & (graph.timeline.op_rows()["kind"][np.where(computes, graph.edges.activity(), 0)] == kind)
        for factor in (2, 3):
            slower, quicker = (
                graph.edges.lag() * np.where(mine, factor, 1),
                np.where(mine, graph.edges.lag() // factor, graph.edges.lag()),
            )
            assert graph.recomputed(slower)[-1] >= graph.duration + change_of(slack, slower[edges])
            assert graph.recomputed(quicker)[-1] >= graph.duration + change_of(slack, quicker[edges])
    assert len(edges)


def test_unchanged_ops_and_messages_have_the_lags_of_the_run(slack):
    graph, ops = slack.graph, len(slack.graph.timeline.ops["step"])
    duration = np.zeros(ops, dtype=np.int64)
    pieces = graph.edges.rows.edges
    np.add.at(duration, graph.edges.activity()[pieces], graph.edges.lag()[pieces])
    lags = lags_with(graph, np.arange(len(graph.edges)), graph.messages, duration)
    assert (lags == graph.edges.lag()).all()


def test_what_released_an_op_ends_before_it_starts(slack):
    graph = slack.graph
    ops = graph.timeline.ops
    releaser = released_by(graph)[: len(ops["start"])]
    by_op = (releaser >= 0) & (releaser < len(ops["start"]))
    assert (ops["end"][releaser[by_op]] <= ops["start"][by_op]).all() or len(graph.timeline.waits["rank"])
    first = ops["start"] == 0
    assert (releaser[first & (ops["end"] > 0)] == -1).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_tracing_changes_nothing(seed):
    plain, timeline = run(load(scenario(Random(seed)))).timeline, traced(seed).graph.timeline
    for table in ("ops", "messages", "steps", "reductions", "memory"):
        for name, column in getattr(plain, table).items():
            assert (column == getattr(timeline, table)[name]).all()


@pytest.mark.parametrize("seed", SEEDS[:7])
def test_a_simulated_what_if_is_the_changed_scenario(seed):
    one = load(scenario(Random(seed)))
    change = "workload.forward=3x"
    found = variant_of(change, Variant(one), builder_of(one)).simulated()
    values = scenario(Random(seed))
    changed = values | {"workload": values["workload"] | {"forward": thrice(values["workload"]["forward"])}}
    assert found.duration == run(load(changed)).duration


def thrice(value):
    """A time, or a list of times, three times as long."""
    if isinstance(value, list):
        return [thrice(one) for one in value]
    number, unit = value.split()
    return f"{3 * float(number):g} {unit}"


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_training_takes_no_time_and_is_left_out(codec):
    one = load(SCENARIOS / "prototype_12gpu_training.yaml", ["steps=2", f"gradients.codec={codec}"])
    traced = traced_run(one)
    assert traced.numerics is None
    assert traced.duration == Variant(one).simulated().duration == run(one).duration


@pytest.mark.parametrize(("optimizer", "other", "first"), [("1 ms", 0, 8), (0, "1 ms", None), ("1 ms", "3 ms", 11)])
def test_a_what_if_may_take_the_optimizer_away(optimizer, other, first):
    """An op that is new has no place in the order of the run."""
    times = {"forward": "1 ms", "backward": "1 ms", "optimizer": optimizer}
    base = traced_run(support.scenarios.scenario("1f1b", 1, 4, workload=times))
    change = variant_of(f"workload.optimizer={other}", Variant.of(base), builder_of(base.scenario))
    assert first_order(Traced(base), change) == (None if first is None else first * 10**9)
