"""Training that compares every op with serial training as it runs, to find the first wrong op."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hybrid_des.errors import NumericsError
from hybrid_des.pipeline.plan import Op, Plan
from hybrid_des.planning.training import Training, Worker, relative_error
from hybrid_des.workload.numerics.datasets import Array
from hybrid_des.workload.numerics.layers import (
    TrainingSettings,
)
from hybrid_des.workload.numerics.serial import PassResult, forward_and_backward

TOLERANCE = 1e-10  # of the L2 norm; sums in another order differ by 1e-15


class CheckedWorker(Worker):
    """A worker that compares each of its ops with serial training; `worst` is the largest relative error so far."""

    def __init__(self, training: CheckedTraining, rank: int, replica: int, pipeline_rank: int) -> None:
        super().__init__(training, rank, replica, pipeline_rank)
        self._checked = training
        self.worst = 0.0

    def run(self, step: int, op: Op, payload: Array | None) -> Array | None:
        """Run one op, and compare its result."""
        stage = self._stage_of[op.chunk]
        before = self.stages[stage].gradient.copy() if op.kind in "BW" else None
        result = super().run(step, op, payload)
        expected = self._checked.serial_pass(step, self.replica, op.microbatch)
        wanted = expected.outputs[stage] if op.kind == "F" else expected.input_gradients[stage]
        if op.kind != "W" and result is not None and wanted is not None:
            self._compare(result, wanted, self.error(step, op, "its result"))
        if before is not None:
            share = self.stages[stage].gradient - before
            self._compare(share, expected.weight_gradients[stage], self.error(step, op, "its weight gradient"))
        return result

    def learn(self, step: int) -> None:
        """Compare the reduced gradients and take the optimizer step."""
        for stage, state in self.stages.items():
            self._check_complete(step, stage)
            self._compare(
                state.gradient / self._training.replicas,
                self._checked.serial_gradient(step, stage),
                NumericsError(f"rank {self.rank}, step {step}, reduction of stage {stage}: the gradient"),
            )
        super().learn(step)

    def _compare(self, result: Array, wanted: Array, error: NumericsError) -> None:
        difference = relative_error(result, wanted)
        self.worst = max(self.worst, difference)
        if not difference <= TOLERANCE:
            raise NumericsError(f"{error} differs from serial training by {difference:.2g} of its size")


class CheckedTraining(Training):
    """A training that is repeated serially, in lockstep (all ranks start a step together), and compared with that."""

    def __init__(self, settings: TrainingSettings, plan: Plan, replicas: int, seed: int) -> None:
        super().__init__(settings, plan, replicas, seed)
        self.workers: list[CheckedWorker] = []
        self._serial = [self.new_stage(stage) for stage in range(plan.stages)]
        self._optimizers = [self.new_optimizer() for _ in self._serial]
        self._step = 0
        self._known: dict[tuple[int, int], PassResult] = {}

    def worker(self, rank: int, replica: int, pipeline_rank: int) -> CheckedWorker:
        """The checked arithmetic of one GPU."""
        worker = CheckedWorker(self, rank, replica, pipeline_rank)
        self.workers.append(worker)
        return worker

    def serial_pass(self, step: int, replica: int, microbatch: int) -> PassResult:
        """Expected results of a micro-batch's ops, at the initial weights of the step."""
        while self._step < step:
            self._learn()
        key = replica, microbatch
        if key not in self._known:
            samples = self.samples(self._step, replica, microbatch)
            self._known[key] = forward_and_backward(self._serial, samples, self.replica_samples)
        return self._known[key]

    def serial_gradient(self, step: int, stage: int) -> Array:
        """Expected gradient of a stage: the mean of the replicas' means."""
        total = self._serial[stage].weights * 0
        for replica in range(self.replicas):
            for microbatch in range(self.plan.microbatches):
                total += self.serial_pass(step, replica, microbatch).weight_gradients[stage]
        return total / self.replicas

    def _learn(self) -> None:
        gradients = [self.serial_gradient(self._step, stage) for stage in range(len(self._serial))]
        for stage, optimizer, gradient in zip(self._serial, self._optimizers, gradients, strict=True):
            optimizer.update(stage.weights, gradient)
        self._step += 1
        self._known.clear()

    @property
    def worst(self) -> float:
        """The largest relative error of any op or reduced gradient."""
        return max(worker.worst for worker in self.workers)

    def check_memory(self, peaks: Sequence[Fraction], weight_share: Sequence[Fraction]) -> None:
        """Compare the real activation peak of each GPU with the simulated one, in whole-rank micro-batches.

        Args:
            peaks: of each GPU.
            weight_share: for each pipeline rank, the share of an activation that counts between its I and its W.

        Raises:
            NumericsError: they differ.
        """
        for worker in self.workers:
            expected = peaks[worker.rank] * self.plan.visits[worker.pipeline_rank]
            share = weight_share[worker.pipeline_rank]
            most = max(whole + share * deferred for whole, deferred in worker.held)
            if most != expected:
                raise NumericsError(
                    f"rank {worker.rank} kept the activations of {float(most):g} forwards at once; the simulation "
                    f"counts {float(expected):g}"
                )
