"""A cycle is never shorter than its bound, and the bound is met where its terms are all there is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_des.scenario.loading import load
from hybrid_des.studies.rl.bounds import allowed_age, least_cycle, sides_of
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.rl.whatifs import figures_of

MODEL = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1000, "sequence": 1024}


def loop(**changes):
    """A small loop: four GPUs, two of them engines, four prompts of two samples per optimizer step."""
    rl = {
        "samples": 2, "updates": 2, "prompt": 20,
        "response": {"kind": "lognormal", "mean": 60, "sigma": 1, "max": 400},
        "rollout": {"nodes": "2-3", "concurrency": 4}, "sync": {"time": 0.05}, "trainer": {"time": 0.4},
    }  # fmt: skip
    return load(
        {"cluster": {"gpu": "h100", "nodes": 4, "gpus_per_node": 1}, "model": MODEL, "parallel": {"data": 2},
         "schedule": {"kind": "1f1b"}, "batch": 8, "steps": 5, "rl": rl},
        changes,
    )  # fmt: skip


def cycle(scenario):
    return figures_of(scenario, run_loop(scenario)).cycle


CHANGES = {
    "rl.ahead": [0, 0.25, 1, 2.5], "rl.take": [1, 2], "rl.counted": ["sync", "now"], "rl.barrier": [False, True],
    "rl.order": ["completed", "oldest"], "rl.sync.every": [1, 2], "rl.rollout.concurrency": [1, 3, 8],
    "rl.sync.running": ["resume", "continue", "wait", "restart"], "rl.trainer.time": [0.001, 0.4, 3],
    "rl.rest": [0, 0.3],
    "rl.rollout.nodes": [3, "2-3"], "steps": [1, 2, 5], "rl.response.sigma": [0.1, 1.5], "seed": [0, 1, 2],
    "rl.lend": ["none", {"below": "60 %", "to_rollout": 0.01, "to_trainer": 0.02}], "rl.filter": [0, 0.3],
    "rl.max_age": [None, 1],
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({path: st.sampled_from(values) for path, values in CHANGES.items()}))
def test_no_loop_has_a_shorter_cycle_than_its_bound(changes):
    if changes["rl.max_age"] is not None:
        changes = {**changes, "rl.stale": "drop", "rl.ahead": min(changes["rl.ahead"], 1)}
    scenario = loop(**changes)
    assert 0 < least_cycle(scenario) <= cycle(scenario)


@pytest.mark.parametrize("changes", [
    {"rl.rollout.switch": 0.2}, {"rl.response.sigma": 0.1}, {"rl.sync.every": 2}, {"rl.take": 2}, {"steps": 1},
], ids=str)  # fmt: skip
def test_turns_on_one_side_take_no_less_than_their_bound(changes):
    turns = {"rl.rollout": {"on": "trainer", "concurrency": 4}, "parallel.data": 4}
    scenario = loop(**turns, **{path: value for path, value in changes.items() if path != "rl.rollout.switch"})
    if "rl.rollout.switch" in changes:
        turns["rl.rollout"] = {**turns["rl.rollout"], "switch": changes["rl.rollout.switch"]}
        scenario = loop(**turns)
    assert 0.7 * cycle(scenario) < least_cycle(scenario) <= cycle(scenario)


def test_a_simulated_trainer_takes_no_less_than_its_bound():
    scenario = loop(**{"rl.trainer": "simulated", "steps": 2, "rl.ahead": 1})
    assert 0 < least_cycle(scenario) <= cycle(scenario)


def test_training_alone_is_the_bound_of_a_slow_trainer():
    """Law 4 of loops: a free engine leaves training and sync."""
    scenario = loop(**{"rl.trainer.time": 3, "rl.ahead": 1})
    assert cycle(scenario) == pytest.approx(3.05)
    assert least_cycle(scenario) == pytest.approx(3.05)


def test_full_engines_are_near_their_bound():
    """All places taken all the time, by responses of one length."""
    scenario = loop(**{"rl.trainer.time": 0.001, "rl.ahead": 4, "steps": 60, "rl.response": 60})
    assert 0.8 * cycle(scenario) < least_cycle(scenario) <= cycle(scenario)


@pytest.mark.parametrize(("changes", "age"), [
    ({"rl.ahead": 0.25}, 0.25), ({"rl.barrier": True, "rl.ahead": 1}, 1), ({"rl.ahead": 0}, 0),
    ({"rl.counted": "now", "rl.ahead": 1, "rl.updates": 1}, 2),
], ids=str)  # fmt: skip
def test_the_allowed_age_is_that_of_a_full_allowance(changes, age):
    scenario = loop(**changes, **{"rl.trainer.time": 3})
    assert allowed_age(scenario) == age
    assert figures_of(scenario, run_loop(scenario)).ages.mean <= age


def test_engines_are_known_without_a_trainer():
    parts = sides_of(loop(**{"rl.trainer": "simulated"}))
    assert [kind.replicas for kind in parts.engines] == [2]
    assert parts.trainer.take([[1]])[0][1] == 0
