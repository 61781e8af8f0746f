"""The least times of collectives around rings, with what their library adds: from the last start to some end.

    start   what a kernel waits before its first message
    hops    latency and bytes, at the pace of the channel or of the slowest link, whichever is slower
    queue   all messages of a ring pass each of its links one after the other
    copy    what follows the last message

Member m begins last. A message of step t left the member before the last one in step t−1, so some member's last message
is as many hops away from m's first one as there are steps: no link, channel or other traffic makes these shorter. From
the time at which the first of them reaches the link d hops further, s−d messages pass it, one after the other, if the
steps are s; the last one is the last of its receiver. Both are the least over all members m of what they say for m.

In hierarchical collectives, members of equal index on all nodes pass their shards around a ring, segment after segment.
A member goes on to the next segment, or phase, when its own is done, so these take the sum of their least times.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache

from hybrid_des import collectives
from hybrid_des.cluster.channel import Pace
from hybrid_des.cluster.connections import in_blocks
from hybrid_des.cluster.fabric import Fabric, by_node
from hybrid_des.cluster.rate import rate_of
from hybrid_des.collectives.buffer import Buffer, message_of, shares_of
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.collectives.hierarchical import segments_of
from hybrid_des.cost_model.cheapest_times import LARGEST, LIBRARY, PHASES, rings_of

# collectives around rings between nodes → the phases of each segment
HIERARCHICAL = {"hierarchical": 2, "hierarchical-reduce-scatter": 1, "hierarchical-all-gather": 1}
Paces = tuple[Pace, Pace]  # within nodes, and between them


class RingTimes:
    """The least times of collectives around rings on one fabric, in picoseconds.

    Args:
        fabric: the wiring.
        rounding: picoseconds by which a message may arrive earlier than its time on idle links says.
        options: of the collectives.
    """

    def __init__(self, fabric: Fabric, rounding: int, options: collectives.Given = None) -> None:
        self._fabric, self._rounding, self._options = fabric, rounding, options
        self._around = cache(self._once_around)
        self._alike: dict[Hashable, tuple[int, int]] = {}

    def of(self, kind: str, group: ProcessGroup, elements: int, codec: Codec) -> int | None:
        """The least time of a collective of this name in a group; None if it does not go around rings."""
        if kind in HIERARCHICAL:
            return self._between_nodes(kind, group.ranks, Buffer(elements, codec))
        ring, does = LIBRARY.get(kind, (kind, ""))
        if ring not in PHASES:
            return None
        before = after = 0
        paces = None
        if does:
            wiring, size = group.tuned, Buffer(elements, codec).bytes
            choice = wiring.choice(does, size)
            if choice.algorithm != "ring":
                return None
            late, after = wiring.waits(does, choice, size)
            before, paces = wiring.start(choice) + late, wiring.paces(choice, does)
        rings = rings_of(group)
        shard = message_of(shares_of(elements, group.size, len(rings))[0] // group.size, codec).size
        return before + self._around(rings[0], PHASES[ring] * (group.size - 1), shard, paces) + after

    def _between_nodes(self, kind: str, ranks: Sequence[int], buffer: Buffer) -> int | None:
        """The least time of rings between nodes; None if all members are on one."""
        on = [*by_node(self._fabric.node_of[rank] for rank in ranks).values()]
        width, phases = min(map(len, on)), HIERARCHICAL[kind]
        if len(on) == 1:
            return None
        (options,) = collectives.find(kind).arguments(self._options)
        segments = segments_of(buffer, width, options, phases == 1)
        shard = message_of(buffer.elements // segments // width // len(on), buffer.codec).size
        rings = (tuple(ranks[places[index]] for places in on) for index in range(width))
        return segments * phases * min(self._around(ring, len(on) - 1, shard, None) for ring in rings)

    def _once_around(self, members: Sequence[int], steps: int, size: int, paces: Paces | None) -> int:
        """The least time of so many steps around a ring, whoever of the members begins last."""
        pairs = [*map(self._like, zip(members, (*members[1:], members[0]), strict=True))]
        known = {pair: self._hop(*pair, size, paces) for pair in dict.fromkeys(pairs)}
        hops = [known[pair] for pair in pairs]
        if len(set(hops)) == 1:
            return steps * hops[0][0]
        if len(hops) > LARGEST:
            times = [time for time, _ in hops]
            return steps // (len(hops) - 1) * (sum(times) - max(times))
        return min(_queued([hops[(first + step) % len(hops)] for step in range(steps)]) for first in range(len(hops)))

    def _like(self, pair: tuple[int, int]) -> tuple[int, int]:
        """The first of the pairs that exchanges of equal blocks put in each other's places: its links are looked at."""
        return self._alike.setdefault(in_blocks(self._fabric, pair) or pair, pair)

    def _hop(self, sender: int, receiver: int, size: int, paces: Paces | None) -> tuple[int, int]:
        """The time of a message on idle links, and how long it occupies the slowest of them."""
        fabric = self._fabric
        route = fabric.route(sender, receiver)
        slowest = busy = max(rate_of(fabric.links[name].bandwidth)[size] for name in route.links)
        latency = route.latency
        if paces is not None:
            pace = paces[fabric.node_of[sender] != fabric.node_of[receiver]]
            slowest, latency = max(busy, rate_of(pace.bandwidth)[size]), sum(pace.latencies(route))
        return max(0, latency + slowest - self._rounding), max(0, busy - self._rounding)


def _queued(hops: Sequence[tuple[int, int]]) -> int:
    """The least time from a first message until that of the last step arrives, by the time and queue of each hop."""
    reached = longest = 0
    for left, (time, busy) in zip(range(len(hops) - 1, -1, -1), hops, strict=True):
        longest = max(longest, reached + left * busy + time)
        reached += time
    return longest
