"""Who was slow: the stages, replicas, workers and kinds of op of a measured run, by what they cost it.

The law is that of `analysis.counterfactual.attribution`. The ideal time of an op is the mean of its kind over replicas,
stages, micro-batches and steps; S_C = T(only C as measured)/T_ideal of a class C. T is the mean over steps of first to
last compute. Only computation counts: messages take no time, ranks do not pause.

A step is the longest path through its plan, in each replica by itself. It is computed here for all steps and replicas
at once, and equals the result of the simulation (`tests/studies/replay`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.counterfactual.attribution import Loss, culprit
from hybrid_des.interchange.profiles.durations import Times
from hybrid_des.measured.replay.measured import SLOW, Lengths, MeasuredRun
from hybrid_des.pipeline.plan import Plan
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by

if TYPE_CHECKING:
    import pandas as pd


def lengths(plan: Plan, times: Mapping[str, Times]) -> Lengths:
    """First to last compute of every step and replica; `times` as in `Durations.complete`, by kind."""
    edges = plan.edges
    bounds = np.searchsorted(edges.consumer, np.arange(edges.first[-1] + 1))
    ends: dict[int, Any] = {}  # of an action, by step and replica
    for number in edges.order():
        rank = int(edges.rank[number])
        ops = plan.programs[rank][number - edges.first[rank]]
        start = ends.get(number - 1, 0) if number > edges.first[rank] else 0
        for needed in edges.producer[bounds[number] : bounds[number + 1]].tolist():
            start = np.maximum(start, ends[needed])
        ends[number] = start + sum(times[op.kind][:, :, rank, op.chunk, op.microbatch] for op in ops)
    slowest: Lengths = np.maximum.reduce([ends[last - 1] for last in edges.first[1:]])
    return slowest


@dataclass(frozen=True)
class Ideals:
    """The counterfactuals of one measured run.

    Attributes:
        plan: the order of ops.
        times: picoseconds by kind, as in `Durations.complete`.
    """

    plan: Plan
    times: Mapping[str, Times]

    @cached_property
    def ideal(self) -> Mapping[str, Times]:
        """All ops of a kind at the mean of those in the plan."""
        times = dict(self.times)
        for name, ops in grouped_by(self.plan.ops(), lambda entry: entry[1].kind).items():
            ranks, chunks, microbatches = np.array([(rank, op.chunk, op.microbatch) for rank, op in ops]).T
            mean = times[name][:, :, ranks, chunks, microbatches].mean()
            times[name] = np.full_like(times[name], round(float(mean)))
        return times

    @cached_property
    def measured(self) -> Lengths:
        """Every step and replica with the measured durations."""
        return lengths(self.plan, self.times)

    @cached_property
    def ideal_length(self) -> Lengths:
        """The same with ideal durations."""
        return lengths(self.plan, self.ideal)

    @cached_property
    def loss(self) -> Loss:
        """The time of a step, and of the ideal one."""
        return Loss(seconds(self.measured), seconds(self.ideal_length))

    @property
    def slowdown(self) -> float:
        """S: the time of a step over that of the ideal one."""
        return self.loss.slowdown

    def of(self, replica: int | None = None, stage: int | None = None, kind: str | None = None) -> tuple[float, float]:
        """S_C and removed(C) of a replica, of a pipeline rank in all replicas or in one, or of a kind of op.

        The kinds are F, the forwards, and B, the backwards as wholes and in parts.
        """
        only, without = self.measured, self.ideal_length
        if stage is not None:
            only, without = self._of_stages[stage]
        elif kind is not None:
            only, without = self._exchanged("F" if kind == "F" else "BIW", slice(None))
        if replica is not None:  # replicas do not depend on each other
            others = np.arange(only.shape[1]) != replica
            only, without = np.where(others, self.ideal_length, only), np.where(others, self.measured, without)
        return seconds(only) / self.loss.ideal, self.loss.removed(seconds(without))

    @cached_property
    def _of_stages(self) -> list[tuple[Lengths, Lengths]]:
        return [self._exchanged("FBIW", stage) for stage in range(self.plan.pipeline)]

    def _exchanged(self, kinds: str, stages: int | slice) -> tuple[Lengths, Lengths]:
        """Every step and replica with the measured durations of some ops only, and with ideal durations of these."""

        def mixed(most: Mapping[str, Times], other: Mapping[str, Times]) -> Lengths:
            times = {kind: most[kind].copy() for kind in most}
            for kind in times.keys() & set(kinds):
                times[kind][:, :, stages] = other[kind][:, :, stages]
            return lengths(self.plan, times)

        return mixed(self.ideal, self.times), mixed(self.times, self.ideal)


def seconds(lengths: Lengths) -> float:
    """Mean over steps of the slowest replica."""
    return float(lengths.max(axis=1).mean()) / PICOSECONDS_PER_SECOND


@dataclass(frozen=True, repr=False)
class Stragglers:
    """Who was slow in a measured run.

    Attributes:
        trace: the measured run.
    """

    trace: MeasuredRun

    @cached_property
    def what_if(self) -> Ideals:
        """The counterfactuals."""
        return Ideals(self.trace.plan, self.trace.durations.complete)

    @cached_property
    def classes(self) -> pd.DataFrame:
        """Who was slow: one row per stage, replica, worker (a stage of a replica) and kind of op.

        Columns are `what`, `replica`, `stage`, `kind`, `slowdown` (S of this class alone) and `removed` (share of the
        loss that would vanish if it were ideal).
        """
        import pandas as pd

        replicas, stages = range(self.trace.sizes.replica), range(self.trace.sizes.stage)
        classes: list[tuple[str, int | None, int | None, str | None]] = [
            *(("stage", None, stage, None) for stage in stages),
            *(("replica", replica, None, None) for replica in replicas),
            *(("worker", replica, stage, None) for replica, stage in product(replicas, stages)),
            *(("kind", None, None, kind) for kind in "FB"),
        ]
        rows = [(*one, *self.what_if.of(*one[1:])) for one in classes]
        table = pd.DataFrame(rows, columns=["what", "replica", "stage", "kind", "slowdown", "removed"])
        return table.astype({"replica": "Int64", "stage": "Int64"})

    def slowest(self, what: str) -> dict[str, Any]:
        """The class of a kind that removes most of the loss if it is ideal."""
        rows: list[dict[Any, Any]] = self.classes[self.classes.what == what].to_dict("records")
        return max(rows, key=lambda row: row["removed"])

    def culprit(self) -> dict[str, Any] | None:
        """The worker, else the stage or replica, behind most of the loss; None if there is none, or little is lost.

        The only stage or replica of a run is no culprit, since there is no other to compare it with.
        """
        sizes = self.trace.sizes
        if self.what_if.slowdown < SLOW or sizes.stage * sizes.replica == 1:
            return None
        classes = {"worker": True, "stage": sizes.stage > 1, "replica": sizes.replica > 1}
        worst = [self.slowest(what) for what, several in classes.items() if several]
        return culprit([(one, one["removed"]) for one in worst])

    @property
    def figures(self) -> dict[str, Any]:
        """The slowdown, who is behind it, and all classes, for JSON."""
        return {
            "slowdown": self.what_if.slowdown,
            "culprit": _plain(self.culprit()),
            "classes": json.loads(self.classes.to_json(orient="records")),
        }

    def files(self) -> dict[str, Any]:
        """The table of classes, by the name of its file."""
        return {"classes.csv": self.classes}


def _plain(culprit: dict[str, Any] | None) -> dict[str, Any] | None:
    """A class for JSON, without fields that do not apply to it."""
    if culprit is None:
        return None
    keys = {"worker": ("replica", "stage"), "stage": ("stage",), "replica": ("replica",)}[culprit["what"]]
    numbers = {key: int(culprit[key]) for key in keys}
    return {"what": culprit["what"], **numbers, "slowdown": culprit["slowdown"], "removed": culprit["removed"]}
