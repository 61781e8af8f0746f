"""Collectives, a family of algorithms per file: each a generator of one rank's sends and receives.

    @collective("ring", summary="…", does="all-reduce")
    def ring(group: Group, buffer: Buffer) -> Routine:
        group.to(peer).send(buffer.encode(i))
        message = yield group.from_(peer).receive()

Members are numbered 0 … size−1. Sends are asynchronous; messages between two members arrive in order.
Arguments of the registration:

    summary   one-line description
    does      all-reduce, reduce-scatter, all-gather or all-to-all: determines the final contents of the buffer, and the
              factor between algorithm and bus bandwidth
    options   class of its options, which extend a scenario's `gradients`; an instance is the last argument of the
              collective and of `servers`
    servers   endpoints that serve the group without being members: a function from `Site` to their places in the fabric
    images    which images of its members do the same (`permutation`), so that they are simulated once; default none
    phases    the phases of its messages between two members, in order, if each has equally many; for traces
    tuned     what the collective knows about the wiring of its group, a function from `Site`; it then divides buffers
              over channels itself
    along     of such a one: a function from that and the bytes of a buffer to what goes around the ring of each
              channel, with its part of the buffer; None if nothing does
    halves    of an all-reduce: the reduce-scatter and the all-gather that it consists of, for sharded parameters

If its options are `Channels`, its group has the channels that they ask for (`Group.rings`).
"""

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

from hybrid_des.cluster.connections import form_of
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rings import Ring, orders
from hybrid_des.collectives.buffer import Channels
from hybrid_des.collectives.group import ProcessGroup, Routine
from hybrid_des.collectives.permutation import Images, Permutation, in_place
from hybrid_des.options import Options, required_keys
from hybrid_des.registry import Registry

Found = TypeVar("Found")
Does = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]


@dataclass(frozen=True)
class Site:
    """The site of a collective: the wiring, the ranks of its group, and the GPUs that no rank uses."""

    fabric: Fabric
    members: Sequence[int]
    spare: Sequence[int]

    def orders(self, count: int | None, *, tuned: bool) -> list[Ring]:
        """The channels of the group as places in it; see `hybrid_des.cluster.rings`."""
        find = partial(orders, self.fabric, self.members, count, tuned=tuned)
        return self.once(("channels", count, tuned), find)

    def once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """What `find` returns, found once for all groups that are the same but for an exchange of equal blocks.

        It depends on the wiring and the key, and on members only by their places in blocks and by which share a node.
        """
        form = self._form
        if form is None and key not in self._found:
            self._found[key] = find()
        known: Found = self._found[key] if form is None else self.fabric.once((key, form), find)
        return known

    @cached_property
    def _form(self) -> Hashable:
        return form_of(self.fabric, self.members)

    @cached_property
    def _found(self) -> dict[Hashable, Any]:
        return {}


AUTO = "auto"  # the fastest of all

TWO_PHASES = ("reduce-scatter", "all-gather")

Collective = Callable[..., Routine]  # (group, buffer[, options])
Given = Options | Mapping[str, Any] | None  # options, or values by name
_REGISTRY: Registry[Collective] = Registry("collective", "hybrid_des.collectives", returns=Generator)

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def collective(
    name: str,
    *,
    summary: str,
    does: Does = "all-reduce",
    options: type[Options] | None = None,
    servers: Callable[..., Sequence[int]] | None = None,
    images: Images | None = None,
    phases: Sequence[str] = (),
    halves: tuple[str, str] | None = None,
    tuned: Callable[..., Any] | None = None,
    along: Callable[[Any, int], Collective | None] | None = None,
    takes: Callable[[Any, Any], Any] | None = None,
) -> Callable[[Collective], Collective]:
    """Register a collective under its name in a scenario's `gradients.algorithm`."""
    facts = {"does": does, "servers": servers, "images": images, "phases": phases, "halves": halves, "tuned": tuned}
    facts["takes"] = takes
    return _REGISTRY(name, options, summary=summary, along=along, **facts)


def configured(name: str, options: Given = None) -> Collective:
    """A collective with its options bound."""
    entry = find(name)
    last = entry.arguments(options)
    return (lambda group, buffer: entry.build(group, buffer, *last)) if last else entry.build


def process_group(
    name: str, site: Site, options: Given = None, *, stage: int = 0, chunks: Sequence[int] | None = None, part: int = 0
) -> ProcessGroup:
    """The members of a collective at a site and the servers it needs; `chunks` (default: none) are the members'.

    Raises:
        Refusal: the cluster has no such endpoint, or too few.
    """
    entry = find(name)
    arguments, find_servers = entry.arguments(options), entry.facts["servers"]
    servers = find_servers(site, *arguments) if find_servers else ()
    by_library = entry.facts["tuned"] is not None
    rings = [site.orders(one.channels, tuned=by_library) for one in arguments if isinstance(one, Channels)]
    members, held = site.members, (-1,) * len(site.members) if chunks is None else chunks
    if servers:
        members, held = [*members, *servers], [*held, *(-1 for _ in servers)]
    tuned = entry.facts["tuned"](site, *arguments) if by_library else None
    return ProcessGroup(name, stage, members, held, len(servers), part, channels=rings[0] if rings else (), tuned=tuned)


def asymmetry(name: str, permutation: Permutation, options: Given = None) -> str:
    """How the members of a collective differ from their images, in words; empty if they do the same."""
    entry = find(name)
    images: Images | None = entry.facts["images"]
    if images is None:
        return "" if in_place(permutation) else f"the members of {name} do not all do the same"
    return images(permutation, *entry.arguments(options))


def all_reduce_names() -> list[str]:
    """Names of the all-reduce algorithms."""
    return [name for name in names() if find(name).facts["does"] == "all-reduce"]


def all_reduces(options: Given = None, *, halves: bool = False) -> list[str]:
    """Names of the all-reduces whose required options are all given; with `halves`, only those that have them."""
    given = {name for name, value in dict(options or {}).items() if value is not None}
    able = [name for name in all_reduce_names() if find(name).facts["halves"] or not halves]
    return [name for name in able if given.issuperset(required_keys(find(name).options))]


def phases_of(name: str) -> tuple[str, str] | None:
    """The reduce-scatter and the all-gather that an all-reduce consists of, if it has them."""
    halves: tuple[str, str] | None = find(name).facts["halves"]
    return halves


def algorithms() -> list[str]:
    """Values of a scenario's `gradients.algorithm`."""
    return sorted([*all_reduce_names(), AUTO])


def bus_factor(does: Does, ranks: int) -> Fraction:
    """Ratio of bus bandwidth to algorithm bandwidth (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
    return Fraction(ranks - 1, ranks) * (2 if does == "all-reduce" else 1)
