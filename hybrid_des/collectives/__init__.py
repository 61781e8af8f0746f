"""Collectives, one algorithm a file: a generator over one rank's sends and receives.

    @collective("ring", summary="…", does="all-reduce")
    def ring(group: Group, buffer: Buffer) -> Routine:
        group.to(peer).send(buffer.encode(i))
        message = yield group.from_(peer).receive()

A group member is known by its place 0 … size−1. Sends are asynchronous; messages between two members come in order.
What a file says about itself when it registers:

    summary   one line for people
    does      all-reduce, reduce-scatter, all-gather, all-to-all: what is known of its buffer afterwards, and the factor
              between algorithm and bus bandwidth
    options   the class of what it reads besides the common keys of a scenario's `gradients`; it gets them as its last
              argument, and so does `servers`
    servers   who works for the group beside its members, and how many: a function (`Site`) → their places in the fabric
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from hybrid_des.collectives.group import Routine
from hybrid_des.network.fabric import Fabric
from hybrid_des.options import Options, options_of, required_keys
from hybrid_des.registry import Registry

Does = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]


@dataclass(frozen=True)
class Site:
    """Where a collective is to run: the wiring, the ranks of its group, and the GPUs that no rank uses."""

    fabric: Fabric
    members: Sequence[int]
    spare: Sequence[int]


AUTO = "auto"  # the quickest of all

Collective = Callable[..., Routine]  # of a group, a buffer and, where there are any, its options
Given = Options | Mapping[str, Any] | None  # options, or values by name
_REGISTRY: Registry[Collective] = Registry("collective", "hybrid_des.collectives")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def collective(
    name: str,
    *,
    summary: str,
    does: Does = "all-reduce",
    options: type[Options] | None = None,
    servers: Callable[..., Sequence[int]] | None = None,
) -> Callable[[Collective], Collective]:
    """Register a collective under the name that a scenario's `gradients.algorithm` says."""
    return _REGISTRY(name, options, summary=summary, does=does, servers=servers)


def configured(name: str, options: Given = None) -> Collective:
    """A collective with those of the options that it reads."""
    entry = find(name)
    last = options_of(entry, options)
    return (lambda group, buffer: entry.build(group, buffer, *last)) if last else entry.build


def servers_of(name: str, site: Site, options: Given = None) -> Sequence[int]:
    """The places of those who work for a group beside its members.

    Raises:
        Refusal: the cluster has none, or too few.
    """
    entry = find(name)
    servers = entry.facts["servers"]
    return servers(site, *options_of(entry, options)) if servers else ()


def all_reduce_names() -> list[str]:
    """The names of those that add gradients up on every rank."""
    return [name for name in names() if find(name).facts["does"] == "all-reduce"]


def all_reduces(given: Collection[str] = ()) -> list[str]:
    """Those of them that need no option that is not given."""
    return [name for name in all_reduce_names() if set(required_keys(find(name).options)) <= set(given)]


def algorithms() -> list[str]:
    """What a scenario's `gradients.algorithm` may say."""
    return sorted([*all_reduce_names(), AUTO])


def bus_factor(does: Does, ranks: int) -> Fraction:
    """Bus bandwidth over algorithm bandwidth (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return Fraction(ranks - 1, ranks) * (2 if does == "all-reduce" else 1)
