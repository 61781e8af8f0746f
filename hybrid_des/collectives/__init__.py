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
    options   keys of a scenario's `gradients` that it reads, handed to it by name where they are given
    needs     those of them without which it cannot run
    servers   who works for the group beside its members, and how many: a function (`Site`) → their places in the fabric
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

from hybrid_des.collectives.group import Routine
from hybrid_des.network.fabric import Fabric
from hybrid_des.registry import Registry

Does = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]


@dataclass(frozen=True)
class Site:
    """Where a collective is to run: the wiring, the ranks of its group, and the GPUs that no rank uses."""

    fabric: Fabric
    members: Sequence[int]
    spare: Sequence[int]


AUTO = "auto"  # the quickest of all

Collective = Callable[..., Routine]
_REGISTRY: Registry[Collective] = Registry("collective", "hybrid_des.collectives")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def collective(
    name: str,
    *,
    summary: str,
    does: Does = "all-reduce",
    options: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    servers: Callable[..., Sequence[int]] | None = None,
) -> Callable[[Collective], Collective]:
    """Register a collective under the name that a scenario's `gradients.algorithm` says."""
    return _REGISTRY(name, summary=summary, does=does, options=options, needs=needs, servers=servers)


def configured(name: str, options: Mapping[str, Any]) -> Collective:
    """A collective with those of the options that it reads and that are given."""
    entry = find(name)
    return partial(entry.build, **_given(name, options)) if _given(name, options) else entry.build


def servers_of(name: str, site: Site, options: Mapping[str, Any]) -> Sequence[int]:
    """The places of those who work for a group beside its members.

    Raises:
        Refusal: the cluster has none, or too few.
    """
    servers = find(name).facts["servers"]
    return servers(site, **_given(name, options)) if servers else ()


def _given(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in find(name).facts["options"] if options.get(key) is not None}


def all_reduces(given: Collection[str] = ()) -> list[str]:
    """The names of those that add gradients up on every rank and need no option that is not given."""
    facts = {name: find(name).facts for name in names()}
    return [name for name, fact in facts.items() if fact["does"] == "all-reduce" and set(fact["needs"]) <= set(given)]


def algorithms() -> list[str]:
    """What a scenario's `gradients.algorithm` may say."""
    return sorted([name for name in names() if find(name).facts["does"] == "all-reduce"] + [AUTO])


def bus_factor(does: Does, ranks: int) -> Fraction:
    """Bus bandwidth over algorithm bandwidth (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return Fraction(ranks - 1, ranks) * (2 if does == "all-reduce" else 1)
