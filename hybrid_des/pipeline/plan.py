"""A schedule as data: operations and what they need, programs of the pipeline ranks, and paths of micro-batches.

    1F1B, two ranks, three micro-batches:

    rank 0   0F0  0F1  0B0  0F2  0B1  0B2
    rank 1   1F0  1B0  1F1  1B1  1F2  1B2

An op is written as PyTorch writes it: the stage, the kind, the micro-batch. `F` is a forward, `B` a whole
backward, `I` its input gradient and `W` its weight gradient where the backward is split. A stage is a part of the
model, a chunk is one of the stages that a pipeline rank holds (a virtual pipeline stage).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import index
from typing import Literal, NamedTuple, NoReturn

import numpy as np

from hybrid_des.errors import CircularOrderError, PlanError
from hybrid_des.pipeline.grid import Numbers, Spot, draw_grid
from hybrid_des.units import collected

Kind = Literal["F", "B", "I", "W"]


KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")


WHOLE: tuple[Kind, ...] = ("F", "B")  # a micro-batch's ops on a stage …


SPLIT: tuple[Kind, ...] = ("F", "I", "W")  # … and where its backward is split


# The dependency rule: an op of a kind needs these ops of its micro-batch, at this offset in stages. Of B and I it needs
# the one that the stage has. A dependency across ranks is a message: an activation for a forward, a gradient for a
# backward.
NEEDS: Mapping[Kind, tuple[tuple[Kind, int], ...]] = {
    "F": (("F", -1),),
    "B": (("F", 0), ("B", +1), ("I", +1)),
    "I": (("F", 0), ("B", +1), ("I", +1)),
    "W": (("I", 0),),
}


SOURCE: Mapping[Kind, int] = {kind: offset for kind, needs in NEEDS.items() for _, offset in needs if offset}


"""Offset of the stage that sends an op's message; an op that is not listed receives none."""


TARGET: Mapping[Kind, int] = {kind: -offset for needs in NEEDS.values() for kind, offset in needs if offset}


"""Offset of the stage that receives an op's message; an op that is not listed sends none."""


class Op(NamedTuple):
    """One operation of a pipeline rank: its kind, its micro-batch, and the rank's chunk on which it runs."""

    kind: Kind
    microbatch: int
    chunk: int = 0


Action = tuple[Op, ...]  # one op, or two that run as one (F with B)


Form = tuple[tuple[Kind, int], ...]  # kind and chunk of each op of an action: what all micro-batches have in common


Place = tuple[int, int]  # (pipeline rank, chunk)


Path = tuple[Place, ...]  # a micro-batch's route through the model, stage by stage


def carried(op: Op) -> str:
    """Name the content of the messages that an op receives and sends."""
    return "activation" if op.kind == "F" else "gradient"


def loop(pipeline: int, chunks: int) -> Path:
    """Assign stages to ranks in turn: chunk c of rank r is stage c·p + r."""
    return tuple((rank, chunk) for chunk in range(chunks) for rank in range(pipeline))


def wave(pipeline: int, chunks: int) -> Path:
    """Even chunks run down the ranks, odd chunks back up; with two chunks this is a V."""
    down = range(pipeline)
    return tuple((rank, chunk) for chunk in range(chunks) for rank in (down if chunk % 2 == 0 else reversed(down)))


def two_way(pipeline: int) -> tuple[Path, Path]:
    """Two copies of the model: chunk 0 runs from rank 0 to p−1, chunk 1 from p−1 to 0."""
    return tuple((r, 0) for r in range(pipeline)), tuple((r, 1) for r in reversed(range(pipeline)))


WEIGHT_SHARE = Fraction(43, 100)


"""Share of an activation that the weight gradient needs: 32h/(34h+5as), by Table 1 of arXiv 2401.10241 (h features, a
heads, s tokens); its models of 6.2 to 28.3 billion parameters have a·s/h = 8. The input gradient frees the rest."""


NUMBER = {kind: number for number, kind in enumerate(KINDS)}


NOTHING: tuple[int, int] = (len(KINDS), 0)  # a kind that no op has


_NEEDED = [[(NUMBER[other], away) for other, away in NEEDS[kind]] for kind in KINDS]


_NEEDED_OPS: Numbers = np.array([(needed + [NOTHING] * 3)[:3] for needed in _NEEDED], np.int64)  # by kind


@dataclass(frozen=True)
class Edges:
    """Dependencies between the actions of all programs, which are numbered rank by rank, top to bottom.

    Attributes:
        consumer, producer: of each dependency; consumers ascend.
        first: number of each rank's first action, followed by the number of all actions.
    """

    consumer: Numbers
    producer: Numbers
    first: Sequence[int]

    @cached_property
    def rank(self) -> Numbers:
        """The pipeline rank of each action."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def order(self) -> list[int]:
        """The actions in an order in which they can run; those that wait in a circle are missing."""
        pending = (self.producer >= self.consumer) | (self.rank[self.consumer] != self.rank[self.producer])
        consumer, producer = self.consumer[pending], self.producer[pending]  # a rank's own earlier ones are done
        leading = np.diff(consumer, prepend=-1) > 0
        needed: Numbers = np.full(self.first[-1], self.first[-1])
        needed[consumer[leading]] = producer[leading]
        further = collected(zip(consumer[~leading].tolist(), producer[~leading].tolist(), strict=True))
        return self._run(needed.tolist(), further)

    def _run(self, needed: list[int], further: Mapping[int, list[int]]) -> list[int]:
        """Let every rank run as far as it can, whenever what it waits for is done.

        Args:
            needed: of each action one that it waits for; the number of all actions where there is none.
            further: actions → the others that they wait for.
        """
        order: list[int] = []
        done = bytearray(self.first[-1]) + b"\1"
        waiting: dict[int, list[int]] = {}  # action → ranks that wait for it
        at, ready = list(self.first), list(range(len(self.first) - 1))
        while ready:
            rank = ready.pop()
            for number in range(at[rank], self.first[rank + 1]):
                missing = needed[number]
                if number in further and done[missing]:
                    missing = next((one for one in further[number] if not done[one]), missing)
                if not done[missing]:
                    at[rank] = number
                    waiting.setdefault(missing, []).append(rank)
                    break
                done[number] = True
                order.append(number)
                if number in waiting:
                    ready += waiting.pop(number)
        return order


def _forms_in(program: Sequence[Action]) -> tuple[Sequence[int], Sequence[Form]]:
    numbers: dict[Form, int] = {}
    of = [numbers.setdefault(tuple([(op.kind, op.chunk) for op in action]), len(numbers)) for action in program]
    return of, list(numbers)


@dataclass(frozen=True)
class PlanRequest:
    """The information that a schedule has when it makes a plan.

    Times are picoseconds per micro-batch, one entry per pipeline rank, for the rank's whole share (all its chunks):
    `forward` F, `input` (the input-gradient part of the backward, recomputation included) and `weight` W.
    `delay` is the time a message takes between neighbouring ranks on idle links. `weight_share` is the share of a
    micro-batch's activation that a rank still holds between its I and its W, where the backward is split.
    """

    pipeline: int
    microbatches: int
    chunks: int = 1
    forward: tuple[int, ...] = ()
    input: tuple[int, ...] = ()
    weight: tuple[int, ...] = ()
    delay: int = 0
    weight_share: tuple[Fraction, ...] = ()

    @property
    def held_for_weight(self) -> tuple[Fraction, ...]:
        """The weight shares of all ranks; `WEIGHT_SHARE` if the request has none."""
        return self.weight_share or (WEIGHT_SHARE,) * self.pipeline


@dataclass(frozen=True)
class Plan:
    """One program per pipeline rank, and the paths of the micro-batches.

    Attributes:
        programs: for each pipeline rank its actions, top to bottom.
        paths: one path for most schedules, two for those that run from both ends.
        path_of: for each micro-batch the index of its path.
        fused_time: time of a fused pair divided by the time of its parts.
    """

    programs: tuple[tuple[Action, ...], ...]
    paths: tuple[Path, ...]
    path_of: tuple[int, ...]
    fused_time: Fraction = field(default=Fraction(1))

    @classmethod
    def of(
        cls,
        programs: Iterable[Iterable[Op | Action]],
        paths: Sequence[Path],
        path_of: Sequence[int],
        fused_time: Fraction = Fraction(1),
    ) -> Plan:
        """Build a plan from programs in which a bare op may stand for an action of one op.

        Raises:
            PlanError: the programs are not lists of ops, or the paths are no lists of pairs.
        """
        try:
            places = tuple(tuple((index(rank), index(chunk)) for rank, chunk in path) for path in paths)
            numbers = tuple(map(index, path_of))
        except (TypeError, ValueError):
            what = "lists of (pipeline rank, chunk), and the number of its path for each micro-batch"
            raise PlanError(f"the paths of a plan: expected {what}") from None
        try:
            actions = tuple(tuple((a,) if isinstance(a, Op) else tuple(a) for a in program) for program in programs)
        except TypeError:
            raise PlanError("the programs of a plan: expected a list of ops for each pipeline rank") from None
        plan = cls(actions, places, numbers, fused_time)
        if min(numbers, default=0) < 0:  # would count from the end
            plan._check_form()
        return plan

    @property
    def pipeline(self) -> int:
        """Number of pipeline ranks."""
        return len(self.programs)

    @property
    def microbatches(self) -> int:
        """Number of micro-batches per replica and training step."""
        return len(self.path_of)

    @property
    def stages(self) -> int:
        """Number of stages along the model."""
        return len(self.paths[0])

    @cached_property
    def stage_of(self) -> dict[Place, int]:
        """(pipeline rank, chunk) → its stage."""
        return {place: stage for path in self.paths for stage, place in enumerate(path)}

    @cached_property
    def ends_meet(self) -> bool:
        """Whether every rank that holds the first stage holds the last one too, so that they may share parameters."""
        return {path[0][0] for path in self.paths} == {path[-1][0] for path in self.paths}

    @cached_property
    def visits(self) -> tuple[int, ...]:
        """Number of times a micro-batch visits each pipeline rank: its time there is split into that many ops."""
        return tuple(sum(place[0] == rank for place in self.paths[0]) for rank in range(self.pipeline))

    @cached_property
    def split(self) -> frozenset[tuple[int, int]]:
        """The (stage, micro-batch) pairs whose backward is split into an input and a weight part."""
        return frozenset((self.stage_of[rank, op.chunk], op.microbatch) for rank, op in self.ops() if op.kind == "W")

    def chunks_of(self, rank: int) -> list[int]:
        """The chunks on a pipeline rank, in order."""
        return sorted(chunk for at, chunk in self.stage_of if at == rank)

    @cached_property
    def forms(self) -> Sequence[tuple[Sequence[int], Sequence[Form]]]:
        """Of each pipeline rank: the number of the form of every action, and these forms."""
        return [_forms_in(program) for program in self.programs]

    def ops(self) -> Iterator[tuple[int, Op]]:
        """Every op with its pipeline rank, program by program."""
        for rank, program in enumerate(self.programs):
            for action in program:
                for op in action:
                    yield rank, op

    def neighbour(self, rank: int, op: Op, distance: int) -> Place | None:
        """The place `distance` stages further along the op's path, or None beyond either end."""
        stage = self.stage_of[rank, op.chunk] + distance
        path = self.paths[self.path_of[op.microbatch]]
        return path[stage] if 0 <= stage < len(path) else None

    def name(self, rank: int, op: Op) -> str:
        """Write an op as PyTorch does: global stage, kind, micro-batch."""
        return f"{self.stage_of.get((rank, op.chunk), '?')}{op.kind}{op.microbatch}"

    def name_action(self, rank: int, action: Action) -> str:
        """Write an action: an op, or a fused pair as `3F6+0B0`."""
        return "+".join(self.name(rank, op) for op in action)

    def needs(self, rank: int, op: Op) -> list[tuple[int, Op]]:
        """The ops that must be done before this one, each with its pipeline rank (a cross-rank one sends a message)."""
        needs = []
        for kind, offset in NEEDS[op.kind]:
            position = self.neighbour(rank, op, offset)
            if position is not None:
                kinds = SPLIT if (self.stage_of[position], op.microbatch) in self.split else WHOLE
                if kind in kinds:
                    needs.append((position[0], Op(kind, op.microbatch, position[1])))
        return needs

    def source(self, rank: int, op: Op) -> Place | None:
        """The place from which an op receives a message; None where it needs none, or has its input on its own rank."""
        return self._across(rank, op, SOURCE.get(op.kind))

    def target(self, rank: int, op: Op) -> Place | None:
        """The place to which an op sends a message; None where it sends none, or its result is used on its own rank."""
        return self._across(rank, op, TARGET.get(op.kind))

    def _across(self, rank: int, op: Op, distance: int | None) -> Place | None:
        position = None if distance is None else self.neighbour(rank, op, distance)
        return None if position is None or position[0] == rank else position

    @cached_property
    def edges(self) -> Edges:
        """The dependencies between actions.

        Raises:
            PlanError: an op is missing, repeated, or where it does not belong.
        """
        kinds, keys, action = self._numbered_ops()
        number: Numbers = np.full((len(KINDS) + 1, self._key(self.stages + 1, 0)), -1)  # of an op by kind and key
        number[kinds, keys] = np.arange(len(kinds))
        self._check_unique(number[kinds, keys], action)
        self._check_complete(number, action)
        needed = _NEEDED_OPS[kinds]
        producer = number[needed[:, :, 0], keys[:, None] + self.microbatches * needed[:, :, 1]]
        consumer = np.broadcast_to(action[:, None], producer.shape)
        return Edges(consumer[producer >= 0], action[producer[producer >= 0]], self._first)

    def _numbered_ops(self) -> tuple[Numbers, Numbers, Numbers]:
        """Of every op the number of its kind, its key (see `_key`), and the number of its action."""
        kinds, keys = [], []
        for rank, program in enumerate(self.programs):
            first = [
                {at[1]: self._key(stage, 0) for stage, at in enumerate(path) if at[0] == rank} for path in self.paths
            ]
            key_of = {microbatch: first[path] for microbatch, path in enumerate(self.path_of)}
            columns = list(zip(*chain.from_iterable(program), strict=True)) or [(), (), ()]
            kinds_of, microbatches, chunks = columns  # `zip` reads an op in a fifth of the time that unpacking takes
            kinds += [NUMBER[kind] for kind in kinds_of]
            try:
                keys += [key_of[number][chunk] + number for number, chunk in zip(microbatches, chunks, strict=True)]
            except KeyError:
                self._fail_place(rank, key_of)
        sizes = [*map(len, chain.from_iterable(self.programs))]
        return np.array(kinds, np.int64), np.array(keys, np.int64), np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def _first(self) -> list[int]:
        """The number of each rank's first action, followed by the total number of actions."""
        return list(accumulate(map(len, self.programs), initial=0))

    def check(self) -> None:
        """Check that every op occurs exactly once, on the rank of its stage, and that no ops wait for each other.

        Raises:
            PlanError: with the first problem and an action × rank grid in which the place is marked.
            CircularOrderError: the order deadlocks; each stuck rank and op has a line.
        """
        _ = self._checked

    @cached_property
    def _checked(self) -> bool:
        """True, once a plan has been checked: what-ifs plan with the same one."""
        if len({len(path) for path in self.paths}) > 1:
            self._check_form()
        try:
            order = self.edges.order()
        except (LookupError, TypeError, ValueError):
            self._check_form()
            raise
        if len(order) == self._first[-1]:
            return True
        done = set(order)
        heads = [next((n for n in range(*bounds) if n not in done), None) for bounds in pairwise(self._first)]
        stuck = [number for number in heads if number is not None]
        lines = ["deadlock: circular wait", *(self._describe_wait(number, done) for number in stuck)]
        raise CircularOrderError("\n".join([*lines, self.grid(frozenset(map(self._spot, stuck)))]))

    def _check_form(self) -> None:
        """Check that actions are made of ops, that every micro-batch has a path, and that paths have equal lengths.

        Raises:
            PlanError: the first that is not, or has none.
        """
        for rank, program in enumerate(self.programs):
            for number, action in enumerate(program):
                for op in action:
                    if not (isinstance(op, Op) and op.kind in KINDS and all(isinstance(one, int) for one in op[1:])):
                        expected = f'an Op such as Op("F", 0), of kind {", ".join(KINDS)}'
                        raise PlanError(f"rank {rank}, action {number}: found {op!r}; expected {expected}")
        for microbatch, path in enumerate(self.path_of):
            if path not in range(len(self.paths)):
                message = f"micro-batch {microbatch}: there is no path {path!r}, of {len(self.paths)} in the plan"
                raise PlanError(message)
        if len(lengths := sorted({len(path) for path in self.paths})) > 1:
            raise PlanError(f"the paths of a plan have {lengths[0]} and {lengths[-1]} stages; expected one number")

    def grid(self, marked: frozenset[tuple[int, int]] = frozenset(), width: int | None = None) -> str:
        """Draw action × rank as text; (rank, index) pairs in `marked` are set in >arrows<, index −1 marks the rank.

        Ranks that do not fit a width, if one is given, are drawn below the others.
        """
        return draw_grid([self.names(rank) for rank in range(self.pipeline)], marked, width)

    def names(self, rank: int) -> list[str]:
        """A rank's program as text, one name per action."""
        return [self.name_action(rank, action) for action in self.programs[rank]]

    def _key(self, stage: int, microbatch: int) -> int:
        """Index of a stage's ops for a micro-batch in lists that extend one stage beyond either end."""
        return (stage + 1) * self.microbatches + microbatch

    def _fail_place(self, rank: int, chunks: Mapping[int, Collection[int]]) -> NoReturn:
        """Fail for the first op of a rank that is on none of the `chunks` that its micro-batch visits there."""
        self._check_form()
        spots = ((index, op) for index, action in enumerate(self.programs[rank]) for op in action)
        index, op = next((index, op) for index, op in spots if op.chunk not in chunks.get(op.microbatch, ()))
        where = f"rank {rank}, action {index}"
        if not 0 <= op.microbatch < self.microbatches:
            self._fail(f"{where}: micro-batch {op.microbatch} of {op.kind} is not among 0 … {self.microbatches - 1}",
                       (rank, index))  # fmt: skip
        what = f"{op.kind} of micro-batch {op.microbatch} on chunk {op.chunk}"
        self._fail(f"{where}: {what}: the micro-batch does not visit it", (rank, index))

    def _check_unique(self, last: Numbers, action: Numbers) -> None:
        """Check that every op is the last of its kind and key."""
        for op in np.flatnonzero(last != np.arange(len(last))).tolist()[:1]:
            (rank, first), again = self._spot(action[op]), self._spot(action[last[op]])
            name = next(
                self.name(rank, one) for one in self.programs[rank][first] if one in self.programs[rank][again[1]]
            )
            places = f"at actions {first} and {again[1]}"
            self._fail(f"rank {rank}: {name} occurs twice, {places}", (rank, first), again)

    def _check_complete(self, number: Numbers, action: Numbers) -> None:
        m = self.microbatches
        forward, whole, inputs, weight = number[:-1, m:-m] >= 0
        wrong = np.flatnonzero(~forward | (whole == weight) | (inputs != weight)).tolist()
        for microbatch, stage in sorted((key % m, key // m) for key in wrong)[:1]:
            rank, _ = self.paths[self.path_of[microbatch]][stage]
            actions = zip(KINDS, number[:-1, self._key(stage, microbatch)].tolist(), strict=True)
            self._fail_incomplete(rank, stage, microbatch, {k: self._spot(action[op]) for k, op in actions if op >= 0})

    def _fail_incomplete(self, rank: int, stage: int, microbatch: int, present: dict[Kind, Spot]) -> NoReturn:
        wanted = SPLIT if "W" in present else WHOLE
        for kind in wanted:
            if kind not in present:
                self._fail(f"rank {rank}: {stage}{kind}{microbatch} is missing", (rank, -1), *present.values())
        kind = next(kind for kind in present if kind not in wanted)
        why = "its backward is split into I and W" if "W" in present else "no W follows it"
        self._fail(f"rank {rank}: {stage}{kind}{microbatch} does not belong: {why}", present[kind])

    def _spot(self, number: int) -> Spot:
        rank = bisect(self._first, number) - 1
        return rank, number - self._first[rank]

    def _describe_wait(self, number: int, done: Collection[int]) -> str:
        needed = self.edges.producer[self.edges.consumer == number].tolist()
        missing = next(one for one in needed if one not in done)
        (rank, here), (other, there) = self._spot(number), self._spot(missing)
        names = [self.name_action(r, self.programs[r][i]) for r, i in ((rank, here), (other, there))]
        return f"rank {rank} at action {here} ({names[0]}) waits for {names[1]} at action {there} of rank {other}"

    def _fail(self, problem: str, *marked: tuple[int, int]) -> NoReturn:
        raise PlanError(f"{problem}\n{self.grid(frozenset(marked))}")
