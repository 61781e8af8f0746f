"""Collectives, a family of algorithms per file: each a generator of one rank's sends and receives.

    @collective("ring", summary="…", does="all-reduce")
    def ring(group: Group, buffer: Buffer) -> Routine:
        group.to(peer).send(buffer.encode(i))
        message = yield group.from_(peer).receive()

Members are numbered 0 … size−1. Sends are asynchronous; messages between two members arrive in order.
"""

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

from hybrid_des.cluster.connections import form_of
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rings import Ring, orders
from hybrid_des.collectives.buffer import Channels
from hybrid_des.collectives.group import ProcessGroup, Routine
from hybrid_des.collectives.permutation import Images, Permutation, in_place
from hybrid_des.options import Options, required_keys
from hybrid_des.registry import Registry, completed

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

TO_ALL = "all-to-all"  # sends the most

TWO_PHASES = ("reduce-scatter", "all-gather")

Collective = Callable[..., Routine]  # (group, buffer[, options])
Given = Options | Mapping[str, Any] | None  # options, or values by name
_REGISTRY: Registry[Collective] = Registry("collective", "hybrid_des.collectives", returns=Generator)

names = _REGISTRY.names
find = _REGISTRY.__getitem__


class CallSize(NamedTuple):
    """How large a call is: its number of ranks and of channels, and the bytes of the buffer if they are known."""

    ranks: int
    channels: int = 1
    bytes: int | None = None


class Facts(TypedDict, total=False):
    """What a collective says about itself; where it has options, they are the last argument of its functions.

    Attributes:
        does: determines the final contents of the buffer, and the factor between algorithm and bus bandwidth.
        servers: endpoints that serve the group without being members: a function from `Site` to their places in the
            fabric.
        images: which images of its members do the same (`permutation`), so that they are simulated once; default none.
        phases: the phases of its messages between two members, in order, if each has equally many; for traces.
        halves: of an all-reduce: the reduce-scatter and the all-gather that it consists of, for sharded parameters.
        tuned: what the collective knows about the wiring of its group, a function from `Site`; it then divides buffers
            over channels itself.
        along: of such a one: a function from that and the bytes of a buffer to what goes around the ring of each
            channel, with its part of the buffer; None if nothing does.
        takes: of such a one: a function from that and a `Buffer` to the `Selection` of its tuner, for tables.
        messages: a function from `CallSize` to the most messages of a member in each of two passes, by which runs that
            are too large are refused; default one.
        direct: whether each of them goes to another member or server; default no.
    """

    does: Does
    servers: Callable[..., Sequence[int]] | None
    images: Images | None
    phases: Sequence[str]
    halves: tuple[str, str] | None
    tuned: Callable[..., Any] | None
    along: Callable[[Any, int], Collective | None] | None
    takes: Callable[[Any, Any], Any] | None
    messages: Callable[..., int]
    direct: bool


_DEFAULTS: Facts = {
    "does": "all-reduce", "servers": None, "images": None, "phases": (), "halves": None, "tuned": None, "along": None,
    "takes": None, "messages": lambda call, *options: 1, "direct": False,
}  # fmt: skip


def collective(
    name: str, *, summary: str, options: type[Options] | None = None, **facts: Unpack[Facts]
) -> Callable[[Collective], Collective]:
    """Register a collective.

    Args:
        name: value of a scenario's `gradients.algorithm`.
        summary: one-line description.
        options: class of its options, which extend a scenario's `gradients`; an instance is the last argument of the
            collective. If it is `Channels`, the group has the channels that it asks for (`Group.rings`).
        facts: see `Facts`.
    """
    return _REGISTRY(name, options, summary=summary, **completed("collective", facts, _DEFAULTS))


def most_messages(name: str, call: CallSize, options: Given = None) -> int:
    """Estimate of the messages of one call, of the `auto` collective too."""
    entry = find(TO_ALL if name == AUTO else name)
    return 2 * call.ranks * int(entry.facts["messages"](call, *entry.arguments(options)))


def most_pairs(name: str, call: CallSize, options: Given = None) -> int:
    """Estimate of the pairs that send to each other in a call, if they grow with ranks², else 0."""
    direct = find(TO_ALL if name == AUTO else name).facts["direct"]
    return most_messages(name, call, options) // 2 if direct else 0


def to_all(call: CallSize, *options: object) -> int:
    """The messages of a member that sends one to each member."""
    return call.ranks


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
