"""One GPU: a SimPy process per stream, which reads the stream's instructions in order in every training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import STEP_SHIFT, Recorder
from hybrid_des.network.mailbox import Handoff, Message
from hybrid_des.network.transport import Endpoint
from hybrid_des.numerics.training import Worker
from hybrid_des.pipeline.op import Action, Op
from hybrid_des.planning.program import (
    COMPUTE,
    GRADIENT,
    Begin,
    Block,
    Call,
    Collective,
    Compute,
    Confirm,
    End,
    Group,
    Join,
    Learn,
    Mark,
    Overlapped,
    Program,
    Receive,
    Record,
    Send,
    Start,
    Wait,
)
from hybrid_des.simulation.communicators import Participant, overlapped
from hybrid_des.simulation.memory import MemoryLedger
from hybrid_des.simulation.speeds import STEADY, Beside, VaryingSpeed

NANOSECOND = 1000  # picoseconds; less is not slowed any more

# The arithmetic of a simulated GPU, if a small model is actually trained.


class Arithmetic:
    """The arithmetic of one GPU; messages carry arrays."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._received: dict[Op, Any] = {}
        self._results: dict[Op, Any] = {}

    def receive(self, op: Op, message: Message) -> None:
        """Keep the array until the op is computed."""
        self._received[op] = message.data

    def compute(self, step: int, ops: Action) -> None:
        """Compute an action; a fused pair runs its forward first, so that its activations count towards the peak."""
        ordered = sorted(ops, key=lambda op: op.kind != "F")
        self._results = {op: self._worker.run(step, op, self._received.pop(op, None)) for op in ordered}

    def message(self, op: Op, empty: Message) -> Message:
        """The output message with the op's result."""
        return Message(empty.size, 0, self._results[op])

    def learn(self, step: int) -> None:
        """Update the weights from the reduced gradients."""
        self._worker.learn(step)


STREAM = -1  # in `released`: the op did not wait for a message


class Position:
    """Where a stream is, in which step."""

    __slots__ = ("call", "step")

    def __init__(self) -> None:
        self.step = 0
        self.call = Call(Block((), ()))


@dataclass(frozen=True)
class RunContext:
    """State shared by all GPUs of a job.

    Attributes:
        env, recorder: of the job.
        steps: number of training steps.
        again: (step) → an event whose value is whether a further step begins; None if there are none.
    """

    env: Environment
    recorder: Recorder
    steps: int
    again: Callable[[int], Any] | None = None


class Events(dict[str, Handoff]):
    """The events of one GPU by name; each is made on first use."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __missing__(self, name: str) -> Handoff:
        found = self[name] = self._endpoint.handoff()
        return found


class Gpu:
    """One simulated GPU; or a server, which has neither memory nor ops.

    Attributes:
        rank: its global rank.
        program: what it runs.
        processes: its SimPy processes, one per stream.
        beside: what collectives take from its computation, if they do.
    """

    def __init__(
        self,
        context: RunContext,
        endpoint: Endpoint,
        program: Program,
        communicators: Mapping[Group, Participant],
        memory: MemoryLedger | None = None,
        *,
        arithmetic: Arithmetic | None = None,
        pace: VaryingSpeed | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.beside = beside
        self.rank = endpoint.rank
        self._context, self._endpoint, self.program = context, endpoint, program
        self._communicators = communicators
        self._memory, self._arithmetic, self._pace = memory, arithmetic, pace
        self._events = Events(endpoint)
        self._at = {stream: Position() for stream in program.streams}
        self.processes = [context.env.process(self._run(stream)) for stream in program.streams]

    @property
    def ops(self) -> int:
        """Number of ops that it runs per step, optimizer steps included."""
        return len(self.program.ops)

    @property
    def memory(self) -> MemoryLedger:
        """Its memory use."""
        assert self._memory is not None
        return self._memory

    def _run(self, stream: str) -> Routine:
        """Read the instructions of a stream."""
        env, recorder = self._context.env, self._context.recorder
        rank, memory, arithmetic, pace = self.rank, self._memory, self._arithmetic, self._pace
        inboxes, flows, events = self._endpoint.inboxes, self._endpoint.flows, self._events
        timeout, record = env.timeout, recorder.ops.add
        calls, at, beside = self.program.streams[stream], self._at[stream], self.beside
        one: Any
        communicators: Mapping[Group, Any] = self._communicators  # that an instruction finds the one it needs
        started: dict[int, tuple[int, Any]] = {}
        step, steps, again = 0, self._context.steps, self._context.again
        while step < steps or (again is not None and (yield again(step))):
            at.step, base, marks = step, step << STEP_SHIFT, list[int]()
            for call in calls:
                at.call, ops = call, call.ops
                asked = now = env.now
                released = STREAM
                for one in call.block.instructions:
                    kind = one.__class__
                    if kind is Receive:
                        op = ops[one.op]
                        message = yield inboxes[one.purpose].receive(base + one.tag + op.microbatch)
                        if arithmetic:
                            arithmetic.receive(op, message)
                        if env.now > now:
                            now, released = env.now, one.place
                    elif kind is Begin:
                        start = env.now
                        if memory and one.holds[1]:
                            memory.hold(start, one.holds)
                        if arithmetic:  # takes no simulated time; a bucket may be sent before the op ends
                            arithmetic.compute(step, ops)
                    elif kind is Compute:
                        took = one.duration if pace is None else pace.lasts(step, call, one, env.now)
                        if took:
                            yield timeout(took)
                            if beside is not None and (lost := beside.lost(env.now - took, env.now)):
                                yield from self._made_up(beside, lost)
                    elif kind is End:
                        record((step, rank, call.number, asked, start, env.now, released))
                        if memory and one.frees[1]:
                            memory.free(env.now, one.frees)
                    elif kind is Send:
                        op = ops[one.op]
                        message = arithmetic.message(op, one.message) if arithmetic else one.message
                        flows[one.peer, one.purpose].send(message, base + one.tag + op.microbatch)
                    elif kind is Confirm:
                        tag = base + one.tag + ops[one.op].microbatch
                        yield self._endpoint.receipts(one.purpose).receive(tag)
                    elif kind is Record:
                        if one.after is None:
                            events[one.event].hand(None)
                        else:
                            env.process(self._record(one.event, one.after))
                    elif kind is Wait:
                        begin = env.now
                        yield events[one.event].receive()
                        if one.cause and env.now > begin:
                            recorder.waits.add((step, rank, *one.cause, begin, env.now))
                    elif kind is Collective:
                        begin = env.now
                        yield from communicators[one.group].run(step, one.call)
                        if one.row:
                            table, stage, bucket = one.row
                            getattr(recorder, table).add((step, rank, stage, bucket, begin, env.now))
                        if one.cause and env.now > begin:
                            recorder.waits.add((step, rank, *one.cause, begin, env.now))
                    elif kind is Start:
                        started[one.slot] = env.now, communicators[one.group].start(step, one.call)
                    elif kind is Join:
                        (begin, work), free = started.pop(one.slot), env.now
                        if work.__class__ is tuple:  # on a stream, with its begin and end
                            if work[1] > free:
                                yield timeout(work[1] - free)
                        else:
                            work = (yield work) or (begin, env.now)
                        begin, end = work
                        free = min(free, end)
                        recorder.exchanges.add((step, rank, one.purpose, min(begin, free), free, end))
                    elif kind is Overlapped:
                        work = one.duration if pace is None else pace.work_of(step, call, one)
                        yield from overlapped(env, communicators[one.group].meetings, work, one.slowing, pace or STEADY)
                    elif kind is Mark:
                        marks.append(env.now)
                        if one.last:
                            recorder.steps.add((step, rank, *marks))
                    elif kind is Learn and arithmetic:
                        arithmetic.learn(step)
            step += 1

    def _made_up(self, beside: Beside, lost: Fraction) -> Routine:
        """Compute what collectives took from computation, known only afterwards, and again what they take of that."""
        env, began = self._context.env, self._context.env.now
        while lost >= NANOSECOND:
            took, begin = int(lost), env.now
            yield env.timeout(took)
            lost += beside.lost(begin, env.now) - took
        if took := round(lost):
            yield env.timeout(took)
        beside.total += env.now - began

    def _record(self, event: str, after: int) -> Routine:
        """Record an event after a delay."""
        yield self._context.env.timeout(after)
        self._events[event].hand(None)

    def where(self) -> str:
        """Describe where a stuck GPU is."""
        if (at := self._at.get(COMPUTE)) is None:
            (stage,) = self._at[GRADIENT].call.block.stages
            return f"server {self.rank}: in the reduction of stage {stage}'s gradients"
        place = f"rank {self.rank}, step {at.step}: "
        if not at.call.ops:
            return place + "in the reduction of its gradients"
        waits = (
            f"the {one.purpose.name} of micro-batch {at.call.ops[one.op].microbatch} "
            f"from rank {self._endpoint.pipeline[one.peer]}"
            for one in at.call.block.every(Receive)
        )
        return place + f"at {at.call.name}, which needs {' and '.join(waits) or 'nothing'}"
