"""Splits of GPUs between engines and trainer as plans: the best and the frontier are those of trying all."""

import json

import pytest
import yaml

from hybrid_des.errors import ScenarioError
from hybrid_des.scenario.loading import load
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.studies.plan_search.best_plan import search, write
from hybrid_des.studies.plan_search.branch import EXCLUDED, IMPOSSIBLE, MISFIT, SIMULATED
from hybrid_des.studies.plan_search.page import search_page
from hybrid_des.studies.plan_search.space import plans_in
from hybrid_des.studies.plan_search.terms import settings_of
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.rl.whatifs import figures_of

MODEL = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1000, "sequence": 1024}
NAMES = ["rl.rollout.nodes", "rl.rollout.tensor", "rl.ahead", "rl.lend"]


def loop(nodes=4, **block):
    """Nodes of two GPUs, half of them engines; a trainer that was measured on the other half."""
    rl = {
        "samples": 4, "updates": 2, "prompt": 20,
        "response": {"kind": "lognormal", "mean": 60, "sigma": 1, "max": 400},
        "rollout": {"nodes": f"{nodes // 2}-{nodes - 1}", "concurrency": 4},
        "sync": {"time": 0.02}, "trainer": {"time": 0.2},
    }  # fmt: skip
    return {
        "name": "splits", "cluster": {"gpu": "h100", "nodes": nodes, "gpus_per_node": 2}, "model": MODEL,
        "parallel": {"data": nodes}, "schedule": {"kind": "1f1b"}, "batch": 16, "steps": 3, "rl": rl,
        "search": {"axes": NAMES, **block},
    }  # fmt: skip


LENT = {"below": "60 %", "to_rollout": 0.01, "to_trainer": 0.02}


def lending(**block):
    values = loop(**block)
    return {**values, "rl": {**values["rl"], "lend": LENT}}


@pytest.fixture(scope="module")
def everything():
    """All plans of a loop that may lend, simulated."""
    found = search(lending(top=1000))
    assert found.counts[SIMULATED] == len(found.candidates)
    return found


def plans_of(values):
    return plans_in(settings_of(Document(values, "here")))


def test_every_split_leaves_the_trainer_the_other_nodes():
    plans = plans_of(lending())
    assert len(plans) == 3 * 2 * 4 * 2
    layouts = {(plan["rl.rollout.nodes"], plan["parallel.data"], plan.get("rl.trainer.time")) for plan in plans}
    assert layouts == {(3, 6, round(0.2 * 4 / 6, 6)), ("2-3", 4, None), ("1-3", 2, 0.4)}
    assert {plan["rl.rollout.tensor"] for plan in plans} == {1, 2}
    assert [*dict.fromkeys(plan["rl.ahead"] for plan in plans)] == [0, 0.5, 1, 2]


def test_without_axes_splits_vary():
    values = loop()
    assert plans_of({**values, "search": {}}) == plans_of({**values, "search": {"axes": NAMES[:3]}})


def test_splits_of_a_scenario_are_those_of_its_file():
    values = loop()
    block = values.pop("search")
    found = search(load(values), {"search": {**block, "axes": NAMES[:1]}})
    assert [one.least for one in found.ranked] == [one.least for one in search(loop(axes=NAMES[:1])).ranked]
    assert found.counts[SIMULATED] == 3


def test_a_simulated_trainer_has_every_layout_of_its_split():
    values = loop(axes=["rl.rollout.nodes", {"schedule.kind": ["1f1b"]}, {"recompute": ["none"]}])
    del values["rl"]["trainer"], values["parallel"]
    layouts = {(plan["rl.rollout.nodes"], plan["parallel.data"], plan["parallel.tensor"]) for plan in plans_of(values)}
    assert {(3, 6, 1), (3, 3, 2), ("2-3", 4, 1), ("2-3", 2, 2), ("1-3", 2, 1), ("1-3", 1, 2)} <= layouts


def test_engines_on_the_trainer_are_a_split_too():
    values = loop(axes=["rl.rollout.nodes"])
    values["rl"]["rollout"] = {"on": "trainer", "concurrency": 4}
    values["parallel"] = {"data": 8}
    found = search(values)
    assert found.counts[SIMULATED] == 4
    turns = next(one for one in found.ranked if one.case["rl.rollout.nodes"] is None)
    assert found.scenario(turns).rl.colocated
    assert found.scenario(turns).parallel.ranks == 8


@pytest.mark.parametrize("front", [False, True])
def test_a_search_finds_what_trying_all_finds(everything, front):
    found = search(lending(top=1, front=front))
    assert found.counts[EXCLUDED] > 0
    assert found.best.number == everything.best.number
    assert found.best.least == everything.best.least
    if front:
        assert [one.number for one in found.frontier()] == [one.number for one in everything.frontier()]


def test_a_plan_excluded_is_no_faster_at_its_allowance(everything):
    found = search(lending(top=1))
    times = {one.number: one.least for one in everything.candidates}
    for plan in (one for one in found.candidates if one.status == EXCLUDED):
        assert plan.least <= times[plan.number]
        allowed = float(plan.case["rl.ahead"])
        assert any(one.least <= times[plan.number] and one.against <= allowed for one in found.ranked)


def test_figures_of_a_plan_are_those_of_its_loop():
    found = search(loop(top=1))
    scenario = found.scenario(found.best)
    figures = figures_of(scenario, run_loop(scenario))
    assert found.best.least == figures.cycle == found.best.row["cycle_s"]
    assert found.best.against == figures.ages.mean == found.best.row["mean_age"]
    assert found.best.row["samples_per_s"] == pytest.approx(32 / figures.cycle)
    assert {"cycle_s_bound", "mean_age_bound", "samples_per_s"} <= {*found.table()}


def test_engines_without_room_do_not_fit():
    values = loop(axes=[{"rl.rollout.memory": [0.8, 1e-6]}])
    found = search(values)
    assert (found.counts[SIMULATED], found.counts[MISFIT]) == (1, 1)
    assert "leave no room for a cached token" in found.nearest().reason


@pytest.mark.parametrize(("nodes", "reason"), [
    ("2-9", "there is no node 4"), ("many", "expected a whole number"), ("0-1", "is the trainer's too"),
    ("0-3", "trainer's too"),
])  # fmt: skip
def test_nodes_that_cannot_be_engines_are_impossible(nodes, reason):
    found = search(loop(axes=[{"rl.rollout.nodes": ["2-3", nodes]}]))
    assert (found.counts[SIMULATED], found.counts[IMPOSSIBLE]) == (1, 1)
    assert reason in next(one.reason for one in found.candidates if one.status == IMPOSSIBLE)


def test_heads_that_engines_cannot_divide_are_impossible():
    values = loop(axes=[{"rl.rollout.tensor": [1, 2]}])
    values["model"] = {**MODEL, "heads": 1}
    found = search(values)
    assert (found.counts[SIMULATED], found.counts[IMPOSSIBLE]) == (1, 1)


def test_a_split_needs_engines_of_one_kind():
    values = loop()
    values["rl"]["rollout"] = [{"nodes": 2}, {"nodes": 3}]
    with pytest.raises(ScenarioError, match="expected engines of one kind"):
        plans_of(values)


@pytest.mark.parametrize("objective", ["tokens_per_gpu_s", "goodput", "cost"])
def test_loops_have_one_objective(objective):
    with pytest.raises(ScenarioError, match="a loop has the objective cycle_s"):
        plans_of(loop(objective=objective))


def test_a_cycle_needs_a_loop():
    values = loop(objective="cycle_s", axes=[{"parallel.data": [4]}])
    del values["rl"]
    with pytest.raises(ScenarioError, match="cycle_s needs `rl`"):
        plans_of(values)


def test_the_page_shows_time_against_mean_age(tmp_path):
    found = search(loop(top=2, axes=NAMES[:1] + NAMES[2:3]))
    page = search_page(found)
    assert "Time of a cycle against mean age" in page
    assert f"Plan {found.best.number} is the best found: time of a cycle" in page
    assert "at a mean age of" in page
    assert "launch line" not in page
    write(found, tmp_path)
    rows = (tmp_path / "frontier.csv").read_text().splitlines()
    assert len(rows) == len(found.frontier()) + 1 > 2
    assert load(yaml.safe_load((tmp_path / "best.yaml").read_text())).rl == found.scenario(found.best).rl


def test_the_command_prints_the_frontier(run, write):
    file = write(yaml.safe_dump(loop(top=2, axes=NAMES[:1])))
    code, out, err = run("search", file, "--json", "--jobs", "1")
    assert (code, err) == (0, [])
    printed = json.loads(out)
    assert {"cycle_s", "mean_age", "samples_per_s", "held_bytes", "values"} <= printed["frontier"][0].keys()
    assert printed["objective"] == "cycle_s"
    assert "launch" not in printed
    code, out, err = run("search", file, "--jobs", "1")
    assert code == 0
    assert "time against mean age: of these, none has a shorter cycle and younger samples" in out
