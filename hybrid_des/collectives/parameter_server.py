"""Parameter servers: ranks push their gradients to them, shard by shard, and pull the sums (Li et al., OSDI 2014).

    push   rank 0 ─┬─► server 0 (shard 0)      pull   server 0 ─┬─► rank 0
           rank 1 ─┼─► server 1 (shard 1)             server 1 ─┼─► rank 1
           rank 2 ─┘   …                              …         └─► rank 2

p servers of their own with a link of bandwidth Bs, ranks with Bw: 2(latency + S · max(n/(p·Bs), 1/Bw)), S bytes up and
S down a rank. On the first p of the ranks, whose own shard is free: at p = n the bytes of a ring. Ranks and servers
begin at different peers, so that they do not all stand before one port.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from hybrid_des.collectives import Site, collective
from hybrid_des.collectives.buffer import Buffer, Pieces
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.errors import Refusal
from hybrid_des.options import Count, Options, choice


class Servers(Options):
    """Who serves."""

    servers: Count | None = None
    """How many hold a shard. Default every rank of the group, or one on hosts of its own."""
    servers_on: Annotated[Literal["ranks", "hosts"], choice("ranks", "hosts")] = "ranks"
    """On the first ranks of the group, or on hosts of GPUs that no rank uses."""


def hosts(site: Site, options: Servers) -> Sequence[int]:
    """The GPUs' hosts that serve: the first that no rank uses."""
    if options.servers_on == "ranks":
        return ()
    wanted = options.servers or 1
    if wanted > len(site.spare):
        raise Refusal(
            f"parameter-server on hosts of their own needs {wanted} GPU places that no rank uses; the cluster has "
            f"{len(site.spare)} (more nodes, fewer servers, or servers_on: ranks)"
        )
    return site.spare[:wanted]


@collective(
    "parameter-server",
    summary="push to servers that hold a shard each, pull the sums",
    options=Servers,
    servers=hosts,
)
def parameter_server(group: Group, buffer: Buffer, options: Servers) -> Routine:
    """All-reduce `buffer` over the group; servers on ranks default to all of them, on hosts of their own to one."""
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
        yield from _serve(group, shards, own)
    if group.me < group.size:
        for shard in range(count):
            if shard != own:
                shards.put(shard, (yield group.from_(first + shard).receive()))


def _serve(group: Group, shards: Pieces, shard: int) -> Routine:
    """Add up what all ranks push, and only then send everybody the sum."""
    ranks = [rank for rank in _from(shard, group.size) if rank != group.me]
    for rank in sorted(ranks):
        shards.add(shard, (yield group.from_(rank).receive()))
    message = shards.finish(shard)
    for rank in ranks:
        group.to(rank).send(message)


def _from(start: int, count: int) -> list[int]:
    """All of 0 … count−1, beginning at one of them."""
    return [(start + k) % count for k in range(count)]
