"""A schedule as data: operations, the programs of the pipeline ranks, and the paths that micro-batches take.

    1F1B, two ranks, three micro-batches:

    rank 0   0F0  0F1  0B0  0F2  0B1  0B2
    rank 1   1F0  1B0  1F1  1B1  1F2  1B2

An op is written as PyTorch writes it: the stage, the kind, the micro-batch. `F` is a forward, `B` a whole
backward, `I` its input gradient and `W` its weight gradient where the backward is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal, NamedTuple, NoReturn

from hybrid_des.errors import CircularOrderError, PlanError
from hybrid_des.pipeline.grid import draw_grid

Kind = Literal["F", "B", "I", "W"]
KINDS: tuple[Kind, ...] = ("F", "B", "I", "W")
WHOLE: tuple[Kind, ...] = ("F", "B")  # a micro-batch's ops on a stage …
SPLIT: tuple[Kind, ...] = ("F", "I", "W")  # … and where its backward is split


class Op(NamedTuple):
    """One operation of a pipeline rank: what is done, for which micro-batch, on which of the rank's chunks."""

    kind: Kind
    microbatch: int
    chunk: int = 0


Action = tuple[Op, ...]  # one op, or two that run as one (F with B)
Place = tuple[int, int]  # (pipeline rank, chunk)
Spot = tuple[int, int]  # (pipeline rank, index of a step in its program)
Spots = dict[tuple[Kind, int, int], Spot]  # where the op of a (kind, stage, micro-batch) stands
Path = tuple[Place, ...]  # a micro-batch's way through the model, stage by stage


def loop(pipeline: int, chunks: int) -> Path:
    """Stages dealt out like cards: chunk c of rank r is stage c·p + r."""
    return tuple((rank, chunk) for chunk in range(chunks) for rank in range(pipeline))


def wave(pipeline: int, chunks: int) -> Path:
    """Even chunks run down the ranks, odd chunks back up; with two chunks this is a V."""
    down = range(pipeline)
    return tuple((rank, chunk) for chunk in range(chunks) for rank in (down if chunk % 2 == 0 else reversed(down)))


def two_way(pipeline: int) -> tuple[Path, Path]:
    """Two copies of the model: chunk 0 runs from rank 0 to p−1, chunk 1 from p−1 to 0."""
    return tuple((r, 0) for r in range(pipeline)), tuple((r, 1) for r in reversed(range(pipeline)))


@dataclass(frozen=True)
class PlanRequest:
    """All that a schedule may know when it makes a plan.

    Times are picoseconds a micro-batch, one entry a pipeline rank, for the rank's whole share (all its chunks):
    `forward` F, `input` (the input-gradient part of the backward, recomputation included) and `weight` W.
    `delay` is the time a message takes between neighbouring ranks on idle links.
    """

    pipeline: int
    microbatches: int
    chunks: int = 1
    forward: tuple[int, ...] = ()
    input: tuple[int, ...] = ()
    weight: tuple[int, ...] = ()
    delay: int = 0


@dataclass(frozen=True)
class Plan:
    """One program a pipeline rank, and the paths of the micro-batches.

    Attributes:
        programs: for each pipeline rank its steps, top to bottom.
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
        """Build a plan from programs in which a single op may stand for a step of one."""
        steps = tuple(tuple((s,) if isinstance(s, Op) else tuple(s) for s in program) for program in programs)
        return cls(steps, tuple(paths), tuple(path_of), fused_time)

    @property
    def pipeline(self) -> int:
        """Number of pipeline ranks."""
        return len(self.programs)

    @property
    def microbatches(self) -> int:
        """Number of micro-batches a replica and step."""
        return len(self.path_of)

    @property
    def stages(self) -> int:
        """Number of places along the model."""
        return len(self.paths[0])

    @cached_property
    def stage_of(self) -> dict[Place, int]:
        """Which stage lives at (pipeline rank, chunk)."""
        return {place: stage for path in self.paths for stage, place in enumerate(path)}

    @cached_property
    def visits(self) -> tuple[int, ...]:
        """How often one micro-batch passes through each pipeline rank: its time there is split into that many ops."""
        return tuple(sum(place[0] == rank for place in self.paths[0]) for rank in range(self.pipeline))

    @cached_property
    def split(self) -> frozenset[tuple[int, int]]:
        """The (stage, micro-batch) pairs whose backward is split into an input and a weight part."""
        return frozenset((self.stage_of[rank, op.chunk], op.microbatch) for rank, op in self.ops() if op.kind == "W")

    @cached_property
    def _places(self) -> tuple[frozenset[Place], ...]:
        return tuple(frozenset(path) for path in self.paths)

    def chunks_of(self, rank: int) -> list[int]:
        """The chunks that live on a pipeline rank, in order."""
        return sorted(chunk for at, chunk in self.stage_of if at == rank)

    def holders(self, stage: int) -> list[Place]:
        """Every (pipeline rank, chunk) that holds this stage: one, or two where the model has two copies."""
        return [path[stage] for path in self.paths]

    def ops(self) -> Iterator[tuple[int, Op]]:
        """Every op with its pipeline rank, program by program."""
        for rank, program in enumerate(self.programs):
            for step in program:
                for op in step:
                    yield rank, op

    def neighbour(self, rank: int, op: Op, distance: int) -> Place | None:
        """The place `distance` stages further along the op's path, or None beyond either end."""
        stage = self.stage_of[rank, op.chunk] + distance
        path = self.paths[self.path_of[op.microbatch]]
        return path[stage] if 0 <= stage < len(path) else None

    def name(self, rank: int, op: Op) -> str:
        """Write an op as PyTorch does: global stage, kind, micro-batch."""
        return f"{self.stage_of.get((rank, op.chunk), '?')}{op.kind}{op.microbatch}"

    def name_step(self, rank: int, step: Action) -> str:
        """Write a step: an op, or a fused pair as `3F6+0B0`."""
        return "+".join(self.name(rank, op) for op in step)

    def needs(self, rank: int, op: Op) -> list[tuple[int, Op]]:
        """The ops that must be done before this one, each with its pipeline rank (a cross-rank one sends a message)."""
        if op.kind == "F":
            before = self.neighbour(rank, op, -1)
            return [] if before is None else [(before[0], Op("F", op.microbatch, before[1]))]
        if op.kind == "W":
            return [(rank, Op("I", op.microbatch, op.chunk))]
        after = self.neighbour(rank, op, +1)
        own = [(rank, Op("F", op.microbatch, op.chunk))]
        if after is None:
            return own
        kind: Kind = "I" if (self.stage_of[after], op.microbatch) in self.split else "B"
        return [*own, (after[0], Op(kind, op.microbatch, after[1]))]

    @cached_property
    def producers(self) -> tuple[tuple[tuple[Spot, ...], ...], ...]:
        """For each rank and step: where what must be done before it stands (what `needs` says).

        Raises:
            PlanError: an op is missing, or is where it does not belong.
        """
        spots = self._spots()
        self._check_complete(spots)
        numbered = enumerate(self.programs)
        return tuple(tuple([self._producers_of(rank, step, spots) for step in steps]) for rank, steps in numbered)

    def _producers_of(self, rank: int, step: Action, spots: Spots) -> tuple[Spot, ...]:
        found = []
        for kind, microbatch, chunk in step:
            stage = self.stage_of[rank, chunk]
            if kind == "W":
                found.append(spots["I", stage, microbatch])
            elif kind != "F":
                found.append(spots["F", stage, microbatch])
                if stage + 1 < self.stages:
                    found.append(spots.get(("B", stage + 1, microbatch)) or spots["I", stage + 1, microbatch])
            elif stage:
                found.append(spots["F", stage - 1, microbatch])
        return tuple(found)

    def check(self) -> None:
        """Hold that every op comes exactly once, on the rank where its stage lives, and that no ops wait in a circle.

        Raises:
            PlanError: with the first problem and a step × rank grid in which the place is marked.
            CircularOrderError: the order deadlocks; each stuck rank and op has a line.
        """
        self._check_order()

    def grid(self, marked: frozenset[tuple[int, int]] = frozenset()) -> str:
        """Draw step × rank as text; (rank, index) pairs in `marked` are set in >arrows<, index −1 marks the rank."""
        return draw_grid([self.names(rank) for rank in range(self.pipeline)], marked)

    def names(self, rank: int) -> list[str]:
        """A rank's program as text, one name a step."""
        return [self.name_step(rank, step) for step in self.programs[rank]]

    def _spots(self) -> Spots:
        spots: Spots = {}
        for rank, program in enumerate(self.programs):
            for index, step in enumerate(program):
                for op in step:
                    self._check_place(rank, index, op)
                    key = (op.kind, self.stage_of[rank, op.chunk], op.microbatch)
                    if key in spots:
                        first = spots[key]
                        self._fail(f"rank {rank}: {self.name(rank, op)} comes twice, at steps {first[1]} and {index}",
                                   first, (rank, index))  # fmt: skip
                    spots[key] = (rank, index)
        return spots

    def _check_place(self, rank: int, index: int, op: Op) -> None:
        if not 0 <= op.microbatch < self.microbatches:
            self._fail(f"rank {rank}, step {index}: micro-batch {op.microbatch} of {op.kind} is not among 0 … "
                       f"{self.microbatches - 1}", (rank, index))  # fmt: skip
        if (rank, op.chunk) not in self._places[self.path_of[op.microbatch]]:
            self._fail(f"rank {rank}, step {index}: {op.kind} of micro-batch {op.microbatch} on chunk {op.chunk}: that "
                       f"micro-batch does not pass there", (rank, index))  # fmt: skip

    def _check_complete(self, spots: Spots) -> None:
        for microbatch, index in enumerate(self.path_of):
            for stage, (rank, _) in enumerate(self.paths[index]):
                present = tuple([kind for kind in KINDS if (kind, stage, microbatch) in spots])
                if present not in (WHOLE, SPLIT):
                    self._fail_incomplete(rank, stage, microbatch, {k: spots[k, stage, microbatch] for k in present})

    def _fail_incomplete(self, rank: int, stage: int, microbatch: int, present: dict[Kind, Spot]) -> NoReturn:
        wanted = SPLIT if "W" in present else WHOLE
        for kind in wanted:
            if kind not in present:
                self._fail(f"rank {rank}: {stage}{kind}{microbatch} is missing", (rank, -1), *present.values())
        kind = next(kind for kind in present if kind not in wanted)
        why = "its backward is split into I and W" if "W" in present else "no W follows it"
        self._fail(f"rank {rank}: {stage}{kind}{microbatch} does not belong: {why}", present[kind])

    def _check_order(self) -> None:
        """Walk all programs side by side; where none can go on, those at the front wait for each other."""
        at = [0] * self.pipeline
        ready = list(range(self.pipeline))
        waiting: dict[Spot, list[int]] = {}  # a step → ranks that wait for it to be done
        while ready:
            rank = ready.pop()
            while at[rank] < len(self.programs[rank]):
                missing = self._first_missing(rank, at)
                if missing is not None:
                    waiting.setdefault(missing, []).append(rank)
                    break
                ready.extend(waiting.pop((rank, at[rank]), ()))
                at[rank] += 1
        stuck = [rank for rank in range(self.pipeline) if at[rank] < len(self.programs[rank])]
        if stuck:
            lines = ["deadlock: the order waits in a circle", *(self._describe_wait(rank, at) for rank in stuck)]
            raise CircularOrderError("\n".join([*lines, self.grid(frozenset((rank, at[rank]) for rank in stuck))]))

    def _first_missing(self, rank: int, at: list[int]) -> Spot | None:
        for other, index in self.producers[rank][at[rank]]:
            if index >= at[other]:
                return other, index
        return None

    def _describe_wait(self, rank: int, at: list[int]) -> str:
        other, index = next(spot for spot in self.producers[rank][at[rank]] if spot[1] >= at[spot[0]])
        here, there = (self.name_step(r, self.programs[r][i]) for r, i in ((rank, at[rank]), (other, index)))
        return f"rank {rank} at step {at[rank]} ({here}) waits for {there} at step {index} of rank {other}"

    def _fail(self, problem: str, *marked: tuple[int, int]) -> NoReturn:
        raise PlanError(f"{problem}\n{self.grid(frozenset(marked))}")
