"""What NCCL runs: the algorithm and protocol that its tuner takes (`collectives.tuning`), on its channels.

    ring        per adapter of a node a ring with its share of the buffer: reduce-scatter, then all-gather
    tree        per adapter two trees over nodes, each with half of its share, and a chain on each node:
                    node 0   3 ─► 2 ─► 1 ─► 0 ─┐        partial sums go along chains and up the tree in chunks,
                    node 1   7 ─► 6 ─► 5 ─► 4 ◄┘        and sums back the same way
    nvls        the switch reads the part of each member from all, and hands it their sum, which it writes to all
    nvls-tree   the same, but each member adds the sums of its like on other nodes, along two trees over nodes

Every hop takes the latency of the protocol, and no message is faster than its channel; the first one waits for a kernel
to launch (NVIDIA/nccl, src/graph/tuning.cc, src/device/all_reduce.h). On one node all channels take the same way, so
that one ring (or tree) of their joint bandwidth stands for them. The halves for sharded optimizers are rings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hybrid_des.cluster.fabric import by_node
from hybrid_des.collectives.buffer import Buffer, Channels, shares_of
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.nccl_lanes import lanes_of
from hybrid_des.collectives.nccl_switches import MOST_SEGMENTS, pieces_at_switches, through_switches
from hybrid_des.collectives.nccl_trees import along_tree, most_parts
from hybrid_des.collectives.permutation import Permutation, along_rings, around, at_switches
from hybrid_des.collectives.registration import CallSize, Collective, Site, collective
from hybrid_des.collectives.ring import on_rings, ring, ring_all_gather, ring_reduce_scatter
from hybrid_des.collectives.tuning import Choice, Selection, Wiring, wiring_of
from hybrid_des.units import grouped_by

WHOLE = Channels(channels=1)  # a ring is one channel


def tuned(site: Site, options: Channels) -> Wiring:
    """What the tuner knows about a group."""
    channels = len(site.orders(options.channels, tuned=True))
    return site.once(("wiring", channels), partial(wiring_of, site.fabric, site.members, channels))


def switches(site: Site, options: Channels) -> Sequence[int]:
    """The switches with in-network reduction, if the group may use them."""
    if tuned(site, options).in_switch is None:
        return ()
    return [site.fabric.reducers[node] for node in by_node(site.fabric.node_of[member] for member in site.members)]


def takes(does: str, wiring: Wiring, buffer: Buffer) -> Selection:
    """What the tuner takes for a buffer."""
    return Selection(*wiring.choice(does, buffer.bytes), wiring.channels)


def images(permutation: Permutation, options: Channels) -> str:
    """Members of rings do the same; those of trees, and at switches, in their own places or turned on every node."""
    wiring: Wiring = permutation.tuned
    taken = grouped_by(permutation.buffers, lambda buffer: wiring.choice("all-reduce", buffer.bytes).algorithm)
    reasons = (_difference(algorithm, permutation._replace(buffers=buffers)) for algorithm, buffers in taken.items())
    return next(filter(None, reasons), "")


def _difference(algorithm: str, permutation: Permutation) -> str:
    """How members differ from their images in one of NCCL's algorithms, in words; empty if they do not."""
    if algorithm == "ring":
        return around(permutation)
    if algorithm == "tree":
        return along_rings(permutation)
    return at_switches(permutation, partial(pieces_at_switches, permutation.tuned))


@dataclass(frozen=True)
class RingPass:
    """What goes around the ring of a channel.

    Attributes:
        does: the name of what it does.
        algorithm: the textbook's.
        choice: what the tuner takes for the whole buffer.
        size: its bytes.
    """

    does: str
    algorithm: Collective
    choice: Choice
    size: int

    def __call__(self, ring: Group, buffer: Buffer) -> Routine:
        """Launch the kernel, go around a ring with a part of the buffer, and copy what came last."""
        wiring: Wiring = ring.tuned
        late, copied = wiring.waits(self.does, self.choice, self.size)
        yield ring.pause(wiring.start(self.choice) + late)
        yield from self.algorithm(self.on(ring), buffer, WHOLE)
        if copied:
            yield ring.pause(copied)

    def on(self, ring: Group) -> Group:
        """The ring with the flows on which it goes around."""
        return lanes_of(ring, ring.tuned, self.choice, self.does)(0)


def _ring_of(does: str, algorithm: Collective, wiring: Wiring, size: int) -> RingPass | None:
    """What goes around the ring of each channel for a buffer of `size` bytes."""
    choice = wiring.choice(does, size)
    return RingPass(does, algorithm, choice, size) if choice.algorithm == "ring" else None


def _of_member(call: CallSize, options: Channels) -> int:
    in_parts = 2 * most_parts(call.bytes, call.channels), 2 * MOST_SEGMENTS // call.channels
    return max(call.ranks, *in_parts) * call.channels


@collective(
    "nccl", summary="what NCCL's tuner takes: rings, trees or switches, and a protocol", options=Channels,
    images=images, servers=switches, tuned=tuned, halves=("nccl-reduce-scatter", "nccl-all-gather"),
    along=partial(_ring_of, "all-reduce", ring), takes=partial(takes, "all-reduce"), messages=_of_member,
)  # fmt: skip
def nccl(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """All-reduce `buffer` over the group."""
    wiring: Wiring = group.tuned
    choice = wiring.choice("all-reduce", buffer.bytes)
    if choice.algorithm.startswith("nvls"):
        yield from through_switches(group, buffer, choice)
    elif group.me < group.size and choice.algorithm == "tree":
        yield from on_channels(group, buffer, partial(_chained, choice))
    elif group.me < group.size:
        yield from on_channels(group, buffer, RingPass("all-reduce", ring, choice, buffer.bytes))


@collective(
    "nccl-reduce-scatter", summary="as NCCL: every rank ends with the sum of one shard", does="reduce-scatter",
    options=Channels, images=around, tuned=tuned, along=partial(_ring_of, "reduce-scatter", ring_reduce_scatter),
    takes=partial(takes, "reduce-scatter"), messages=on_rings,
)  # fmt: skip
def nccl_reduce_scatter(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Leave rank i with the sum of shard i+1 of each channel's part of `buffer`; other shards are undefined."""
    choice = group.tuned.choice("reduce-scatter", buffer.bytes)
    return on_channels(group, buffer, RingPass("reduce-scatter", ring_reduce_scatter, choice, buffer.bytes))


@collective(
    "nccl-all-gather", summary="as NCCL: every rank's shard ends on all ranks", does="all-gather", options=Channels,
    images=around, tuned=tuned, along=partial(_ring_of, "all-gather", ring_all_gather),
    takes=partial(takes, "all-gather"), messages=on_rings,
)  # fmt: skip
def nccl_all_gather(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Distribute shard i+1 of rank i to all ranks, on each channel."""
    choice = group.tuned.choice("all-gather", buffer.bytes)
    return on_channels(group, buffer, RingPass("all-gather", ring_all_gather, choice, buffer.bytes))


def on_channels(group: Group, buffer: Buffer, part: Collective) -> Routine:
    """Run a routine per channel, each with its part of the buffer."""
    rings = group.rings
    parts = buffer.sections(shares_of(buffer.elements, group.size, len(rings)))
    yield group.together(*(part(rings[number], parts[number]) for number in group.in_turn))


def _chained(choice: Choice, ring: Group, buffer: Buffer) -> Routine:
    """Launch the kernel, and take both trees."""
    yield ring.pause(ring.tuned.start(choice))
    yield from along_tree(lanes_of(ring, ring.tuned, choice), buffer, choice)
