"""The program of a rank: streams of calls of blocks, each a sequence of instructions; the same in every training step.

    compute     F0 ── F1 ── B0 ── … ── wait for the gradient stream ── optimizer
    gradient    wait for bucket 0 ── reduce it ── wait for bucket 1 ── …
    parameters  gather ── gather ── …

    block of B  receive │ begin │ compute │ record "bucket 0 is filled" │ compute │ end │ send

Streams run concurrently, as in CUDA, and wait for each other's events; an event counts: each wait consumes one record.
Calls that differ only in their micro-batches share a block, and equal ranks share a program.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from sys import intern
from typing import Any, ClassVar, NamedTuple, TypeVar

from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import PURPOSES, Purpose
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.pipeline.plan import Action

COMPUTE, GRADIENT, PARAMETER = "compute", "gradient", "parameters"  # the streams
STEP, LAYER = "a step begins", "a layer begins or ends"  # events
# what instructions release and others wait for; each wait consumes one release
MESSAGE = "message"  # of the pipeline, at its receiver
RECEIPT = "receipt"  # the same message has arrived, at its sender
EVENT = "event"  # of a stream, for another of the same GPU
EXCHANGE = "exchange"  # the end of a collective inside an op
MEETING = "meeting"  # the end of a collective in which all members of a group take part
OF_A_STREAM = (RECEIPT, EXCHANGE)  # those for which the stream waits that has released them
ASIDE = -2  # `number` of a call without an op row

Group = tuple[str, int, int]  # what its collectives are for, or their axis; stage; part

BARRIER = ("barrier", 0, 0)  # all ranks, which meet between steps
TOGETHER = "together"  # with the first of some lanes, and their number: the ranks that share documents for a while


class Instruction:
    """What a stream does next: one of the classes below.

    It waits for a signal, takes its duration and releases signals. A GPU does so in simulated time; bounds on that time
    read the same without a clock.

    Attributes:
        waits_for: the kind of signal that it waits for, if any.
        duration: picoseconds of computation that it takes.
        releases: the kinds of signals that it releases.
    """

    __slots__ = ()
    waits_for: ClassVar[str | None] = None
    duration: int = 0
    releases: ClassVar[tuple[str, ...]] = ()

    @property
    def own(self) -> int | None:
        """Picoseconds of its op's own computation; None: it computes nothing of it."""
        return None

    def signal(self, ops: Action) -> Hashable:
        """Which signal of these kinds it is, in a call with these ops, among those of a rank and training step."""
        raise NotImplementedError

    def receiver(self, signal: str, sender: int) -> int:
        """The pipeline rank that waits for a signal of this kind that it releases."""
        return sender


class _OfMessage(Instruction):
    """An instruction on a message of one of its ops; `tag` is that for micro-batch 0 in training step 0."""

    __slots__ = ()
    op: int
    purpose: Purpose
    tag: int

    def signal(self, ops: Action) -> Hashable:
        """Its purpose and tag."""
        return self.purpose, self.tag + ops[self.op].microbatch


@dataclass(frozen=True, slots=True)
class Receive(_OfMessage):
    """Wait for a message.

    Attributes:
        place: index among the messages that the block receives.
        op: index of the op in its action.
        peer: pipeline rank of the sender.
    """

    waits_for = MESSAGE
    place: int
    op: int
    peer: int
    purpose: Purpose
    tag: int


@dataclass(frozen=True, slots=True)
class Send(_OfMessage):
    """Send a message; `peer` is the receiver."""

    releases = (MESSAGE, RECEIPT)
    op: int
    peer: int
    purpose: Purpose
    tag: int
    message: Message

    def receiver(self, signal: str, sender: int) -> int:
        """Its peer; the receipt comes back."""
        return self.peer if signal is MESSAGE else sender


@dataclass(frozen=True, slots=True)
class Confirm(_OfMessage):
    """Wait until a message that was sent has arrived, as in Megatron's plain 1F1B."""

    waits_for = RECEIPT
    op: int
    purpose: Purpose
    tag: int


@dataclass(frozen=True, slots=True)
class Begin(Instruction):
    """Begin the row of an op, and allocate activations: bytes, and parts of a chunk (`CHUNK`)."""

    holds: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class End(Instruction):
    """End the row of an op, and release activations."""

    frees: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Compute(Instruction):
    """Compute for `duration` picoseconds.

    Attributes:
        before: picoseconds that the op has computed before.
        whole: picoseconds that it computes in all; None: a layer computes during a collective, which what-ifs keep.
    """

    duration: int
    before: int = 0
    whole: int | None = 0

    @property
    def own(self) -> int | None:
        """Its duration, unless it runs during a collective."""
        return None if self.whole is None else self.duration


@dataclass(frozen=True, slots=True)
class Record(Instruction):
    """Note that an event has happened, once more; `after`: that it will, in so many picoseconds."""

    releases = (EVENT,)
    event: str
    after: int | None = None

    def signal(self, ops: Action) -> str:
        """Its event."""
        return self.event


class Cause(NamedTuple):
    """What a row of waiting says: a place among `PURPOSES`, and where (`BEFORE`, `INSIDE` or `AFTER`)."""

    purpose: int
    place: int


@dataclass(frozen=True, slots=True)
class Wait(Instruction):
    """Wait until an event has been recorded; if it has a cause, the time counts as waiting for a collective."""

    waits_for = EVENT
    event: str
    cause: Cause | None = None

    def signal(self, ops: Action) -> str:
        """Its event."""
        return self.event


class Row(NamedTuple):
    """The row of a collective: its table, stage, and bucket or layer."""

    table: str
    stage: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Collective(Instruction):
    """Take part in a collective, and wait for its end; `call` says which one to the group's communicator.

    Two of a stream are told apart, even if they are alike.
    """

    waits_for = MEETING
    group: Group
    call: Any
    row: Row | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Start(Instruction):
    """Start a collective inside an op; `slot` tells it from others that are under way."""

    releases = (EXCHANGE,)
    group: Group
    call: Any
    slot: int = 0

    def signal(self, ops: Action) -> int:
        """Its slot."""
        return self.slot


@dataclass(frozen=True, slots=True)
class Join(Instruction):
    """Wait for the end of the collective that was started in this slot."""

    waits_for = EXCHANGE
    purpose: int
    slot: int = 0

    def signal(self, ops: Action) -> int:
        """Its slot."""
        return self.slot


@dataclass(frozen=True, slots=True)
class Learn(Instruction):
    """Update the weights, if they are real numbers."""


@dataclass(frozen=True, slots=True)
class Mark(Instruction):
    """Note the time in the row of the step, whose `last` mark is its end."""

    last: bool = False


One = TypeVar("One", bound=Instruction)


@dataclass(frozen=True, eq=False)
class Block:
    """Instructions that calls share.

    Attributes:
        stages: the stage of each op.
        label: the name of its ops in reports, if not that of their kind.
    """

    stages: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    label: str = ""

    def every(self, kind: type[One]) -> list[One]:
        """Its instructions of a kind, in order."""
        return [one for one in self.instructions if one.__class__ is kind]

    @cached_property
    def effects(self) -> Sequence[tuple[Instruction, str | None, int, tuple[str, ...]]]:
        """Its instructions with what each waits for, takes and releases, without those that do none of it."""
        each = ((one, one.waits_for, one.duration, one.releases) for one in self.instructions)
        return [effect for effect in each if any(effect[1:])]

    @cached_property
    def durations(self) -> tuple[int, ...]:
        """Picoseconds of each piece of its ops' own computation."""
        return tuple(one.own for one in self.instructions if one.own is not None)

    def lasting(self, durations: Iterable[int]) -> Block:
        """The same with other durations of its ops' own computation."""
        left = iter(durations)
        changed = (one if one.own is None else Compute(next(left)) for one in self.instructions)
        return block_of(self.stages, *changed, label=self.label)


@dataclass(slots=True, eq=False)
class Call:
    """A call of a block.

    Attributes:
        number: index in the plan's program of the rank; negative for calls that are not in the plan.
        ops: the ops that it computes.
    """

    block: Block
    number: int = ASIDE
    ops: Action = ()

    @property
    def name(self) -> str:
        """Its ops, in the notation of plans."""
        return "+".join(f"{s}{op.kind}{op.microbatch}" for s, op in zip(self.block.stages, self.ops, strict=True))

    @property
    def kind(self) -> str:
        """The kind of its ops, as named in the timeline."""
        kinds = [op.kind for op in self.ops]
        return "optimizer" if not kinds else "FB" if len(kinds) == 2 else "B" if kinds == ["I"] else str(kinds[0])

    @property
    def duration(self) -> int:
        """Picoseconds of its ops' own computation."""
        return sum(self.block.durations)


@dataclass(frozen=True, eq=False)
class Program:
    """What one rank does in every training step, by stream; equal ranks have the same object.

    Attributes:
        streams: of the first step, or of all.
        further: the programs of the steps after it, if they take other times; then from the first step again.
    """

    streams: Mapping[str, tuple[Call, ...]]
    further: tuple[Program, ...] = ()

    def at(self, step: int) -> Program:
        """That of a training step."""
        return (self, *self.further)[step % (1 + len(self.further))]

    @property
    def distinct(self) -> Sequence[Program]:
        """Its programs that differ, that of the first step first."""
        return list(dict.fromkeys((self, *self.further)))

    @property
    def calls(self) -> Iterator[Call]:
        """The calls of all streams."""
        return chain.from_iterable(self.streams.values())

    @cached_property
    def ops(self) -> Mapping[int, Call]:
        """Number → the call with that op row: the plan's actions, in order, and `OPTIMIZER` if it takes time."""
        return {call.number: call for call in self.streams.get(COMPUTE, ()) if call.number != ASIDE}

    @property
    def durations(self) -> list[int]:
        """Picoseconds of each of its ops, the optimizer's step among them."""
        return [call.duration for call in self.ops.values()]

    @cached_property
    def rows(self) -> Sequence[Call]:
        """The calls with an op row, without the optimizer's."""
        return [call for number, call in self.ops.items() if number != OPTIMIZER]

    def events(self, kind: type[Record] | type[Wait]) -> Mapping[str, Counter[str]]:
        """Event → stream → how often its instructions of a kind name it."""
        named = defaultdict[str, Counter[str]](Counter)
        for stream, calls in self.streams.items():
            for block, times in Counter(call.block for call in calls).items():
                for instruction in block.every(kind):
                    named[instruction.event][stream] += times
        return named

    def lasting(self, duration: Callable[[Call, int], int], *, each: bool = True) -> Program:
        """The same with other durations: of `each` call and duration, or once for a block with ops of these kinds."""
        known: dict[tuple[Block, tuple[str, ...] | tuple[int, ...]], Block] = {}

        def changed(call: Call) -> Call:
            same = call.block, tuple([op.kind for op in call.ops])
            if each or same not in known:
                durations = tuple(duration(call, one) for one in call.block.durations)
                key = call.block, durations
                known[same] = known[key] = known.get(key) or call.block.lasting(durations)
            return Call(known[same], call.number, call.ops)

        calls = tuple(call if call.number == ASIDE else changed(call) for call in self.streams[COMPUTE])
        further = {one: one.lasting(duration, each=each) for one in dict.fromkeys(self.further)}
        return Program({**self.streams, COMPUTE: calls}, tuple(further[one] for one in self.further))


def filled(stage: int) -> str:
    """The event that the next bucket of a stage is filled."""
    return intern(f"filled {stage}")


def gathered(stage: int) -> str:
    """The event that the next parameters of a stage are gathered."""
    return intern(f"gathered {stage}")


def done(stream: str) -> str:
    """The event that a stream is done with a step."""
    return intern(f"{stream} done")


def waiting_for(purpose: Purpose, position: int) -> Cause:
    """The cause of a wait."""
    return Cause(PURPOSES.index(purpose), position)


def block_of(stages: Sequence[int], *instructions: Instruction, label: str = "") -> Block:
    """A block whose computation knows its place in the whole."""
    own = [one.own for one in instructions]
    whole, before, placed = sum(filter(None, own)), 0, list[Instruction]()
    for instruction, duration in zip(instructions, own, strict=True):
        placed.append(instruction if duration is None else Compute(duration, before, whole))
        before += duration or 0
    return Block(tuple(stages), tuple(placed), label)


def call_of(*instructions: Instruction, stages: Sequence[int] = ()) -> Call:
    """A call of a block of its own, which is no op."""
    return Call(block_of(stages, *instructions))


def program_of(
    ops: Iterable[Call],
    others: Mapping[str, Sequence[Call]],
    *,
    first: Iterable[Instruction] = (),
    fills: Iterable[Instruction] = (),
    optimizer: Iterable[Call] = (),
    last: Iterable[Instruction] = (),
    barrier: bool = False,
) -> Program:
    """The program of a rank, with the marks of its steps, which end when all of its streams are done.

    Args:
        ops: of the first stream.
        others: the other streams, by name.
        first: when the step begins.
        fills: when the ops are done.
        optimizer: what follows when all streams are done.
        last: before the step ends.
        barrier: whether no rank begins a step before all have ended the last one.
    """
    compute = (
        call_of(Mark(), *first),
        *ops,
        call_of(Mark(), *fills, *(Wait(done(name)) for name in others), Mark()),
        *optimizer,
        call_of(Learn(), *last, Mark(last=True), *([Collective(BARRIER, None)] if barrier else [])),
    )
    ends = {name: (*calls, call_of(Record(done(name)))) for name, calls in others.items()}
    return Program({COMPUTE: compute, **ends})


@dataclass(frozen=True)
class ComputeSpeed:
    """A constant relative speed: 2 halves every duration."""

    speed: Fraction = Fraction(1)

    def duration(self, picoseconds: int | Fraction, waiting: int | Fraction = 0) -> int:
        """Duration of work that takes `picoseconds` at speed 1, and of waiting at any speed, rounded once."""
        whole = picoseconds if self.speed == 1 else picoseconds / self.speed
        return round(whole + waiting)
