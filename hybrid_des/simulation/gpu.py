"""One GPU: a SimPy process that reads its program from top to bottom, and one that reduces its gradients."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import simpy

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import OPTIMIZER, STEP_SHIFT, Recorder
from hybrid_des.gradients.reducer import Reducer
from hybrid_des.network.endpoint import Endpoint
from hybrid_des.network.mailbox import Handoff
from hybrid_des.network.message import Message
from hybrid_des.pipeline.plan import Op
from hybrid_des.simulation.lowering import Task
from hybrid_des.simulation.memory import MemoryLedger

if TYPE_CHECKING:
    from hybrid_des.numerics.worker import Worker


class Barrier:
    """Where all GPUs meet at the end of a training step."""

    def __init__(self, env: Environment, parties: int) -> None:
        self._env = env
        self._parties = parties
        self._missing = parties
        self._open = env.event()

    def wait(self) -> simpy.Event:
        """The event that all have come; the last one sets it off."""
        event = self._open
        self._missing -= 1
        if not self._missing:
            self._missing, self._open = self._parties, self._env.event()
            event.succeed()
        return event


@dataclass(frozen=True)
class Job:
    """What all GPUs of a run share.

    Attributes:
        overlap: a bucket of gradients is reduced as soon as it is filled, not after the pipeline.
        blocking: a GPU goes on only when what it sent is through, as in Megatron's plain 1F1B.
        barrier: where all meet at the end of a step; None where each goes on by itself.
    """

    env: Environment
    trace: Recorder
    steps: int
    overlap: bool
    blocking: bool
    barrier: Barrier | None


class Gpu:
    """One simulated GPU.

    Attributes:
        rank: its global rank.
        reductions: the gradients that it adds up with others.
        worker: its arithmetic, where the scenario has numerics.
        waits_for: what it is at, for the report of a deadlock.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        program: Sequence[Task],
        ranks: Sequence[int],
        comm: Endpoint,
        ledger: MemoryLedger,
        reductions: Sequence[Reducer],
        optimizer: int,
        worker: Worker | None = None,
    ) -> None:
        self.rank = rank
        self.ledger = ledger
        self.worker = worker
        self.waits_for = ""
        self._job = job
        self._program = program
        self._ranks = ranks
        self._comm = comm
        self.reductions = reductions
        self._optimizer = optimizer
        self._filled = {reduction.stage: Handoff(job.env) for reduction in reductions}
        self._reduced = job.env.event()
        self._task: Task | None = None
        self._step = 0
        self.processes = [job.env.process(self._compute())]
        if reductions:
            self.processes.append(job.env.process(self._reduce()))

    def _compute(self) -> Generator[Any, Any, None]:
        env, trace = self._job.env, self._job.trace
        for step in range(self._job.steps):
            self._step = step
            begin = env.now
            for task in self._program:
                yield from self._run(task)
            self._task = None
            sent = env.now
            if not self._job.overlap:
                for reduction in self.reductions:
                    for _ in reduction.buckets:
                        self._filled[reduction.stage].hand(None)
            if self.reductions:
                yield self._reduced
                self._reduced = env.event()
            reduced = env.now
            if self._optimizer:
                yield env.timeout(self._optimizer)
                trace.ops.add((self._step, self.rank, OPTIMIZER, reduced, reduced, env.now))
            if self.worker:
                self.worker.learn(self._step)
            trace.steps.add((self._step, self.rank, begin, sent, reduced, env.now))
            if self._job.barrier:
                yield self._job.barrier.wait()

    def _run(self, task: Task) -> Generator[Any, Any, None]:
        """One step of the program: wait for its inputs, compute, send what follows from it."""
        env = self._job.env
        base = self._step << STEP_SHIFT
        self._task = task
        asked = env.now
        arrays: dict[Op, Any] = {}
        for needed in task.inputs:
            message = yield self._comm.inbox.receive(needed.purpose, base + needed.tag)
            if self.worker:
                arrays[needed.op] = message.data
        start = env.now
        if task.holds[1]:
            self.ledger.hold(start, *task.holds)
        # arithmetic takes no simulated time of its own; done first, for a bucket may leave before the op is through
        results = self._train(self.worker, task, arrays) if self.worker else {}
        done = 0
        if task.completes and self._job.overlap:
            for offset, stage in task.completes:
                if offset > done:
                    yield env.timeout(offset - done)
                    done = offset
                self._filled[stage].hand(None)
        if task.duration > done:
            yield env.timeout(task.duration - done)
        self._job.trace.ops.add((self._step, self.rank, task.number, asked, start, env.now))
        if task.frees[1]:
            self.ledger.free(env.now, *task.frees)
        for output in task.outputs:
            message = Message(output.message.size, 0, results[output.op]) if results else output.message
            self._comm.to(self._ranks[output.peer], output.purpose).send(message, base + output.tag)
        if self._job.blocking:
            for output in task.outputs:
                yield self._comm.receipts.receive(output.purpose, base + output.tag)

    def _train(self, worker: Worker, task: Task, arrays: Mapping[Op, Any]) -> dict[Op, Any]:
        """What the ops give; of a fused pair the forward first, held beside what the backward frees."""
        ops = sorted(task.ops, key=lambda op: op.kind != "F")
        return {op: worker.run(self._step, op, arrays.get(op)) for op in ops}

    def _reduce(self) -> Generator[Any, Any, None]:
        """Reduce stage by stage, deepest first on every rank: one order for all, or two ranks wait for each other."""
        env, rows = self._job.env, self._job.trace.reductions
        for step in range(self._job.steps):
            for reduction in self.reductions:
                yield from reduction.run(env, step, self.rank, self._filled[reduction.stage], rows, self.worker)
            self._reduced.succeed()

    def where(self) -> str:
        """Say what a stuck GPU is at, for people."""
        place = f"rank {self.rank}, step {self._step}: "
        if self._task is None:
            return place + "in the reduction of its gradients"
        waits = (
            f"the {m.purpose.name} of micro-batch {m.op.microbatch} from rank {self._ranks[m.peer]}"
            for m in self._task.inputs
        )
        return place + f"at {self._task.name}, which needs {' and '.join(waits) or 'nothing'}"
