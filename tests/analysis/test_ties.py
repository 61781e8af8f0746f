"""Ties: which of several messages that reach a link at the same time is served first, and what depends on it."""

import pytest
from support.paths import SCENARIOS
from support.scenarios import shared_nics

from hybrid_des.analysis import ties
from hybrid_des.analysis.critical_path.traced import traced_run
from hybrid_des.analysis.explanation import explain
from hybrid_des.analysis.ties import in_orders, ties_of
from hybrid_des.report.explained import render_explanation
from hybrid_des.scenario.loading import load
from hybrid_des.simulation.run import run

MAY_MOVE = ("contention_slower", "contention_faster")
SMALL = (*MAY_MOVE, "a100_8x", "dgx1_cube_mesh", "h100_2x8", "llama3.1-8b_8", "prototype_12gpu", "resnet50_4stages",
         "slow_gpu_h100_2x8")  # fmt: skip


def ends(scenario, orders):
    return {run(scenario).duration, *in_orders(scenario, range(orders))}


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
    assert "Ties      not tried: 2 other orders" in render_explanation(found, 200)
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
