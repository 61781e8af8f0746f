"""The segments of an op whose collectives are messages (`tensor_traffic: messages`).

    F   │ compute │ exchange ┄┄┄ │ compute │ exchange ┄┄┄ │ compute │     as long as with replayed collectives,
                    └ beside ┘               └ beside ┘                   if nothing else uses the links

A layer's computation surrounds its collectives in equal parts; computation overlapped with a collective starts with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.planning.pace import Pace
from hybrid_des.planning.tasks import Await, Compute, Fill, LayerCollective, Segment
from hybrid_des.workload.costs import StageCosts
from hybrid_des.workload.traffic import Collective

if TYPE_CHECKING:
    from hybrid_des.pipeline.op import Kind

Part = tuple[int, StageCosts, "Kind"]  # of an action: a stage, its costs, and the kind of op
Point = tuple[int, Fill | Await]  # picoseconds after the start of an action, and the segment due then


class _Piece(NamedTuple):
    """Computation of a layer, and the collective after it."""

    share: Fraction
    collective: Collective | None
    stage: int


def segments_of(
    parts: Sequence[Part], duration: int, pace: Pace, axes: Collection[str], points: Sequence[Point]
) -> tuple[Segment, ...]:
    """The segments of an action with the collectives along `axes` as messages.

    Args:
        parts: its ops.
        duration: of the whole action on idle links.
        pace: of the computation that overlaps collectives.
        axes: those whose collectives are messages.
        points: the other segments and their times on idle links, in order.
    """
    pending = list(points)[::-1]
    segments: list[Segment] = []
    now = 0
    for segment, took in _alone(parts, duration, pace, axes):
        end, fills = now + took, []
        while pending and pending[-1][0] < end:
            at, point = pending.pop()
            if isinstance(segment, LayerCollective) and isinstance(point, Fill):
                fills.append((at - now, point.stage))
                continue
            if isinstance(segment, Compute):
                segments.append(Compute(at - now))
                segment, now = Compute(end - at), at
            segments.append(point)
        segments.append(segment._replace(fills=tuple(fills)) if isinstance(segment, LayerCollective) else segment)
        now = end
    return (*segments, *(point for _, point in reversed(pending)))


def _alone(
    parts: Sequence[Part], duration: int, pace: Pace, axes: Collection[str]
) -> Iterator[tuple[Compute | LayerCollective, int]]:
    """Computation and collectives in turn, with the time that each takes on idle links."""
    pieces = [piece for part in parts for piece in _pieces(*part, axes)]
    besides = {one: pace.duration(one.beside) for one in {piece.collective for piece in pieces} if one}
    takes = {one: max(one.launch + one.alone, beside) for one, beside in besides.items()}
    # a fused pair may have less to compute than it hides; then its collectives take longer than when they are replayed
    computes = max(0, duration - sum(takes[piece.collective] for piece in pieces if piece.collective))
    whole = sum((piece.share for piece in pieces), Fraction(0)) or Fraction(1)
    done, share = 0, Fraction(0)
    for piece in pieces:
        share += piece.share
        until = int(computes * share / whole)
        if until > done:
            yield Compute(until - done), until - done
        done = until
        if (one := piece.collective) is not None:
            yield LayerCollective(one.axis, piece.stage, one.algorithm, one.size, one.launch, besides[one]), takes[one]
    yield Compute(computes - done), computes - done


def _pieces(stage: int, cost: StageCosts, kind: Kind, axes: Collection[str]) -> Iterator[_Piece]:
    layers = cost.layers if kind == "F" else cost.layers[::-1]
    for layer in layers:
        of_op = {"F": layer.collectives[0], "W": ()}.get(kind, layer.collectives[1])
        each = [one for one in of_op if one.axis in axes for _ in range(one.repeats)]
        share = Fraction(layer.time(kind) - sum(one.waits for one in each), len(each) + 1)
        for one in each:
            yield _Piece(share, one, stage)
        yield _Piece(share, None, stage)
