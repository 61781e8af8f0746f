"""Who gets how much of a link: one swappable model a file.

A model is made once a run and hands out flows: `model.flow(hops, put)` gives an object whose
`send(message, tag)` carries a message over the hops and calls `put(message, tag, at)` as soon as it is known *when*
the message will be through (never later than that time).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Rows
from hybrid_des.network.link import Hop
from hybrid_des.network.message import Message
from hybrid_des.registry import Registry

Put = Callable[[Message, int, int], None]


class Flow(Protocol):
    """Messages from one GPU to another for one purpose, in order, over one route.

    Attributes:
        label: the tag of messages that are sent without one.
        messages, bytes, scales: what has been sent so far; `bytes` counts the scales in.
    """

    label: int
    messages: int
    bytes: int
    scales: int

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender goes on at once."""


class Sharing(Protocol):
    """A model of how links are shared."""

    def flow(self, hops: tuple[Hop, ...], put: Put) -> Flow:
        """Open a flow over these hops."""


_REGISTRY: Registry[Callable[[Environment, Rows | None], Sharing]] = Registry("sharing", "hybrid_des.network.sharing")

sharing = _REGISTRY
names = _REGISTRY.names
find = _REGISTRY.__getitem__
