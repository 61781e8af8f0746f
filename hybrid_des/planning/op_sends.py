"""The messages of a pipeline around an action, which receives its inputs before it begins, and then sends its results.

    receive │ begin │ … │ end │ send │ confirm

Between two stages on the same rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import Purpose, purpose_named
from hybrid_des.engine.recorder import pipeline_tag
from hybrid_des.pipeline.plan import Action, Place, Plan, carried
from hybrid_des.planning.program import Block, Confirm, Receive, Send


class Hop(NamedTuple):
    """A message that an action sends; the activation at the place `like` is as large."""

    op: int
    peer: int
    purpose: Purpose
    tag: int
    like: Place


class Hops(NamedTuple):
    """The messages of equal actions, whatever their sizes.

    Attributes:
        receives: those that they wait for.
        sends: those that they send.
        known: sizes → what they send.
    """

    receives: tuple[Receive, ...]
    sends: tuple[Hop, ...]
    known: dict[tuple[int, ...], tuple[Send, ...]]


def hops_of(plan: Plan, rank: int, action: Action) -> Hops:
    """The messages of an action."""
    return Hops(tuple(_received(plan, rank, action)), tuple(_sent(plan, rank, action)), {})


def with_sends(
    block: Block, hops: Hops, sizes: Sequence[int], messages: dict[int, Message], *, blocking: bool
) -> Block:
    """The same, which receives messages before, and sends others of these sizes after it.

    Args:
        block: what an action does.
        hops: its messages.
        sizes: of those that it sends, in bytes.
        messages: size → the message of this size, if there is one yet.
        blocking: whether it ends when they have arrived.
    """
    sizes = tuple(sizes)
    if sizes not in hops.known:
        hops.known[sizes] = tuple(
            Send(hop.op, hop.peer, hop.purpose, hop.tag, messages.setdefault(size, Message(size)))
            for hop, size in zip(hops.sends, sizes, strict=True)
        )
    confirms: Iterable[Hop] = hops.sends if blocking else ()
    after = *hops.known[sizes], *(Confirm(hop.op, hop.purpose, hop.tag) for hop in confirms)
    return Block(block.stages, (*hops.receives, *block.instructions, *after))


def _received(plan: Plan, rank: int, action: Action) -> Iterator[Receive]:
    received = 0
    for number, op in enumerate(action):
        source = plan.source(rank, op)
        if source is not None:
            tag = pipeline_tag(0, plan.stage_of[source], 0)
            yield Receive(received, number, source[0], purpose_named(carried(op)), tag)
            received += 1


def _sent(plan: Plan, rank: int, action: Action) -> Iterator[Hop]:
    for number, op in enumerate(action):
        here, target = (rank, op.chunk), plan.target(rank, op)
        if target is not None:
            like, tag = here if op.kind == "F" else target, pipeline_tag(0, plan.stage_of[here], 0)
            yield Hop(number, target[0], purpose_named(carried(op)), tag, like)
