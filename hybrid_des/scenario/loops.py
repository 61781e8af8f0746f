"""Files with `rl`: a loop of engines, queue and trainer, whose training step is the rest of the file."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid_des.scenario.keys import ScenarioKeys
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.rl import MeasuredTrainer, misfits_of_rl
from hybrid_des.scenario.strict_yaml import Document

NOT_OF_LOOPS = {  # sections that a loop does not read, and why
    "faults": "weeks of a loop are not simulated",
    "price": "what a loop costs is not worked out",
    "power": "what a loop costs is not worked out",
    "train": "what a loop costs is not worked out; `steps` counts weight syncs",
    "numerics": "the samples of a loop have no content",
}
ALONE = "rl is left out: this is the training step alone, with all samples as long as they may be"


def has_loop(document: Document) -> bool:
    """Whether a document describes a loop of reinforcement learning."""
    return isinstance(document.value, dict) and document.value.get("rl") not in (None, "none")


def misfits_of_loop(scenario: ScenarioKeys) -> Iterator[Problem]:
    """Contradictions within `rl`, and between it and the rest of the file."""
    rl, cluster, parallel, batch = scenario.rl, scenario.cluster, scenario.parallel, scenario.batch
    if rl is None:
        return
    yield from misfits_of_rl(rl, cluster, parallel, batch, modelled=scenario.model is not None)
    for name, why in NOT_OF_LOOPS.items():
        if getattr(scenario, name) is not None:
            yield misfit(f"{why}; expected none", name, "rl")
    if not scenario.barrier:
        yield misfit("optimizer steps of a loop follow each other; expected true", "barrier", "rl")
    if scenario.gradients.every > 1:
        yield misfit("replicas of a loop reduce gradients in every step; expected 1", "gradients.every", "rl")
    if scenario.data is not None and not _is_stand_in(scenario):
        yield misfit("the documents are the samples of `rl`; expected no lengths and no seed", "data.lengths", "rl")
    yield from _misfits_of_slow(scenario)
    if isinstance(rl.trainer, MeasuredTrainer):
        for name in ("slow", "jitter", "background"):
            if getattr(scenario, name):
                yield misfit("does not change a measured trainer (`rl.trainer`); expected none", name, "rl.trainer")


def _is_stand_in(scenario: ScenarioKeys) -> bool:
    """Whether the documents are those that stand for the samples of `rl` in a file, all as long as the longest."""
    data = scenario.data
    assert data is not None
    length = getattr(data.lengths.options, "length", None)
    return data.lengths.kind == "fixed" and length == data.lengths.max and data.seed is None


def _misfits_of_slow(scenario: ScenarioKeys) -> Iterator[Problem]:
    """Only the trainer can be slow, and all the time: each of its steps is a run that begins at 0."""
    ranks = scenario.parallel.ranks
    nodes = len(scenario.cluster.nodes_for(ranks))
    for number, slow in enumerate(scenario.slow):
        kind, which = slow.target
        if (kind == "gpu" and int(which) >= ranks) or (kind == "node" and int(which) >= nodes):
            message = "is not of the trainer; slower engines have `rl.rollout.efficiency.reached`"
            yield misfit(message, f"slow.{number}.{kind}", "rl.rollout")
        if not slow.permanent:
            yield misfit("each optimizer step of a loop begins at 0; expected no interval", f"slow.{number}", "rl")
