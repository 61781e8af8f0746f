"""Automatic zero-bubble scheduling, ZB-1p and ZB-2p (Qi et al., arXiv 2401.10241): a search within a memory limit.

    limit p    rank 0   F0 F1 ·· I0 W0 F2 I1 W1 F3 I2 W2 I3 W3         as good as ZB-H1 in time
               rank 1   ·· F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
    limit 2p   rank 0   F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 ··         no bubble within a rank's span
               rank 1   ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3         (p = 2, m = 4, F = I = W)

Candidates are ZB-H1 and ZB-H2, if within the limit, and greedy orders built with the request's own times; the best is
taken. With a limit of at least 2p−1 micro-batches, for which a rank need not idle within its span, the best is the one
with the shortest span, otherwise the one with the shortest time.

Greedily, a free rank runs an input gradient if one is ready, else a forward if one is ready and memory allows, else its
oldest weight gradient, unless the next op is ready soon. The number of forwards before the first input gradient and the
meaning of `soon` are varied. With a limit of at least p, a rank may have one forward fewer in flight than the rank
before it, as in the paper (section 3.1), unless the best order without this rule is more than 1 % shorter: with slow
sends it can be. For the limit, as for the reported peaks, a micro-batch counts 1 until its I is done, then the
request's weight share until its W is done. The paper's tables give (cost − mT)/cost, where cost is the longest span; on
its Table 5 this search is within 0.002 of the published ZB-2p and equals ZB-1p. Work is bounded: up to 98 orders, fewer
for large plans, each linear in the ops.

Micro-batches stay in order on every rank, so the candidates of a rank are its next F, its next I and its oldest W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import chain, islice, product
from math import lcm
from typing import Annotated

from hybrid_des.errors import Refusal
from hybrid_des.options import Elsewhere, Limit, OfRanks, Options
from hybrid_des.pipeline.plan import TARGET, Kind, Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules.registration import schedule
from hybrid_des.pipeline.schedules.zb_h1 import handcrafted

Programs = list[list[Op]]
Warmup = tuple[int, ...]  # forwards of each rank before its first input gradient

WARMUP = (16, 8, 12, 14, 15, None)  # forwards on rank r, in eighths of p−r; None: no limit
SOON = (2, 0, 4, 1, 3, 5, 6, 8)  # gaps shorter than this many eighths of W are left idle
WORTH = Fraction(101, 100)  # how much longer an order with fewer forwards ahead may be than one with more
FEWEST_WALKS, STEPS = 6, 400_000  # the search stops after this many orders or ops, whichever is more


class ZbAuto(Options):
    """Memory limit of the search."""

    max_activations: Annotated[Limit, OfRanks("2p"), Elsewhere("2p")] = None
    """Most micro-batches in flight; a number, or a multiple of the pipeline size such as 2p (the default)."""


def _limit(request: PlanRequest, options: ZbAuto) -> Fraction:
    return 2 * Fraction(request.pipeline) if options.max_activations is None else options.max_activations


def _peak(request: PlanRequest, rank: int, options: ZbAuto) -> Fraction | int:
    return min(Fraction(request.microbatches), _limit(request, options))


@schedule(
    "zb-auto",
    summary="search for the best order with split backwards within an activation limit",
    time="limit p: as zb-h1 or less; limit 2p: span close to mT",
    memory="max_activations",
    source="arXiv 2401.10241, ZB-1p and ZB-2p",
    chunks=1,
    options=ZbAuto,
    peak=_peak,
)
def zero_bubble_automatic(request: PlanRequest, options: ZbAuto) -> Plan:
    """The best order found; without times in the request, F = I = W and free sends.

    Raises:
        Refusal: not even one micro-batch fits.
    """
    p, m, limit = request.pipeline, request.microbatches, _limit(request, options)
    if limit < 1:
        raise Refusal(f"zb-auto needs memory for one micro-batch: max_activations must be at least 1, not {limit}")
    costs, memory = OpTimes.of(request), ActivationLimit.of(request, limit)
    by_span = limit >= 2 * p - 1

    def score(programs: Programs) -> tuple[int, int]:
        span, time = evaluate(costs, programs)
        return (span, time) if by_span else (time, span)

    handmade = (handcrafted(p, m, factor) for factor in (1, 2))  # ZB-H1, ZB-H2
    fewer_ahead, others = _warmups(p, m, limit)
    best = min(chain(filter(memory.allows, handmade), _walks(costs, m, memory, fewer_ahead)), key=score)
    if others:
        other = min(_walks(costs, m, memory, others), key=score)
        if score(other)[0] * WORTH < score(best)[0]:
            best = other
    return Plan.of(best, [loop(p, 1)], [0] * m)


def _warmups(p: int, m: int, limit: Fraction) -> tuple[list[Warmup], list[Warmup]]:
    """Numbers of forwards before the first input gradient: with one fewer on each further rank, and any others."""
    wanted = [tuple(m if eighths is None else -(-eighths * (p - r) // 8) for r in range(p)) for eighths in WARMUP]
    if limit < p:
        return wanted, []
    most = [int(limit) - rank for rank in range(p)]
    fewer_ahead = dict.fromkeys(tuple(map(min, forwards, most)) for forwards in wanted)
    return list(fewer_ahead), [forwards for forwards in wanted if forwards not in fewer_ahead]


def _walks(costs: OpTimes, m: int, limit: ActivationLimit, warmups: Sequence[Warmup]) -> Iterator[Programs]:
    """Greedy orders, as many as the ops allow."""
    choices = product(SOON, warmups)
    for soon, forwards in islice(choices, max(FEWEST_WALKS, STEPS // (3 * m * len(costs.length["F"])))):
        yield Walk(costs, m, limit, forwards, soon).programs


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

    def __init__(self, costs: OpTimes, microbatches: int, limit: ActivationLimit, warmups: Warmup, soon: int) -> None:
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
