"""One GPU: a SimPy process per stream, which reads the stream's instructions in order in every training step."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from struct import error
from types import MappingProxyType
from typing import Any, NamedTuple

from hybrid_des.cluster.mailbox import Handoff, Message
from hybrid_des.cluster.transport import Endpoint
from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import STEP_SHIFT, Recorder, out_of_range
from hybrid_des.pipeline.plan import Action, Op
from hybrid_des.planning.program import (
    COMPUTE,
    EVENT,
    EXCHANGE,
    GRADIENT,
    MEETING,
    MESSAGE,
    RECEIPT,
    Begin,
    Block,
    Call,
    Cause,
    Collective,
    Compute,
    Confirm,
    End,
    Group,
    Instruction,
    Join,
    Learn,
    Mark,
    Program,
    Receive,
    Record,
    Start,
    Wait,
)
from hybrid_des.planning.training import Worker
from hybrid_des.simulation.communicators import Participant
from hybrid_des.simulation.computation import Computation
from hybrid_des.simulation.memory import MemoryLedger
from hybrid_des.simulation.repetition import FurtherSteps
from hybrid_des.simulation.speeds import VaryingSpeed


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


GOES_ON = "a further step: "  # events, by stream
STREAM = -1  # in `released`: the op did not wait for a message


class Position:
    """Where a stream is.

    Attributes:
        step, call: the training step, and the call in it.
        base: of the tags of this step's messages.
        marks: moments of the step.
        started: by slot, when each collective inside an op was started, and what tells its end.
        collective: the last one that began, apart from those inside ops.
        since, begun: when the stream came to the call, and when that collective began.
    """

    __slots__ = ("base", "begun", "call", "collective", "marks", "since", "started", "step")

    def __init__(self) -> None:
        self.step = self.base = self.since = self.begun = 0
        self.collective: Collective | None = None
        self.call = Call(Block((), ()))
        self.marks: list[int] = []
        self.started: dict[int, tuple[int, Any]] = {}


@dataclass(frozen=True)
class RunContext:
    """State shared by all GPUs of a job.

    Attributes:
        env, recorder: of the job.
        steps: number of training steps.
        further: whether it takes steps beyond these; None if it does not.
    """

    env: Environment
    recorder: Recorder
    steps: int
    further: FurtherSteps | None = None


class Events(dict[str, Handoff]):
    """The events of one GPU by name; each is made on first use."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __missing__(self, name: str) -> Handoff:
        handoff = self[name] = self._endpoint.handoff()
        return handoff


class Device(NamedTuple):
    """What a GPU computes with; a server has none of it.

    Attributes:
        memory: its memory.
        arithmetic: what ops compute, with numerics.
        pace: how fast it computes, if that varies with time.
        computation: its computation, if collectives slow it.
    """

    memory: MemoryLedger | None = None
    arithmetic: Arithmetic | None = None
    pace: VaryingSpeed | None = None
    computation: Computation | None = None


NOTHING = Device()


class Gpu:
    """One simulated GPU; or a server, which has neither memory nor ops.

    Args:
        context: of its job.
        endpoint: its inboxes and flows.
        program: what it runs.
        communicators: of the groups that its program names.
        device: what it computes with.
        instead: the instructions of some calls, instead of those of their blocks.

    Attributes:
        rank: its global rank.
        processes: its SimPy processes, one per stream.
        context, program: as given.
        computation: that of its device.
    """

    def __init__(
        self,
        context: RunContext,
        endpoint: Endpoint,
        program: Program,
        communicators: Mapping[Group, Participant],
        device: Device = NOTHING,
        instead: Mapping[Call, Sequence[Instruction]] = MappingProxyType({}),
    ) -> None:
        self.rank, self.context, self.program = endpoint.rank, context, program
        self._endpoint, self._device, self._instead = endpoint, device, instead
        self._communicators: Mapping[Group, Any] = communicators  # that an instruction finds the one it needs
        self.computation = device.computation
        self._events, self._recorder, self._env = Events(endpoint), context.recorder, context.env
        self._at = {stream: Position() for stream in program.streams}
        self.processes = [context.env.process(self._run(stream)) for stream in program.streams]

    @property
    def ops(self) -> int:
        """Number of ops that it runs per step, optimizer steps included."""
        return len(self.program.ops)

    @property
    def positions(self) -> Mapping[str, Position]:
        """Where each of its streams is."""
        return self._at

    @property
    def memory(self) -> MemoryLedger:
        """Its memory use."""
        assert self._device.memory is not None
        return self._device.memory

    def _run(self, stream: str) -> Routine:  # noqa: C901 - runs once per instruction: a call or a table costs too much
        """Read the instructions of a stream: here those of every op, elsewhere what is rarer."""
        env, program, at = self._env, self.program, self._at[stream]
        inboxes, flows, write, pack = (
            self._endpoint.inboxes, self._endpoint.flows, self._recorder.ops.write, self._recorder.ops.pack,
        )  # fmt: skip
        rank, (memory, arithmetic, pace, computation) = self.rank, self._device
        detailed, instead = self._recorder.detailed, self._instead.get
        timeout, waits, releases = env.timeout, WAITS, RELEASES
        step, steps, programs = 0, self.context.steps, (program, *program.further)
        instruction: Any
        while step < steps or (yield from self._goes_on(stream, step)):
            at.step, at.base, at.marks = step, (base := step << STEP_SHIFT), []
            for call in programs[step % len(programs)].streams[stream]:
                at.call, ops = call, call.ops
                asked = now = at.since = env.now
                released = STREAM
                for instruction in instead(call) or call.block.instructions:
                    kind = instruction.__class__
                    if kind is Begin:
                        start = env.now
                        if memory and instruction.holds[1]:
                            memory.hold(start, instruction.holds)
                        if arithmetic:  # takes no simulated time; a bucket may be sent before the op ends
                            arithmetic.compute(step, ops)
                    elif kind is Compute:
                        took = instruction.duration if pace is None else pace.duration(step, call, instruction, env.now)
                        if took and computation and (pace is not None or computation.periods):
                            yield from computation.lasting(took, pace)
                        elif took:
                            yield timeout(took)
                            if computation and computation.periods:  # begun meanwhile
                                yield from computation.lasting(took, pace, alone=True)
                    elif kind is End:
                        try:
                            if detailed:
                                write(pack(step, rank, call.number, asked, start, env.now, released))
                        except error as refusal:
                            raise out_of_range(refusal, env.now) from None
                        if memory and instruction.frees[1]:
                            memory.free(env.now, instruction.frees)
                    elif (signal := instruction.waits_for) is MESSAGE:
                        op = ops[instruction.op]
                        message = yield inboxes[instruction.purpose].receive(base + instruction.tag + op.microbatch)
                        if arithmetic:
                            arithmetic.receive(op, message)
                        if env.now > now:
                            now, released = env.now, instruction.place
                    elif signal is not None:
                        yield from waits[signal](self, at, instruction)
                    elif (signals := instruction.releases) and signals[0] is MESSAGE:  # and its receipt, on arrival
                        op = ops[instruction.op]
                        message = arithmetic.message(op, instruction.message) if arithmetic else instruction.message
                        flows[instruction.peer, instruction.purpose].send(
                            message, base + instruction.tag + op.microbatch
                        )
                    elif signals:
                        for signal in signals:
                            releases[signal](self, at, instruction)
                    elif kind is Mark:
                        self._mark(at, instruction)
                    elif kind is Learn:
                        if arithmetic:
                            arithmetic.learn(step)
                    else:
                        yield from instruction.carry_out(self, at)
            step += 1

    def _goes_on(self, stream: str, step: int) -> Generator[Any, Any, bool]:
        """Whether a stream takes a further step: the compute stream asks, and tells the others."""
        further, streams = self.context.further, self.program.streams
        if further is None:
            return False
        if COMPUTE not in streams:
            taken: bool = yield further.told(step)
        elif stream != COMPUTE:
            taken = yield self._events[GOES_ON + stream].receive()
        else:
            taken = yield further.ask(step)
            for other in streams:
                if other != COMPUTE:
                    self._events[GOES_ON + other].hand(taken)
        return taken

    def _record(self, at: Position, record: Record) -> None:
        if record.after is None:
            self._events[record.event].hand(None)
        else:
            self._env.process(self._record_later(record.event, record.after))

    def _start(self, at: Position, start: Start) -> None:
        at.started[start.slot] = self._env.now, self._communicators[start.group].start(at.step, start.call)

    def _mark(self, at: Position, mark: Mark) -> None:
        at.marks.append(self._env.now)
        if mark.last:
            self._recorder.steps.add((at.step, self.rank, *at.marks))

    def _confirm(self, at: Position, confirm: Confirm) -> Routine:
        yield self._endpoint.receipts(confirm.purpose).receive(
            at.base + confirm.tag + at.call.ops[confirm.op].microbatch
        )

    def _wait(self, at: Position, wait: Wait) -> Routine:
        begin = self._env.now
        yield self._events[wait.event].receive()
        self._waited(at, wait.cause, begin)

    def _collective(self, at: Position, collective: Collective) -> Routine:
        begin = at.begun = self._env.now
        at.collective = collective
        yield from self._communicators[collective.group].run(at.step, collective.call)
        if collective.row:
            table, stage, bucket = collective.row
            getattr(self._recorder, table).add((at.step, self.rank, stage, bucket, begin, self._env.now))
        self._waited(at, collective.cause, begin)

    def _join(self, at: Position, join: Join) -> Routine:
        env = self._env
        (begin, work), free = at.started.pop(join.slot), env.now
        if work.__class__ is tuple:  # on a stream, with its begin and end
            if work[1] > free:
                yield env.timeout(work[1] - free)
        else:
            work = (yield env.awaited(work)) or (begin, env.now)
        begin, end = work
        free = min(free, end)
        self._recorder.exchanges.add((at.step, self.rank, join.purpose, min(begin, free), free, end))

    def _waited(self, at: Position, cause: Cause | None, begin: int) -> None:
        if cause and (now := self._env.now) > begin:
            self._recorder.waits.add((at.step, self.rank, *cause, begin, now))

    def _record_later(self, event: str, after: int) -> Routine:
        """Record an event after a delay."""
        yield self._env.timeout(after)
        self._events[event].hand(None)

    def where(self) -> str:
        """Describe where a stuck GPU is."""
        if (at := self._at.get(COMPUTE)) is None:
            (stage,) = self._at[GRADIENT].call.block.stages
            return f"server {self.rank}: in the reduction of stage {stage}'s gradients"
        prefix = f"rank {self.rank}, step {at.step}: "
        if not at.call.ops:
            return prefix + "in the reduction of its gradients"
        waits = (
            f"the {one.purpose.name} of micro-batch {at.call.ops[one.op].microbatch} "
            f"from rank {self._endpoint.pipeline[one.peer]}"
            for one in at.call.block.every(Receive)
        )
        return prefix + f"at {at.call.name}, which needs {' and '.join(waits) or 'nothing'}"


# by signal; those of messages are in `_run`
WAITS: Mapping[str, Callable[[Gpu, Position, Any], Routine]] = {
    RECEIPT: Gpu._confirm, EVENT: Gpu._wait, MEETING: Gpu._collective, EXCHANGE: Gpu._join,
}  # fmt: skip
RELEASES: Mapping[str, Callable[[Gpu, Position, Any], None]] = {EVENT: Gpu._record, EXCHANGE: Gpu._start}
