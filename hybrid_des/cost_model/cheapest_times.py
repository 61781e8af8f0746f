"""The least times of communication: messages on idle links, and collectives after the last member has begun.

    message            latency + bytes / bandwidth of the slowest link: other traffic can only delay it
    nccl               as a ring, where the tuner takes one with Simple, which is slower than links; else as below
    ring               the last member's shard goes around: 2(n−1) hops in an all-reduce, n−1 in either of its phases;
                       and as many shards pass the slowest hop, one after the other
    all-to-all, calls  one shard leaves a member; of sends and receives around a ring as many as there are steps
    measured           the time in the table
    other all-reduces  the last member's gradients leave it, over all of its outgoing links; of a reduce-scatter, all
                       but its own shard

Some member ends no earlier than this after the last one has begun, and begins the next collective only then, so that
the times of successive collectives of the same members are summed. Any other collective is assumed to take no time.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise

from hybrid_des import collectives
from hybrid_des.cluster.connections import in_blocks, unlike
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rate import idle_time
from hybrid_des.cluster.rings import channels
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import MOST_SEGMENTS, Buffer, Channels, message_of
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.collectives.measured import Measured, measured_time
from hybrid_des.cost_model.collective_times import SIXTEEN_BITS, elements_of
from hybrid_des.options import Options
from hybrid_des.units import PICOSECONDS_PER_SECOND

PHASES = {"ring": 2, "ring-reduce-scatter": 1, "ring-all-gather": 1}  # of n−1 hops


LIBRARY = {"nccl": ("ring", "all-reduce"), "nccl-reduce-scatter": ("ring-reduce-scatter", "reduce-scatter"),
           "nccl-all-gather": ("ring-all-gather", "all-gather")}  # fmt: skip


SENDING = frozenset(
    {
        "double-binary-tree",
        "nccl",
        "halving-doubling",
        "hierarchical",
        "in-switch",
        "parameter-server",
        "recursive-doubling",
    }
)


# all but a shard leaves each member
SCATTERING = frozenset(
    {"halving-reduce-scatter", "hierarchical-reduce-scatter", "nccl-reduce-scatter", "nccl-all-gather"}
)


CALLS = frozenset({"nccl-all-to-all", "nccl-send-receive"})  # whose latencies are not those of routes


LARGE = 2**20  # bytes


LARGEST = 64  # members whose routes to each other are examined; larger groups are assumed to take no time


Inside = Callable[[str, str, int], int]  # axis, algorithm and bytes of a collective of a layer → its least time


def inside_ops(fabric: Fabric, sharing: str, groups: Mapping[str, Sequence[Sequence[int]]]) -> Inside:
    """The least times of collectives of layers, in the fastest of the groups along an axis, if these are messages.

    Of groups that are the same but for an exchange of equal blocks, one is timed.
    """
    cheapest, kept = CheapestTimes(fabric, sharing), cache(lambda axis: unlike(fabric, groups[axis]))
    return cache(lambda axis, algorithm, size: cheapest.inside(algorithm, size, kept(axis)))


def rings_of(group: ProcessGroup) -> Sequence[tuple[int, ...]]:
    """The members of a group, in the order of each of its channels."""
    if len(group.channels) > 1:
        return [tuple(ring.ranks) for ring, _ in group.rings]
    return [tuple(group.ranks[: group.size])]


def phases_of(group: ProcessGroup, elements: int, codec: Codec) -> int:
    """How often its shards go around rings at the latencies of routes, or slower; 0 if it is not known that they do."""
    if group.kind not in LIBRARY:
        return PHASES.get(group.kind, 0)
    kind, does = LIBRARY[group.kind]
    return PHASES[kind] if group.tuned.choice(does, Buffer(elements, codec).bytes) == ("ring", "Simple") else 0


class CheapestTimes:
    """The least times of messages and collectives on one fabric, in picoseconds.

    Args:
        fabric: the wiring.
        sharing: how links are shared; all but `fifo` may end a message a picosecond earlier, by rounding.
    """

    def __init__(self, fabric: Fabric, sharing: str) -> None:
        self.fabric = fabric
        self.rounding = 0 if sharing == "fifo" else 1
        self.message = cache(self._message)
        self._idle = cache(partial(idle_time, fabric))
        self._alike: dict[Hashable, tuple[int, int]] = {}
        self._around = cache(self._once_around)
        self._inside = cache(self._inside_fastest)
        self._slowest = cache(self._slowest_hop)
        self._leaving = cache(self._leave)

    def _message(self, sender: int, receiver: int, size: int) -> int:
        return max(0, self._idle(*self.like((sender, receiver)), size) - self.rounding)

    def like(self, pair: tuple[int, int]) -> tuple[int, int]:
        """The first of the pairs that exchanges of equal blocks put in each other's places: its links are looked at."""
        return self._alike.setdefault(in_blocks(self.fabric, pair) or pair, pair)

    def kind_of(self, sender: int, receiver: int) -> tuple[object, ...]:
        """The figures that determine how long a message takes: equal for equivalent routes."""
        route = self.fabric.route(sender, receiver)
        return (*route.latencies, *(self.fabric.links[name].bandwidth for name in route.links))

    def collective(self, group: ProcessGroup, elements: int, codec: Codec, options: Options | None = None) -> int:
        """The least time from the start of the last member to the end of some member."""
        if phases := phases_of(group, elements, codec):
            return phases * self.hops(group, elements, codec)
        if group.kind == "measured" and isinstance(options, Measured):
            nodes = len({self.fabric.node_of[rank] for rank in group.ranks[: group.size]})
            return measured_time(options.table, group.size, nodes, Buffer(elements, codec).bytes)
        if group.kind in SENDING:
            return self._leaving(tuple(group.ranks), group.size, int(elements * codec.bytes_per_element))
        if group.kind in SCATTERING:  # all but its own shard
            others = elements - -(-elements // group.size)
            return self._leaving(tuple(group.ranks), group.size, int(others * codec.bytes_per_element))
        return 0

    def inside(self, algorithm: str, size: int, groups: Sequence[Sequence[int]]) -> int:
        """A collective of a layer in the fastest of some groups, if no member begins earlier; `size` in bytes."""
        return self._inside(algorithm, size, tuple(map(tuple, groups)))

    def _inside_fastest(self, algorithm: str, size: int, groups: Sequence[tuple[int, ...]]) -> int:
        return min(self._in_group(algorithm, size, members) for members in groups)

    def _in_group(self, algorithm: str, size: int, members: tuple[int, ...]) -> int:
        codec, elements = codecs.find(SIXTEEN_BITS).build(), elements_of(size)
        shard = message_of(elements // len(members), codec).size
        if algorithm == "all-to-all":
            return self.message(members[1], members[0], shard)
        if algorithm in CALLS:
            hops = pairwise((*members, members[0]))
            served = (self.message(*hop, shard) - self.fabric.route(*hop).latency for hop in hops)
            return max(0, (len(members) - 1 if algorithm == "nccl-send-receive" else 1) * min(served))
        if algorithm in LIBRARY:
            site = collectives.Site(self.fabric, members, ())
            return self.collective(collectives.process_group(algorithm, site, Channels()), elements, codec)
        rings = channels(self.fabric, members)
        shard = message_of(elements // len(rings) // len(members), codec).size
        return PHASES.get(algorithm, 0) * self._around(tuple(rings[0]), shard)

    def busiest(self, group: ProcessGroup, elements: int, codec: Codec) -> int:
        """How long the slowest hop of a ring is busy, if no member begins earlier; 0 if it is not a ring."""
        shards = phases_of(group, elements, codec) * (group.size - 1)
        if not shards:
            return 0
        channels = rings_of(group)
        sender, receiver, latency = self._slowest(channels[0])
        size = message_of(elements // group.size // len(channels), codec).size
        return shards * max(0, self.message(sender, receiver, size) - latency)

    def _slowest_hop(self, members: Sequence[int]) -> tuple[int, int, int]:
        """The hop of a ring that is slowest for a large shard, with its latency."""
        hops = [(rank, members[(i + 1) % len(members)]) for i, rank in enumerate(members)]
        timed = [(*hop, self.fabric.route(*hop).latency) for hop in hops]
        return max(timed, key=lambda hop: self.message(*hop[:2], LARGE) - hop[2])

    def hops(self, group: ProcessGroup, elements: int, codec: Codec) -> int:
        """The time of a shard's n−1 hops around the first of a group's rings, wherever it starts; 0 without rings."""
        if not phases_of(group, elements, codec):
            return 0
        channels = rings_of(group)
        return self._around(channels[0], message_of(elements // group.size // len(channels), codec).size)

    def _once_around(self, members: Sequence[int], size: int) -> int:
        """The time of a shard's n−1 hops around a ring, all but the slowest."""
        edges = [self.message(rank, members[(i + 1) % len(members)], size) for i, rank in enumerate(members)]
        return sum(edges) - max(edges)

    def _leave(self, ranks: Sequence[int], size: int, load: int) -> int:
        """The least time for `load` bytes to leave the member that sends fastest."""
        if len(ranks) > LARGEST:
            return 0
        fastest = Fraction(0)
        for rank in ranks[:size]:
            links = {self.fabric.route(rank, other).links[0] for other in ranks if other != rank}
            bandwidths = [self.fabric.links[name].bandwidth for name in links]
            if any(type(bandwidth) is not Fraction for bandwidth in bandwidths):  # infinite, or from a table
                return 0
            fastest = max(fastest, sum((one for one in bandwidths if one is not None), Fraction(0)))
        pieces = MOST_SEGMENTS * len(ranks)  # at most, each rounded to a whole picosecond by itself
        return max(0, int(load * PICOSECONDS_PER_SECOND / fastest) - pieces)
