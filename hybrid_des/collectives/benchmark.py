"""Collectives run on idle links, with every member of every group or only those that act."""

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


NOTHING = Outcome(0, 0, 0, 0)


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
    acting: int | None = None,
) -> Outcome:
    """Run one collective once in every group, all starting at the same time.

    Members of `groups` and `spare`, the places for servers, are places in the fabric. `buffer` maps (group, place in
    it) to a member's buffer; servers follow the members. Options that the collective does not declare are ignored. If
    `acting` is given, only that many members act, the first ones, at whose places the others are
    (see `simulation.collective_times`).

    Raises:
        Refusal: the collective does not support the group or wiring.
        DeadlockError: its members deadlock.
    """
    network = Transport(Links(Environment(), fabric, sharing), trace or Recorder())
    wholes = [
        collectives.process_group(name, collectives.Site(fabric, ranks, spare), options, stage=number)
        for number, ranks in enumerate(groups)
    ]
    members = [(whole, place) for whole in wholes for place in range(acting or len(whole.ranks))]
    return run_collective(network, collectives.configured(name, options), members, buffer)


def run_collective(
    network: Transport,
    algorithm: collectives.Collective,
    members: Iterable[tuple[ProcessGroup, int]],
    buffer: Callable[[int, int], Buffer],
    *,
    limit: int | None = None,
) -> Outcome:
    """Run a collective once on a network, with members that all start at the same time, in this order.

    Args:
        network: an unused one, at time 0.
        algorithm: the collective with its options.
        members: the members and servers that act: a group, whose `stage` is its number, and a place in it.
        buffer: maps (group, place in it) to a member's buffer.
        limit: picoseconds; the run stops some time after exceeding it.

    Raises:
        Refusal: the collective does not support the group or wiring.
        DeadlockError: its members deadlock.
        SlowerThanBestError: it takes longer than the limit.
    """
    env, ends, members = network.env, dict[int, int](), list(members)

    def completed(rank: int, _: Any) -> None:
        ends[rank] = env.now

    def beat() -> None:
        if limit is not None and env.now > limit:
            raise SlowerThanBestError

    processes = begun(network, algorithm, members, buffer)
    for process, (group, member) in zip(processes, members, strict=True):
        if member < group.size:
            process.callbacks.append(partial(completed, group.ranks[member]))
    env.run(beat=None if limit is None else beat)
    if limit is not None and env.now > limit:
        raise SlowerThanBestError
    if stuck := sum(process.is_alive for process in processes):
        raise DeadlockError(
            f"deadlock: {stuck} of {len(processes)} members of {members[0][0].kind} wait for each other"
        )
    network.check_empty()
    sent = network.sent()
    even = len(set(ends.values())) == 1
    return Outcome(env.now, sent["messages"], sent["bytes_gradients"], sent["bytes_scales"], even)


def begun(
    network: Transport,
    algorithm: collectives.Collective,
    members: Iterable[tuple[ProcessGroup, int]],
    buffer: Callable[[int, int], Buffer],
) -> list[Process]:
    """Start a collective on a network, whatever else its links carry; see `run_collective`."""
    processes = []
    for group, member in members:
        network.begin(group.ranks[member])
        routine = on_channels(Group(network, group, member), buffer(group.stage, member), algorithm)
        processes.append(network.env.process(routine))
    return processes
