"""Collectives of layers as messages inside ops (`tensor_traffic: messages`): segments of an op, and who sends them.

    F   │ compute │ exchange ┄┄┄ │ compute │ exchange ┄┄┄ │ compute │     as long as with replayed collectives,
                    └ beside ┘               └ beside ┘                   if nothing else uses the links

A layer's computation surrounds its collectives in equal parts; what may go on beside a collective starts with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.channels import Ring
from hybrid_des.collectives.group import Group, ProcessGroup, Routine
from hybrid_des.network.purpose import OF_LAYERS
from hybrid_des.simulation.pace import Pace
from hybrid_des.simulation.tasks import Await, Compute, Fill, LayerCollective, Segment
from hybrid_des.units import split_evenly
from hybrid_des.workload.costs import StageCosts
from hybrid_des.workload.replay import CODEC, elements_of
from hybrid_des.workload.traffic import Collective

if TYPE_CHECKING:
    from hybrid_des.network.transport import Transport
    from hybrid_des.pipeline.op import Kind
    from hybrid_des.simulation.tensor_traffic import TensorTraffic

Part = tuple[int, StageCosts, "Kind"]  # of an action: a stage, its costs, and which op
Point = tuple[int, Fill | Await]  # picoseconds after the start of an action, and what happens then
At = tuple[int, int, int, str]  # rank, chunk, stage, axis


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
        pace: of the computation beside collectives.
        axes: whose collectives are messages.
        points: what else happens, and when on idle links, in order.
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
    """Computation and collectives in turn, with what each takes on idle links."""
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


class Exchanger:
    """A rank's part in the collectives of one stage along one axis."""

    def __init__(self, transport: Transport, ranks: Sequence[int], rings: Sequence[Ring], at: At) -> None:
        """Join the group.

        Args:
            transport: carries the messages.
            ranks: the members.
            rings: the channels of the group.
            at: which rank this is, its chunk, and the stage and axis.
        """
        rank, chunk, stage, axis = at
        self._env = transport.env
        self._codec = codecs.find(CODEC).build()
        chunks = [chunk] * len(ranks)

        def group(members: Sequence[int], part: int) -> Group:
            whole = ProcessGroup(axis, stage, members, chunks, part=part, purpose=OF_LAYERS[axis])
            return Group(transport, whole, members.index(rank))

        self._whole = group(ranks, 0)
        self._rings = [group(ring, number) for number, ring in enumerate(rings, start=1)]

    def run(self, step: int, exchange: LayerCollective) -> Routine:
        """Take part in one collective."""
        groups = [self._whole] if exchange.algorithm == "all-to-all" else self._rings
        algorithm = collectives.configured(exchange.algorithm)
        if exchange.launch:
            yield self._env.timeout(exchange.launch)
        routines = []
        for group, elements in zip(groups, split_evenly(elements_of(exchange.size), len(groups)), strict=True):
            group.begin(step)
            routines.append(algorithm(group, Buffer(elements, self._codec)))
        if len(routines) == 1:
            yield from routines[0]
        else:
            yield self._env.all_of([self._env.process(routine) for routine in routines])


NO_EXCHANGERS: Mapping[tuple[str, int], Exchanger] = {}


class Exchangers:
    """Makes the exchangers of ranks."""

    def __init__(self, transport: Transport, traffic: TensorTraffic) -> None:
        """Find each rank's groups, along axes whose collectives are messages."""
        self._transport = transport
        self._of: dict[int, dict[str, tuple[Sequence[int], Sequence[Ring]]]] = {}
        for axis, groups in traffic.messages.items():
            for ranks, rings in zip(groups, traffic.rings[axis], strict=True):
                for rank in ranks:
                    self._of.setdefault(rank, {})[axis] = ranks, rings

    def of(self, rank: int, chunks: Mapping[int, int]) -> Mapping[tuple[str, int], Exchanger]:
        """(axis, stage) → a rank's exchanger; `chunks` maps the stages it holds to their chunks."""
        return {
            (axis, stage): Exchanger(self._transport, *group, (rank, chunk, stage, axis))
            for axis, group in self._of.get(rank, {}).items()
            for stage, chunk in chunks.items()
        }
