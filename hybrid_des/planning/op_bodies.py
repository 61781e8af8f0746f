"""What an action does between its begin and its end: computation, and collectives as messages (`layer_traffic`).

    F   │ compute │ start, compute, join │ compute │ start, compute, join │ compute │    as long as with replayed
                    └ a collective ────┘             └ a collective ────┘                collectives on idle links

A layer's computation surrounds its collectives in equal parts; computation overlapped with a collective starts with
it. Without such collectives an action computes in one piece.

Around that are the messages of the pipeline: it receives its inputs before it begins, and then sends its results.

    receive │ begin │ … │ end │ send │ confirm

Between two stages on the same rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import OF_LAYERS, PARAMETERS, PURPOSES, purpose_named
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.cost_model.rank_costs import StageCosts
from hybrid_des.cost_model.stages import memory_of
from hybrid_des.engine.recorder import CHUNK, INSIDE, pipeline_tag
from hybrid_des.pipeline.plan import Action, Place, Plan, carried
from hybrid_des.planning.program import (
    Begin,
    Block,
    Compute,
    ComputeSpeed,
    Confirm,
    End,
    Instruction,
    Join,
    Receive,
    Record,
    Send,
    Start,
    Wait,
    filled,
    gathered,
    waiting_for,
)

if TYPE_CHECKING:
    from hybrid_des.pipeline.plan import Action, Kind


Part = tuple[int, StageCosts, "Kind"]  # of an action: a stage, its costs, and the kind of op


class Point(NamedTuple):
    """A moment of an action on idle links at which a stage's bucket is filled, or its parameters are needed."""

    at: int
    stage: int
    needed: bool = False

    @property
    def instruction(self) -> Instruction:
        """What happens then."""
        if self.needed:
            return Wait(gathered(self.stage), waiting_for(PARAMETERS, INSIDE))
        return Record(filled(self.stage))


@dataclass(frozen=True, slots=True, eq=False)  # hashing a collective takes longer than all else here
class _Piece:
    """Computation of a layer, and the collective after it; layers that are one object share theirs."""

    share: Fraction
    collective: LayerCollective | None
    stage: int


class _Timed(NamedTuple):
    """Computation, or the instructions of a collective and the computation that it overlaps, on idle links."""

    took: int
    exchange: Sequence[Instruction] = ()


def body_of(
    parts: Sequence[Part], duration: int, pace: ComputeSpeed, axes: Collection[str], points: Sequence[Point]
) -> tuple[Instruction, ...]:
    """The instructions of an action, with the collectives along `axes` as messages.

    Args:
        parts: its ops.
        duration: of the whole action on idle links.
        pace: of the computation that overlaps collectives.
        axes: those whose collectives are messages.
        points: what happens meanwhile, in order.
    """
    pending = list(points)[::-1]
    body: list[Instruction] = []
    now = 0
    for piece in _alone(parts, duration, pace, axes) if axes else [_Timed(duration)]:
        end = now + piece.took
        meanwhile: list[Instruction] = []
        while pending and pending[-1].at < end:
            point = pending.pop()
            if not piece.exchange and point.at > now:
                body.append(Compute(point.at - now))
                now = point.at
            if not piece.exchange or point.needed:
                body.append(point.instruction)
            else:
                meanwhile.append(Record(filled(point.stage), point.at - now))
        body += meanwhile
        body += piece.exchange or (Compute(end - now),)
        now = end
    return (*body, *(point.instruction for point in reversed(pending)))


def ends_of(action: Action, costs: Sequence[StageCosts]) -> tuple[Begin, End]:
    """The begin and the end of an action, with the activations that it allocates and releases."""
    each = [(cost, op.kind) for cost, op in zip(costs, action, strict=True)]
    held, _, freed = memory_of(each)
    chunks = sum([kind == "F" for _, kind in each])
    return Begin((held, CHUNK * chunks)), End((freed, sum([cost.freed(kind, CHUNK) for cost, kind in each])))


def _alone(parts: Sequence[Part], duration: int, pace: ComputeSpeed, axes: Collection[str]) -> Iterator[_Timed]:
    """Computation and collectives in turn, with the time that each takes on idle links."""
    pieces = [piece for part in parts for piece in _pieces(*part, axes)]
    exchanges = {piece: _exchange(piece, pace) for piece in dict.fromkeys(pieces)}
    # a fused pair may have less to compute than it hides; then its collectives take longer than when they are replayed
    computes = max(0, duration - sum([exchanges[piece].took for piece in pieces]))
    common = lcm(*[piece.share.denominator for piece in exchanges])
    shares = {piece: int(piece.share * common) for piece in exchanges}
    whole = sum([shares[piece] for piece in pieces]) or common
    done = share = 0
    for piece in pieces:
        share += shares[piece]
        until = int(Fraction(computes * share, whole)) if share * whole < 0 else computes * share // whole
        if until > done:
            yield _Timed(until - done)
        done = until
        if piece.collective is not None:
            yield exchanges[piece]
    yield _Timed(computes - done)


def _exchange(piece: _Piece, pace: ComputeSpeed) -> _Timed:
    """The collective of a piece; nothing if it has none."""
    collective = piece.collective
    if collective is None:
        return _Timed(0)
    overlapped = pace.duration(collective.overlapped)
    start, join = Start((collective.axis, piece.stage, 0), collective), Join(PURPOSES.index(OF_LAYERS[collective.axis]))
    meanwhile = (Compute(overlapped, whole=None),) if overlapped else ()
    return _Timed(max(collective.launch + collective.alone, overlapped + collective.taken), (start, *meanwhile, join))


def _pieces(stage: int, cost: StageCosts, kind: Kind, axes: Collection[str]) -> Iterator[_Piece]:
    known: dict[int, list[_Piece]] = {}  # by identity: most layers are one object, which takes long to hash
    for layer in cost.layers if kind == "F" else cost.layers[::-1]:
        if id(layer) not in known:
            of_op = {"F": layer.collectives[0], "W": ()}.get(kind, layer.collectives[1])
            each = [one for one in of_op if one.axis in axes for _ in range(one.repeats)]
            share = Fraction(layer.time(kind) - sum(one.waits for one in each), len(each) + 1)
            known[id(layer)] = [_Piece(share, exchange, stage) for exchange in (*each, None)]
        yield from known[id(layer)]


class Hops(NamedTuple):
    """The messages of equal actions, whatever their sizes.

    Attributes:
        receives: those that they wait for.
        sends: those that they send, each with the place whose activation is as large.
        known: sizes → what they send.
    """

    receives: Sequence[Receive]
    sends: Sequence[tuple[Send, Place]]
    known: dict[tuple[int, ...], Sequence[Send]]


def hops_of(plan: Plan, rank: int, action: Action) -> Hops:
    """The messages of an action."""
    receives, sends = list[Receive](), list[tuple[Send, Place]]()
    for number, op in enumerate(action):
        here, purpose = (rank, op.chunk), purpose_named(carried(op))
        if source := plan.source(rank, op):
            tag = pipeline_tag(0, plan.stage_of[source], 0)
            receives.append(Receive(len(receives), number, source[0], purpose, tag))
        if target := plan.target(rank, op):
            send = Send(number, target[0], purpose, pipeline_tag(0, plan.stage_of[here], 0), Message(0))
            sends.append((send, here if op.kind == "F" else target))
    return Hops(receives, sends, {})


def with_sends(
    block: Block, hops: Hops, sizes: tuple[int, ...], messages: dict[int, Message], *, blocking: bool
) -> Block:
    """The same, which receives messages before, and sends others of these sizes after it.

    Args:
        block: what an action does.
        hops: its messages.
        sizes: of those that it sends, in bytes.
        messages: size → the message of this size, if there is one yet.
        blocking: whether it ends when they have arrived.
    """
    if sizes not in hops.known:
        sized = [messages.setdefault(size, Message(size)) for size in sizes]
        hops.known[sizes] = [replace(send, message=one) for (send, _), one in zip(hops.sends, sized, strict=True)]
    confirms = [Confirm(send.op, send.purpose, send.tag) for send, _ in hops.sends if blocking]
    return Block(block.stages, (*hops.receives, *block.instructions, *hops.known[sizes], *confirms))
