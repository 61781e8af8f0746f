"""Stretches of ops that nothing else can touch, taken at once: one event instead of one for each piece.

    Receive │ Begin │ compute │ start, compute, join │ compute │ End │ Send      an op with exchanges on a stream
                    └────────────── one stretch ─────────────┘

Where its exchanges are timed, what a GPU does between two messages takes as long each time, unless a collective of
another stream slows it. So it is simulated once by itself, piece by piece, and then that time passes. Other streams
wait for the first event that the ops record in a step, and the ops wait for them before the next; so until that event
nothing else is under way on the GPU.

Each event that a stretch leaves out is the parent of the next one only, so what follows from the last has the lineage
that it would have (`Environment.descend`). It is booked earlier, so it may be before other events of its moment.
Only folded runs take stretches: where messages meet, they know from lineage which is first, or end (`TieError`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, groupby
from typing import Any

from hybrid_des.cluster.transport import Endpoint
from hybrid_des.collectives.communicator import OnStream, Stream
from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Environment, Timeout
from hybrid_des.engine.recorder import Recorder
from hybrid_des.planning.program import (
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
    Wait,
    call_of,
)
from hybrid_des.simulation.computation import Computation
from hybrid_des.simulation.gpu import Device, Gpu, Position, RunContext

PIECES = Compute, Start, Join

Pieces = tuple[Instruction, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stretch(Instruction):
    """Pieces of an op that nothing else can touch, and what comes of them.

    Attributes:
        moments: when their events happen, in picoseconds from the first piece's begin; the last one ends with the last.
        exchanges: of each collective its purpose, its begin, until when the rank computes, and its end, likewise.
        slowed: picoseconds by which computation takes longer beside these collectives.
    """

    moments: tuple[int, ...]
    exchanges: tuple[tuple[int, int, int, int], ...]
    slowed: int

    def carry_out(self, gpu: Gpu, at: Position) -> Routine:
        """Let the time of the pieces pass."""
        env, recorder = gpu.context.env, gpu.context.recorder
        begin = env.now
        if self.moments:
            env.descend(self.moments)
            yield env.timeout(self.moments[-1])
        if recorder.detailed:
            for purpose, start, free, end in self.exchanges:
                recorder.exchanges.add((at.step, gpu.rank, purpose, begin + start, begin + free, begin + end))
        if gpu.computation:
            gpu.computation.slowed += self.slowed


class Stretches:
    """The stretches of GPUs, each simulated once by itself, and not again by other runs of the same process.

    Args:
        slowed: whether collectives slow computation.
    """

    def __init__(self, *, slowed: bool) -> None:
        self._slowed = slowed

    def of(self, program: Program, communicators: Mapping[Group, Any]) -> dict[Call, Pieces]:
        """Call → its instructions, for those with stretches of two or more pieces.

        Args:
            program: of a GPU whose durations do not vary.
            communicators: of the GPU.
        """
        shorter: dict[Call, Pieces] = {}
        if not all(map(_others_wait, program.distinct)):
            return shorter
        for of_step in program.distinct:
            blocks: dict[Block, Pieces] = {}
            for call in _before_others(of_step.streams[COMPUTE], communicators):
                block = call.block
                if block not in blocks:
                    blocks[block] = self._in_stretches(block)
                if len(blocks[block]) < len(block.instructions):
                    shorter[call] = blocks[block]
        return shorter

    def _in_stretches(self, block: Block) -> Pieces:
        """The instructions of a block, with stretches if no collective is under way between these."""
        parts = groupby(block.instructions, lambda instruction: isinstance(instruction, PIECES))
        spans = [(inside, tuple(pieces)) for inside, pieces in parts]
        if not all(_joined(pieces) for inside, pieces in spans if inside):
            return block.instructions
        alone = partial(_by_itself, slowed=self._slowed)
        return tuple(chain(*([alone(span)] if inside and len(span) > 1 else span for inside, span in spans)))


def _others_wait(program: Program) -> bool:
    """Whether each other stream begins with a wait for the ops, and the ops wait for its end."""
    recorded, waited = program.events(Record), program.events(Wait)
    for calls in (calls for stream, calls in program.streams.items() if stream != COMPUTE):
        first, last = calls[0].block.instructions[0], calls[-1].block.instructions[-1]
        if not (isinstance(first, Wait) and isinstance(last, Record)):
            return False
        (begun, by_others), (_, begin) = _of_ops(recorded, first.event), _of_ops(waited, first.event)
        (by_ops, ended), (end, _) = _of_ops(recorded, last.event), _of_ops(waited, last.event)
        if by_others or begun != begin or by_ops or ended != end:
            return False
    return COMPUTE in program.streams


def _of_ops(events: Mapping[str, Counter[str]], event: str) -> tuple[int, int]:
    """How often ops name an event, and how often other streams do."""
    named = events.get(event, Counter[str]())
    return named[COMPUTE], named.total() - named[COMPUTE]


def _before_others(calls: Iterable[Call], communicators: Mapping[Group, Any]) -> Iterator[Call]:
    """The calls before the first that lets another stream go on, or takes part in a collective by messages."""
    known: dict[Block, bool] = {}
    for call in calls:
        block = call.block
        if block not in known:
            started = [communicators.get(one.group) for one in block.every(Start)]
            timed = all(isinstance(one, OnStream) and one.timed for one in started)
            ended = _joined(block.instructions)
            known[block] = timed and ended and not block.every(Record) and not block.every(Collective)
        if not known[block]:
            return
        yield call


def _joined(instructions: Pieces) -> bool:
    """Whether each collective that is started is also waited for, and no other one."""
    under_way = set[int]()
    for instruction in instructions:
        if isinstance(instruction, Start):
            under_way.add(instruction.slot)
        elif isinstance(instruction, Join):
            if instruction.slot not in under_way:
                return False
            under_way.remove(instruction.slot)
    return not under_way


@lru_cache(maxsize=1024)  # what-ifs change the durations of few
def _by_itself(pieces: Pieces, *, slowed: bool) -> Stretch:
    """A stretch, simulated on a GPU of its own."""
    env, moments = Environment(), list[int]()

    def timeout(delay: int) -> Timeout:
        moments.append(env.now + delay)
        return Timeout(env, delay)

    env.timeout = timeout
    computation = Computation(env) if slowed else None
    groups = [one.group for one in pieces if isinstance(one, Start)]
    streams = {axis: OnStream(env, Stream(env, computation), None) for axis, _, _ in groups}
    context, program = RunContext(env, Recorder(), 1), Program({COMPUTE: (call_of(*pieces),)})
    device = Device(computation=computation)
    Gpu(context, _Unconnected(), program, {group: streams[group[0]] for group in groups}, device)
    env.run()
    rows = context.recorder.exchanges.table()
    exchanges = zip(*(rows[name].tolist() for name in ("purpose", "start", "free", "end")), strict=True)
    return Stretch(tuple(moments), tuple(exchanges), computation.slowed if computation else 0)


class _Unconnected(Endpoint):
    """The endpoint of a GPU that sends and receives nothing."""

    def __init__(self) -> None:
        self.rank, self.pipeline = 0, ()
        self.inboxes: Any = {}
        self.flows: Any = {}
