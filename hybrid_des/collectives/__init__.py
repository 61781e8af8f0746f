"""Collectives, one algorithm a file: a generator over one rank's sends and receives.

    @collective("ring", summary="…", does="all-reduce")
    def ring(group: Group, buffer: Buffer) -> Steps:
        group.to(peer).send(buffer.encode(i))
        parcel = yield group.from_(peer).receive()

A group member is known by its place 0 … size−1. Sends are asynchronous; messages between two members come in order.
What a file says about itself when it registers:

    summary   one line for people
    does      all-reduce, reduce-scatter, all-gather, all-to-all: what is known of its buffer afterwards, and the factor
              between algorithm and bus bandwidth
    options   keys of a scenario's `gradients` that it reads, handed to it by name where they are given
    needs     those of them without which it cannot run
    servers   who works for the group beside its members, and how many: a function (`Site`) → their places in the fabric
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal, Protocol

from hybrid_des.network.fabric import Fabric
from hybrid_des.registry import Registry

Steps = Generator[Any, Any, None]
Does = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]


class Outgoing(Protocol):
    """One member's way to another."""

    def send(self, parcel: Any) -> None:
        """Send a parcel; the sender goes on at once."""


class Incoming(Protocol):
    """What another member sends here."""

    def receive(self) -> Any:
        """The next parcel, to be yielded."""


class Relay(Protocol):
    """Where one part of a collective hands its work to another on the same rank; nothing travels."""

    def hand(self, work: Any) -> None:
        """Hand something over, now."""

    def receive(self) -> Any:
        """The next thing handed over, to be yielded."""


class Group(Protocol):
    """One member's view of the group that works on a collective.

    Attributes:
        me: this member's place; servers come behind the members, at `size` and above.
        size: how many members have a buffer.
        servers: how many serve them.
    """

    me: int
    size: int
    servers: int

    @property
    def nodes(self) -> Sequence[int]:
        """The node of each member."""

    def to(self, peer: int) -> Outgoing:
        """The way to another member."""

    def from_(self, peer: int) -> Incoming:
        """What another member sends here."""

    def among(self, places: Sequence[int], lane: int = 0) -> Group:
        """Some of the members, this one among them, as a group of their own."""

    def lane(self, number: int) -> Group:
        """The same members in a conversation of its own, read apart from the others between the same two."""

    def together(self, *parts: Steps) -> Any:
        """Run parts of a collective side by side; to be yielded until all are done."""

    def meet(self, parcel: Any, delay: int) -> Any:
        """All members' parcels, to be yielded: there `delay` picoseconds after the last of them has come."""

    def relay(self) -> Relay:
        """A place where one of them hands its work to another."""


@dataclass(frozen=True)
class Site:
    """Where a collective is to run: the wiring, the ranks of its group, and the GPUs that no rank uses."""

    fabric: Fabric
    members: Sequence[int]
    spare: Sequence[int]


AUTO = "auto"  # the quickest of all

Collective = Callable[..., Steps]
_REGISTRY: Registry[Collective] = Registry("collective", "hybrid_des.collectives")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def collective(
    name: str,
    *,
    summary: str,
    does: Does = "all-reduce",
    options: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    servers: Callable[..., Sequence[int]] | None = None,
) -> Callable[[Collective], Collective]:
    """Register a collective under the name that a scenario's `gradients.algorithm` says."""
    return _REGISTRY(name, summary=summary, does=does, options=options, needs=needs, servers=servers)


def configured(name: str, options: Mapping[str, Any]) -> Collective:
    """A collective with those of the options that it reads and that are given."""
    entry = find(name)
    return partial(entry.build, **_given(name, options)) if _given(name, options) else entry.build


def servers_of(name: str, site: Site, options: Mapping[str, Any]) -> Sequence[int]:
    """The places of those who work for a group beside its members.

    Raises:
        Refusal: the cluster has none, or too few.
    """
    servers = find(name).facts["servers"]
    return servers(site, **_given(name, options)) if servers else ()


def _given(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in find(name).facts["options"] if options.get(key) is not None}


def all_reduces(given: Collection[str] = ()) -> list[str]:
    """The names of those that add gradients up on every rank and need no option that is not given."""
    facts = {name: find(name).facts for name in names()}
    return [name for name, fact in facts.items() if fact["does"] == "all-reduce" and set(fact["needs"]) <= set(given)]


def algorithms() -> list[str]:
    """What a scenario's `gradients.algorithm` may say."""
    return sorted([name for name in names() if find(name).facts["does"] == "all-reduce"] + [AUTO])


def bus_factor(does: Does, ranks: int) -> Fraction:
    """Bus bandwidth over algorithm bandwidth (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return Fraction(ranks - 1, ranks) * (2 if does == "all-reduce" else 1)
