"""A run whose causes are recorded, folded like any other, with its graph and the slack of all points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hybrid_des.analysis.critical_path.graph import graph_of, serving_of
from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.paths import Piece, critical_path
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import Name, Span, class_spans
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.engine.causes import START, Causes
from hybrid_des.folding.symmetry import Fold
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.program_table import NONE, Column
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sizes import FOLDED_FROM
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run

FEWEST_FOLDED = 2  # ranks of a run of which not every rank is shown
TRACED = {"record": "all", "on_oom": "warn"}  # keys of a traced run


def untrained(scenario: Scenario, plan: Plan | None, fabric: Fabric | None) -> Parts | None:
    """The parts of a scenario with numerics, without training, which takes no simulated time; None without numerics."""
    if scenario.numerics is None:
        return None
    return replace(parts_of(scenario, plan, fabric), training=None, workers={})


def traced_parts(scenario: Scenario, plan: Plan | None = None, fabric: Fabric | None = None) -> Parts:
    """The parts of a run that is traced, which is not trained."""
    with scenario.cluster.unit_asked_for():
        return untrained(scenario, plan, fabric) or parts_of(scenario, plan, fabric)


def traced_run(
    scenario: Scenario,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    *,
    fold_from: int | None = None,
    parts: Parts | None = None,
) -> Run:
    """Simulate a scenario with all messages and causes recorded, but without training, which takes no time.

    Args:
        scenario: what to simulate.
        plan: replaces the schedule's plan.
        fabric: replaces the topology's fabric.
        fold_from: the number of ranks from which `fold: auto` folds; default: more than a run shows.
        parts: its parts (`traced_parts`), if it has been planned.
    """
    scenario = scenario.model_copy(update=TRACED)
    parts = parts or untrained(scenario, plan, fabric)
    made = run(scenario, plan, fabric, trace=Causes(), parts=parts, fold_from=fold_from)
    if made.fold is None or images_are_known(made):
        return made
    return _whole(made)


def _whole(base: Run) -> Run:
    return traced_run(base.scenario.model_copy(update={"fold": "off"}), base.plan, base.fabric)


def images_are_known(folded: Run) -> bool:
    """Whether the endpoints of messages have images, and every group that meets has those who stand for its members."""
    assert folded.trace is not None and folded.fold is not None
    ranks, images = folded.fold.layout.ranks, Images(folded.fold, folded.fabric)
    try:
        for group in folded.trace.groups:
            images.keeping(group)
    except ValueError:
        return False
    ends = {end for one in folded.timeline.channels for end in (one.sender, one.receiver)}
    return all(end < ranks or images.endpoints.is_switch(end) for end in ends)


def _at_switches(trace: Causes) -> Column:
    """The group of ranks of each event of a switch: begins and ends of its processes, and waits that took time."""
    points = trace.points.mapped()
    serving, begins, before = serving_of(trace, points), points["kind"] == START, points["before"]
    waited = ~begins & (points["time"] > points["time"][before])
    groups: Column = np.concatenate([serving[begins], serving[begins], serving[waited]])
    return groups.compress(groups != NONE)


def events_of_all(base: Run) -> int:
    """The number of events that a run takes where every rank is simulated, if it was traced."""
    if base.fold is None or base.trace is None:
        return base.events
    images, trace = Images(base.fold, base.fabric), base.trace
    group, times = np.unique(np.append(trace.meetings.table()["group"], _at_switches(trace)), return_counts=True)
    apart = [len(np.unique(images.keeping(trace.groups[number]))) for number in group.tolist()]
    once: int = sum(count * (images.order - meetings) for count, meetings in zip(times.tolist(), apart, strict=True))
    return int(base.events * images.order - once)


@dataclass(frozen=True, eq=False)
class Traced:
    """A traced run, with what follows from its causes."""

    run: Run

    @cached_property
    def slack(self) -> Slack:
        """How late each point of its graph may be."""
        return Slack.of(graph_of(self.run))

    @cached_property
    def classes(self) -> dict[Name, Span]:
        """Least and most time of classes over all critical paths."""
        return class_spans(self.slack)

    @cached_property
    def path(self) -> list[Piece]:
        """The critical path that is shown."""
        return critical_path(self.slack.graph)

    @cached_property
    def idle_time(self) -> IdleTime:
        """All idle time, by rank, cause and reason."""
        return IdleTime(self.slack.graph)

    @cached_property
    def whole(self) -> Traced:
        """The same run with every rank simulated."""
        return self if self.run.fold is None else Traced(_whole(self.run))

    @property
    def shown(self) -> Traced:
        """The run as pictures show it: with every rank, unless these are many."""
        return self if self.run.timeline.layout.ranks >= FOLDED_FROM else self.whole

    def fitting(self, fold: Fold | None) -> Traced:
        """The run to compare with one that was folded so: itself if what is alike here is alike there."""
        mine = self.run.fold
        return self if mine is None or (fold is not None and fold.folded_axes == mine.folded_axes) else self.whole
