"""All-reduces through servers: parameter servers, and switches with in-network reduction.

Parameter servers: ranks push gradients shard by shard, and pull the sums (Li et al., OSDI 2014).

    push   rank 0 ─┬─► server 0 (shard 0)      pull   server 0 ─┬─► rank 0
           rank 1 ─┼─► server 1 (shard 1)             server 1 ─┼─► rank 1
           rank 2 ─┘   …                              …         └─► rank 2

p dedicated servers with links of bandwidth Bs, and ranks with Bw: 2(latency + S · max(n/(p·Bs), 1/Bw)), S bytes up and
S down per rank. Servers may instead run on the first p ranks, whose own shard is free: p = n sends the bytes of a ring.
Ranks and servers start at different peers, to avoid contention at one port.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.permutation import Permutation, around
from hybrid_des.collectives.registration import Site, collective
from hybrid_des.errors import Refusal
from hybrid_des.options import Count, Options, choice


class Servers(Options):
    """Number and placement of servers."""

    servers: Count | None = None
    """Number of servers, one shard each. Default all ranks of the group, or one dedicated host."""
    servers_on: Annotated[Literal["ranks", "hosts"], choice("ranks", "hosts")] = "ranks"
    """ranks: on the first ranks of the group; hosts: on dedicated hosts, in place of GPUs that no rank uses."""


def hosts(site: Site, options: Servers) -> Sequence[int]:
    """The dedicated hosts: the first GPU places that no rank uses."""
    if options.servers_on == "ranks":
        return ()
    wanted = options.servers or 1
    if wanted > len(site.spare):
        raise Refusal(
            f"parameter-server on dedicated hosts needs {wanted} GPU places that no rank uses; the cluster has "
            f"{len(site.spare)} (more nodes, fewer servers, or servers_on: ranks)"
        )
    return site.spare[:wanted]


def all_serve(permutation: Permutation, options: Servers) -> str:
    """Every rank does the same if each serves a shard."""
    if options.servers_on == "hosts" or (options.servers or len(permutation.places)) < len(permutation.places):
        return "servers stand for the whole group"
    return around(permutation)


@collective(
    "parameter-server",
    summary="push to servers with one shard each, pull the sums",
    options=Servers,
    servers=hosts,
    images=all_serve,
    messages=lambda call, options: options.servers or call.ranks,
    direct=True,
)
def parameter_server(group: Group, buffer: Buffer, options: Servers) -> Routine:
    """All-reduce `buffer` over the group."""
    on_hosts = options.servers_on == "hosts"
    count = group.servers if on_hosts else options.servers or group.size
    if count > group.size and not on_hosts:
        raise Refusal(
            f"parameter-server: {count} servers on the ranks of a group of {group.size}; at most {group.size}"
        )
    first = group.size if on_hosts else 0  # the first server's place in the group
    shards = buffer.split(count)
    own = group.me - first if first <= group.me < first + count else None
    if group.me < group.size:
        for shard in _from(group.me, count):
            if shard != own:
                group.to(first + shard).send(shards.encode(shard))
    if own is not None:
        yield from serve(group, shards, own, [rank for rank in _from(own, group.size) if rank != group.me])
    if group.me < group.size:
        for shard in range(count):
            if shard != own:
                shards.put(shard, (yield group.from_(first + shard).receive()))


def serve(group: Group, pieces: Pieces, piece: int, ranks: Sequence[int]) -> Routine:
    """Reduce the pieces pushed by ranks, then send the sum to each, in their order."""
    for rank in sorted(ranks):
        pieces.add(piece, (yield group.from_(rank).receive()))
    message = pieces.finish(piece)
    for rank in ranks:
        group.to(rank).send(message)


def _from(start: int, count: int) -> list[int]:
    """All of 0 … count−1, cyclically from `start`."""
    return [(start + k) % count for k in range(count)]
