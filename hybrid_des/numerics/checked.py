"""Training in which every op is compared with serial training as it is done, so that the first wrong one is named.

The reference trains by itself, one micro-batch after another through all stages, and keeps what each op should give:
outputs, gradients of inputs, and a micro-batch's share of weight gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.errors import NumericsError
from hybrid_des.numerics.layers import loss_and_gradient
from hybrid_des.numerics.progress import relative_error
from hybrid_des.numerics.settings import Settings
from hybrid_des.numerics.training import Training
from hybrid_des.numerics.worker import Worker
from hybrid_des.pipeline.plan import Op, Plan

if TYPE_CHECKING:
    from hybrid_des.numerics.layers import Array

TOLERANCE = 1e-10  # of the L2 norm; sums in another order differ by 1e-15


class Expected(NamedTuple):
    """What one micro-batch's ops should give, stage by stage."""

    outputs: Sequence[Array]
    input_gradients: Sequence[Array | None]
    weight_gradients: Sequence[Array]


class Reference:
    """Serial training in lock-step with a simulated one (all ranks begin a step together)."""

    def __init__(self, training: Training) -> None:
        self._training = training
        stages = range(training.plan.stages)
        self._stages = [training.new_stage(stage) for stage in stages]
        self._optimizers = [training.new_optimizer() for _ in stages]
        self._step = 0
        self._known: dict[tuple[int, int], Expected] = {}

    def microbatch(self, step: int, replica: int, microbatch: int) -> Expected:
        """What a micro-batch's ops should give at the weights that the step starts from."""
        while self._step < step:
            self._learn()
        key = replica, microbatch
        if key not in self._known:
            self._known[key] = self._pass(replica, microbatch)
        return self._known[key]

    def gradient(self, step: int, stage: int) -> Array:
        """What a stage's gradient should be: the mean over the replicas' means."""
        replicas, microbatches = range(self._training.replicas), range(self._training.plan.microbatches)
        total = self._stages[stage].weights * 0
        for replica in replicas:
            for microbatch in microbatches:
                total += self.microbatch(step, replica, microbatch).weight_gradients[stage]
        return total / len(replicas)

    def _learn(self) -> None:
        gradients = [self.gradient(self._step, stage) for stage in range(len(self._stages))]
        for state, optimizer, gradient in zip(self._stages, self._optimizers, gradients, strict=True):
            optimizer.update(state.weights, gradient)
        self._step += 1
        self._known.clear()

    def _pass(self, replica: int, microbatch: int) -> Expected:
        samples = self._training.samples(self._step, replica, microbatch)
        outputs, kept = [], []
        x = samples.inputs
        for state in self._stages:
            x, layers = state.forward(x)
            outputs.append(x)
            kept.append(layers)
        below: Array | None = loss_and_gradient(x, samples.labels, self._training.replica_samples)[1]
        input_gradients, weight_gradients = [], []
        for state, layers in zip(reversed(self._stages), reversed(kept), strict=True):
            assert below is not None
            below, needed = state.input_gradient(below, layers)
            state.gradient[:] = 0
            state.add_weight_gradient(needed)
            input_gradients.append(below)
            weight_gradients.append(state.gradient.copy())
        return Expected(outputs, input_gradients[::-1], weight_gradients[::-1])


class CheckedWorker(Worker):
    """A worker that holds each of its ops against the reference.

    Attributes:
        worst: the largest relative error of an op or a reduced gradient so far.
    """

    def __init__(self, training: CheckedTraining, rank: int, replica: int, pipeline_rank: int) -> None:
        super().__init__(training, rank, replica, pipeline_rank)
        self._reference = training.reference
        self.worst = 0.0

    def run(self, step: int, op: Op, payload: Array | None) -> Array | None:
        """Do one op, and compare what it gives."""
        stage = self._stage_of[op.chunk]
        before = self.stages[stage].gradient.copy() if op.kind in "BW" else None
        result = super().run(step, op, payload)
        expected = self._reference.microbatch(step, self.replica, op.microbatch)
        wanted = expected.outputs[stage] if op.kind == "F" else expected.input_gradients[stage]
        if op.kind != "W" and result is not None and wanted is not None:
            self._compare(result, wanted, self.error(step, op, "its result"))
        if before is not None:
            share = self.stages[stage].gradient - before
            self._compare(share, expected.weight_gradients[stage], self.error(step, op, "its weight gradient"))
        return result

    def learn(self, step: int) -> None:
        """Compare the reduced gradients, and take the optimizer step."""
        for stage, state in self.stages.items():
            self._check_complete(step, stage)
            self._compare(
                state.gradient / self._training.replicas,
                self._reference.gradient(step, stage),
                NumericsError(f"rank {self.rank}, step {step}, reduction of stage {stage}: the gradient"),
            )
        super().learn(step)

    def _compare(self, result: Array, wanted: Array, error: NumericsError) -> None:
        difference = relative_error(result, wanted)
        self.worst = max(self.worst, difference)
        if not difference <= TOLERANCE:
            raise NumericsError(f"{error} differs from serial training by {difference:.2g} of its size")


class CheckedTraining(Training):
    """A training whose workers compare all they do with serial training.

    Attributes:
        reference: the serial training.
        workers: those handed out so far.
    """

    def __init__(self, settings: Settings, plan: Plan, replicas: int, seed: int) -> None:
        super().__init__(settings, plan, replicas, seed)
        self.reference = Reference(self)
        self.workers: list[CheckedWorker] = []

    def worker(self, rank: int, replica: int, pipeline_rank: int) -> CheckedWorker:
        """The checked arithmetic of one GPU."""
        worker = CheckedWorker(self, rank, replica, pipeline_rank)
        self.workers.append(worker)
        return worker

    @property
    def worst(self) -> float:
        """The largest relative error of any op or reduced gradient."""
        return max(worker.worst for worker in self.workers)

    def check_memory(self, peaks: Sequence[Fraction]) -> None:
        """Hold the most activations that each GPU really kept against what the simulation says.

        Args:
            peaks: by global rank, in micro-batches of the whole rank.

        Raises:
            NumericsError: they differ.
        """
        for worker in self.workers:
            expected = peaks[worker.rank] * self.plan.visits[worker.pipeline_rank]
            if worker.most_kept != expected:
                raise NumericsError(
                    f"rank {worker.rank} kept the activations of {worker.most_kept} forwards at once, where the "
                    f"simulation counts {expected}"
                )
