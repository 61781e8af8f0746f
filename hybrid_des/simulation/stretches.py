"""Stretches of an op that nothing else can touch, taken at once: one event instead of one for each piece.

    Receive │ Begin │ compute │ start, compute, join │ compute │ End │ Send      an op with exchanges on a stream
                    └────────────── one stretch ─────────────┘

Where exchanges are timed, what a GPU does between two messages takes as long each time, unless collectives of another
stream slow it. So it is simulated once by itself, piece by piece, and that time passes from then on. Other streams
wait for the first event that the ops record in a step, so until then none of them begins anything beside an op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from hybrid_des.cluster.endpoint import Endpoint
from hybrid_des.collectives.communicator import OnStream, Stream
from hybrid_des.engine.clock import Environment, Timeout
from hybrid_des.engine.recorder import Recorder
from hybrid_des.simulation.computation import Computation
from hybrid_des.simulation.gpu import Gpu, RunContext
from hybrid_des.simulation.planning.program import (
    COMPUTE,
    Block,
    Call,
    Collective,
    Compute,
    Group,
    Instruction,
    Join,
    Program,
    Record,
    Start,
    Stretch,
    Wait,
    call_of,
)

PIECES = Compute, Start, Join


class _Alone(Endpoint):
    """The endpoint of a GPU that sends and receives nothing."""

    def __init__(self) -> None:
        self.rank, self.pipeline = 0, ()
        self.inboxes: Any = {}
        self.flows: Any = {}


class Stretches:
    """The stretches of the calls of GPUs, each simulated once by itself."""

    def __init__(self) -> None:
        self._known: dict[tuple[Instruction, ...], Stretch] = {}

    def of(
        self, program: Program, communicators: Mapping[Group, Any], computation: Computation | None
    ) -> dict[Call, tuple[Instruction, ...]]:
        """Call → its instructions with stretches, for those of a program that have any.

        Args:
            program: of a GPU whose durations do not vary.
            communicators: of the GPU.
            computation: of the GPU, if collectives slow it.
        """
        found: dict[Call, tuple[Instruction, ...]] = {}
        for one in program.distinct:
            if COMPUTE not in one.streams or not _others_wait(one):
                continue
            blocks: dict[Block, tuple[Instruction, ...]] = {}
            for call in _before_others(one.streams[COMPUTE], communicators):
                block = call.block
                if block not in blocks:
                    blocks[block] = tuple(self._with_stretches(block.instructions, computation is not None))
                if len(blocks[block]) < len(block.instructions):
                    found[call] = blocks[block]
        return found

    def _with_stretches(self, instructions: Iterable[Instruction], slowed: bool) -> Iterator[Instruction]:
        for inside, pieces in groupby(instructions, lambda one: one.__class__ in PIECES):
            stretch = tuple(pieces)
            if not inside or len(stretch) == 1 or not _joined(stretch):
                yield from stretch
            else:
                if stretch not in self._known:
                    self._known[stretch] = _taken_alone(stretch, slowed)
                yield self._known[stretch]


def _others_wait(program: Program) -> bool:
    """Whether each other stream begins with a wait for the ops, and waits as often in a step as they record."""
    ops, others = Counter[Block](), Counter[Block]()
    for stream, calls in program.streams.items():
        (ops if stream == COMPUTE else others).update(call.block for call in calls)
    recorded, by_others, awaited = _events(ops, Record), _events(others, Record), _events(others, Wait)
    firsts = [calls[0].block.instructions[0] for stream, calls in program.streams.items() if stream != COMPUTE]
    return all(
        isinstance(one, Wait) and one.event not in by_others and recorded[one.event] == awaited[one.event]
        for one in firsts
    )


def _events(blocks: Mapping[Block, int], kind: type[Record] | type[Wait]) -> Counter[str]:
    """How often instructions of a kind name each event."""
    named = Counter[str]()
    for block, times in blocks.items():
        for one in block.every(kind):
            named[one.event] += times
    return named


def _before_others(calls: Iterable[Call], communicators: Mapping[Group, Any]) -> Iterator[Call]:
    """The calls before the first that lets another stream go on, or takes part in a collective by messages."""
    known: dict[Block, bool] = {}
    for call in calls:
        block = call.block
        if block not in known:
            timed = all(_timed(communicators.get(one.group)) for one in block.every(Start))
            known[block] = timed and not block.every(Record) and not block.every(Collective)
        if not known[block]:
            return
        yield call


def _timed(communicator: Any) -> bool:
    return isinstance(communicator, OnStream) and communicator.timed


def _joined(stretch: Sequence[Instruction]) -> bool:
    """Whether each collective that is started is also waited for, and no other one."""
    under_way = set[int]()
    for one in stretch:
        if isinstance(one, Start):
            under_way.add(one.slot)
        elif isinstance(one, Join):
            if one.slot not in under_way:
                return False
            under_way.remove(one.slot)
    return not under_way


def _taken_alone(stretch: tuple[Instruction, ...], slowed: bool) -> Stretch:
    """A stretch with its times, simulated on a GPU of its own."""
    env, moments = Environment(), list[int]()

    def timeout(delay: int) -> Timeout:
        moments.append(env.now + delay)
        return Timeout(env, delay)

    env.timeout = timeout
    computation = Computation(env) if slowed else None
    starts = [one for one in stretch if isinstance(one, Start)]
    streams = {one.group[0]: OnStream(env, Stream(env, computation), None) for one in starts}
    communicators = {one.group: streams[one.group[0]] for one in starts}
    recorder, endpoint = Recorder(), _Alone()
    Gpu(RunContext(env, recorder, 1), endpoint, Program({COMPUTE: (call_of(*stretch),)}), communicators,
        computation=computation)  # fmt: skip
    env.run()
    rows = recorder.exchanges.table()
    exchanges = zip(*(rows[name].tolist() for name in ("purpose", "start", "free", "end")), strict=True)
    groups = {group[0]: group for group in communicators}
    slower = computation.slowed if computation else 0
    return Stretch(stretch, tuple(groups.values()), tuple(moments), tuple(exchanges), slower)
