"""Evaluates or greedily builds orders with one chunk per rank and split backwards; registers nothing.

Micro-batches stay in order on every rank, so the candidates of a rank are its next F, its next I and its oldest W.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm

from hybrid_des.pipeline import PlanRequest
from hybrid_des.pipeline.op import TARGET, Kind, Op

Programs = list[list[Op]]


@dataclass(frozen=True)
class OpTimes:
    """Times of the ops on each rank and the delay between neighbours, in picoseconds."""

    length: dict[Kind, tuple[int, ...]]
    delay: int

    @classmethod
    def of(cls, request: PlanRequest) -> OpTimes:
        """The request's times; F = I = W and free sends if it has none."""
        times = (request.forward, request.input, request.weight)
        forward, backward, weight = times if request.forward else ((1,) * request.pipeline,) * 3
        return cls({"F": forward, "I": backward, "W": weight}, request.delay)


@dataclass(frozen=True)
class ActivationLimit:
    """The activations that a rank may hold, in parts of a micro-batch.

    Attributes:
        whole: parts of a micro-batch from its F to its I.
        deferred: per rank, parts that remain from its I to its W.
        most: parts that a rank may hold.
    """

    whole: int
    deferred: tuple[int, ...]
    most: int

    @classmethod
    def of(cls, request: PlanRequest, limit: Fraction) -> ActivationLimit:
        """A limit in micro-batches, counted with the request's weight shares."""
        shares = request.held_for_weight
        whole = lcm(*(share.denominator for share in shares))
        return cls(whole, tuple(int(share * whole) for share in shares), int(limit * whole))

    def admits(self, rank: int, forwards: int, backwards: int, weights: int) -> bool:
        """Whether a rank is within its limit after these numbers of F, I and W."""
        held = self.whole * (forwards - backwards) + self.deferred[rank] * (backwards - weights)
        return held <= self.most

    def allows(self, programs: Programs) -> bool:
        """Whether no rank ever exceeds the limit."""
        return all(self._allows(rank, program) for rank, program in enumerate(programs))

    def _allows(self, rank: int, program: list[Op]) -> bool:
        done: dict[Kind, int] = {"F": 0, "I": 0, "W": 0}
        for op in program:
            done[op.kind] += 1
            if not self.admits(rank, *done.values()):
                return False
        return True


class _Inputs:
    """Earliest start of the n-th forward and the n-th input gradient of each rank, as far as known."""

    def __init__(self, costs: OpTimes, microbatches: int) -> None:
        self._costs = costs
        self._last = len(costs.length["F"]) - 1
        self._times: dict[Kind, list[list[int]]] = {k: [[] for _ in range(self._last + 1)] for k in ("F", "I")}
        self._times["F"][0] = [0] * microbatches

    def __call__(self, kind: Kind, rank: int, number: int) -> int | None:
        times = self._times[kind][rank]
        return times[number] if number < len(times) else None

    def after(self, kind: Kind, rank: int, end: int) -> tuple[int, int] | None:
        """Record the end of an op; returns the time and the other rank at which it enables an op, if any."""
        to = rank + TARGET.get(kind, 0)
        if kind not in TARGET or to < 0:
            return None
        if to > self._last:  # the last rank turns around
            self._times["I"][rank].append(end)
            return None
        when = end + self._costs.delay
        self._times[kind][to].append(when)
        return when, to


def evaluate(costs: OpTimes, programs: Programs) -> tuple[int, int]:
    """Longest span of a rank, and time from first start to last end, with each op as early as possible."""
    ranks = range(len(programs))
    inputs = _Inputs(costs, len(programs[0]))
    at, first, free = [0 for _ in ranks], [-1 for _ in ranks], [0 for _ in ranks]
    waiting = list(ranks)
    while waiting:
        rank = waiting.pop()
        while at[rank] < len(programs[rank]):
            kind, number, _ = programs[rank][at[rank]]
            ready = 0 if kind == "W" else inputs(kind, rank, number)
            if ready is None:
                break
            start = max(free[rank], ready)
            if at[rank] == 0:
                first[rank] = start
            free[rank] = start + costs.length[kind][rank]
            at[rank] += 1
            if (woken := inputs.after(kind, rank, free[rank])) is not None:
                waiting.append(woken[1])
    return max(end - start for start, end in zip(first, free, strict=True)), max(free) - min(first)


class Walk:
    """A greedy list scheduler: a rank decides what to run when it becomes free; `programs` holds each rank's order."""

    def __init__(
        self, costs: OpTimes, microbatches: int, limit: ActivationLimit, warmups: list[int], soon: int
    ) -> None:
        """Schedule all ops.

        Args:
            costs: times of the ops.
            microbatches: number of micro-batches.
            limit: memory of a rank.
            warmups: number of forwards each rank may run before its first input gradient.
            soon: gaps shorter than `soon` eighths of a W are left idle.
        """
        self.programs: Programs = [[] for _ in warmups]
        self._costs, self._microbatches, self._limit = costs, microbatches, limit
        self._warmups, self._soon = warmups, soon
        self._inputs = _Inputs(costs, microbatches)
        self._done: list[dict[Kind, int]] = [{"F": 0, "I": 0, "W": 0} for _ in warmups]
        free = [0 for _ in warmups]
        events = [(0, rank) for rank in range(len(warmups))]
        while events:
            now, rank = heappop(events)
            if free[rank] > now or (kind := self._choose(rank, now)) is None:
                continue
            self.programs[rank].append(Op(kind, self._done[rank][kind]))
            self._done[rank][kind] += 1
            free[rank] = now + self._costs.length[kind][rank]
            heappush(events, (free[rank], rank))
            if (woken := self._inputs.after(kind, rank, free[rank])) is not None:
                heappush(events, woken)

    def _choose(self, rank: int, now: int) -> Kind | None:
        """An input gradient if one is ready, else a forward if memory allows, else a W if the gap is long enough."""
        forwards, backwards, weights = self._done[rank].values()
        backward = self._inputs("I", rank, backwards)
        if backward is not None and backward <= now:
            return "I"
        forward = None
        if forwards < min(self._microbatches, backwards + self._warmups[rank]):
            forward = self._inputs("F", rank, forwards)
        room = self._limit.admits(rank, forwards + 1, backwards, weights)
        if room and forward is not None and forward <= now:
            return "F"
        if weights == backwards:
            return None
        if forward is not None and not room:
            return "W"
        coming = [time for time in (backward, forward) if time is not None]
        if coming and 8 * (min(coming) - now) < self._soon * self._costs.length["W"][rank]:
            return None
        return "W"
