"""What NCCL's tuner would take for a group and a size: algorithm and protocol, from its own tables.

    time = latency + bytes / bandwidth       the least of all algorithms × protocols is taken

Tables and formulas: NVIDIA/nccl, src/graph/tuning.cc and src/tuning/nvls.cc (latencies, efficiencies, caps per channel,
the correction for trees), src/graph/topo.h (bandwidth of NVLinks), src/graph/search.cc (speeds of channels). Their
prediction only chooses; how long the choice takes is simulated (`collectives.nccl`).

On the NVLinks of one node these times are `collectives.timing`'s, which are measured.

Figures of generations of GPUs, and what the search finds, are in `collectives.generations`.

Two rules changed with release 2.29. Sends leave LL for Simple at 16 KiB per channel; a channel takes a part of at least
64 KiB since (src/enqueue.cc, addP2pToPlan), so that LL ends at 16 KiB per peer, and counted all 32 channels before, so
that it ended at 512 KiB. On Blackwell, LL128 was counted on at 73.4 GB/s per channel (2.27.3: 2 x 36.7, also twice
Hopper's for trees), and is since at 40. Not taken over, as no times of it were at hand: newer sources make Simple's
latency longer around rings on one node of Blackwell (src/tuning/ring.cc, "plateau").
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import log2
from typing import Literal, NamedTuple

from hybrid_des.cluster.channel import Pace
from hybrid_des.cluster.fabric import Fabric, by_node
from hybrid_des.cluster.rings import complete, links_between, rings_per_link
from hybrid_des.collectives.generations import (
    AMPERE,
    BLACKWELL,
    BLACKWELL_BEFORE,
    HOPPER,
    VOLTA,
    XGMI,
    Generation,
    doubling,
    within_two_nodes,
)
from hybrid_des.collectives.timing import MICROSECOND
from hybrid_des.errors import Refusal

Algorithm = Literal["ring", "tree", "nvls", "nvls-tree"]
Protocol = Literal["LL", "LL128", "Simple"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")

LAUNCH = 16.0  # µs on top of base latencies over PCIe and between nodes: small all-reduces on 2 x 8 A100s (nccl-tests)
NET_OVERHEAD = 2.0  # µs of the proxy that posts to the network, with AMD's CPUs; three times that for Simple
USUAL = {"node": 1.5, "pci": 1.5, "net": 5.0}  # µs: routes in hardware/gpus.yaml, which tables below include

# µs by algorithm: LL, LL128, Simple
BASE: Mapping[Algorithm, tuple[float, float, float]] = {
    "tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "nvls": (0, 0, 0), "nvls-tree": (0, 0, 0),
}  # fmt: skip
HOP: Mapping[str, Mapping[Algorithm, tuple[float, float, float]]] = {
    "node": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "nvls": (0, 0, 25.0), "nvls-tree": (0, 0, 25.0)},
    "pci": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "nvls": (0, 0, 0), "nvls-tree": (0, 0, 0)},
    "net": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "nvls": (0, 0, 18.0), "nvls-tree": (0, 0, 20.9)},
}
SHARE: Mapping[Protocol, Fraction] = {  # of a channel's bandwidth: the rest of the lines on the wire are flags
    "LL": Fraction(1, 2), "LL128": Fraction(92, 100), "Simple": Fraction(1),
}  # fmt: skip


# of `timing.Timing`'s pairs, the steps of a collective around a ring: those that reduce, those that only gather
HALVES: Mapping[str, tuple[int, ...]] = {"reduce-scatter": (0,), "all-gather": (1,), "all-reduce": (0, 1)}


AMPERE_PORT, BLACKWELL_PORT = 175 * 10**9, 700 * 10**9  # bytes per second of a GPU's NVLinks, at least
NVLINK = 25 * 10**9  # bytes per second of a link; since Blackwell, twice that
PCIE = 80 * 10**9  # at most; no NVLinks have as little
OF_PCIE = Fraction(24, 315) * 10  # topo.h: 12 GB/s of PCIe 3's 15.75
OF_NIC = Fraction(24, 25)  # search.cc: channels of 24 GB/s over 25, of 48 over 50
NVLS_CHANNELS = 16  # of which one is not counted on
RING_CHANNELS = 16  # at most, of rings over several nodes, on which the cap of LL128 counts
RULES = (2, 29)  # the release since which the newer rules hold
SMALL, SMALL_BEFORE = 2**14, 2**19  # bytes to a peer that go by LL on NVLinks of one node, since and before
LARGEST_CHUNK = 2**17  # bytes of a member on one channel that pass a switch together
MOST_HEADS = 32  # of in-switch reduction (NCCL_MAX_NVLS_ARITY)

TREE_SHARE = {"LL": 1 / 3.8, "LL128": 120 / 128, "Simple": 1.0}
# Trees do not stick to the model for medium sizes: factors by powers of two from 64 bytes.
CORRECTION: Mapping[Protocol, Sequence[float]] = {
    "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
}  # fmt: skip


class Choice(NamedTuple):
    """An algorithm and a protocol."""

    algorithm: Algorithm
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.protocol}"


class Selection(NamedTuple):
    """What a library takes for a buffer: algorithm, protocol, and the number of channels that are simulated."""

    algorithm: str
    protocol: Protocol
    channels: int


class Wiring(NamedTuple):
    """What the tuner knows about a group.

    Attributes:
        ranks, nodes: numbers of members, and of nodes.
        per_node: the fewest members on a node.
        channels: the rings that are simulated.
        rate: bytes per second of each of them; None: as its links allow.
        inside: "node" for NVLinks, "pci", or "net" if no two members share a node.
        generation: of its GPUs.
        in_switch: bytes per second of a member with in-switch reduction; None if its switches have none.
        within: bytes per second of a member's port in its node, as far as topo.h counts on it; None: as links allow.
        beyond: the same of its part of its node's adapters.
        pair: the same of the link that each pair of members on a node has; None without such.
        older: whether the rules from before 2.29 hold.
        counted: channels over several nodes on which caps per channel count.
        trees: as `rate`, of channels of trees within a node.
        allowed: algorithms and protocols that are forced (`cluster.nccl_algorithm`, `nccl_protocol`); empty: all.
    """

    ranks: int
    nodes: int
    per_node: int
    channels: int
    rate: Fraction | None
    inside: str
    generation: Generation
    in_switch: Fraction | None = None
    within: Fraction | None = None
    beyond: Fraction | None = None
    pair: Fraction | None = None
    older: bool = False
    counted: int = 1
    trees: Fraction | None = None
    allowed: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def __hash__(self) -> int:
        # asked for every buffer of every group: hashes of the fractions would take longer than the answer
        return hash((self.ranks, self.nodes, self.per_node, self.channels))

    def choice(self, does: str, size: int) -> Choice:
        """What the tuner takes for a buffer of `size` bytes."""
        return _choice(self, does, size)

    def start(self, choice: Choice) -> int:
        """Picoseconds before the first message: a kernel's launch and the base latency."""
        if choice.algorithm == "nvls":
            return round(self.generation.timing.switch * MICROSECOND)
        base = BASE[choice.algorithm][PROTOCOLS.index(choice.protocol)]
        if choice.algorithm == "nvls-tree":
            base += HOP["node"][choice.algorithm][-1]
        protocol = PROTOCOLS.index(choice.protocol)
        started = self.generation.timing.start[protocol] + self.later
        launch = started - BASE["ring"][protocol] if self.on_nvlinks else LAUNCH
        return round((base + launch) * MICROSECOND)

    @property
    def later(self) -> float:
        """Microseconds by which calls of the release begin later."""
        return self.generation.timing.later if self.older else 0

    @property
    def on_nvlinks(self) -> bool:
        """Whether all members are on one node and linked by NVLinks, where `Timing` holds."""
        return self.nodes == 1 and self.inside == "node"

    def waits(self, does: str, choice: Choice, size: int) -> tuple[int, int]:
        """Picoseconds by which short steps around a ring of one node are late in all, and of its last copy."""
        rate = self.paces(choice, does)[0].bandwidth
        if not self.on_nvlinks or choice.algorithm != "ring" or rate is None:
            return 0, 0
        timing, shard, protocol = self.generation.timing, size / self.ranks, PROTOCOLS.index(choice.protocol)
        whole = float(Fraction(rate) * self.channels) / 10**6  # bytes per microsecond
        late = len(HALVES[does]) * (timing.least(protocol, shard) - shard) / whole
        if choice.protocol == "Simple":
            hops = timing.hops(protocol)
            late = sum(max(0.0, timing.step[half] - hops[half] - shard / whole) for half in HALVES[does])
        last = timing.last(protocol, shard, gathered=does == "all-gather") / whole
        return round((self.ranks - 1) * late * MICROSECOND), round(last * MICROSECOND)

    def loops(self, size: int) -> tuple[int, int]:
        """How often all channels of a node pass a chunk per member through its switch, and by how much they are late.

        Sizes of chunks: NVIDIA/nccl, src/enqueue.cc. Smaller ones wait for each other's flags; picoseconds in all.
        """
        together, chunk = self.generation.switch_channels * min(self.ranks, MOST_HEADS), LARGEST_CHUNK
        for times, least in ((64, 2**16), (8, 2**15), (2, 2**14)):
            if size < times * together * chunk:
                chunk = least
        count = max(1, -(-size // (together * chunk)))
        late = 0 if chunk >= 2**16 else (count - 1) * self.generation.timing.loop
        return count, round(late * MICROSECOND)

    def paces(self, choice: Choice, does: str = "all-reduce") -> tuple[Pace, Pace]:
        """The pace of a channel within a node, and between nodes."""
        return _paces(self, choice, does)

    def share(self, choice: Choice, does: str) -> Fraction:
        """Of the bandwidth that the tuner counts on."""
        if not self.on_nvlinks or choice.algorithm != "ring":
            return SHARE[choice.protocol]
        timing = self.generation.timing
        reached = timing.rate * SHARE[choice.protocol] if choice.protocol != "LL" else timing.ll[HALVES[does][0]]
        return reached * (timing.before if self.older else 1) / self.generation.nvlink

    def latency(self, choice: Choice, does: str, where: str) -> tuple[int, int]:
        """Picoseconds per hop, and what of it is the usual wire; of both halves of an all-reduce, the mean."""
        hop = self.hop(choice, where)
        if self.on_nvlinks and choice.algorithm == "ring":
            hops = self.generation.timing.hops(PROTOCOLS.index(choice.protocol))
            hop = sum(hops[half] for half in HALVES[does]) / len(HALVES[does])
        return round(hop * MICROSECOND), round(USUAL[where] * MICROSECOND)

    def of_trees(self, protocol: Protocol) -> Fraction | None:
        """Bytes per second of a channel of trees: LL is no faster within nodes, LL128 up to its cap."""
        if protocol == "Simple" or self.rate is None or self.trees is None:
            return self.trees
        cap = self.cap(self.generation.tree128[min(self.nodes, 3) - 1]) / SHARE["LL128"]
        return self.rate if protocol == "LL" else max(self.rate, min(self.trees, cap))

    def cap(self, speed: float) -> Fraction:
        """Bytes per second of a channel, of GB/s of each that NCCL counts."""
        return Fraction(speed) * 10**9 * self.counted / self.channels

    def hop(self, choice: Choice, where: str) -> float:
        """Microseconds per hop within a node or between nodes."""
        exposed = where == "net" and self.ranks == self.nodes  # with one member per node, those of trees
        latency = HOP[where]["tree" if exposed else choice.algorithm][PROTOCOLS.index(choice.protocol)]
        if self.nodes > 1 and choice.algorithm == "ring":
            latency = max(latency, NET_OVERHEAD * (3 if choice.protocol == "Simple" else 1))
        return latency


@lru_cache(maxsize=4096)
def _paces(wiring: Wiring, choice: Choice, does: str) -> tuple[Pace, Pace]:
    """Its paces, asked for by every member of every group."""
    rate = wiring.of_trees(choice.protocol) if choice.algorithm == "tree" else wiring.rate
    rate = None if rate is None else rate * wiring.share(choice, does)
    if choice == ("ring", "LL128") and rate is not None and wiring.nodes > 1:
        rate = min(rate, wiring.cap(wiring.generation.ring128))
    if choice.algorithm == "tree" and rate is not None:  # its threads move the data of both trees, up and down
        rate *= Fraction(92, 400)
    if choice.algorithm.startswith("nvls"):
        here = Pace(wiring.in_switch, 0, round(USUAL["node"] * MICROSECOND))
    else:
        here = Pace(rate, *wiring.latency(choice, does, wiring.inside))
    return here, Pace(rate, *wiring.latency(choice, does, "net"))


def wiring_of(fabric: Fabric, ranks: Sequence[int], channels: int) -> Wiring:
    """What the tuner knows about a group whose rings use so many adapters of each node."""
    ranks = [*ranks]
    nodes = [[ranks[place] for place in places] for places in by_node(fabric.node_of[rank] for rank in ranks).values()]
    per_node = min(map(len, nodes))
    together = next((members for members in nodes if len(members) > 1), None)
    wire = _narrowest(fabric, nodes[0][-1], nodes[1][0]) if len(nodes) > 1 else None
    switched = per_node > 1 and len({len(members) for members in nodes}) == 1
    switched = switched and all(fabric.node_of[members[0]] in fabric.reducers for members in nodes)
    sharing = 1 if together is None or len(nodes) > 1 else rings_per_link(fabric, together, channels)
    node = _within_node(fabric, together, Fraction(channels, sharing), switched=switched)
    inside = "net" if per_node == 1 else "pci" if node.pci else "node"
    before = fabric.nccl < RULES and len(nodes) == 1 and inside == "node"
    wire = None if wire is None else wire * OF_NIC
    carried = None if node.rate is None else node.rate / channels
    rate = min((each for each in (wire, carried) if each is not None), default=None)
    times = doubling(wire, channels, newer=node.generation.nvls > 0)
    trees = rate
    if rate is not None and len(nodes) == 2 and not node.pci:
        each = None if carried is None else carried / times
        trees = times * within_two_nodes(rate / times, each, node.generation.adapters)
    in_switch, generation = None, node.generation
    if switched and not node.pci and node.port is not None:
        in_switch = node.port / generation.nvlink * generation.timing.through
    wiring = Wiring(
        len(ranks),
        len(nodes),
        per_node,
        channels,
        rate,
        inside,
        generation,
        in_switch,
        node.port,
        None if wire is None else wire * channels / per_node,
        node.pair,
        before,
        channels * times,
        trees,
        fabric.nccl_allows,
    )
    return _shared(wiring)


@lru_cache(maxsize=1024)
def _shared(wiring: Wiring) -> Wiring:
    """One object for equal wirings, so that they are found without a comparison of their fractions."""
    return wiring


class _Node(NamedTuple):
    """What the tuner knows about the GPUs of a node: the rates of all channels and of a port are None without several.

    Attributes:
        pair: that of the link of each pair; None without such.
    """

    generation: Generation
    pci: bool
    rate: Fraction | None
    port: Fraction | None
    pair: Fraction | None = None


def _within_node(fabric: Fabric, together: Sequence[int] | None, channels: Fraction, *, switched: bool) -> _Node:
    """The first node with several members, on which so many channels have links of their own."""
    port = None if together is None else _port(fabric, together)
    each = Fraction(0) if together is None else links_between(fabric, together)[1] / fabric.reached[0]
    xgmi = fabric.linked == "mesh" and each % NVLINK
    generation = XGMI if xgmi else _generation(port, switched=switched)
    if generation is BLACKWELL and fabric.nccl < RULES:
        generation = BLACKWELL_BEFORE
    pci = port is not None and port < PCIE and not fabric.linked
    reached = None if port is None else port * (OF_PCIE if pci else generation.nvlink)
    if together is not None and each:
        link = each * generation.nvlink
        return _Node(generation, pci, link * channels, reached, link if complete(fabric, together) else None)
    return _Node(generation, pci, reached, reached)


def _port(fabric: Fabric, members: Sequence[int]) -> Fraction | None:
    """The nominal bandwidth of a member's port, or of its links to the others."""
    pairs, each = links_between(fabric, members)
    if not pairs:
        return _narrowest(fabric, *members[:2])
    return each / fabric.reached[0] * sum(count for (sender, _), count in pairs.items() if not sender)


def _narrowest(fabric: Fabric, sender: int, receiver: int) -> Fraction | None:
    """The nominal bandwidth of the narrowest link of a route; None if all are infinite or measured."""
    links = (fabric.links[name] for name in fabric.route(sender, receiver).links)
    known = [link.bandwidth / fabric.reached[link.beyond_nodes] for link in links if type(link.bandwidth) is Fraction]
    return min(known, default=None)


def _generation(port: Fraction | None, *, switched: bool) -> Generation:
    if port is None or port < AMPERE_PORT:
        return HOPPER if switched else AMPERE if port is None else VOLTA
    return BLACKWELL if port >= BLACKWELL_PORT else HOPPER if switched else AMPERE


@lru_cache(maxsize=4096)
def _choice(wiring: Wiring, does: str, size: int) -> Choice:
    able = [Choice("ring", protocol) for protocol in PROTOCOLS]
    if does == "all-reduce":
        able += [Choice("tree", protocol) for protocol in PROTOCOLS]
        if wiring.in_switch is not None:
            able.append(Choice("nvls" if wiring.nodes == 1 else "nvls-tree", "Simple"))
    algorithms, protocols = wiring.allowed
    if wiring.inside == "pci" and not protocols:  # LL128 needs stores of 128 bytes that stay whole, as on NVLinks
        able = [choice for choice in able if choice.protocol != "LL128"]
    allowed = [choice for choice in able if not protocols or choice.protocol in protocols]
    if does == "all-reduce" and algorithms:  # the others have rings only
        allowed = [choice for choice in allowed if choice.algorithm in algorithms]
    if not allowed:
        raise Refusal(_none_allowed(wiring, does, able))
    return min(allowed, key=lambda choice: predicted(wiring, does, size, choice))


def _none_allowed(wiring: Wiring, does: str, able: Sequence[Choice]) -> str:
    """That a group can run nothing of what is forced, and what it could."""
    given = [("nccl_algorithm", wiring.allowed[0]), ("nccl_protocol", wiring.allowed[1])]
    forced = ", ".join(f"cluster.{key}: {' or '.join(names)}" for key, names in given if names)
    members = f"{wiring.ranks} members on {wiring.nodes} node{'s' * (wiring.nodes > 1)}"
    names = " or ".join(dict.fromkeys(choice.algorithm for choice in able))
    protocols = ", ".join(dict.fromkeys(choice.protocol for choice in able))
    return f"{forced}: no {does} of {members} can run so; expected {names}, with {protocols}"


def predicted(wiring: Wiring, does: str, size: int, choice: Choice) -> float:
    """Microseconds by the tuner's own model (`ncclTopoGetAlgoTime`)."""
    bandwidth = _bandwidth(wiring, does, choice)
    # NCCL's correction of trees has a column per power of two from 64 bytes on
    power = int(log2(max(1, size // 64)))
    if choice.algorithm == "tree" and power < len(CORRECTION[choice.protocol]):
        bandwidth *= CORRECTION[choice.protocol][power]
    latency = _latency_of(wiring, does, choice)
    if choice == ("ring", "Simple") and wiring.nodes > 1 and does == "all-reduce":
        # NCCL's correction of rings over several nodes, from pieces of 64 bytes on ("plateau effect of ring")
        latency *= wiring.generation.plateau if size // (wiring.channels * wiring.ranks) >= 64 else 1
    return latency + size / (1000 * bandwidth)


def _bandwidth(wiring: Wiring, does: str, choice: Choice) -> float:
    """GB/s of the buffer, not of the bus."""
    column, generation = min(wiring.nodes, 3) - 1, wiring.generation
    channels = wiring.counted if wiring.nodes > 1 else 2 * NVLS_CHANNELS
    bus = _of_rings(wiring)
    ratio = wiring.ranks / _steps(wiring, does)
    if choice.algorithm == "ring":
        if choice.protocol == "LL":
            bus = min(generation.ll[column], bus / 2)
        elif choice.protocol == "LL128":
            counted = generation.ring_channels if wiring.nodes == 1 else min(channels, RING_CHANNELS)
            bus = min(bus * 0.92, counted * generation.ring128)
        return bus * ratio
    if choice.algorithm == "tree":
        if wiring.nodes > 1 and wiring.trees is not None:
            bus = float(wiring.trees * wiring.channels) / 1e9
        bus = min(bus * 0.92, channels * generation.tree[column])
        if choice.protocol == "LL":
            bus = min(bus * TREE_SHARE["LL"], generation.ll[column])
        elif choice.protocol == "LL128":
            bus = min(
                bus * (7 / 9 if wiring.nodes == 1 else TREE_SHARE["LL128"]), channels * generation.tree128[column]
            )
        return bus / 2
    assert wiring.within is not None
    bus = 2 * float(wiring.within * generation.nvls) / 1e9 * (NVLS_CHANNELS - 1) / NVLS_CHANNELS
    if choice.algorithm == "nvls":
        bus = 2 * _through_heads(wiring) * float(generation.nvls)
    else:
        between = float("inf") if wiring.rate is None else float(wiring.rate) / 1e9 * (2 if wiring.nodes == 2 else 1)
        bus = min(bus, wiring.channels * between, NVLS_CHANNELS * generation.nvls_tree[column])
    return bus * ratio


def _of_rings(wiring: Wiring) -> float:
    """GB/s of all rings together that the tuner counts on: on NVLinks of one node, as many of a speed as fit.

    So 6 x 60 of the 371 of an H100, and 8 x 90 of the 722 of a B200 (search.cc, ncclTopoCompute: the first speed with
    the most).
    """
    if wiring.rate is None:
        return float("inf")
    whole = wiring.rate * wiring.channels / 10**9
    speeds = wiring.generation.speeds if wiring.on_nvlinks else ()
    return float(max((whole // speed * speed for speed in speeds), default=0) or whole)


def _through_heads(wiring: Wiring) -> float:
    """GB/s of in-switch reduction on one node that the search counts on, without the last channel.

    Every member is the head of one channel, which takes twice its speed from the head's NVLinks and its speed from all
    others' (search.cc, ncclTopoSearchTryNvls). So it has two channels of 60 GB/s on two H100s, four on four, and eight
    of 40 on eight: rings are faster with two GPUs, and large ones with four.
    """
    heads, whole = min(wiring.ranks, MOST_HEADS), float(wiring.rate or 0) * wiring.channels / 1e9
    speed = next((speed for speed in wiring.generation.speeds if (heads + 1) * speed <= whole), 0)
    return speed * (heads - 1)


def _latency_of(wiring: Wiring, does: str, choice: Choice) -> float:
    """Microseconds."""
    base = BASE[choice.algorithm][PROTOCOLS.index(choice.protocol)]
    here, there = wiring.hop(choice, wiring.inside), wiring.hop(choice, "net")
    if choice.algorithm == "ring":
        between = 0 if wiring.nodes == 1 else 2 * wiring.nodes if does == "all-reduce" else wiring.nodes - 1
        return base + (_steps(wiring, does) - between) * here + between * there
    depth = int(log2(wiring.nodes))
    if choice.algorithm == "tree":
        return base + 2 * ((wiring.ranks // wiring.nodes - 1) * here + depth * there)
    return base + here + (2 * depth * there if wiring.nodes > 1 else 0)


def _steps(wiring: Wiring, does: str) -> int:
    return (wiring.ranks - 1) * (2 if does == "all-reduce" else 1)
