"""Ends of runs whose ops take other times, found from the causes of a run: those of simulations, or none."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from support.folded_causes import KINDS
from support.scenarios import scenario

from hybrid_des.analysis import explanation
from hybrid_des.analysis.counterfactual.retimed_tasks import OfRetimed
from hybrid_des.analysis.counterfactual.retiming import Retiming, may_be_found
from hybrid_des.analysis.counterfactual.what_if import Part, Variant, at_the_mean, part_at
from hybrid_des.analysis.critical_path.retimed import Nodes, Waits
from hybrid_des.analysis.critical_path.traced import Traced, traced_run
from hybrid_des.analysis.tasks import in_turn
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import scenario_from

HALF, MORE = Fraction(1, 2), Fraction(3, 2)
NO_WAITS = Waits(*(np.empty(0, dtype=np.int64),) * 3)
LAYERS = {
    "cluster": {"gpu": "h100", "nodes": 1},
    "model": {"base": "llama3.1-8b", "layers": 2, "sequence": 256},
    "parallel": {"data": 8},
    "schedule": {"kind": "1f1b", "microbatches": 2},
    "gradients": {"overlap": False},
}
WHOLE = 10**9  # ranks from which a run is folded
MANY = [(kind, block) for kind in KINDS for block in range(2)]


def traced(kind, seed, fold_from=2):
    """A random scenario, traced; None if it is impossible."""
    try:
        return Traced(traced_run(scenario_from(KINDS[kind](Random(seed))), fold_from=fold_from))
    except HybridDesError:
        return None


def kind_of_op(base, kind, factor):
    return Part("kind", kind, (kind,)).scaled(Variant.of(base.run), factor)


def changes(base, rng):
    """Changes of all ops of a kind, of a pipeline rank and of one rank, and some at the mean."""
    at, factor = Variant.of(base.run), Fraction(rng.randint(1, 300), 100)
    layout = base.run.timeline.layout
    place, rank = rng.randrange(layout.sizes["pipeline"]), rng.randrange(layout.ranks)
    yield from (kind_of_op(base, kind, factor) for kind in "FB")
    yield part_at(at, place).scaled(at, factor)
    yield at.with_retime(at_the_mean(at, part_at(at, place).members))
    yield Part("rank", str(rank), (rank,)).scaled(at, factor)


def compared(kind, seeds):
    """How many ends were found and how many not, with those that differ from simulations."""
    found, left, wrong = 0, 0, []
    for seed in seeds:
        base = traced(kind, seed, fold_from=(2, WHOLE)[seed % 2])
        if base is None:
            continue
        variants = [*changes(base, Random(seed))]
        for number, (end, variant) in enumerate(zip(Retiming(base).ends(variants), variants, strict=True)):
            found, left = found + (end is not None), left + (end is None)
            if end is not None and end != variant.duration:
                wrong.append((seed, number, end, variant.duration))
    return found, left, wrong


@pytest.mark.parametrize("kind", ["folding", "small", "switches"])
def test_ends_are_those_of_simulations(kind):
    found, _, wrong = compared(kind, range(5))
    assert found > 3
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "block"), MANY)
def test_many_ends_are_those_of_simulations(kind, block):
    found, left, wrong = compared(kind, range(100 + 12 * block, 112 + 12 * block))
    assert found + left > 0
    assert wrong == []


def test_every_op_ends_as_in_a_simulation():
    base = Traced(traced_run(scenario(p=3, d=4, workload={"parameters": 1e6}, steps=2), fold_from=2))
    retiming, variant = Retiming(base), kind_of_op(base, "F", HALF)
    times = retiming.nodes.times(retiming.durations(variant)[:, None], NO_WAITS)
    found = retiming.nodes.at(times, base.slack.graph.at_op[1])[:, 0]
    assert retiming.ends([variant]) != [None]
    simulated = variant.simulated()
    assert rows(base.run, found) == rows(simulated, simulated.timeline.ops["end"])


def rows(simulated, ends):
    ops = simulated.timeline.ops
    return sorted(zip(*(column.tolist() for column in (ops["step"], ops["rank"], ops["index"], ends)), strict=True))


def test_nodes_have_the_times_of_points_one_by_one():
    graph = traced("switches", 1002).slack.graph
    nodes = Nodes.of(graph, np.empty(0, dtype=np.int64))
    lags = graph.edges.lag()
    lags[graph.pieces] = np.random.default_rng(1).integers(1, 10**9, len(graph.pieces))
    times = nodes.times(lags[graph.pieces][:, None], NO_WAITS)
    assert (nodes.at(times, np.arange(len(graph.time)))[:, 0] == graph.recomputed(lags)).all()


def test_messages_that_change_places_at_a_link_wait_for_others():
    base = traced("small", 9, WHOLE)
    variant = kind_of_op(base, "B", HALF)
    assert Retiming(base).ends([variant]) == [20672660656] == [variant.duration]  # 22255993989 in the run's order


@pytest.mark.parametrize(
    ("kind", "seed", "op"),
    [("folding", 18, "B"), ("folding", 162, "B")],
    ids=["ever more messages change places", "messages meet whose order is not certain"],
)
def test_an_unknown_order_is_left_to_simulations(kind, seed, op):
    base = traced(kind, seed)
    assert Retiming(base).ends([kind_of_op(base, op, HALF if seed == 18 else MORE)]) == [None]


def test_a_change_of_a_rank_is_not_its_images():
    base = traced("folding", 6)
    assert base.run.fold is not None
    assert Retiming(base).ends([Part("rank", "0", (0,)).scaled(Variant.of(base.run), HALF)]) == [None]


def test_ops_without_time_are_left_to_simulations():
    base = traced("folding", 6)
    assert Retiming(base).ends([kind_of_op(base, "F", Fraction(0))]) == [None]


@pytest.mark.parametrize(
    "section",
    [
        {"cluster": {"sharing": "fair"}},
        {"jitter": {"distribution": "lognormal", "sigma": 0.2, "level": "rank-step"}},
        {"slow": [{"gpu": 0, "factor": 0.5}]},
        {"schedule": {"p2p": "blocking"}},
    ],
)
def test_other_decisions_of_the_clock_are_left_to_simulations(section):
    base = Traced(traced_run(scenario(p=2, **section)))
    assert not may_be_found(base.run)
    assert Retiming(base).ends([kind_of_op(base, "F", HALF)]) == [None]


def test_computation_beside_reductions_is_left_to_simulations():
    base = Traced(traced_run(scenario_from(LAYERS)))
    retiming, variant = Retiming(base), kind_of_op(base, "B", HALF)
    assert retiming.ends([variant]) == [variant.duration]
    begin, end = base.slack.graph.at_op
    retiming.__dict__["_beside"] = [(begin, end, begin, end)]  # as if gradients were reduced meanwhile
    assert retiming.ends([variant]) == [None]


def test_a_run_that_reductions_slow_is_left_to_simulations():
    two = {
        "parallel": {"pipeline": 2, "data": 2},
        "schedule": {"kind": "interleaved-1f1b", "chunks": 2, "microbatches": 2},
    }
    model = {**LAYERS["model"], "layers": 4}
    run = traced_run(scenario_from({**LAYERS, **two, "model": model, "gradients": {"overlap": True}}))
    assert run.slowed > 0
    assert not Retiming(Traced(run)).known


def test_explanations_simulate_no_change_that_they_know(monkeypatch):
    simulated = []
    of = OfRetimed.__call__
    monkeypatch.setattr(OfRetimed, "__call__", lambda task: simulated.append(task) or of(task))
    explanation.explain(scenario(p=4, m=8, gradients={"overlap": False}, workload={"forward": [1, 2, 1, 1]}))
    assert simulated == []


def test_tasks_keep_their_order_whoever_does_them():
    base = traced("folding", 6)
    known, unknown = kind_of_op(base, "F", HALF), kind_of_op(base, "F", Fraction(0))
    groups = [[lambda: "first", OfRetimed(lambda: [known], str)], [OfRetimed(lambda: [unknown], str), lambda: "last"]]
    expected = [["first", str(known.duration)], [str(unknown.duration), "last"]]
    assert Retiming(base).grouped(groups, in_turn) == expected
