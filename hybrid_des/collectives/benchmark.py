"""Collectives run once on idle links: how long they take, and what they send.

A user's all-reduce is checked when it is loaded or first used (`unchecked`): real numbers on a few small groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des import collectives
from hybrid_des.cluster.fabric import ClusterSpec, Fabric, NodeSpec, PortSpec
from hybrid_des.cluster.topologies.nodes import nodes
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import on_channels
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.collectives.registration import Collective, Given
from hybrid_des.engine.clock import Environment, Process
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import DeadlockError, HybridDesError, Refusal, UsageError
from hybrid_des.options import Options, required_keys
from hybrid_des.units import PICOSECONDS_PER_SECOND


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


PACKAGE = __name__.partition(".")[0]
GROUPS = (2, 3, 4)  # members
SPARE = 3  # GPUs for servers
ELEMENTS = 61  # divisible by none of them
LONGEST = 60 * PICOSECONDS_PER_SECOND  # for a few hundred bytes


def unchecked(name: str, options: Given = None) -> str:
    """Reduce small arrays with a user's all-reduce; why that cannot be, empty if it was done or need not be.

    Args:
        name: a collective; those of this package are not checked.
        options: its options; by default their defaults.

    Raises:
        UsageError: a member does not end with the sum, or the members deadlock; the message names the collective.
    """
    entry = collectives.find(name)
    if entry.build.__module__.partition(".")[0] == PACKAGE:
        return ""
    if entry.facts["does"] != "all-reduce":
        return f"it is an {entry.facts['does']}"
    given = {key for key, value in dict(options or {}).items() if value is not None}
    if lacking := {*required_keys(entry.options)} - given:
        return f"it needs {', '.join(sorted(lacking))}"
    return _unchecked(name, entry.build, *entry.arguments(options))


@lru_cache(maxsize=64)
def _unchecked(name: str, build: Collective, *options: Options) -> str:
    """The same of the function that a name has now."""
    refused = [reason for size in GROUPS if (reason := _refused(name, size, *options))]
    return refused[0] if len(refused) == len(GROUPS) else ""


def _refused(name: str, size: int, *options: Options) -> str:
    """Why a group of this size is not supported; empty if it is, and every member ends with the sum."""
    what = f'collective "{name}", checked on {size} members'
    before = np.random.default_rng(size).integers(-1000, 1000, (size, ELEMENTS)).astype(np.float64)
    try:
        after = _reduced(name, before, *options)
    except Refusal as refusal:
        return str(refusal)
    except SlowerThanBestError:
        raise UsageError(f"{what}: still sends messages after a simulated minute") from None
    except HybridDesError as error:
        raise UsageError(f"{what}: {error}") from None
    wrong = np.argwhere(after != before.sum(axis=0))
    if len(wrong):
        member, element = map(int, wrong[0])
        value, expected = after[member, element], before[:, element].sum()
        same = "which it began with" if value == before[member, element] else "not the sum"
        where = f"element {element} of member {member}"
        raise UsageError(f"{what}: {where} ends as {value:g}, {same}; expected {expected:g}, the sum over all members")
    return ""


def _reduced(name: str, before: NDArray[np.float64], *options: Options) -> NDArray[np.float64]:
    """What every member ends with."""
    size = len(before)
    node = NodeSpec(
        size + SPARE, PortSpec(Fraction(10**9), 1000), PortSpec(Fraction(10**9), 5000), size + SPARE, in_switch=True
    )
    fabric = nodes(ClusterSpec((node,)))
    network = Transport(Links(Environment(), fabric, "fifo"), Recorder())
    site = collectives.Site(fabric, range(size), range(size, size + SPARE))
    group = collectives.process_group(name, site, *options)
    arrays = [*before.copy(), *np.zeros((len(group.ranks) - size, ELEMENTS))]
    codec = codecs.find("fp64").build()
    members = [(group, place) for place in range(len(group.ranks))]
    algorithm = collectives.configured(name, *options)
    run_collective(
        network, algorithm, members, lambda _, member: Buffer(ELEMENTS, codec, arrays[member]), limit=LONGEST
    )
    return np.array(arrays[:size])
