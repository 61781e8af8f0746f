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
    "rl.sync.running": ["resume", "continue", "wait", "restart"], "rl.trainer.time": [0.001, 0.4, 3], "rl.rest": [0, 0.3],
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
