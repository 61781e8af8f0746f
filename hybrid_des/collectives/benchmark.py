"""Collectives run once on idle links: how long they take, and what they send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import on_channels
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.engine.clock import Environment, Process
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import DeadlockError


class Outcome(NamedTuple):
    """Picoseconds until the last member completed, and what was sent: messages, their payload, and bytes of scales.

    Attributes:
        even: whether all members completed at the same time.
    """

    duration: int
    messages: int
    bytes: int
    scales: int
    even: bool = True

    def then(self, other: Outcome) -> Outcome:
        """Both, one after the other."""
        return Outcome(
            self.duration + other.duration,
            self.messages + other.messages,
            self.bytes + other.bytes,
            self.scales + other.scales,
            self.even and other.even,
        )

    def beside(self, other: Outcome, times: int) -> Outcome:
        """This, and another that happens so many times, all at the same time without touching each other."""
        return Outcome(
            max(self.duration, other.duration),
            self.messages + times * other.messages,
            self.bytes + times * other.bytes,
            self.scales + times * other.scales,
            other.even and (self is NOTHING or (self.even and other.duration == self.duration)),
        )


NOTHING = Outcome(0, 0, 0, 0)
COUNTED = ("messages", "bytes_gradients", "bytes_scales")  # of what a network has sent
Views = dict[tuple[str, int], Group]  # of a network: kind of group and place in it → the member's view


class SlowerThanBestError(Exception):
    """A collective takes longer than its limit."""


def measure(
    fabric: Fabric,
    name: str,
    groups: Sequence[Sequence[int]],
    buffer: Callable[[int, int], Buffer],
    *,
    options: collectives.Given = None,
    spare: Sequence[int] = (),
    sharing: str = "fifo",
    trace: Recorder | None = None,
) -> Outcome:
    """Run one collective once in every group, all starting at the same time.

    Members of `groups` and `spare`, the places for servers, are places in the fabric. `buffer` maps (group, place in
    it) to a member's buffer; servers follow the members. Options that the collective does not declare are ignored.

    Raises:
        Refusal: the collective does not support the group or wiring.
        DeadlockError: its members deadlock.
    """
    network = Transport(Links(Environment(), fabric, sharing), trace or Recorder())
    wholes = [
        collectives.process_group(name, collectives.Site(fabric, ranks, spare), options, stage=number)
        for number, ranks in enumerate(groups)
    ]
    members = [(whole, place) for whole in wholes for place in range(len(whole.ranks))]
    return run_collective(network, collectives.configured(name, options), members, buffer)


def run_collective(
    network: Transport,
    algorithm: collectives.Collective,
    members: Iterable[tuple[ProcessGroup, int]],
    buffer: Callable[[int, int], Buffer],
    *,
    limit: int | None = None,
    views: Views | None = None,
    ends: list[int] | None = None,
) -> Outcome:
    """Run a collective once on a network, with members that all start at the same time, in this order.

    Args:
        network: an idle one; what it has carried before does not count.
        algorithm: the collective with its options.
        members: the members and servers that act: a group, whose `stage` is its number, and a place in it.
        buffer: maps (group, place in it) to a member's buffer.
        limit: picoseconds; the run stops some time after exceeding it.
        views: as in `begun`.
        ends: a list that gets the picoseconds after which each member and server has ended.

    Raises:
        Refusal: the collective does not support the group or wiring.
        DeadlockError: its members deadlock.
        SlowerThanBestError: it takes longer than the limit.
    """
    env, members = network.env, list(members)
    began, before = env.now, network.sent()
    each = [0] * len(members)

    def completed(number: int, _: Any) -> None:
        each[number] = env.now - began

    def beat() -> None:
        if limit is not None and env.now - began > limit:
            raise SlowerThanBestError

    processes = begun(network, algorithm, members, buffer, views)
    for number, process in enumerate(processes):
        process.callbacks.append(partial(completed, number))
    env.run(beat=None if limit is None else beat)
    beat()
    if stuck := sum(process.is_alive for process in processes):
        raise DeadlockError(
            f"deadlock: {stuck} of {len(processes)} members of {members[0][0].kind} wait for each other"
        )
    network.check_empty()
    after = network.sent()
    messages, size, scales = (after[key] - before[key] for key in COUNTED)
    if ends is not None:
        ends += each
    last = dict[int, int]()  # rank → when its last member ends
    for (group, member), end in zip(members, each, strict=True):
        if member < group.size:
            last[group.ranks[member]] = max(last.get(group.ranks[member], 0), end)
    return Outcome(env.now - began, messages, size, scales, len({*last.values()}) == 1)


def begun(
    network: Transport,
    algorithm: collectives.Collective,
    members: Iterable[tuple[ProcessGroup, int]],
    buffer: Callable[[int, int], Buffer],
    views: Views | None = None,
) -> list[Process]:
    """Start a collective on a network, whatever else its links carry; see `run_collective`.

    Members find the flows that they have opened before in `views`, if these are kept for the network.
    """
    processes, views = [], {} if views is None else views
    for group, member in members:
        network.begin(group.ranks[member])
        view = views.get((group.kind, member))
        if view is None or not view.is_of(group):
            view = views[group.kind, member] = Group(network, group, member)
        routine = on_channels(view, buffer(group.stage, member), algorithm)
        processes.append(network.env.process(routine))
    return processes
