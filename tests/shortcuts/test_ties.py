"""Only runs in which messages reach a link in the same moment trace what their order descends from."""

from contextlib import nullcontext
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import yaml
from support.fabrics import build, node, star
from support.foldings import scenario_values
from support.paths import SCENARIOS, TESTS
from support.scenarios import merged

from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding import folded_transport
from hybrid_des.folding.refusals import TieError
from hybrid_des.folding.symmetry import Fold
from hybrid_des.layout import Layout
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts import attempts
from hybrid_des.shortcuts.attempts import MOST_CHANNELS, Refusals, of_fold
from hybrid_des.shortcuts.folds import Replicas, folds_of
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation import run as plain

GIVEN = yaml.safe_load((TESTS / "folding" / "refusals.yaml").read_text(encoding="utf-8"))
SIXTEEN, TIE = GIVEN["base"], GIVEN["tie"]
FEWEST = 2  # ranks from which runs are folded here
SEEDS = (0, 3, 8, 11, 14, 23, 31, 44)


@pytest.fixture
def traced(monkeypatch):
    """The networks made in which orders are traced."""
    made = []

    class Counted(folded_transport.LineageEnvironment):
        def __init__(self, roots):
            made.append(roots)
            super().__init__(roots)

    monkeypatch.setattr(folded_transport, "LineageEnvironment", Counted)
    return made


def rows_of(run):
    """All that a run records, and its number of events."""
    tables = {name: vars(run.timeline)[name] for name in ("ops", "messages", "steps", "reductions", "memory", "waits")}
    return run.duration, run.events, run.fold and run.fold.folded_axes, run.unfolded, run.peak_memory, tables


def same(this, other):
    """Whether two runs are equal, rows included."""
    (*mine, tables), (*its, others) = rows_of(this), rows_of(other)
    pairs = [(tables[name][key], others[name][key]) for name in tables for key in tables[name]]
    return mine == its and all(np.array_equal(one, another) for one, another in pairs)


@pytest.mark.parametrize("later", [0, 1])
def test_messages_that_reach_a_further_link_together_tie(later):
    """From ranks 0 and 1, over links of their own, to the port of rank 4."""
    fabric, every_rank = build("links", node(8), links=star(8)), Fold(Layout({"data": 8}, ["data"]), [])
    transport = folded_transport.folded_transport(fabric, "fifo", Recorder(), every_rank, watched=True)
    for sender in (0, 1):
        flow, _ = transport.flow(Channel(sender, 4, REDUCTION, "ring", 0, 0))
        transport.env.at(7 + later * sender, (lambda _, flow=flow: flow.send(Message(8)),))
    with nullcontext() if later else pytest.raises(TieError):
        transport.env.run()


def test_where_nothing_ties_no_order_is_traced(traced):
    assert run(load(SCENARIOS / "h100_2x8.yaml"), fold_from=FEWEST).fold is not None
    assert not traced


def test_a_tied_plan_is_watched_once(traced, monkeypatch):
    scenario, starts, start = scenario_from(merged(SIXTEEN, TIE)), [], plain.started
    monkeypatch.setattr(plain, "started", lambda *given: starts.append(given) or start(*given))
    parts = parts_of(scenario)
    first = run(scenario, parts=parts, fold_from=FEWEST)
    tried = len(starts)
    assert same(run(scenario, parts=parts, fold_from=FEWEST), first)
    assert len(starts) - tried == tried - 1
    assert traced


def test_many_rings_are_expected_to_meet():
    scenario = scenario_from(SIXTEEN)
    parts = parts_of(scenario)
    fold = next(folds_of(Replicas(scenario, parts, None, FEWEST), []))
    for channels in (MOST_CHANNELS, MOST_CHANNELS + 1):
        refusals = Refusals()
        of_fold(fold, Replicas(scenario, replace(parts, channels=channels)), refusals, by_messages=True).__next__()
        assert refusals.tied == (channels > MOST_CHANNELS)


@pytest.mark.parametrize("seed", SEEDS)
def test_watched_runs_are_those_with_orders_traced(seed, monkeypatch):
    scenario = scenario_from(scenario_values(Random(seed))).model_copy(update={"record": "all"})
    watched, causes = run(scenario, fold_from=FEWEST), traced_run(scenario, fold_from=FEWEST)
    monkeypatch.setattr(attempts, "MOST_CHANNELS", 0)
    assert same(watched, run(scenario, fold_from=FEWEST))
    again = traced_run(scenario, fold_from=FEWEST)
    assert same(causes, again)
    for name, table in causes.trace.columns().items():
        assert all(np.array_equal(column, again.trace.columns()[name][key]) for key, column in table.items())
