"""Who was slow: a step as it was, and as it would be if some of its ops took their ideal time.

The law is that of `analysis.counterfactual.attribution`. The ideal time of an op is the mean of its kind over replicas,
stages, micro-batches and steps; S_C = T(only C as measured)/T_ideal of a class C. T is the mean over steps of first to
last compute. Messages take no time: only computation is replayed.

Without messages, a step is the longest path through its plan, in each replica by itself. It is computed here for all
steps and replicas at once, and equals the result of the simulation (`tests/stragglers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.counterfactual.attribution import Loss
from hybrid_des.pipeline.plan import Plan
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.durations import Times

Lengths = NDArray[np.int64]  # picoseconds by step and replica


def lengths(plan: Plan, times: Mapping[str, Times]) -> Lengths:
    """First to last compute of every step and replica; `times` as in `Durations.complete`, by kind."""
    edges = plan.edges
    bounds = np.searchsorted(edges.consumer, np.arange(edges.first[-1] + 1))
    ends: dict[int, Lengths] = {}
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
        places: dict[str, list[tuple[int, int, int]]] = {}
        for rank, op in self.plan.ops():
            places.setdefault(op.kind, []).append((rank, op.chunk, op.microbatch))
        found = dict(self.times)
        for name, at in places.items():
            ranks, chunks, microbatches = np.array(at).T
            mean = found[name][:, :, ranks, chunks, microbatches].mean()
            found[name] = np.full_like(found[name], round(float(mean)))
        return found

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

    def of_stage(self, stage: int) -> tuple[float, float]:
        """S_C and removed(C) of a pipeline rank in all replicas."""
        return self._class(self._only_stage[stage], self._all_but_stage[stage])

    def of_replica(self, replica: int) -> tuple[float, float]:
        """S_C and removed(C) of a replica; the others do not depend on it."""
        only, without = self.ideal_length.copy(), self.measured.copy()
        only[:, replica] = self.measured[:, replica]
        without[:, replica] = self.ideal_length[:, replica]
        return self._class(only, without)

    def of_worker(self, replica: int, stage: int) -> tuple[float, float]:
        """S_C and removed(C) of one pipeline rank of one replica."""
        only, without = self.ideal_length.copy(), self.measured.copy()
        only[:, replica] = self._only_stage[stage][:, replica]
        without[:, replica] = self._all_but_stage[stage][:, replica]
        return self._class(only, without)

    def of_kind(self, kind: str) -> tuple[float, float]:
        """S_C and removed(C) of forwards (F), or of backwards (B)."""
        kinds = {"F"} if kind == "F" else {*self.times} - {"F"}
        only = {name: self.times[name] if name in kinds else self.ideal[name] for name in self.times}
        without = {name: self.ideal[name] if name in kinds else self.times[name] for name in self.times}
        return self._class(lengths(self.plan, only), lengths(self.plan, without))

    @cached_property
    def _only_stage(self) -> list[Lengths]:
        """Every step and replica with the measured durations of one stage only."""
        return [lengths(self.plan, self._mixed(self.ideal, self.times, s)) for s in range(self.plan.pipeline)]

    @cached_property
    def _all_but_stage(self) -> list[Lengths]:
        """The same with the ideal durations of one stage."""
        return [lengths(self.plan, self._mixed(self.times, self.ideal, s)) for s in range(self.plan.pipeline)]

    @staticmethod
    def _mixed(most: Mapping[str, Times], one: Mapping[str, Times], stage: int) -> dict[str, Times]:
        """The durations of `most`, and on one stage those of `one`."""
        mixed = {kind: times.copy() for kind, times in most.items()}
        for kind, times in one.items():
            mixed[kind][:, :, stage] = times[:, :, stage]
        return mixed

    def _class(self, only: Lengths, without: Lengths) -> tuple[float, float]:
        return seconds(only) / self.loss.ideal, self.loss.removed(seconds(without))


def seconds(lengths: Lengths) -> float:
    """Mean over steps of the slowest replica."""
    return float(lengths.max(axis=1).mean()) / PICOSECONDS_PER_SECOND
