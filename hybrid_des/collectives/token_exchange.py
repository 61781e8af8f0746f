"""Exchange of tokens with experts, once per node, as by DeepEP and HybridEP.

A token crosses the network once for every node that holds any of its experts, and is copied there over NVLink.

    dispatch  gpu0 ─network─► gpu4 ─NVLink─► gpu5, gpu6, gpu7      gpu4 has gpu0's place, on another node
    combine   gpu5, gpu6, gpu7 ─NVLink─► gpu4 ─network─► gpu0      gpu4 sums what its node returns for a token

Segments pipeline through both phases, so that an exchange takes as long as the longer phase, and not the sum. Every
rank sends Σ P(node) · S bytes to other nodes, S: all of its tokens once, P: the probability that a token has an
expert there (`workload.models.layer`); and over NVLink, for the tokens of each node, Σ P(rank) · S to the other ranks
of its own. Source: deepseek-ai/DeepEP, README; DeepSeek-AI, arXiv 2412.19437, section 3.2.2.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from typing import NamedTuple

from hybrid_des.cluster.channel import Pace
from hybrid_des.cluster.mailbox import Message
from hybrid_des.collectives.buffer import Buffer, Channels, message_of
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.group import Group, Routine, seats
from hybrid_des.collectives.nccl import tuned
from hybrid_des.collectives.permutation import Permutation, in_place
from hybrid_des.collectives.registration import collective
from hybrid_des.collectives.tuning import OF_NIC, Wiring
from hybrid_des.errors import Refusal
from hybrid_des.options import Count, Options
from hybrid_des.units import split_evenly
from hybrid_des.workload.models.routing import Routing

MOST_SEGMENTS = 8  # DeepEP's chunks are smaller; more cost only simulated events


SMALLEST_SEGMENT = 2**20  # bytes of a rank's tokens


OF_ADAPTER = Fraction(9, 10)  # DeepEP's kernels send 44 to 47 of an adapter's 50 GB/s (README, April 2025)


class TokenExchange(Options):
    """How tokens are routed to the experts that the members hold, in equal numbers and in order."""

    experts: Count = 256
    """Number of experts."""
    active: Count = 8
    """Experts per token."""
    groups: Count = 1
    """Groups of neighbouring experts, of which a token uses `top_groups`."""
    top_groups: Count = 1
    """Groups whose experts a token may use."""
    loads: tuple[float, ...] = ()
    """Tokens of each expert relative to the mean; none: all equal."""
    placed: tuple[tuple[int, ...], ...] = ()
    """The experts of each member; none: equal numbers of neighbouring ones."""
    capacity: float | None = None
    """The most tokens that an expert takes, relative to the mean."""
    channels: Count | None = None
    """Members of each node that take in tokens from other nodes. Default: all."""
    reach: float | None = None
    """Share of a member's port in its node, as NCCL counts on it, that kernels reach. Default: as its links allow."""

    @property
    def routing(self) -> Routing:
        """How a token's experts are chosen."""
        chosen = self.experts, self.active, self.groups, self.top_groups
        return Routing(*chosen, self.loads, self.placed, self.capacity)


class _Sites(NamedTuple):
    """Where members are, and what they receive.

    Attributes:
        on: the places on each node; nodes in the order in which they appear.
        at: place → its node among these, and its index there.
        of_node: node → the share of a rank's tokens that have an expert there.
        of_rank: place → the same of a rank.
        channels: members of each node that take in tokens from other nodes; None: all.
    """

    on: Sequence[Sequence[int]]
    at: Sequence[tuple[int, int]]
    of_node: Sequence[Fraction]
    of_rank: Sequence[Fraction]
    channels: int | None = None

    def stand_in(self, node: int, source: int) -> int:
        """The place on a node that takes in, and sends back, the tokens of a source."""
        places = self.on[node]
        count = min(self.channels or len(places), len(places))
        return places[self.at[source][1] % count * len(places) // count]

    def sources(self, node: int, me: int) -> list[int]:
        """The places on a node for which this place is the stand-in on its own."""
        return [source for source in self.on[node] if self.stand_in(self.at[me][0], source) == me]

    def beyond(self, me: int, sign: int = 1) -> list[int]:
        """The other nodes, the next one first; with −1, the previous one."""
        return [(self.at[me][0] + sign * k) % len(self.on) for k in range(1, len(self.on))]


@lru_cache(maxsize=256)
def _sites(nodes: tuple[int, ...], routing: Routing, channels: int | None) -> _Sites:
    size = len(nodes)
    if routing.count % size:
        raise Refusal(f"per-node: {routing.count} experts cannot be divided over {size} ranks")
    on, at = seats(nodes)
    held = [routing.held(place, size) for place in range(size)]
    on_nodes = [tuple(one for place in places for one in held[place]) for places in on]
    shares = routing.hits((*on_nodes, *held))  # together: each alone would take nearly as long
    return _Sites(on, at, shares[: len(on)], shares[len(on) :], channels)


class _Exchange:
    """A member's part in an exchange: the messages that it sends and receives.

    Args:
        sites: where members are.
        me: the member's place.
        held: elements of the tokens of each member.
        codec: theirs.
    """

    def __init__(self, sites: _Sites, me: int, held: Sequence[int], codec: Codec) -> None:
        self.sites, self.me, self.node = sites, me, sites.at[me][0]
        _, *self.locals = self.turned(sites.on[self.node])  # so that no two ranks send to the same one at a time
        self._held, self._codec, self._several = held, codec, len(sites.on) > 1
        self._parts = cache(self._in_segments)

    def segments(self, source: int) -> int:
        """In how many parts the tokens of a member cross the network."""
        whole = message_of(self._held[source], self._codec).size
        return max(1, min(MOST_SEGMENTS, whole // SMALLEST_SEGMENT)) if self._several else 1

    @cached_property
    def most(self) -> int:
        """The same of the member with most."""
        return max(map(self.segments, range(len(self._held))))

    def _in_segments(self, share: Fraction, elements: int, segments: int) -> Sequence[Message]:
        return [message_of(size, self._codec) for size in split_evenly(round(elements * share), segments)]

    def whole(self, source: int, to: int) -> Message:
        """The tokens of a member that have an expert at a place."""
        return self._parts(self.sites.of_rank[to], self._held[source], 1)[0]

    def copies(self, source: int, to: int) -> Sequence[Message]:
        """The same in segments."""
        return self._parts(self.sites.of_rank[to], self._held[source], self.segments(source))

    def across(self, source: int, node: int) -> Sequence[Message]:
        """The tokens of a member that have an expert on a node, in segments."""
        return self._parts(self.sites.of_node[node], self._held[source], self.segments(source))

    def taken_in(self, nodes: Iterable[int]) -> Sequence[tuple[int, int]]:
        """Each segment's number and source, of tokens for which this place is the stand-in on its node."""
        sources = [source for node in nodes for source in self.sites.sources(node, self.me)]
        return [(number, one) for number in range(self.most) for one in sources if number < self.segments(one)]

    @cached_property
    def spread(self) -> Sequence[tuple[int, int]]:
        """What it takes in of a dispatch."""
        return self.taken_in(self.sites.beyond(self.me, -1))

    @cached_property
    def added_up(self) -> Sequence[tuple[int, int]]:
        """What it adds up in a combine."""
        return self.taken_in(self.sites.beyond(self.me))

    @cached_property
    def inside(self) -> Sequence[tuple[int, int]]:
        """The ranks of this node, and how many messages each sends here: its own tokens, and those it took in."""
        counts = []
        for member in self.locals:
            sources = (source for node in self.sites.beyond(member) for source in self.sites.sources(node, member))
            counts.append(1 + sum(map(self.segments, sources)))
        return list(zip(self.locals, counts, strict=True))

    def turned(self, places: Sequence[int]) -> Sequence[int]:
        """The places of a node, from the one at this member's index on."""
        first = self.sites.at[self.me][1] % len(places)
        return [*places[first:], *places[:first]]


@lru_cache(maxsize=4096)
def _exchange(
    nodes: tuple[int, ...], me: int, options: TokenExchange, held: tuple[int, ...], codec: Codec
) -> _Exchange:
    return _Exchange(_sites(nodes, options.routing, options.channels), me, held, codec)


def _alike(permutation: Permutation, options: TokenExchange) -> str:
    """Nodes with as many members each, of which all are rotated alike, where as many tokens have an expert."""
    if in_place(permutation):
        return ""
    here, there = (
        _sites(tuple(nodes), options.routing, options.channels)
        for nodes in (permutation.nodes, permutation.image_nodes)
    )
    size = len(here.on[0])
    if any(len(places) != size for places in here.on):
        return "not all nodes have as many members"
    moved = zip(here.at, (there.at[place] for place in permutation.places.tolist()), strict=True)
    turns = {((to - node) % len(here.on), (seat - index) % size) for (node, index), (to, seat) in moved}
    if len(turns) > 1:
        return "the members of nodes are not rotated in the same way"
    if options.channels is not None and any(index for _, index in turns):
        return "not all members take in tokens from other nodes"
    if len({*here.of_node}) > 1 or len({*here.of_rank}) > 1:
        return "experts are not equally wanted"
    return ""


def _paced(group: Group, reach: float | None, others: int) -> Group:
    """The same members, whose messages have the pace of the kernels that send them; `others`: members on this node."""
    wiring: Wiring | None = group.tuned
    if wiring is None:
        return group
    inside = beyond = None
    if reach is not None and wiring.within is not None and others:
        inside = wiring.within * Fraction(reach).limit_denominator(10**6) / others  # of each message: all go at a time
    if wiring.beyond is not None:
        beyond = wiring.beyond / OF_NIC * wiring.per_node / wiring.channels * OF_ADAPTER
    return group if inside is beyond is None else group.paced(Pace(inside, 0), Pace(beyond, 0), 0)


_exchange_of_tokens = partial(
    collective, does="all-to-all", options=TokenExchange, tuned=lambda site, options: tuned(site, Channels()),
    images=_alike, messages=lambda call, options: call.ranks * MOST_SEGMENTS,
)  # fmt: skip


@_exchange_of_tokens("per-node-dispatch", summary="tokens to their experts, once per node and then to each rank there")
def dispatch(group: Group, buffer: Buffer, options: TokenExchange) -> Routine:
    """Send the tokens of `buffer` to the members that hold their experts.

    Raises:
        Refusal: experts cannot be divided over the members.
    """
    plan = _exchange(group.nodes, group.me, options, buffer.sizes(group.size), buffer.codec)
    sites, me, group = plan.sites, plan.me, _paced(group, options.reach, len(plan.locals))
    away = [(sites.stand_in(node, me), plan.across(me, node)) for node in sites.beyond(me)]
    for number in range(plan.segments(me)):
        for stand_in, segments in away:
            group.to(stand_in).send(segments[number])
    for member in plan.locals:
        group.to(member).send(plan.whole(me, member))
    if len(sites.on) == 1:  # nothing to spread
        yield from _receive(group, plan.inside)
    else:
        yield group.together(_spread(group, plan), _receive(group, plan.inside))


def _spread(group: Group, plan: _Exchange) -> Routine:
    """Take in tokens of other nodes, and copy them to the ranks of this one."""
    for number, source in plan.spread:
        yield group.from_(source).receive()
        for member in plan.locals:
            group.to(member).send(plan.copies(source, member)[number])


def _receive(group: Group, expected: Iterable[tuple[int, int]]) -> Routine:
    for member, count in expected:
        mailbox = group.from_(member)
        for _ in range(count):
            yield mailbox.receive()


@_exchange_of_tokens(
    "per-node-combine", summary="results of experts back to the tokens' ranks, added up on each node first"
)
def combine(group: Group, buffer: Buffer, options: TokenExchange) -> Routine:
    """Return the results of a rank's experts to the members that sent the tokens; `buffer` is as in `dispatch`.

    Raises:
        Refusal: experts cannot be divided over the members.
    """
    plan = _exchange(group.nodes, group.me, options, buffer.sizes(group.size), buffer.codec)
    sites, me, group = plan.sites, plan.me, _paced(group, options.reach, len(plan.locals))
    sources = [source for node in sites.beyond(me) for source in plan.turned(sites.on[node])]
    sent = [(sites.stand_in(plan.node, source), plan.copies(source, me)) for source in sources]
    for number in range(plan.most):
        for stand_in, segments in sent:
            if stand_in != me and number < len(segments):
                group.to(stand_in).send(segments[number])
    for member in plan.locals:
        group.to(member).send(plan.whole(member, me))
    if len(sites.on) == 1:  # nothing comes back from elsewhere
        yield from _add_up(group, plan)
    else:
        back = ((sites.stand_in(node, me), plan.segments(me)) for node in sites.beyond(me, -1))
        yield group.together(_add_up(group, plan), _receive(group, back))


def _add_up(group: Group, plan: _Exchange) -> Routine:
    """Add up what the ranks of this node return for a token, and send the sum back over the network."""
    for number, source in plan.added_up:
        for member in plan.locals:
            yield group.from_(member).receive()
        group.to(source).send(plan.across(source, plan.node)[number])
    yield from _receive(group, ((place, 1) for place in plan.locals))
