"""The cost of slow ranks: the step with all ops at the mean, with one node, GPU or pipeline rank like the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.counterfactual.change_text import of_ranks
from hybrid_des.analysis.counterfactual.variant import (
    Variant,
    at_the_mean,
    duration_of,
    kinds_of,
    name_of_place,
    ranks_at,
    scaled_ops,
)
from hybrid_des.engine.recorder import INSIDE
from hybrid_des.planning.tasks import Program
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.run import Run
from hybrid_des.timeline import Column

MOST_GROUPS = 8
SLOW = 0.03  # share of the step that uneven ranks must cost to be blamed
COMPUTES = ("gpu", "node", "stage")  # targets of `slow` that compute


class SlowRanks(NamedTuple):
    """Ranks that may be slow, and the end of the run with only their ops changed, in picoseconds.

    Attributes:
        name: name of a node, a GPU, a stage or a pipeline rank.
        slow: their compute time over the mean of all ranks.
        mean: the end of the run with their ops at the mean of their kind.
        usual: the end of the run with them at the speed of most ranks; None if it is theirs already.
    """

    name: str
    slow: float
    mean: int
    usual: int | None = None

    @property
    def least(self) -> int:
        """The end of the run without their slowness."""
        return self.mean if self.usual is None else self.usual


class Stragglers(NamedTuple):
    """The cost of slow ranks.

    Attributes:
        ideal: the end of the run with all ops at the mean of their kind.
        groups: the costliest first.
    """

    ideal: int
    groups: Sequence[SlowRanks]

    def culprit(self, duration: int) -> SlowRanks | None:
        """The group that holds up a run: it alone accounts for at least half of the cost of uneven ranks."""
        if not self.groups or not duration:
            return None
        first = self.groups[0]
        even, cost = 1 - self.ideal / duration, 1 - first.mean / duration
        return first if even >= SLOW and cost >= even / 2 and first.slow > 1 else None


def stragglers(base: Run) -> Stragglers | None:
    """The cost of slow ranks; None if all take the same times."""
    at = Variant.of(base)
    programs = at.programs()
    if not any(map(_work, programs)) or not (_varies(base.scenario) or _uneven(programs)):
        return None
    found = sorted(_groups(base, at), key=lambda group: (group.mean, group.least))
    return Stragglers(at_the_mean_of(base, at).simulated().duration, found)


def at_the_mean_of(base: Run, variant: Variant) -> Variant:
    """All ops of a variant at the mean of their kind; slowness and jitter are spread evenly over them.

    Args:
        base: a run on the links of the variant: all ranks together compute as long in both.
        variant: what is changed.
    """
    scenario = variant.scenario
    if not _varies(scenario):
        return variant.with_retime(at_the_mean(variant))
    kept = tuple(one for one in scenario.slow if one.target[0] not in COMPUTES)
    traffic = "replay" if scenario.tensor_traffic == "auto" else scenario.tensor_traffic  # as in a run that varies
    calm = scenario.model_copy(update={"slow": kept, "jitter": (), "tensor_traffic": traffic})
    steady = replace(variant, scenario=calm)
    usual = sum(map(_work, steady.programs())) * scenario.steps
    factor = Fraction(sum(work_of_ranks(base).tolist()), usual) if usual else Fraction(1)
    return steady.with_retime(at_the_mean(steady)).with_retime(scaled_ops(factor, lambda rank, task: True))


def work_of_ranks(base: Run) -> Column:
    """Picoseconds that each rank computes in a run: its ops without what they wait for bytes."""
    timeline = base.timeline
    waits = timeline.waits
    inside = waits["place"] == INSIDE
    work = np.zeros(timeline.layout.ranks, dtype=np.int64)
    np.add.at(work, timeline.ops["rank"], timeline.ops["end"] - timeline.ops["start"])
    np.subtract.at(work, waits["rank"][inside], (waits["end"] - waits["start"])[inside])
    np.subtract.at(work, timeline.exchanges["rank"], timeline.exchanges["end"] - timeline.exchanges["free"])
    return work


def _work(program: Program) -> int:
    return sum(duration_of(task) for task in (*program.compute, *program.update))


def _varies(scenario: Scenario) -> bool:
    """Whether the speeds of ranks differ from those of their nodes."""
    return bool(scenario.jitter) or any(one.target[0] in COMPUTES for one in scenario.slow)


def _groups(base: Run, at: Variant) -> Iterator[SlowRanks]:
    """The targets of `slow`, nodes whose speed differs from most, and the pipeline ranks with the most work."""
    scenario, layout, work = base.scenario, base.scenario.parallel.layout, work_of_ranks(base)
    spec = scenario.cluster

    def slow(ranks: Sequence[int]) -> float:
        return float(work[ranks].mean() / work.mean())

    for one in [one for one in scenario.slow if one.target[0] in COMPUTES][:MOST_GROUPS]:
        kept = tuple(other for other in scenario.slow if other is not one)
        without = replace(at, scenario=scenario.model_copy(update={"slow": kept})).simulated().duration
        kind, number = one.target
        yield SlowRanks(f"{kind} {number}", slow(_ranks_of(base, kind, int(number))), without, without)
    speeds = [node.speed for node, _ in zip(spec.each_gpu(), range(layout.ranks), strict=False)]
    most = max(set(speeds), key=speeds.count)
    nodes: dict[int, list[int]] = {}
    for rank in [rank for rank, speed in enumerate(speeds) if speed != most]:
        nodes.setdefault(spec.spec.node_of[rank], []).append(rank)
    for node, ranks in sorted(nodes.items(), key=lambda item: -slow(item[1]))[:MOST_GROUPS]:
        here = frozenset(ranks)
        mean = at.with_retime(at_the_mean(at, here)).simulated().duration
        usual = at.with_retime(scaled_ops(speeds[ranks[0]] / most, of_ranks(here)))
        yield SlowRanks(f"node {node}", slow(ranks), mean, usual.simulated().duration)
    places = range(layout.sizes["pipeline"]) if layout.sizes["pipeline"] > 1 else ()
    for place in sorted(places, key=lambda place: -slow([*ranks_at(at, place)]))[:MOST_GROUPS]:
        ranks_here = ranks_at(at, place)
        mean = at.with_retime(at_the_mean(at, ranks_here)).simulated().duration
        yield SlowRanks(name_of_place(at, place), slow([*ranks_here]), mean)


def _ranks_of(base: Run, kind: str, number: int) -> list[int]:
    """The ranks that an entry of `slow` targets."""
    layout, spec = base.scenario.parallel.layout, base.scenario.cluster.spec
    if kind == "stage":
        places = {place for (place, _), stage in base.plan.stage_of.items() if stage == number}
        return [rank for rank in range(layout.ranks) if layout.coordinate(rank, "pipeline") in places]
    ranks = [rank for rank in range(layout.ranks) if (rank if kind == "gpu" else spec.node_of[rank]) == number]
    return ranks or [0]  # a GPU that is not used


def _uneven(programs: Sequence[Program]) -> bool:
    """Whether ops of one kind take different times on different ranks."""
    times: dict[tuple[str, ...], set[int]] = {}
    for program in {id(program): program for program in programs}.values():
        for task in program.compute:
            times.setdefault(kinds_of(task), set()).add(duration_of(task))
    return any(len(found) > 1 for found in times.values())
