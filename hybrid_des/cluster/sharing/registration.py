"""How messages share links: by swappable models.

A model is made once per simulation, and makes the links and flows of all jobs. `model.flow(hops, put, rows, priority)`
opens a flow, whose `send(message, tag)` carries a message over the hops and calls `put(message, tag, at)` as soon as
its time of arrival is known (never later than that time).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, Self

from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop, Link, LinkSchedule
from hybrid_des.cluster.mailbox import MOST_MESSAGES, Message
from hybrid_des.cluster.rate import Rate
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Rows
from hybrid_des.registry import Registry

Put = Callable[[Message, int, int], None]
Schedules = Mapping[str, LinkSchedule]  # by name, those of links whose bandwidth or latency varies


class Flow(ABC):
    """Messages from one GPU to another for one purpose, in order, over one route.

    Attributes:
        hops: the links of the route.
        put: called as soon as a message's time of arrival is known.
        rows: where the time on each link is recorded, if anywhere.
        label: the tag of messages that are sent without one.
        pace: bytes → the least picoseconds from the start of a message to its end, if its sender is slower than links.
        count, scales: totals sent so far (`Message`).
    """

    __slots__ = ("count", "hops", "label", "pace", "put", "rows", "scales")

    pace: Rate | None

    def __init__(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        self.hops = hops
        self.put = put
        self.rows = rows
        self.pace = None
        self.label = self.count = self.scales = 0

    @property
    def messages(self) -> int:
        """Number of messages sent so far."""
        return self.count & MOST_MESSAGES

    @property
    def bytes(self) -> int:
        """Bytes sent so far; they include the scales."""
        return self.count >> MOST_MESSAGES.bit_length()

    def paced(self, rate: Rate) -> Self:
        """Let every message take at least the time of a rate; returns the flow itself."""
        self.pace = rate
        return self

    @abstractmethod
    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""


class Sharing(Protocol):
    """A model of how links are shared."""

    def link(self, spec: LinkSpec, rate: Rate) -> Link:
        """Make a link for the flows of this model."""

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> Flow:
        """Open a flow over these hops, whose messages are recorded in these rows; some models have no priorities."""


_REGISTRY: Registry[Callable[[Environment, Schedules], Sharing]] = Registry("sharing", "hybrid_des.cluster.sharing")

sharing = _REGISTRY
names = _REGISTRY.names
find = _REGISTRY.__getitem__
