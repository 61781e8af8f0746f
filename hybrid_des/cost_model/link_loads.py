"""The least time of a collective in many groups at once: that of the link which has the most to carry.

    512 groups at two sites    the members of one are simulated, without contention, and what they send each other is
                               counted; members at the same places of the other groups send the same
                               link between the sites: its bytes / its bandwidth

What members send does not depend on when messages reach them: each waits for messages of senders that it names. So the
bound costs as much as one group, and shows at once that an algorithm sends twice as much between sites as another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from hybrid_des import collectives
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives.benchmark import run_collective
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by

CHEAPER = 8  # times as many members act in the simulation that a bound may save as in those that it takes

Ends = tuple[int, int]  # sender and receiver


class LinkTraffic(NamedTuple):
    """What is sent between members or over links: bytes and messages by key."""

    size: Counter[Ends]
    messages: Counter[Ends]


def least_time(
    fabric: Fabric,
    algorithm: collectives.Collective,
    groups: Sequence[ProcessGroup],
    buffer: Callable[[int, int], Buffer],
    acting: int,
) -> int:
    """Picoseconds that a collective takes at least in groups that begin together; 0 if finding it would take long.

    Args:
        fabric: the wiring, whose links carry no more than their bandwidth, however they are shared.
        algorithm: the collective with its options.
        groups: the groups, with their servers.
        buffer: maps (number of a group, place in it) to a member's buffer.
        acting: the number of members and servers that act in a simulation of all groups.

    Raises:
        Refusal: the collective does not support the groups or the wiring.
        DeadlockError: its members deadlock.
    """
    alike = list(grouped_by(groups, lambda group: _form(fabric, group, buffer(group.stage, 0))).values())
    if CHEAPER * sum(len(first.ranks) for first, *_ in alike) > acting:
        return 0
    load = LinkTraffic(Counter(), Counter())
    for first, *others in alike:
        of_first = _sent(fabric, algorithm, first, buffer)
        for group in (first, *others):
            moved = dict(zip(first.ranks, group.ranks, strict=True))
            for total, of_group in zip(load, of_first, strict=True):
                total.update({(moved[sender], moved[receiver]): one for (sender, receiver), one in of_group.items()})
    return _of_busiest(fabric, load)


def _form(fabric: Fabric, group: ProcessGroup, buffer: Buffer) -> tuple[object, ...]:
    """Equal for groups whose members at the same places send the same."""
    nodes = [fabric.node_of[rank] for rank in group.ranks[: group.size]]
    in_order = np.unique(nodes, return_inverse=True)[1]
    repeated = group.ranks if len(set(group.ranks)) < len(group.ranks) else ()
    return buffer.elements, group.size, in_order.tobytes(), group.servers, tuple(map(tuple, group.channels)), repeated


def _sent(
    fabric: Fabric, algorithm: collectives.Collective, group: ProcessGroup, buffer: Callable[[int, int], Buffer]
) -> LinkTraffic:
    """What the members and servers of a group send each other."""
    network = Transport(Links(Environment(), fabric, "uncontended"), Recorder())
    run_collective(network, algorithm, [(group, place) for place in range(len(group.ranks))], buffer)
    return LinkTraffic(*network.between())


def _of_busiest(fabric: Fabric, load: LinkTraffic) -> int:
    """The time of the link that needs the longest for what it carries; those with measured times are left out."""
    size, messages = Counter[str](), Counter[str]()
    for ends, total in load.size.items():
        for name in fabric.route(*ends).links:
            size[name] += total
            messages[name] += load.messages[ends]
    rates = {name: fabric.links[name].bandwidth for name in size}
    known = {name: rate for name, rate in rates.items() if type(rate) is Fraction}
    # the time of each message is rounded by less than a picosecond
    times = (size[name] * PICOSECONDS_PER_SECOND // rate - messages[name] for name, rate in known.items())
    return max((0, *times))
