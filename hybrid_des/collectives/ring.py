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
from functools import partial

from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.buffer import Buffer, Channels, Landing, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import around
from hybrid_des.collectives.registration import TWO_PHASES, CallSize, collective


def on_rings(call: CallSize, options: Channels) -> int:
    """The messages of a member in a pass around all rings."""
    return call.ranks * call.channels


@collective(
    "ring", summary="reduce-scatter and all-gather around rings", options=Channels, images=around, phases=TWO_PHASES,
    messages=on_rings, halves=("ring-reduce-scatter", "ring-all-gather"),
)  # fmt: skip
def ring(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """All-reduce `buffer` over the group."""
    shards = buffer.split(group.size)
    return _passes(group, shards, partial(shards.finish, (group.me + 1) % group.size), shards.landing)


@collective(
    "ring-reduce-scatter", summary="every rank ends with the sum of one shard", does="reduce-scatter", options=Channels,
    images=around, messages=on_rings, phases=TWO_PHASES[:1],
)  # fmt: skip
def ring_reduce_scatter(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Leave rank i with the sum of shard i+1 of `buffer`; other shards are undefined."""
    return scatter(group, buffer.split(group.size))


@collective(
    "ring-all-gather", summary="every rank's shard ends on all ranks", does="all-gather", options=Channels,
    images=around, messages=on_rings, phases=TWO_PHASES[1:],
)  # fmt: skip
def ring_all_gather(group: Group, buffer: Buffer, options: Channels) -> Routine:
    """Distribute shard i+1 of rank i to all ranks."""
    shards = buffer.split(group.size)
    return gather(group, shards.finish((group.me + 1) % group.size), shards.landing)


def scatter(group: Group, shards: Pieces) -> Routine:
    """Pass partial sums around until rank i has the sum of shard i+1."""
    return _passes(group, shards, None, None)


def gather(group: Group, message: Message, put: Landing | None) -> Routine:
    """Pass finished shards around unchanged; rank i starts with `message`, which is shard i+1, and puts the others."""
    return _passes(group, None, lambda: message, put)


def _passes(group: Group, shards: Pieces | None, finish: Callable[[], Message] | None, put: Landing | None) -> Routine:
    """Reduce shards, if given, then gather what `finish` gives, if there is that.

    One generator for both: a second one between it and its process would be resumed for every message, too.
    """
    n, me = group.size, group.me
    if n == 1:
        if finish is not None:
            finish()
        return
    right, left = group.to((me + 1) % n), group.from_((me - 1) % n)
    if shards is not None:
        shard, has_data = me, shards.has_data
        for _ in range(n - 1):
            right.send(shards.encode(shard))
            shard = (shard - 1) % n
            message = yield left.receive()
            if has_data:
                shards.add(shard, message)
    if finish is not None:
        shard, message = me, finish()
        for _ in range(n - 1):
            right.send(message)
            message = yield left.receive()
            if put is not None:
                put(shard, message)
            shard = (shard - 1) % n
