"""Collective times: how long collectives take alone on a wiring, each simulated once, for all who ask.

    times("ring", size, ranks)             one group; groups that are connected alike share one simulation
    times.around(name, groups, elements)   several groups at once, on all channels of each
    times.fastest(concurrent)              the all-reduce that takes the shortest in several groups at once

Of the sets of groups that share no link and are alike, one is simulated (`cluster.components`), and of its members
that do the same, one (`symmetry`). The result is exact to the picosecond, as if all members of all groups were
simulated; where neither applies, all are. A long ring over many nodes that are wired alike is folded: the same happens
on every second node (or third, …), so the members on two nodes act and send to each other as if they were the whole
ring, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, cached_property, partial, reduce
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from hybrid_des import collectives
from hybrid_des.cluster.components import Isomorphic, independent_sets
from hybrid_des.cluster.connections import signature
from hybrid_des.cluster.fabric import Fabric, placed
from hybrid_des.cluster.rings import channels
from hybrid_des.cluster.symmetry import flows_of
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import NOTHING, Outcome, SlowerThanBestError, Views, measure, run_collective
from hybrid_des.collectives.buffer import Buffer, Channels, UnequalBuffer
from hybrid_des.collectives.checking import unchecked
from hybrid_des.collectives.codecs.registration import Codec
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.cost_model import long_rings
from hybrid_des.cost_model.link_loads import least_time
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import DeadlockError, Refusal, UsageError
from hybrid_des.folding.folded_transport import folded_transport
from hybrid_des.folding.images import RankArray, check_images, check_nodes
from hybrid_des.folding.refusals import FoldRefusal, TooManyMessagesError
from hybrid_des.folding.symmetry import Fold, folds_along, folds_by_digits
from hybrid_des.layout import Layout
from hybrid_des.options import Options
from hybrid_des.units import PICOSECONDS_PER_SECOND

MOST_TRIES = 2  # folds that may turn out to be inexact while simulated; after two, others rarely do better
IN_ORDER = ("fifo", "uncontended")  # sharings under which links that are free do not tell when they were used
LONG_RUN = 3600 * PICOSECONDS_PER_SECOND  # after which a network is not used again: clocks hold 106 days
SHARINGS = ("fifo", "fair")  # those under which it is known which message waits for which
LONG = 16  # members; shorter rings are not folded, so that shards of any size are exact
SIXTEEN_BITS = "bf16"  # the encoding of layers' activations and weights
ELEMENT = 2  # bytes
TooMany = Callable[[str, Mapping[str, Any], Sequence[tuple[int, int]]], str]


class Concurrent(NamedTuple):
    """Groups that run one collective at the same time.

    Attributes:
        groups: the ranks of each group, in ascending order.
        elements: for each group, the number of elements of a member's buffer.
        codec: that of the buffers.
        options: those of the collectives; each ignores those that it does not declare.
    """

    groups: Sequence[Sequence[int]]
    elements: Sequence[int]
    codec: Codec
    options: collectives.Given = None

    def buffer(self, group: int, member: int) -> Buffer:
        """The buffer of any member of a group."""
        return Buffer(self.elements[group], self.codec)


class SimulatedGroups(NamedTuple):
    """Groups that are simulated together, and how.

    Attributes:
        groups: with their servers.
        sets: the number of such sets that they stand for.
        folds: at most `MOST_TRIES` candidates for which members stand for others, the fewest first; not yet known to
            be exact.
    """

    groups: Sequence[ProcessGroup]
    sets: int
    folds: Sequence[Fold]

    @property
    def acting(self) -> int:
        """The number of members and servers simulated, if the first fold is exact."""
        return sum(len(group.ranks) for group in self.groups) // (self.folds[0].order if self.folds else 1)


class CollectiveTimes:
    """How long collectives take alone on a wiring.

    Args:
        fabric: the wiring.
        layout: the ranks; those along data, or else context, may stand for each other, and other GPUs host servers.
        sharing: how links are shared.
        folded: whether some groups and members stand for others when algorithms are tried out.
        checked: whether collectives of users are checked on real numbers before they are first used.
        too_many: maps a collective's name, its options and, for each group, the numbers of members and of simulated
            members (on all channels) to the reason why it cannot be simulated; empty if it can.
    """

    def __init__(
        self,
        fabric: Fabric,
        layout: Layout,
        sharing: str = "fifo",
        *,
        folded: bool = True,
        checked: bool = True,
        too_many: TooMany = lambda name, options, groups: "",
    ) -> None:
        self.fabric, self.layout = fabric, layout
        self._sharing, self._folded, self._checked, self._too_many = sharing, folded, checked, too_many
        self._spare = range(layout.ranks, fabric.gpus)  # places for servers
        self._forms: dict[Hashable, int] = {}
        self._form = cache(self._form_of)
        self._alone = cache(self._times_alone)
        self._representatives = cache(partial(long_rings.representatives, fabric))
        self._around: dict[Hashable, Outcome] = {}
        self._members: dict[Hashable, ProcessGroup] = {}
        self._divided: tuple[Sequence[Sequence[int]], Sequence[int], list[Isomorphic]] | None = None

    def __call__(self, name: str, size: int, ranks: Sequence[int], options: Options | None = None) -> Outcome:
        """A collective over these ranks; `size` in bytes is that of a member's whole buffer."""
        groups = [ranks] if len(ranks) > 1 else []
        if options is None or not groups:
            return self.around(name, groups, elements_of(size))
        key = name, size, options, self._form((tuple(ranks),))
        if key not in self._around:
            asked = [range(len(ranks))], [elements_of(size)], codecs.find(SIXTEEN_BITS).build(), options
            self._around[key] = self._alone(tuple(ranks)).of_group(name, Concurrent(*asked))
        return self._around[key]

    def of_unequal(
        self, held: Sequence[int], name: str, size: int, ranks: Sequence[int], how: Options | None, *, back: bool
    ) -> Outcome:
        """A collective over these ranks, whose buffers have these bytes, whatever a member's own (`UnequalBuffer`)."""
        key = name, held, back, how, self._form((tuple(ranks),))
        if key not in self._around:
            buffers = [buffer_of(size, held, back=back) for size in held]
            self._around[key] = self._alone(tuple(ranks)).of_members(name, buffers, how or Channels())
        return self._around[key]

    def _times_alone(self, ranks: tuple[int, ...]) -> TimesAlone:
        alone = placed(self.fabric, ranks), Layout({"data": len(ranks)}, ("data",)), self._sharing
        return TimesAlone(*alone, folded=self._folded)

    def around(
        self,
        name: str,
        groups: Sequence[Sequence[int]],
        elements: int,
        codec: Codec | None = None,
        count: int | None = None,
    ) -> Outcome:
        """An all-to-all, a library's, or a collective around all rings of each group, in all groups at the same time.

        Where rings are folded, shards are rounded up to whole elements, as if padded; bytes are counted without it.

        Args:
            name: of the collective.
            groups: the ranks of each group.
            elements: of a member's buffer.
            codec: that of the buffers; default: 16 bits.
            count: the channels of a group; None: as many as it can use.
        """
        if not groups or not elements:
            return NOTHING
        codec = codec or codecs.find(SIXTEEN_BITS).build()
        ranks = tuple(one if isinstance(one, Hashable) else tuple(one) for one in groups)
        key = name, elements, codec, count, self._form(ranks)
        if key not in self._around:
            self._around[key] = self._measure(name, ranks, elements, codec, count)
        return self._around[key]

    @property
    def messages(self) -> int:
        """Messages of all collectives whose times are known, those of folded members included."""
        return sum(outcome.messages for outcome in self._around.values())

    def process_group(
        self,
        name: str,
        ranks: Sequence[int],
        options: collectives.Given,
        *,
        stage: int = 0,
        chunks: Sequence[int] | None = None,
        part: int = 0,
    ) -> ProcessGroup:
        """The members and servers of a collective, as `collectives.process_group` finds them; once for equal ranks.

        Raises:
            UsageError: a user's collective does not reduce.
        """
        members = name, ranks if isinstance(ranks, Hashable) else tuple(ranks), options
        known = self._members.get(members) if isinstance(options, Hashable) else None
        if known is None:
            if self._checked:
                unchecked(name, options)
            known = collectives.process_group(name, collectives.Site(self.fabric, ranks, self._spare), options)
            if isinstance(options, Hashable):
                self._members[members] = known
        held = known.chunks if chunks is None else chunks
        if chunks is not None and known.servers:
            held = [*chunks, *(-1 for _ in range(known.servers))]
        return replace(known, stage=stage, part=part, chunks=held)

    def _form_of(self, groups: Sequence[Sequence[int]]) -> int:
        """The number of the canonical form of groups: equal where short ones are connected alike."""
        form: Hashable = groups
        if len(groups[0]) <= LONG:
            flows = chain.from_iterable(flows_of(self.fabric, ranks) for ranks in groups)
            switched = [self.fabric.node_of[rank] in self.fabric.reducers for ranks in groups for rank in ranks]
            form = tuple(map(len, groups)), signature(self.fabric, flows), tuple(switched)
        return self._forms.setdefault(form, len(self._forms))

    def _measure(
        self, name: str, groups: Sequence[Sequence[int]], elements: int, codec: Codec, count: int | None
    ) -> Outcome:
        facts, options, buffer = collectives.find(name).facts, Channels(channels=count), Buffer(elements, codec)
        if facts["tuned"]:
            wholes = [self.process_group(name, ranks, options, stage=number) for number, ranks in enumerate(groups)]
            if len(groups[0]) > LONG and (rings := long_rings.of_library(wholes, buffer)):
                return rings.outcome(self.fabric, self._sharing, self._acting(rings))
            members = [(group, place) for group in wholes for place in range(len(group.ranks))]
            network = Transport(Links(Environment(), self.fabric, self._sharing), Recorder())
            return run_collective(network, collectives.configured(name, options), members, lambda group, member: buffer)
        if name == "all-to-all":
            return measure(self.fabric, name, groups, lambda group, member: buffer, sharing=self._sharing)
        whole = [channels(self.fabric, ranks, count) for ranks in groups]
        rings = long_rings.of_textbook(name, self.fabric, whole, buffer)
        return rings.outcome(self.fabric, self._sharing, self._acting(rings))

    def _acting(self, rings: long_rings.LongRings) -> int:
        """The number of members of each ring that act for all."""
        ranks = tuple(tuple(ring.ranks) for ring in rings.groups)
        return self._representatives(ranks) if rings.members > LONG else rings.members

    def fastest(self, asked: Concurrent, *, halves: bool = False) -> tuple[str, Outcome]:
        """The name and outcome of the fastest all-reduce (ties: the first by name).

        With `halves`, only those are tried that consist of a reduce-scatter and an all-gather, which then run one after
        the other, the latter in 16 bits. Those that do not support these groups or this wiring are left out. The others
        are run in order of their least times, as far as known, and of increasing effort, each for no longer than the
        fastest so far.

        Raises:
            TooManyMessagesError: one would need too many messages.
            Refusal: none supports them.
        """
        tried: dict[str, list[tuple[str, Concurrent, list[SimulatedGroups]]]] = {}
        for name in collectives.all_reduces(asked.options, halves=halves):
            if collectives.find(name).facts["tuned"]:
                continue  # as slow as a library, by its latencies and paces
            parts = collectives.phases_of(name) if halves else (name,)
            each = zip(parts or (), (asked, asked._replace(codec=codecs.find(SIXTEEN_BITS).build())), strict=False)
            with suppress(Refusal, UsageError):
                tried[name] = [(kind, one, self.simulated(kind, one)) for kind, one in each]
        for kind, concurrent, sets in chain.from_iterable(tried.values()):
            for together in sets:
                self._check_size(kind, concurrent, together, together.folds[0] if together.folds else None)

        bounded = tried.items() if self._folded else ()
        least = {name: sum(self._least(*part) for part in each) for name, each in bounded}

        def effort(name: str) -> tuple[int, int, str]:
            return least.get(name, 0), sum(together.acting for *_, sets in tried[name] for together in sets), name

        outcomes: dict[str, Outcome] = {}
        for name in sorted(tried, key=effort):
            limit = min((outcome.duration for outcome in outcomes.values()), default=None) if self._folded else None
            if limit is not None and least[name] > limit:
                break  # so do all others
            try:
                outcomes[name] = reduce(Outcome.then, (self._of_all(*part, limit) for part in tried[name]))
            except TooManyMessagesError:
                raise
            except (Refusal, UsageError, SlowerThanBestError):
                continue
        if not outcomes:
            raise Refusal("no all-reduce supports these groups on this wiring")
        best = min(outcomes, key=lambda name: (outcomes[name].duration, name))
        return best, outcomes[best]

    def of(self, name: str, asked: Concurrent) -> Outcome:
        """A collective in several groups at once.

        Raises:
            Refusal: it does not support these groups or this wiring, or needs too many messages.
            DeadlockError: its members deadlock.
        """
        return self._of_all(name, asked, self.simulated(name, asked), None)

    def simulated(self, name: str, asked: Concurrent) -> list[SimulatedGroups]:
        """The groups to simulate, those with the largest buffers first.

        Raises:
            Refusal: the collective does not support the wiring.
        """
        each = enumerate(asked.groups)
        groups = [self.process_group(name, ranks, asked.options, stage=number) for number, ranks in each]
        sets = [Isomorphic(range(len(groups)), 1)]
        if self._folded:
            sets = self._independent_sets(groups, asked)
        sets.sort(key=lambda alike: -sum(asked.elements[number] for number in alike.groups))
        simulated = []
        for alike in sets:
            together = [groups[number] for number in alike.groups]
            simulated.append(
                SimulatedGroups(
                    together, alike.sets, [*islice(self._folds(together, asked), MOST_TRIES)] if self._folded else []
                )
            )
        return simulated

    def _independent_sets(self, groups: Sequence[ProcessGroup], asked: Concurrent) -> list[Isomorphic]:
        """The sets of groups that share no link; found once for all algorithms without servers that are tried."""
        find = partial(independent_sets, self.fabric, [group.ranks for group in groups], asked.elements)
        if any(group.servers for group in groups):
            return find()
        if self._divided is None or self._divided[0] is not asked.groups or self._divided[1] is not asked.elements:
            self._divided = asked.groups, asked.elements, find()
        return [*self._divided[2]]

    def _folds(self, groups: Sequence[ProcessGroup], asked: Concurrent) -> Iterator[Fold]:
        """The folds that look exact, those with the fewest members first."""
        layout = self.layout
        axis = next((axis for axis in ("data", "context") if layout.sizes.get(axis, 1) > 1), None)
        if axis is None or self._sharing not in SHARINGS:
            return
        sizes = [asked.elements[group.stage] for group in groups]
        buffers = {size: [Buffer(size, asked.codec)] for size in sizes}
        every = [(group, buffers[size]) for group, size in zip(groups, sizes, strict=True)]
        for keep in (keep for keep in range(1, layout.sizes[axis]) if layout.sizes[axis] % keep == 0):
            folds = (fold for fold in folds_along(layout, axis, keep) if self._looks_exact(fold, every, asked.options))
            yield from islice(folds, 1)

    def _looks_exact(self, fold: Fold, every: Sequence[tuple[ProcessGroup, Sequence[Buffer]]], given: Any) -> bool:
        """Whether the members of groups, with their buffers and the options given, do the same as their images."""
        with suppress(FoldRefusal):
            for element in fold.generators:
                check_nodes(fold, self._nodes, element)
            check_images(fold, every, given, nodes=self._nodes, groups={})
            return True
        return False

    @cached_property
    def _nodes(self) -> RankArray:
        """The node of each rank."""
        ranks = self.layout.ranks
        return np.fromiter(self.fabric.node_of[:ranks], dtype=np.int64, count=ranks)

    def _least(self, name: str, asked: Concurrent, sets: Sequence[SimulatedGroups]) -> int:
        """The least time of all sets; 0 where it is not known."""
        if self._sharing not in SHARINGS:
            return 0
        algorithm = collectives.configured(name, asked.options)
        with suppress(Refusal, UsageError, DeadlockError):
            return max(
                least_time(self.fabric, algorithm, together.groups, asked.buffer, together.acting) for together in sets
            )
        return 0

    def _of_all(self, name: str, asked: Concurrent, sets: Sequence[SimulatedGroups], limit: int | None) -> Outcome:
        """Simulate all sets; see `run_collective` for the limit."""
        whole = NOTHING
        for simulated_groups in sets:
            of_set = self._of_set(name, asked, simulated_groups, limit)
            whole = whole.beside(of_set, simulated_groups.sets)
        return whole

    def _of_set(self, name: str, asked: Concurrent, simulated_groups: SimulatedGroups, limit: int | None) -> Outcome:
        for fold in (*simulated_groups.folds, None):
            self._check_size(name, asked, simulated_groups, fold)
            with suppress(FoldRefusal):
                return self._run(name, asked, simulated_groups.groups, fold, limit)
        raise AssertionError("unfolded runs are not refused")

    def _check_size(self, name: str, asked: Concurrent, simulated_groups: SimulatedGroups, fold: Fold | None) -> None:
        order = 1 if fold is None else fold.order
        sizes = [(group.size, group.size // order * (len(group.channels) or 1)) for group in simulated_groups.groups]
        if reason := self._too_many(name, dict(asked.options or {}), sizes):
            raise TooManyMessagesError(reason)

    def _run(
        self, name: str, asked: Concurrent, groups: Sequence[ProcessGroup], fold: Fold | None, limit: int | None
    ) -> Outcome:
        """Simulate groups, all members or those that a fold keeps."""
        with self._network(fold, groups) as (network, views):
            members = (
                (group, place)
                for group in groups
                for place, rank in enumerate(group.ranks)
                if (network.simulates(rank) if place < group.size else network.serves(rank, group.ranks[: group.size]))
            )
            algorithm = collectives.configured(name, asked.options)
            return run_collective(network, algorithm, members, asked.buffer, limit=limit, views=views)

    @contextmanager
    def _network(self, fold: Fold | None, groups: Sequence[ProcessGroup]) -> Iterator[tuple[Transport, Views]]:
        """An idle network, and views of members that are kept for it."""
        if fold is None:
            yield Transport(Links(Environment(), self.fabric, self._sharing), Recorder()), {}
        else:
            yield folded_transport(self.fabric, self._sharing, Recorder(), fold, groups), {}


class TimesAlone(CollectiveTimes):
    """How long collectives of one group take, of all ranks of a wiring, each by itself.

    Under `fifo` they run on one network, since to open the flows of a small one takes as long as to simulate it: as
    links are free before the next one begins, and times are whole numbers, each takes as long as on a new network.
    """

    _kept: tuple[Transport, Views] | None = None

    def of_group(self, name: str, asked: Concurrent) -> Outcome:
        """A collective in one group, of all ranks: of members that do the same on their nodes, one is simulated."""
        layout, groups = self.layout, [self.process_group(name, asked.groups[0], asked.options)]
        every, on_node = [(groups[0], [asked.buffer(0, 0)])], self._nodes.tolist().count(self._nodes[0])
        folds = list[Fold]()
        if self._folded and layout.ranks % on_node == 0:
            keeps = (keep for keep in (1, on_node) if keep < layout.ranks)
            folds = [*folds_by_digits(layout, "data", 1, [on_node])]
            folds += chain.from_iterable(folds_along(layout, "data", keep) for keep in keeps)
        likely = (fold for fold in folds if self._looks_exact(fold, every, asked.options))
        return self._of_set(name, asked, SimulatedGroups(groups, 1, [*islice(likely, MOST_TRIES)]), None)

    def of_members(self, name: str, buffers: Sequence[Buffer], options: Options) -> Outcome:
        """A collective in one group, of all ranks, with a buffer for each."""
        group = self.process_group(name, range(len(buffers)), options)
        with self._network(None, [group]) as (network, views):
            members = [(group, place) for place in range(group.size)]
            algorithm = collectives.configured(name, options)
            return run_collective(network, algorithm, members, lambda _, member: buffers[member], views=views)

    @contextmanager
    def _network(self, fold: Fold | None, groups: Sequence[ProcessGroup]) -> Iterator[tuple[Transport, Views]]:
        with super()._network(fold, groups) as new:
            if fold is not None or self._sharing not in IN_ORDER:
                yield new
                return
            network, views = self._kept or new
            self._kept = None  # until it is idle again
            yield network, views
            if network.env.now < LONG_RUN:
                self._kept = network, views


def buffer_of(size: int, held: Sequence[int] = (), *, back: bool = False) -> Buffer:
    """The buffer of a member, in 16 bits, of so many bytes; `held` are those of all members, if these differ."""
    codec = codecs.find(SIXTEEN_BITS).build()
    if not held:
        return Buffer(elements_of(size), codec)
    return UnequalBuffer(elements_of(size), codec, held=tuple(map(elements_of, held)), back=back)


def elements_of(size: int) -> int:
    """Number of 16-bit elements in `size` bytes, rounded up."""
    return -(-size // ELEMENT)
