"""Changes of a loop that are simulated with the same draws: other splits, more ahead, a shorter cap, bounds.

    split        an eighth of the engines' nodes more and fewer, which the trainer gives or gets
    ahead        half a batch and a batch more
    bounds       engines twice as fast, weights sent in no time, all responses of the mean length

A measured time of the trainer is taken to be proportional to 1 / GPUs where its GPUs change. Half the cap cuts the
responses that were drawn, so their mean falls. A change that the scenario does not allow is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from hybrid_des.errors import HybridDesError, ScenarioError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import flow_text
from hybrid_des.scenario.sections.rl import MeasuredTrainer, Rl
from hybrid_des.studies.rl.few_steps import Loop
from hybrid_des.studies.rl.figures import LoopFigures, figures_of
from hybrid_des.units import format_number

Build = Callable[[Mapping[str, object]], Scenario]
EIGHTH = 8
BOUNDS = ("engine", "sync", "tail")  # kinds of changes that nobody can just make
SHORT = {
    False: ("split", "ahead", "barrier", "lend"),
    True: ("cap", "engine", "tail"),
}  # kinds of the verdict; colocated or not
A_BOUND = "a bound, no setting"
OUT_OF_TIME = 3  # exit code
BARE = "rl.rollout"


class Change(NamedTuple):
    """A change to simulate.

    Attributes:
        kind: "split", "ahead", "barrier", "lend", "cap", "asked", or one of `BOUNDS`.
        words: what changes.
        settings: values by path.
        remark: what there is to say instead of settings, if anything.
    """

    kind: str
    words: str
    settings: Mapping[str, object]
    remark: str = ""

    @property
    def flags(self) -> list[str]:
        """The settings as the command line takes them; nothing where the change is only a bound."""
        if self.kind in BOUNDS:
            return []
        return [f"{path}={'none' if value is None else flow_text(value)}" for path, value in self.settings.items()]


@dataclass(frozen=True)
class WhatIf:
    """A change that was simulated.

    Attributes:
        change: what differs.
        cycle: mean seconds of a cycle.
        wait: seconds of it in which the trainer waits for samples.
        age: mean age of trained samples, in syncs.
        idle: share of the engines' time in which they are idle.
        gain: share of today's cycle that is saved.
    """

    change: Change
    cycle: float
    wait: float
    age: float
    idle: float
    gain: float

    def to_mapping(self) -> dict[str, object]:
        """Values by the keys of `--json`."""
        return {
            "change": self.change.words, "kind": self.change.kind, "set": self.change.flags, "cycle_s": self.cycle,
            "wait_s": self.wait, "mean_age": self.age, "rollout_idle_ratio": self.idle, "gain": self.gain,
        }  # fmt: skip


def changes_of(scenario: Scenario, rl: Rl, figures: LoopFigures, build: Build) -> list[Change]:
    """All changes, those that can be made first."""
    made = [] if rl.colocated else [*_splits(scenario, rl, build), *_ahead(rl)]
    return [*made, *_cap(rl, figures), *_bounds(rl, figures)]


def simulated(change: Change, cycle: float, build: Build, loop: Loop) -> WhatIf:
    """Simulate a change of a loop with this cycle.

    Raises:
        HybridDesError: the changed scenario cannot be simulated.
    """
    scenario = build(change.settings)
    figures = figures_of(scenario, loop(scenario))
    gain = 1 - figures.cycle / cycle
    return WhatIf(change, figures.cycle, figures.wait, figures.ages.mean, figures.idle, gain)


def tried_change(change: Change, cycle: float, build: Build, loop: Loop) -> WhatIf | None:
    """The same; None of a change that is not possible."""
    try:
        return simulated(change, cycle, build, loop)
    except HybridDesError as error:
        if error.exit_code == OUT_OF_TIME:
            raise
        return None


def _splits(scenario: Scenario, rl: Rl, build: Build) -> Iterator[Change]:
    """Nodes of the trainer to the engines, and back, if both sides are whole nodes beside each other.

    Each way an eighth of the engines' nodes, and if the trainer cannot have so many ranks, the fewest more that it can.
    """
    rollout, parallel, kinds = rl.rollout[0], scenario.parallel, scenario.cluster.kinds
    if len(rl.rollout) > 1 or len(kinds) > 1 or not rollout.nodes:
        return
    each, engines = kinds[0].gpus_per_node, len(rollout.nodes)
    nodes = parallel.ranks // each
    if parallel.ranks % each or [*rollout.nodes] != [*range(nodes, nodes + engines)]:
        return
    least = max(1, engines // EIGHTH)
    for sign in (1, -1):
        for moved in range(least, nodes + engines):
            split = Split(nodes - sign * moved, engines + sign * moved, each)
            if (change := _split(scenario, rl, split, build)) is not None:
                yield change
                break


class Split(NamedTuple):
    """Nodes of the trainer, of the engines, and GPUs of each."""

    trainer: int
    engines: int
    gpus: int


def _split(scenario: Scenario, rl: Rl, split: Split, build: Build) -> Change | None:
    """The trainer on the first nodes, the engines on the next ones; None if that is not possible."""
    rollout, of_replica = rl.rollout[0], scenario.parallel.ranks // scenario.parallel.data
    whole = split.trainer * split.gpus % of_replica == 0 and split.engines * split.gpus % rollout.gpus_per_replica == 0
    if min(split.trainer, split.engines) < 1 or not whole:
        return None
    data = split.trainer * split.gpus // of_replica
    nodes = range(split.trainer, split.trainer + split.engines)
    settings: dict[str, object] = {"parallel.data": data, f"{BARE}.nodes": f"{nodes[0]}-{nodes[-1]}"}
    if isinstance(rl.trainer, MeasuredTrainer):
        if rl.trainer.time is None:
            return None  # a table is that of this number of GPUs
        settings["rl.trainer.time"] = rl.trainer.time * Fraction(scenario.parallel.ranks, split.trainer * split.gpus)
    words = f"{split.engines * split.gpus} instead of {len(rollout.nodes or ()) * split.gpus} GPUs for generation"
    try:
        build(settings)
    except ScenarioError:
        return None
    return Change("split", words, settings)


def _ahead(rl: Rl) -> Iterator[Change]:
    """More samples begun before those before them are trained."""
    for more in () if rl.barrier else (Fraction(1, 2), Fraction(1)):
        ahead = rl.ahead + more
        yield Change("ahead", f"ahead {format_number(float(ahead))}", {"rl.ahead": ahead})
    if rl.lend is not None:
        yield Change("lend", "without lending", {"rl.lend": None})
    if rl.barrier:
        yield Change("barrier", "no barrier between batches", {"rl.barrier": False})


def _cap(rl: Rl, figures: LoopFigures) -> Iterator[Change]:
    """Responses cut at half the cap: the same draws, so that their mean is that of the shorter ones."""
    cap, response = rl.response.max, figures.columns["response"]
    if cap is None or cap < 2 or not len(response) or response.max() <= cap // 2:
        return
    settings: dict[str, object] = {"rl.response.max": cap // 2}
    if getattr(rl.response.options, "mean", None) is not None:
        settings["rl.response.mean"] = round(float(np.minimum(response, cap // 2).mean()))
    yield Change("cap", f"responses of at most {cap // 2:,} tokens", settings)


def _bounds(rl: Rl, figures: LoopFigures) -> Iterator[Change]:
    """What nobody can just set, which says how much there is to gain."""
    paths = [BARE] if len(rl.rollout) == 1 else [f"{BARE}.{number}" for number in range(len(rl.rollout))]
    twice = {
        f"{path}.efficiency.reached": 2 * rollout.efficiency.reached
        for path, rollout in zip(paths, rl.rollout, strict=True)
    }
    yield Change("engine", "engines twice as fast", twice, A_BOUND)
    if rl.sync.time or rl.sync.mechanism:
        free = {"time": 0, "every": rl.sync.every, "running": rl.sync.running}
        yield Change("sync", "weights sent in no time", {"rl.sync": free}, A_BOUND)
    if figures.drawn.longest and rl.response.kind != "fixed":
        mean = max(round(figures.drawn.mean), 1)
        words = f"no long tail: all responses of {mean:,} tokens"
        yield Change("tail", words, {"rl.response": {"kind": "fixed", "length": mean}}, A_BOUND)
