"""Searches that save money: the bill of the best plan, and the frontier of days against money."""

import json

import pytest
from support import spaces

from hybrid_des.errors import ScenarioError
from hybrid_des.studies.goodput.states import Steps
from hybrid_des.studies.goodput.summary import goodput_columns
from hybrid_des.studies.plan_search.best_plan import search, write
from hybrid_des.studies.plan_search.branch import SIMULATED

BILL = {"price": {"gpu_hour": "3.6 EUR"}, "train": {"steps": 10**6}}
KINDS = {"schedule.kind": ["gpipe", "1f1b", "zb-h1"]}
SIZES = [{"cluster.nodes": [1, 2, 4]}, "parallel", KINDS, {"sharding": ["none"]}]
FAULTS = {
    "horizon": "20 min", "replications": 2, "classes": [{"what": "node", "mtbf": "40 min"}], "detect": "1 s",
    "restart": {"time": "30 s"}, "spares": {"nodes": 1, "swap": 0, "repair": "1 min"},
    "checkpoint": {"every": "2 min", "cost": "5 s"},
}  # fmt: skip


def cheapest(gpus=4, sections=BILL, **block):
    block = {"objective": "cost", "axes": [KINDS, {"sharding": ["none"]}], **block}
    return search({**spaces.of_workload(gpus), **sections, "search": block})


def test_the_cost_of_a_plan_is_hours_times_the_price():
    found = cheapest(top=3)
    for one in found.ranked:
        seconds = 10**6 * one.row["step_time_s"]  # on four GPUs at 0.001 EUR a second
        assert one.least == pytest.approx(4 * seconds / 1000) == one.row["bill"]["cost"]
        assert one.against == pytest.approx(seconds / 86400) == one.row["bill"]["days"]


def test_every_size_of_the_cluster_has_plans_of_its_own():
    found = cheapest(axes=SIZES, top=1)
    for one in found.candidates:
        assert one.case["parallel.pipeline"] * one.case["parallel.data"] == 4 * one.case["cluster.nodes"]
    assert {one.case["cluster.nodes"] for one in found.frontier()} == {1, 2, 4}


@pytest.mark.slow
def test_the_frontier_is_that_of_all_plans():
    found, everything = cheapest(axes=SIZES, top=1), cheapest(axes=SIZES, top=1000)
    assert found.counts[SIMULATED] < everything.counts[SIMULATED]
    figures = [[(one.least, one.against) for one in result.frontier()] for result in (found, everything)]
    assert figures[0] == figures[1]
    money, days = zip(*figures[0], strict=True)
    assert list(money) == sorted(money)
    assert list(days) == sorted(days, reverse=True)


def test_with_failures_money_is_that_of_wall_time_and_spares():
    found = cheapest(sections={**BILL, "faults": FAULTS}, axes=[{"schedule.kind": ["1f1b"]}], top=1)
    steps = Steps(found.scenario(found.best))
    seconds = 10**6 * found.best.row["step_time_s"] / goodput_columns(steps)["goodput"]
    assert found.best.least == pytest.approx((4 + 4) * seconds / 1000)  # a spare node has four GPUs too
    assert found.best.least == pytest.approx(found.best.row["bill"]["cost"])
    assert found.best.against == pytest.approx(seconds / 86400)


def test_a_price_of_its_own_tells_equal_plans_apart():
    axes = [{"price.gpu_hour": ["2 EUR", "1 EUR"]}, {"schedule.kind": ["1f1b"]}, {"sharding": ["none"]}]
    found = cheapest(axes=axes, top=2)
    assert found.best.case["price.gpu_hour"] == "1 EUR"
    assert found.counts[SIMULATED] == 2


@pytest.mark.parametrize("sections", [{}, {"train": BILL["train"]}])
def test_money_needs_a_price_and_a_length(sections):
    with pytest.raises(ScenarioError, match=r"search\.objective: cost needs `price` and `train`"):
        cheapest(sections=sections)


@pytest.mark.slow
def test_the_frontier_is_printed_and_written(ran, write_file, tmp_path):
    values = {**spaces.of_workload(), **BILL, "search": {"objective": "cost", "axes": SIZES, "top": 2}}
    text, _ = ran("search", write_file(values), "--jobs", 1, "--quiet")
    assert "days against money" in text
    assert " EUR" in text
    printed = json.loads(ran("search", write_file(values), "--jobs", 1, "--json")[0])
    assert [one["plan"] for one in printed["frontier"]] == [one.number for one in search(values).frontier()]
    assert {"cost", "days"} <= printed["frontier"][0].keys()
    write(search(values), tmp_path / "found")
    assert (tmp_path / "found" / "frontier.csv").read_text().count("\n") == 1 + len(printed["frontier"])


@pytest.fixture
def write_file(write):
    return lambda values: write(json.dumps(values), "searched.yaml")
