"""The documents of every step, drawn and packed: what each lane computes in each micro-batch.

A lane is a place along data and context: lane = replica · context ranks + context rank. All tensor and pipeline ranks
of a lane compute the same documents. What they cost depends on the load of the micro-batch:

    tokens      Σ lengths: products, element-wise operations, messages, activations
    squares     Σ lengths²: attention, of which causal masks leave half
    routed      the tokens of all ranks that share experts: each of them computes an equal part of their sum

A document that several lanes share counts as the next multiple of their number, so that each has whole tokens; with
`padded: true`, all documents of a micro-batch have the length of its longest one, and with `padded: step` the last of
each is lengthened until all micro-batches of a step have as many tokens.

With dynamic context parallelism, the lanes that share a document change from micro-batch to micro-batch:

    lane            0   1   2   3
    micro-batch 0   ├───────────┤       they meet before every forward and backward, since attention passes keys around
    micro-batch 1   ├───┤   ·   ·
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, repeat
from typing import NamedTuple, cast

import numpy as np

from hybrid_des.layout import Layout
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.data import STEP, WHOLE, Data
from hybrid_des.scenario.sections.training import ModelChoice, Parallel, Schedule
from hybrid_des.workload import lengths as kinds
from hybrid_des.workload.draws import stream
from hybrid_des.workload.lengths import Documents
from hybrid_des.workload.packing.registration import Pack, Packed, PackRequest, pack


class Load(NamedTuple):
    """What a micro-batch holds on the lanes that share it.

    Attributes:
        tokens: of all documents, over all lanes.
        squares: sum over documents of their squared tokens.
        ranks: the lanes over which every document is split.
        lengths: of the documents, as they are computed, the longest first.
        first: the first of these lanes, if other micro-batches are shared by others; None: not shared so.
        routed: tokens of each rank that shares experts with one of these, in the order of their group; none: all have
            as many as it.
    """

    tokens: int
    squares: int
    ranks: int
    lengths: tuple[int, ...] = ()
    first: int | None = None
    routed: tuple[int, ...] = ()

    @classmethod
    def of(cls, lengths: Sequence[int], ranks: int, first: int | None = None, *, padded: bool, least: int = 0) -> Load:
        """That of documents, padded to the longest; and then the last of them, until each lane has the least tokens."""
        longest = max(lengths, default=0) if padded else 0
        each = [-(-max(length, longest) // ranks) * ranks for length in lengths]
        if each:
            each[-1] += max(0, least * ranks - sum(each))
        each.sort(reverse=True)
        return cls(sum(each), sum(length**2 for length in each), ranks, tuple(each), first)

    @classmethod
    def stacked(cls, loads: Sequence[Load]) -> Load:
        """Those of several that as many lanes share, as arrays (`elementwise`); without the lengths."""
        tokens, squares = (
            np.array([getattr(load, name) for load in loads], dtype=np.int64) for name in cls._fields[:2]
        )
        return cls(cast(int, tokens), cast(int, squares), loads[0].ranks)

    @property
    def lanes(self) -> tuple[int, int] | None:
        """The first of the lanes that share it, and their number, if these change with the micro-batch."""
        return None if self.first is None else (self.first, self.ranks)


class StepDocuments(NamedTuple):
    """The documents of a step.

    Attributes:
        lengths: tokens of each.
        truncated: how many were longer than the most.
        packed: its micro-batches.
    """

    lengths: tuple[int, ...]
    truncated: int
    packed: Packed


@dataclass(frozen=True, eq=False)  # the same values are the same object; comparing all documents takes time
class PackedSteps:
    """The documents of all steps of a run, packed.

    Attributes:
        steps: one entry per training step.
        context: neighbouring lanes that always share their documents.
        padded: whether documents are padded to the longest of their micro-batch, or micro-batches to the fullest.
        dynamic: whether documents are shared by other lanes in each micro-batch.
        places: lanes of a replica, its ranks along context.
        sharing: lane → the lanes of the ranks that share its experts, in their order; none if no ranks share any.
    """

    steps: tuple[StepDocuments, ...]
    context: int
    padded: bool | str
    dynamic: bool = False
    places: int = 1
    sharing: tuple[tuple[int, ...], ...] = ()

    @property
    def microbatches(self) -> int:
        """Micro-batches of a replica in every step; a step that needs fewer has empty ones at its end."""
        return max(len(step.packed) for step in self.steps)

    @cached_property
    def lanes(self) -> int:
        """Number of lanes."""
        return sum(one.ranks for one in self.steps[0].packed[0])

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The distinct loads."""
        return tuple(self._numbers[0])

    @cached_property
    def _numbers(self) -> tuple[dict[Load, int], list[list[list[int]]]]:
        """The distinct loads with their numbers; and step → micro-batch → lane → the number of its load."""
        known: dict[Load, int] = {}
        empty = Pack((), self.context)
        numbers = []
        for step in self.steps:
            of_step, least = [], self._least(step)
            for packs in (*step.packed, *[(empty,) * (self.lanes // self.context)] * self.missing(step)):
                lanes: list[Load] = []
                for group in packs:
                    lengths = [step.lengths[place] for place in group.documents]
                    first = len(lanes) if self.dynamic and group.ranks > 1 else None
                    lanes += [
                        Load.of(lengths, group.ranks, first, padded=self.padded is True, least=least)
                    ] * group.ranks
                of_step.append([known.setdefault(load, len(known)) for load in self._with_routed(lanes)])
            numbers.append(of_step)
        return known, numbers

    def _least(self, step: StepDocuments) -> int:
        """Tokens that each lane has at least in a micro-batch with documents."""
        if self.padded != STEP:
            return 0
        packs = (group for packs in step.packed for group in packs)
        return max(sum(-(-step.lengths[one] // group.ranks) for one in group.documents) for group in packs)

    def _with_routed(self, lanes: Sequence[Load]) -> Iterator[Load]:
        """The loads of lanes, with the tokens of those that share experts, where these differ."""
        tokens = [load.tokens // load.ranks for load in lanes]
        for load, members in zip(lanes, self.sharing or repeat(()), strict=False):
            routed = tuple([tokens[lane] for lane in members])
            yield load._replace(routed=routed) if len(set(routed)) > 1 else load

    def missing(self, step: StepDocuments) -> int:
        """Empty micro-batches at the end of a step."""
        return self.microbatches - len(step.packed)

    def number(self, step: int, microbatch: int, lane: int) -> int:
        """The number of a load, among `loads`; after the last step, the first follows."""
        return self._numbers[1][step % len(self.steps)][microbatch][lane]

    def load(self, step: int, microbatch: int, lane: int) -> Load:
        """The load of a micro-batch."""
        return self.loads[self.number(step, microbatch, lane)]

    def documents(self, step: int, microbatch: int, lane: int) -> list[int]:
        """The lengths of the documents of a micro-batch, without padding; none in an empty one."""
        of_step = self.steps[step % len(self.steps)]
        if microbatch >= len(of_step.packed):
            return []
        ends = accumulate(group.ranks for group in of_step.packed[microbatch])
        group = next(group for group, end in zip(of_step.packed[microbatch], ends, strict=True) if lane < end)
        return [of_step.lengths[document] for document in group.documents]

    @cached_property
    def routed(self) -> tuple[int, ...]:
        """Step → the documents on the lanes at the same place of their replicas, at the place with most of them."""
        counts = []
        for step in self.steps:
            held = [0] * self.places
            for packs in step.packed:
                lane = 0
                for group in packs:
                    for each in range(lane, lane + group.ranks):
                        held[each % self.places] += len(group.documents)
                    lane += group.ranks
            counts.append(max(held))
        return tuple(counts)

    @cached_property
    def usual(self) -> Load:
        """The mean load of a lane that has documents; that of all if they are equal."""
        if not self.varies:
            return self.loads[0]
        held = [(load, load.ranks) for load in self._each() if load.tokens]
        count = sum(ranks for _, ranks in held)
        lanes = sum(load.tokens for load, _ in held), sum(load.squares for load, _ in held)
        tokens, squares = (-(-amount // count) * self.context for amount in lanes)
        return Load(tokens, squares, self.context, (-(-squares // tokens),) * max(1, round(tokens**2 / squares)))

    def _each(self) -> Iterator[Load]:
        """The load of every pack of every micro-batch."""
        for number, step in enumerate(self.steps):
            for microbatch, packs in enumerate(step.packed):
                lane = 0
                for group in packs:
                    yield self.load(number, microbatch, lane)
                    lane += group.ranks

    @property
    def varies(self) -> bool:
        """Whether lanes or micro-batches differ."""
        return len(self.loads) > 1 or self.loads[0].lanes is not None

    @property
    def tokens(self) -> int:
        """Tokens of the documents of all steps, without padding."""
        return sum(sum(step.lengths) for step in self.steps)


def packed_steps(scenario: Scenario) -> PackedSteps | None:
    """The documents of a scenario, drawn and packed; None if it has no `data`.

    Raises:
        Refusal: they cannot be packed so.
        UsageError: a user-defined packer returned something else.
    """
    if scenario.data is None or scenario.model is None:
        return None
    seed = scenario.seed if scenario.data.seed is None else scenario.data.seed
    sections = scenario.data, scenario.model, scenario.parallel, scenario.schedule
    steps = scenario.steps if scenario.data.lengths.drawn else 1
    return _packed(*sections, batch=scenario.batch, seed=seed, steps=steps)


@lru_cache(maxsize=16)
def _packed(
    data: Data, model: ModelChoice, parallel: Parallel, schedule: Schedule, *, batch: int | None, seed: int, steps: int
) -> PackedSteps:
    request = data.request(model.network, parallel, schedule, given=batch is not None)
    limits = data.limits(request, model.network)
    draw = kinds.find(data.lengths.kind).build(limits, *data.lengths.arguments)
    documents = Documents(draw, limits, stream(seed, "lengths"))
    split = parallel.context_method != WHOLE
    packed, before = list[StepDocuments](), 0
    for _ in range(steps):
        taken = tuple(_taken(data, documents, request, batch))
        truncated, before = documents.truncated - before, documents.truncated
        packing = pack(data.packing, taken, request, *data.arguments, split=split)
        packed.append(StepDocuments(taken, truncated, packing))
    dynamic = bool(data.packer.facts["lanes"])
    shared = parallel.context if split and not dynamic else 1
    sharing = lanes_sharing_experts(parallel.layout)
    return PackedSteps(tuple(packed), shared, data.padded, dynamic, parallel.context, sharing)


def lanes_sharing_experts(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Lane → the lanes of the ranks that share its experts, in their order; none if no ranks share any."""
    if layout.expert == 1:
        return ()
    sharing: dict[int, tuple[int, ...]] = {}
    for ranks in layout.groups("expert"):
        lanes = tuple(map(layout.lane, ranks))
        sharing.update(dict.fromkeys(lanes, lanes))
    return tuple(sharing[lane] for lane in range(len(sharing)))


def _taken(data: Data, documents: Documents, request: PackRequest, batch: int | None) -> Iterator[int]:
    """The lengths of the documents of a step: given, so many per micro-batch, or as many as fill micro-batches."""
    each, room = data.packer.facts["each"], data.places(request)
    count = batch
    if request.microbatches is not None and each is not None:
        count = request.replicas * request.microbatches * each(request)
    if count is not None:
        yield from (documents.take() for _ in range(count))
        return
    assert request.microbatches is not None
    assert room is not None
    for _ in range(request.replicas * request.microbatches):
        left = room
        while documents.peek() <= left:
            length = documents.take()
            left -= length
            yield length
