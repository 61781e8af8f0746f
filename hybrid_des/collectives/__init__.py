"""Collectives, one algorithm a file: a generator over one rank's sends and receives.

    @collective("ring")
    def ring(group, buffer):
        group.to(peer).send(buffer.encode(i))
        parcel = yield group.from_(peer).receive()

A group member is known by its place 0 … size−1. Sends are asynchronous; messages between two members come in order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

from hybrid_des.collectives.buffer import Buffer
from hybrid_des.registry import Registry


class Outgoing(Protocol):
    """One member's way to another."""

    def send(self, parcel: Any) -> None:
        """Send a parcel; the sender goes on at once."""


class Incoming(Protocol):
    """What another member sends here."""

    def receive(self) -> Any:
        """The next parcel, to be yielded."""


class Group(Protocol):
    """One member's view of the group that works on a collective."""

    me: int
    size: int

    def to(self, peer: int) -> Outgoing:
        """The way to another member."""

    def from_(self, peer: int) -> Incoming:
        """What another member sends here."""


Collective = Callable[[Any, Buffer], Generator[Any, Any, None]]

collective: Registry[Collective] = Registry("collective", "hybrid_des.collectives")
names = collective.names
find = collective.__getitem__
