"""Ring all-reduce: reduce-scatter, then all-gather, each n−1 steps around a ring (Patarasuk & Yuan, JPDC 2009).

    step 0: every rank sends shard `me` to its right neighbour and adds the shard received from its left
    step k: it forwards the shard it has just added to; after n−1 steps rank i owns the sum of shard i+1
    then finished shards travel once around the ring, forwarded unchanged

On idle equal links 2(n−1)(latency + S/(n·bandwidth)), half for each phase; every rank sends 2(n−1)/n · S bytes. The
owner encodes its sum once and keeps what the others will decode, so all members end bit-identical.

With c channels, c such rings run at once, each with an equal part of the buffer and each leaving a node through another
adapter (`cluster.rings`): 2(n−1)(latency + S/(c·n·bandwidth)) where the adapters are the slowest links.
"""

from collections.abc import Callable

from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.buffer import Buffer, Channels, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import around
from hybrid_des.collectives.registration import TWO_PHASES, collective


@collective(
    "ring", summary="reduce-scatter and all-gather around rings", options=Channels, images=around, phases=TWO_PHASES,
    halves=("ring-reduce-scatter", "ring-all-gather"),
)  # fmt: skip
def ring(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """All-reduce `buffer` over the group."""
    shards = buffer.split(group.size)
    yield from scatter(group, shards)
    yield from gather(group, shards.finish((group.me + 1) % group.size), shards.put)


@collective(
    "ring-reduce-scatter", summary="every rank ends with the sum of one shard", does="reduce-scatter", options=Channels,
    images=around, phases=TWO_PHASES[:1],
)  # fmt: skip
def ring_reduce_scatter(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Leave rank i with the sum of shard i+1 of `buffer`; other shards are undefined."""
    return scatter(group, buffer.split(group.size))


@collective(
    "ring-all-gather", summary="every rank's shard ends on all ranks", does="all-gather", options=Channels,
    images=around, phases=TWO_PHASES[1:],
)  # fmt: skip
def ring_all_gather(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Distribute shard i+1 of rank i to all ranks."""
    shards = buffer.split(group.size)
    return gather(group, shards.finish((group.me + 1) % group.size), shards.put)


def scatter(group: Group, shards: Pieces) -> Routine:
    """Pass partial sums around until rank i has the sum of shard i+1."""
    n, shard = group.size, group.me
    if n == 1:
        return
    right, left = group.to((shard + 1) % n), group.from_((shard - 1) % n)
    for _ in range(n - 1):
        right.send(shards.encode(shard))
        shard = (shard - 1) % n
        shards.add(shard, (yield left.receive()))


def gather(group: Group, message: Message, put: Callable[[int, Message], None]) -> Routine:
    """Pass finished shards around unchanged; rank i starts with `message`, which is shard i+1."""
    n, shard = group.size, group.me
    if n == 1:
        return
    right, left = group.to((shard + 1) % n), group.from_((shard - 1) % n)
    for _ in range(n - 1):
        right.send(message)
        message = yield left.receive()
        put(shard, message)
        shard = (shard - 1) % n
