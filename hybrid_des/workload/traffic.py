"""Collectives inside the ops of a layer, one by one and summed per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Traffic(NamedTuple):
    """Collectives along one axis in the ops of one micro-batch, which include the time that they wait for them.

    Attributes:
        axis: tensor, context or expert.
        forward, backward: picoseconds that the forward and the backward wait.
        hidden: picoseconds hidden by computation, in both.
        size: bytes of a member's buffers.
    """

    axis: str
    forward: int
    backward: int
    hidden: int
    size: int

    @property
    def exposed(self) -> int:
        """Picoseconds that ops wait."""
        return self.forward + self.backward


class Collective(NamedTuple):
    """A collective in the ops of one micro-batch on one layer.

    Attributes:
        axis: tensor, context or expert.
        algorithm: as registered.
        size: bytes of a member's buffer.
        repeats: number of times, one after the other.
        launch: picoseconds to start it.
        alone: picoseconds that its messages take, alone on the wiring.
        beside: picoseconds of the op's computation that may go on at the same time.
        messages, sent: number of messages, and bytes, that a group sends.
        even: whether its members complete it at the same time.
    """

    axis: str
    algorithm: str
    size: int
    repeats: int
    launch: int
    alone: int
    beside: int
    messages: int
    sent: int
    even: bool

    @property
    def waits(self) -> int:
        """Picoseconds that an op waits for it, each time."""
        return max(0, self.launch + self.alone - self.beside)

    @property
    def hidden(self) -> int:
        """Picoseconds hidden by computation, each time."""
        return self.launch + self.alone - self.waits


Both = tuple[tuple[Collective, ...], tuple[Collective, ...]]  # of forwards, of backwards


def traffic_of(forward: Sequence[Collective], backward: Sequence[Collective]) -> tuple[Traffic, ...]:
    """The collectives of a layer along each axis."""
    found = []
    for axis in dict.fromkeys(one.axis for one in (*forward, *backward)):
        ways = [[one for one in way if one.axis == axis] for way in (forward, backward)]
        waits = [sum(one.repeats * one.waits for one in way) for way in ways]
        hidden = sum(one.repeats * one.hidden for way in ways for one in way)
        size = sum(one.repeats * one.size for way in ways for one in way)
        found.append(Traffic(axis, waits[0], waits[1], hidden, size))
    return tuple(found)
