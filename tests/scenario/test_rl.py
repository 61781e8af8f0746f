"""The section `rl`: what is wrong is said in one line, with its path."""

import pytest
from support.loops import loop_scenario

from hybrid_des import load
from hybrid_des.errors import ScenarioError

LOGNORMAL = {"kind": "lognormal", "mean": 50, "sigma": 1, "max": 40}
LEND = {"below": 0.5, "to_rollout": 0, "to_trainer": 0}
WRONG = [
    ({"rollout": {"nodes": []}}, "rl.rollout.nodes: leaves no GPUs to the engines"),
    ({"rollout": {"nodes": "0-2"}}, "rl.rollout.nodes: node 0 is the trainer's too, whose 2 ranks use the first GPUs"),
    ({"rollout": {"nodes": "1-9"}}, "rl.rollout.nodes: the cluster has 3 nodes; there is no node 3"),
    ({"rollout": {"concurrency": 0}}, "rl.rollout.concurrency: must be at least 1, not 0"),
    ({"rollout": {"tensor": 3}}, "rl.rollout.tensor: 4 GPUs are not a multiple of the 3 of a replica"),
    ({"rollout": {"on": "trainer"}, "ahead": 1}, "rl.ahead: engines and trainer take turns on the same GPUs"),
    ({"rollout": {"on": "trainer"}, "barrier": True}, "rl.barrier: engines and trainer take turns on the same GPUs"),
    ({"take": 2}, "rl.take: must divide rl.updates (1), the optimizer steps of a batch"),
    ({"ahead": -1}, "rl.ahead: -1 is negative"),
    ({"max_age": -1}, "rl.max_age: must be at least 0, not -1"),
    ({"stale": "drop"}, "rl.stale: drop is read with `max_age` only"),
    ({"max_age": 1}, "rl.max_age: is read with `stale: drop` only"),
    ({"passes": {"old": True}, "trainer": {"time": 9}}, "rl.passes.old: is part of the measured time of `rl.trainer`"),
    ({"sync": {"time": 1, "load": 1}}, "rl.sync.load: is part of a measured `time`"),
    ({"rollout": {"switch": 1}}, "rl.rollout.switch: is read with `on: trainer` only"),
    (
        {"rollout": {"efficiency": {"table": "t.csv", "layer": 0}}},
        "rl.rollout.efficiency.layer: is replaced by measured steps",
    ),
    ({"batch": 6}, "rl.samples: 6 samples of an optimizer step are not a multiple of 4 per prompt"),
    ({"updates": 2**19, "batch": 64}, "batch: 33554432 samples between two weight syncs are more than"),
    ({"response": LOGNORMAL}, "rl.response.mean: a mean after the cut is above 1 and below 40, not 50"),
    ({"response": {**LOGNORMAL, "max": None}}, "rl.response.max: is required: where longer ones are cut"),
    ({"response": {"kind": "fixed"}}, "rl.response.length: is required: there is no default here"),
    ({"response": {"kind": "uniform", "min": 9, "max": 4}}, "rl.response.min: must be at most 4, the longest"),
    ({"filter": 1}, "rl.filter: must be less than 1"),
    ({"sync": {}}, "rl.sync.time: expected either a measured `time` or a `mechanism`"),
    ({"lend": LEND, "rollout": {"tensor": 4}}, "rl.lend: 2 GPUs of the trainer are fewer than the 4 of a replica"),
]


@pytest.mark.parametrize(("keys", "told"), WRONG)
def test_what_is_wrong_is_one_line(keys, told):
    with pytest.raises(ScenarioError) as raised:
        loop_scenario(**keys)
    assert str(raised.value).startswith(f"scenario: {told}") and "\n" not in str(raised.value)


MEASURED = {"rl.trainer": {"time": 9}}
UNREAD = [
    ({"faults": {"horizon": 9, "classes": [{"what": "gpu", "mtbf": 9}]}}, "faults: weeks of a loop are not simulated"),
    ({"price": {"gpu_hour": "2 USD"}}, "price: what a loop costs is not worked out"),
    ({"barrier": False}, "barrier: optimizer steps of a loop follow each other"),
    ({"data.lengths": {"kind": "fixed", "length": 9}}, "data.lengths: the documents are the samples of `rl`"),
    ({"data.seed": 1}, "data.lengths: the documents are the samples of `rl`"),
    ({"slow": [{"gpu": 3, "factor": 0.5}]}, "slow[0].gpu: is not of the trainer"),
    ({"slow": [{"node": 1, "factor": 0.5}]}, "slow[0].node: is not of the trainer"),
    ({"slow": [{"gpu": 0, "factor": 0.5, "until": 1}]}, "slow[0]: each optimizer step of a loop begins at 0"),
    ({"slow": [{"gpu": 0, "factor": 0.5}], **MEASURED}, "slow: does not change a measured trainer"),
    ({"jitter": {"distribution": "uniform", "spread": 0.1}, **MEASURED}, "jitter: does not change a measured trainer"),
]


@pytest.mark.parametrize(("keys", "told"), UNREAD)
def test_what_a_loop_does_not_read_is_refused(keys, told):
    with pytest.raises(ScenarioError) as raised:
        load(loop_scenario(), keys)
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_the_trainer_may_be_slow():
    load(loop_scenario(), {"slow": [{"gpu": 1, "factor": 0.5}]})


@pytest.mark.slow
def test_sections_of_a_study_are_not_in_the_schema():
    import hybrid_des.studies.rl.trainer  # noqa: F401 - its models without gradients are sections too
    from hybrid_des.scenario.export import json_schema

    assert "_ForwardModel" not in json_schema()["$defs"]
