"""One GPU: a SimPy process per stream that runs the stream's tasks in order in every training step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import AFTER, BEFORE, INSIDE, STEP_SHIFT, Recorder
from hybrid_des.errors import NumericsError
from hybrid_des.gradients.groups import Membership
from hybrid_des.gradients.reducer import Reducer
from hybrid_des.network.endpoint import Endpoint
from hybrid_des.network.mailbox import Handoff
from hybrid_des.network.meeting import Barrier, Meeting
from hybrid_des.network.purpose import OF_LAYERS, PARAMETERS, PURPOSES
from hybrid_des.planning.tasks import (
    Await,
    Communicate,
    Compute,
    ComputeBeside,
    Fill,
    Gather,
    Join,
    LayerCollective,
    Program,
    Segment,
    Task,
    Transfer,
    Turn,
    purpose_of,
)
from hybrid_des.simulation.arithmetic import Arithmetic
from hybrid_des.simulation.exchanges import NO_EXCHANGERS, Exchanger
from hybrid_des.simulation.memory import MemoryLedger

STREAM = -1  # in `released`: the op did not wait for a message


@dataclass(frozen=True)
class Job:
    """State shared by all GPUs of a run.

    Attributes:
        barrier: the barrier at the end of a step; None if ranks continue independently.
    """

    env: Environment
    recorder: Recorder
    steps: int
    barrier: Barrier | None


class Gpu:
    """One simulated GPU.

    Attributes:
        rank: its global rank.
        memory: its memory use.
        ops: number of ops that it runs per step, optimizer steps included.
        processes: its SimPy processes, one per stream.
    """

    def __init__(
        self,
        job: Job,
        endpoint: Endpoint,
        program: Program,
        memory: MemoryLedger,
        membership: Membership,
        arithmetic: Arithmetic | None,
        *,
        meetings: Sequence[Meeting | None] = (),
        exchangers: Mapping[tuple[str, int], Exchanger] = NO_EXCHANGERS,
    ) -> None:
        self.rank = endpoint.rank
        self.memory = memory
        self._job = job
        self._endpoint = endpoint
        self._record = job.recorder.ops.add
        self._program = program
        self._arithmetic = arithmetic
        self._reducers: dict[int, list[Reducer]] = {}
        for reducer in membership.reducers:
            self._reducers.setdefault(reducer.stage, []).append(reducer)
        self._buffers: dict[int, list[tuple[Reducer, Buffer]]] = {}
        self._filled = {stage: endpoint.handoff() for stage in self._reducers}
        self._finished: dict[str, Handoff] = {}
        self._gatherers = membership.gatherers
        self._meetings, self._exchangers = meetings, exchangers
        self._task: Task | None = None
        self._step = 0
        self.ops = len(program.compute) + len(program.update)
        self.processes = [job.env.process(self._run_compute())]
        if program.gradient:
            self._finished["gradient"] = endpoint.handoff()
            self.processes.append(job.env.process(self._run_gradient()))
        if program.parameters:
            self._finished["parameters"] = endpoint.handoff()
            stages = {part.stage for part in program.parameters if isinstance(part, Gather | Transfer)}
            self._gathered = {stage: endpoint.handoff() for stage in stages}
            self._signals = {name: endpoint.handoff() for name in ("step", "layer")}
            self.processes.append(job.env.process(self._run_parameters()))

    def _run_compute(self) -> Routine:
        env, program, recorder = self._job.env, self._program, self._job.recorder
        for step in range(self._job.steps):
            self._step = step
            begin = env.now
            if program.parameters:
                self._signals["step"].hand(None)
            yield from self._run(program.compute)
            self._task = None
            sent = env.now
            for segment in program.reduction:
                yield from self._run_segment(segment)
            reduced = env.now
            yield from self._run(program.update)
            if self._arithmetic:
                self._arithmetic.learn(step)
            for segment in program.gathers:
                yield from self._wait(segment, AFTER)
            recorder.steps.add((step, self.rank, begin, sent, reduced, env.now))
            if self._job.barrier:
                yield self._job.barrier.wait()

    def _run_gradient(self) -> Routine:
        """Reduce stage by stage, deepest first: ranks with different orders could deadlock."""
        for step in range(self._job.steps):
            for segment in self._program.gradient:
                yield from self._communicate(step, segment)
            self._finished["gradient"].hand(None)

    def _run_parameters(self) -> Routine:
        """Gather parameters, and scatter gradients layer by layer, in the same order on every rank."""
        for _ in range(self._job.steps):
            yield self._signals["step"].receive()
            for segment in self._program.parameters:
                yield from self._run_segment(segment)
                if isinstance(segment, Gather | Transfer) and purpose_of(segment) is PARAMETERS:
                    self._gathered[segment.stage].hand(None)
            self._finished["parameters"].hand(None)

    def _run(self, tasks: Sequence[Task]) -> Routine:
        """Run tasks: wait for the inputs of each, run its segments and send its outputs."""
        env, step, arithmetic, endpoint = self._job.env, self._step, self._arithmetic, self._endpoint
        base, timeout, memory = step << STEP_SHIFT, env.timeout, self.memory
        inboxes, flows, record = endpoint.inboxes, endpoint.flows, self._record
        for task in tasks:
            number, ops, (_, inputs, segments, outputs, confirms, holds, frees, needs) = task
            self._task = task
            asked = now = env.now
            released = STREAM
            for place, (index, _, purpose, tag) in enumerate(inputs):
                message = yield inboxes[purpose].receive(base + tag + ops[index].microbatch)
                if arithmetic:
                    arithmetic.receive(ops[index], message)
                if env.now > now:
                    now, released = env.now, place
            for need in needs:
                yield from self._wait(need, BEFORE)
            start = env.now
            if holds[1]:
                memory.hold(start, holds)
            if arithmetic:  # takes no simulated time; it runs first because a bucket may be sent before the op ends
                arithmetic.compute(step, ops)
            for segment in segments:
                if type(segment) is Compute:
                    if duration := segment.duration:
                        yield timeout(duration)
                elif type(segment) is ComputeBeside:
                    yield from self._compute_beside(segment)
                elif type(segment) is LayerCollective:
                    yield from self._exchange(segment)
                else:
                    yield from self._wait(segment, INSIDE)
            record((step, self.rank, number, asked, start, env.now, released))
            if frees[1]:
                memory.free(env.now, frees)
            for index, peer, purpose, tag, empty in outputs:
                op = ops[index]
                message = arithmetic.message(op, empty) if arithmetic else empty
                flows[peer, purpose].send(message, base + tag + op.microbatch)
            for output in confirms:
                yield endpoint.receipts(output.purpose).receive(base + output.tag + ops[output.op].microbatch)

    def _wait(self, segment: Segment, place: int) -> Routine:
        """Run a segment of communication, and record how long the compute stream waited for it."""
        begin = self._job.env.now
        yield from self._run_segment(segment)
        if (end := self._job.env.now) > begin:
            purpose = PURPOSES.index(purpose_of(segment))
            self._job.recorder.waits.add((self._step, self.rank, purpose, place, begin, end))

    def _compute_beside(self, layer: ComputeBeside) -> Routine:
        """Compute a layer; work lost to communication is known only afterwards, and then made up for."""
        env, slowing, work = self._job.env, layer.slowing, layer.duration
        meetings = [meeting for meeting in self._meetings if meeting]
        self._signals["layer"].hand(None)
        while work > 0:
            begin = env.now
            beside = max((meeting.until - begin for meeting in meetings), default=0)
            yield env.timeout(slowing.duration(work, max(beside, 0)))
            work -= env.now - begin - slowing.lost(sum(meeting.busy(begin) for meeting in meetings))
        self._signals["layer"].hand(None)

    def _exchange(self, segment: LayerCollective) -> Routine:
        """Take part in a layer's collective by messages, compute concurrently, and record how long the op waited."""
        env, start = self._job.env, self._job.env.now
        for after, stage in segment.fills:
            env.process(self._fill(after, stage))
        done = env.process(self._exchangers[segment.axis, segment.stage].run(self._step, segment))
        if segment.beside:
            yield env.timeout(self._lasts(segment.beside))
        free = env.now
        yield done
        purpose = PURPOSES.index(OF_LAYERS[segment.axis])
        self._job.recorder.exchanges.add((self._step, self.rank, purpose, start, free, env.now))

    def _lasts(self, work: int) -> int:
        """Duration in picoseconds of work that begins now."""
        return work

    def _fill(self, after: int, stage: int) -> Routine:
        """Mark a bucket as filled after a delay."""
        yield self._job.env.timeout(after)
        self._filled[stage].hand(None)

    def _run_segment(self, segment: Segment) -> Routine:
        if isinstance(segment, Fill):
            self._filled[segment.stage].hand(None)
        elif isinstance(segment, Join):
            yield self._finished[segment.stream].receive()
        elif isinstance(segment, Compute):
            yield self._job.env.timeout(segment.duration)
        elif isinstance(segment, Await):
            yield self._gathered[segment.stage].receive()
        elif isinstance(segment, Gather):
            yield from self._gather(segment)
        elif isinstance(segment, Turn):
            yield self._signals["layer"].receive()
        elif isinstance(segment, ComputeBeside):
            yield from self._compute_beside(segment)
        elif isinstance(segment, Transfer):
            yield from self._transfer(segment)
        elif isinstance(segment, LayerCollective):
            yield from self._exchange(segment)
        else:
            yield from self._communicate(self._step, segment)

    def _communicate(self, step: int, segment: Communicate) -> Routine:
        """Reduce one bucket as soon as it is filled, and record the times."""
        env, (stage, bucket) = self._job.env, segment
        yield self._filled[stage].receive()
        if bucket == 0:
            self._buffers[stage] = []
            for reducer in self._reducers[stage]:
                reducer.begin(step)
                trained = self._arithmetic if reducer.trained else None
                buffers = trained.buffers(reducer) if trained else reducer.buffers()
                self._buffers[stage] += [(reducer, buffer) for buffer in buffers]
        start = env.now
        reducer, buffer = self._buffers[stage][bucket]
        try:
            # a separate process, so that messages need not pass through a chain of `yield from`
            yield env.process(reducer.reduce(buffer))
        except NumericsError as error:
            raise NumericsError(f"rank {self.rank}, step {step}, reduction of stage {stage}: {error}") from None
        self._job.recorder.reductions.add((step, self.rank, stage, bucket, start, env.now))

    def _gather(self, segment: Gather) -> Routine:
        """Gather one part of a stage's parameters, and record the times."""
        env = self._job.env
        start = env.now
        yield env.process(self._gatherers[segment.stage, segment.part].gather(self._step, segment.bucket))
        self._job.recorder.gathers.add((self._step, self.rank, segment.stage, -1, start, env.now))

    def _transfer(self, segment: Transfer) -> Routine:
        """Take part in the replayed collectives of a layer, and record the times."""
        env, recorder = self._job.env, self._job.recorder
        start = env.now
        for meeting, duration in zip(self._meetings, segment.durations, strict=True):
            if meeting and duration:
                yield meeting.join(duration)
        rows = recorder.gathers if segment.purpose is PARAMETERS else recorder.reductions
        rows.add((self._step, self.rank, segment.stage, segment.layer, start, env.now))

    def where(self) -> str:
        """Describe where a stuck GPU is."""
        place = f"rank {self.rank}, step {self._step}: "
        if self._task is None:
            return place + "in the reduction of its gradients"
        waits = (
            f"the {needed.purpose.name} of micro-batch {self._task.ops[needed.op].microbatch} "
            f"from rank {self._endpoint.rank_of(needed.peer)}"
            for needed in self._task.work.inputs
        )
        return place + f"at {self._task.name}, which needs {' and '.join(waits) or 'nothing'}"
