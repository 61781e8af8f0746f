"""Who was slow, and what it costs: the run with some of its ops at the mean of their kind, and without what is slow.

    S          T / T_ideal                            all ops of a kind at their mean
    removed    (T − T with C ideal) / (T − T_ideal)   share of the loss that a class of ops C is behind

As in the straggler study (Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI
2025). Two evaluators share this rule (`Loss`, `culprit`). `stragglers` simulates again: that gives T with any messages
and any ranks changed. The cost of what the scenario states is exact: the same scenario is simulated without it; what it
does not state (nodes of other speeds, uneven stages) is measured: the ops of one node or pipeline rank at the mean of
their kind. `hybrid_des.measured.replay` replays: longest paths give T for all steps of a measured run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hybrid_des.analysis.counterfactual.what_if import Part, Variant, at_the_mean, kinds_of, part_at
from hybrid_des.analysis.critical_path.traced import events_of_all
from hybrid_des.analysis.tasks import Task
from hybrid_des.engine.recorder import INSIDE
from hybrid_des.errors import HybridDesError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import plan_of
from hybrid_des.planning.program import Program
from hybrid_des.planning.program_table import Column
from hybrid_des.planning.wiring import slowed
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.perturbations import COMPUTING
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.speeds import DurationOverride
from hybrid_des.units import grouped_by

MOST = 0.5  # of the loss, for a class to be named …
NEARLY = 0.9  # … and of what a larger class explains, for the smaller one to be named instead

MOST_GROUPS = 8  # simulated of each sort; of what `slow` names more, while that takes no more than EVENTS
MOST_NAMES = 3  # of those that `slow` names besides
EVENTS = 2_000_000
SLOW = 0.03  # share of the step that a slow component or uneven ranks must cost to be blamed

Class = TypeVar("Class")


class Loss(NamedTuple):
    """The time of a run, and with all ops at the mean of their kind, in the same unit."""

    whole: float
    ideal: float

    @property
    def slowdown(self) -> float:
        """S; 1 for a run without ops."""
        return self.whole / self.ideal if self.ideal else 1.0

    def removed(self, without: float) -> float:
        """The share of the loss that vanishes with a class of ops ideal; 0 if there is no loss."""
        return (self.whole - without) / (self.whole - self.ideal) if self.whole != self.ideal else 0.0


def culprit(candidates: Sequence[tuple[Class, float]]) -> Class | None:
    """The smallest class behind most of the loss; None if there is none.

    Args:
        candidates: classes, the smallest first, with the share of the loss that each removes.
    """
    most = max((removed for _, removed in candidates), default=0.0)
    return next(one for one, removed in candidates if removed >= NEARLY * most) if most >= MOST else None


class Straggler(NamedTuple):
    """What may be slow, and the end of the run with only that changed, in picoseconds.

    Attributes:
        name: of a node, GPU or pipeline rank; what `slow` names has its name there, such as "nic node0/nic0".
        slow: its compute time over the mean of all ranks; None for links and for what computes nothing.
        mean: the end of the run with its ops at the mean of their kind, or without it in `slow`.
        usual: the end of the run with it like the others of its kind; None if it is like them already.
        stated: whether `slow` names it.
        together: how many components of `slow` it is.
    """

    name: str
    slow: float | None
    mean: int
    usual: int | None = None
    stated: bool = False
    together: int = 1

    @property
    def least(self) -> int:
        """The end of the run without its slowness."""
        return self.mean if self.usual is None else self.usual

    def is_costly(self, duration: int) -> bool:
        """Whether `slow` names it and a run that ends at `duration` is 3 % longer than without it."""
        return self.stated and duration - self.least >= SLOW * self.least


class Stragglers(NamedTuple):
    """Who was slow.

    Attributes:
        ideal: the end of the run with all ops at the mean of their kind.
        groups: what `slow` names and is costly, then the rest; of each the costliest first.
    """

    ideal: int
    groups: Sequence[Straggler]

    def culprit(self, duration: int) -> Straggler | None:
        """What holds up a run: a costly component of `slow`, or a group behind half of the cost of uneven ranks."""
        if not self.groups or not duration:
            return None
        first, loss = self.groups[0], Loss(duration, self.ideal)
        if first.is_costly(duration):
            return first
        matters = 1 - self.ideal / duration >= SLOW and first.slow is not None and first.slow > 1
        return culprit([(first, loss.removed(first.mean))]) if matters else None


def stragglers_of(base: Run, results: Sequence[Any]) -> Stragglers | None:
    """Who was slow, from the results of `straggler_tasks`; None if nothing is, and all ranks take the same times."""
    if not results:
        return None
    (ideal, *groups), end = results, base.timeline.duration
    groups.sort(key=lambda group: (not group.is_costly(end), group.mean, group.least))
    return Stragglers(ideal, groups)


def straggler_tasks(base: Run) -> list[Task]:
    """Tasks that find the end of the run with all ranks at the mean, then a `Straggler` each; none without any."""
    at = Variant.of(base)
    programs = at.programs
    computes = any(any(one.durations) for one in programs)
    if not base.scenario.slow and not (computes and (_varies(base.scenario) or _uneven(programs))):
        return []
    work = work_of_ranks(base)
    groups = [*_stated(base, work), *(_measured(base, at, work) if computes else ())]
    return [partial(_ideal, base, at), *groups]


def _ideal(base: Run, at: Variant) -> int:
    return at_the_mean_of(base, at).duration


def at_the_mean_of(base: Run, variant: Variant) -> Variant:
    """All ops of a variant at the mean of their kind; slowness and jitter are spread evenly over them.

    Args:
        base: a run on the links of the variant: all ranks together compute as long in both.
        variant: what is changed.
    """
    scenario = variant.scenario
    if not _varies(scenario):
        return variant.with_retime(at_the_mean(variant))
    kept = tuple(one for one in scenario.slow if one.target[0] not in COMPUTING)
    traffic = "replay" if scenario.tensor_traffic == "auto" else scenario.tensor_traffic  # as in a run that varies
    calm = scenario.model_copy(update={"slow": kept, "jitter": (), "tensor_traffic": traffic})
    steady = replace(variant, scenario=calm, times=variant.parts.times)  # on the same wiring
    usual = sum(sum(one.at(step).durations) for one in steady.programs for step in range(scenario.steps))
    factor = Fraction(sum(work_of_ranks(base).tolist()), usual) if usual else Fraction(1)
    slower = DurationOverride(lambda rank, call, took: round(took * factor), lambda rank: True)
    return steady.with_retime(at_the_mean(steady)).with_retime(slower)


def work_of_ranks(base: Run) -> Column:
    """Picoseconds that each rank computes in a run: its ops without what they wait for bytes."""
    timeline = base.timeline
    waits = timeline.waits
    inside = waits["place"] == INSIDE
    work = np.zeros(timeline.layout.ranks, dtype=np.int64)
    np.add.at(work, timeline.ops["rank"], timeline.ops["end"] - timeline.ops["start"])
    np.subtract.at(work, waits["rank"][inside], (waits["end"] - waits["start"])[inside])
    np.subtract.at(work, timeline.exchanges["rank"], timeline.exchanges["end"] - timeline.exchanges["free"])
    return work if base.fold is None else work[base.fold.representatives]


def _varies(scenario: Scenario) -> bool:
    """Whether the speeds of ranks differ from those of their nodes."""
    return bool(scenario.jitter) or any(one.target[0] in COMPUTING for one in scenario.slow)


def _stated(base: Run, work: Column) -> Iterator[Task]:
    """What `slow` names, with all of its entries, simulated without: the most slowed each alone, then the rest."""
    entries = grouped_by(base.scenario.slow, lambda slow: slow.target)
    if not entries:
        return
    plan: Plan | None = base.plan
    with suppress(HybridDesError):
        plan = None if plan_of(base.scenario, base.fabric) == base.plan else base.plan  # planned anew if not given
    order = sorted(entries, key=lambda target: min(one.spell.factor for one in entries[target]))
    alone = max(MOST_GROUPS, EVENTS // max(events_of_all(base), 1))
    for some in [*([target] for target in order[:alone]), *([order[alone:]] if order[alone:] else [])]:
        assert base.fabric is not None
        mine = [entry for target in some for entry in entries[target]]
        kept = tuple(one for one in base.scenario.slow if one not in mine)
        usual = Variant(base.scenario.model_copy(update={"slow": kept}), plan, slowed(base.fabric, mine, -1))
        ranks = [rank for kind, name in some for rank in _ranks_of(base, kind, name)] if work.any() else []
        slow = float(work[ranks].mean() / work.mean()) if ranks else None
        yield partial(_without, [f"{kind} {name}" for kind, name in some], slow, usual)


def _without(names: Sequence[str], slow: float | None, usual: Variant) -> Straggler:
    end, more = usual.duration, len(names) - MOST_NAMES
    name = ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return Straggler(name, slow, end, end, stated=True, together=len(names))


def _measured(base: Run, at: Variant, work: Column) -> Iterator[Task]:
    """The nodes whose speed differs from most, and the pipeline ranks with the most work."""
    layout, spec = base.scenario.parallel.layout, base.scenario.cluster

    def slow(ranks: Sequence[int]) -> float:
        return float(work[ranks].mean() / work.mean())

    speeds = [node.speed for node in spec.nodes_of(range(layout.ranks))]
    most = max(set(speeds), key=speeds.count)
    nodes = grouped_by((rank for rank, speed in enumerate(speeds) if speed is not most and speed != most), spec.node_of)
    for node, ranks in sorted(nodes.items(), key=lambda item: -slow(item[1]))[:MOST_GROUPS]:
        part = Part("rank", f"node {node}", frozenset(ranks))
        yield partial(_group, at, part, slow(ranks), speeds[ranks[0]] / most)
    places = range(layout.sizes["pipeline"]) if layout.sizes["pipeline"] > 1 else ()
    each = [(slow([*part.members]), part) for part in (part_at(at, place) for place in places)]
    for over_mean, part in sorted(each, key=lambda entry: -entry[0])[:MOST_GROUPS]:
        yield partial(_group, at, part, over_mean)


def _group(at: Variant, part: Part, slow: float, speed: Fraction | None = None) -> Straggler:
    """Ranks at the mean and, if they have nodes of this speed, like the others."""
    usual = None if speed is None else part.scaled(at, speed).duration
    return Straggler(part.name, slow, at.with_retime(at_the_mean(at, part.members)).duration, usual)


def _ranks_of(base: Run, kind: str, name: int | str) -> list[int]:
    """The ranks that compute on a GPU or node, or hold a stage; none for links and for GPUs that are not used."""
    layout, spec = base.scenario.parallel.layout, base.scenario.cluster
    if kind == "stage":
        ops = base.timeline.programs.ops
        places = np.unique(ops["rank"][ops["stage"] == name])
        return np.flatnonzero(np.isin(layout.along("pipeline"), places)).tolist()
    if kind not in COMPUTING:
        return []
    number_of = spec.placement.__getitem__ if kind == "gpu" else spec.node_of
    return [rank for rank in range(layout.ranks) if number_of(rank) == name]


def _uneven(programs: Sequence[Program]) -> bool:
    """Whether ops of one kind take different times on different ranks."""
    times: dict[tuple[str, ...], set[int]] = {}
    for program in dict.fromkeys(programs):
        for call in program.ops.values():
            if call.ops:
                times.setdefault(kinds_of(call), set()).add(call.duration)
    return any(len(found) > 1 for found in times.values())
