"""Ties: which of several messages that reach a link at the same time is served first, and what depends on it."""

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from support.campaigns import thinned
from support.domain_foldings import domain_values
from support.folded_causes import KINDS
from support.foldings import tied_values
from support.paths import SCENARIOS
from support.scenarios import shared_nics

from hybrid_des.analysis import ties
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.explanation import explain
from hybrid_des.analysis.table import table
from hybrid_des.analysis.ties import ties_of
from hybrid_des.errors import HybridDesError
from hybrid_des.report.explained import render_explanation
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts import attempts
from hybrid_des.shortcuts.run import run

MAY_MOVE = ("contention_slower", "contention_faster")
SMALL = (*MAY_MOVE, "a100_8x", "dgx1_cube_mesh", "h100_2x8", "llama3.1-8b_8", "prototype_12gpu", "resnet50_4stages",
         "slow_gpu_h100_2x8")  # fmt: skip
DRAWN = {"domain": domain_values, "tied": tied_values, **KINDS}
ORDERS, MOST, EACH = 5, 4000, 12
# seeds of runs in which messages of several senders meet
PROVEN = [("domain", 47), ("domain", 140), ("domain", 197), ("tied", 13), ("tied", 53), ("switches", 88)]
CASES = [*PROVEN, *((kind, campaign) for kind in DRAWN for campaign in range(1000, 1000 + 2 * EACH, EACH))]
MOVED = (25, 30, 34)  # seeds of ties that matter


def ends(scenario, orders):
    return {run(scenario).duration, *(run(scenario, order=order).duration for order in range(orders))}


def test_contention_slower_takes_one_of_three_times():
    found = ends(load(SCENARIOS / "contention_slower.yaml"), 12)
    assert [round(end / 1e9, 1) for end in sorted(found)] == [375.9, 377.8, 403.8]


@pytest.mark.parametrize("name", SMALL)
def test_only_these_shipped_scenarios_depend_on_ties(name):
    found = ends(load(SCENARIOS / f"{name}.yaml"), 3)
    assert (len(found) > 1) == (name in MAY_MOVE)


@pytest.mark.parametrize("name", SMALL)
def test_a_run_says_itself_whether_ties_matter(name):
    found = ties_of(traced_run(load(SCENARIOS / f"{name}.yaml")))
    assert (found is not None) == (name in MAY_MOVE)


def test_fair_links_have_no_ties():
    one = load(SCENARIOS / "contention_slower.yaml", ["cluster.sharing=fair"])
    assert len(ends(one, 4)) == 1
    assert ties_of(traced_run(one)) is None


def test_orders_of_many_events_are_left_to_spread(monkeypatch):
    scenario = load(SCENARIOS / "contention_slower.yaml")
    assert ties.why_untried(traced_run(scenario)) == ""
    monkeypatch.setattr(ties, "MOST_EVENTS", 1000)
    monkeypatch.setattr(ties, "_end_in_order", None)  # no order is simulated
    found = explain(scenario)
    assert found.ties is None is found.to_mapping()["ties"]
    assert found.to_mapping()["ties_not_tried"].startswith("2 other orders of all ranks are about ")
    assert "Arrival order  not tried: 2 other orders" in render_explanation(found, 200, details=True)
    assert ties.why_untried(traced_run(load(scenario, ["cluster.sharing=fair"]))) == ""  # no order matters


def test_ties_hold_the_run_and_its_other_orders():
    base = traced_run(load(SCENARIOS / "contention_slower.yaml"))
    found = ties_of(base)
    assert found.least <= base.duration <= found.most
    assert {base.duration, *found.others} == ends(base.scenario, len(found.others))


def test_results_are_by_rank_in_any_order():
    one = shared_nics()
    shuffled = run(one, order=1)
    assert list(shuffled.ranks) == list(range(one.parallel.ranks))
    assert shuffled.peak_memory == run(one).peak_memory


def rows_of(run):
    """Everything that happened, whatever the order in which it was recorded."""
    rows = table(run.timeline)
    return rows.sort_values(list(rows.columns)).reset_index(drop=True)


def folded(kind, seed):
    """A random run that folds, with the order of all events traced; None if it does not fold, or is large."""
    with suppress(HybridDesError):
        scenario = scenario_from(DRAWN[kind](Random(seed))).model_copy(update={"record": "all", "on_oom": "warn"})
        if scenario.cluster.sharing == "fifo":
            found = run(scenario, fold_from=2)
            return found if found.fold is not None and found.events * found.fold.order <= MOST else None
    return None


def in_any_order(found):
    return [run(found.scenario, order=order) for order in range(ORDERS)]


@pytest.fixture
def _traced(monkeypatch):
    monkeypatch.setattr(attempts, "MOST_CHANNELS", 0)


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize(("kind", "first"), thinned(CASES, slow=CASES[len(PROVEN) :]))
def test_where_no_order_matters_all_give_the_same_run(kind, first):
    """A folded run says so, also where messages of several senders tie."""
    known = (kind, first) in PROVEN
    runs = [folded(kind, seed) for seed in range(first, first + (1 if known else EACH))]
    proven = [found for found in runs if found is not None and found.any_order]
    assert proven or not known
    for found in proven:
        others = in_any_order(found)
        assert not known or ties._has_ties(others[0])
        assert {other.duration for other in others} == {found.duration}
        one, *rest = map(rows_of, others)
        assert all(rows.equals(one) for rows in rest)


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("seed", MOVED)
def test_folded_runs_that_depend_on_an_order_say_so(seed):
    found = folded("tied", seed)
    assert {other.duration for other in in_any_order(found)} != {found.duration}
    assert not found.any_order


@pytest.mark.usefixtures("_traced")
def test_ties_that_cannot_matter_are_not_tried(monkeypatch):
    """It follows from times, or from one rank's program, which of the messages that meet is first."""
    base = traced_run(folded("domain", 47).scenario, fold_from=2)
    unknown = replace(base, any_order=False)
    assert base.any_order
    assert ties.tie_tasks(base) == []
    assert len(ties.tie_tasks(unknown)) > 1
    monkeypatch.setattr(ties, "MOST_EVENTS", 0)
    assert ties.why_untried(base) == ""
    assert ties.why_untried(unknown)
