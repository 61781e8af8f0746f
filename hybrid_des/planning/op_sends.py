"""The messages of a pipeline around an action, which receives its inputs before it begins, and then sends its results.

    receive │ begin │ … │ end │ send │ confirm

Between two stages on the same rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import purpose_named
from hybrid_des.engine.recorder import pipeline_tag
from hybrid_des.pipeline.plan import Action, Place, Plan, carried
from hybrid_des.planning.program import Block, Confirm, Receive, Send


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
