"""The training of one run: its model and data, the arithmetic of its GPUs, and its progress.

Initial weights depend on the seed, not on how the model is split into stages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybrid_des.errors import NumericsError
from hybrid_des.layout import Layout
from hybrid_des.pipeline.plan import TARGET, Op, Plan
from hybrid_des.workload.numerics.datasets import Array, Data, Samples
from hybrid_des.workload.numerics.layers import (
    OPTIMIZERS,
    Kept,
    Optimizer,
    StageLayers,
    TrainingSettings,
    initial_weights,
    layers_of_stages,
    loss_and_gradient,
)
from hybrid_des.workload.numerics.outer import OuterSettings, OuterStep
from hybrid_des.workload.numerics.serial import accuracy, loss_and_gradients


class Training:
    """Model, data and progress (losses, accuracies and errors so far) of a run.

    The plan gives the numbers of stages and micro-batches, the seed initial weights, data and sample order;
    `replica_samples` is the number of samples per replica and step. With `outer`, groups of replicas train by
    themselves between two exchanges; errors and accuracies are those of the first group.

    Raises:
        UsageError: there are fewer layers than stages, or the task needs a library that is not installed.
    """

    def __init__(
        self, settings: TrainingSettings, plan: Plan, replicas: int, seed: int, outer: OuterSettings | None = None
    ) -> None:
        self.settings = settings
        self.plan = plan
        self.replicas = replicas
        self.together = replicas // (outer.groups if outer else 1)
        self.outer = OuterStep(outer) if outer else None
        self.replica_samples = plan.microbatches * settings.batch
        self._layers = layers_of_stages(settings, plan.stages)
        self._seed = seed
        self.data = Data(settings.task, seed, settings.float_type)
        self.progress = TrainingProgress(self, copies=self.together * len(plan.paths))

    @property
    def parameters(self) -> tuple[int, ...]:
        """Number of parameters of each stage."""
        return tuple(sum(layer.parameters for layer in layers) for layers in self._layers)

    def workers_of(self, layout: Layout) -> dict[int, Worker]:
        """Rank → its arithmetic."""
        at = map(layout.coordinates, range(layout.ranks))
        return {rank: self.worker(rank, here["data"], here["pipeline"]) for rank, here in enumerate(at)}

    def worker(self, rank: int, replica: int, pipeline_rank: int) -> Worker:
        """The arithmetic of one GPU."""
        return Worker(self, rank, replica, pipeline_rank)

    def new_stage(self, stage: int) -> StageLayers:
        """A fresh copy of a stage with its initial weights."""
        layers = self._layers[stage]
        return StageLayers(layers, initial_weights(layers, self.settings, self._seed))

    def new_optimizer(self) -> Optimizer:
        """A fresh optimizer for one stage."""
        return OPTIMIZERS[self.settings.optimizer](float(self.settings.learning_rate))

    def samples(self, step: int, replica: int, microbatch: int) -> Samples:
        """One micro-batch: of m per replica, replica r takes micro-batches r·m … r·m+m−1 of the global batch."""
        batch = self.settings.batch
        start = ((step * self.replicas + replica) * self.plan.microbatches + microbatch) * batch
        return self.data.stream(start, start + batch)

    def global_batch(self, step: int) -> Samples:
        """All samples of a step, in order; of the first group, if there are several."""
        first = step * self.replicas * self.replica_samples
        return self.data.stream(first, first + self.together * self.replica_samples)


@dataclass
class _StepRecord:
    """One step so far: stage → arrays of the first GPU to finish it, and the number of updated copies of stages."""

    loss: float = 0.0
    weights: dict[int, Array] = field(default_factory=dict)
    gradients: dict[int, Array] = field(default_factory=dict)
    updated: dict[int, Array] = field(default_factory=dict)
    updates: int = 0


class TrainingProgress:
    """Results of training, step by step.

    Args:
        training: model and data.
        copies: number of GPUs that hold each stage.

    Attributes:
        losses: mean loss over the global batch per step, at the initial weights of the step.
        accuracies: share of held-out samples classified correctly after each step.
        gradient_errors: relative L2 error of each step's reduced gradients against serial ones at the same weights.
        replica_difference: largest difference so far between copies of a weight after the same step.
    """

    def __init__(self, training: Training, copies: int) -> None:
        self._training = training
        self._expected = copies * training.plan.stages
        self._records = defaultdict[int, _StepRecord](_StepRecord)
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.gradient_errors: list[float] = []
        self.replica_difference = 0.0

    def loss(self, step: int, share: float) -> None:
        """Add a micro-batch's share of its replica's mean loss."""
        self._records[step].loss += share / self._training.replicas

    def before(self, step: int, stage: int, state: StageLayers) -> None:
        """Record a stage's weights and mean gradient before the optimizer step."""
        record = self._records[step]
        if stage not in record.weights:
            record.weights[stage] = state.weights.copy()
            record.gradients[stage] = state.gradient.copy()

    def after(self, step: int, stage: int, state: StageLayers) -> None:
        """Record a stage's weights after the optimizer step, and compare them with other replicas."""
        record = self._records[step]
        first = record.updated.setdefault(stage, state.weights)
        if first is state.weights:
            record.updated[stage] = first.copy()
        else:
            self.replica_difference = max(self.replica_difference, float(abs(state.weights - first).max()))
        record.updates += 1
        if record.updates == self._expected:
            self._close(step)

    def summary(self) -> dict[str, Any]:
        """The training entries of the summary."""
        return {
            "replica_difference": self.replica_difference,
            "gradient_error": max(self.gradient_errors, default=0.0),
            "loss": self.losses,
            "accuracy": self.accuracies,
        }

    def _close(self, step: int) -> None:
        record = self._records.pop(step)
        settings, stages = self._training.settings, range(self._training.plan.stages)
        weights, gradient, updated = (
            np.concatenate([parts[stage] for stage in stages])
            for parts in (record.weights, record.gradients, record.updated)
        )
        self.losses.append(record.loss)
        with np.errstate(all="ignore"):
            _, serial = loss_and_gradients(settings, weights, self._training.global_batch(step))
            self.gradient_errors.append(relative_error(gradient, serial))
            self.accuracies.append(accuracy(settings, updated, self._training.data.held_out))


def relative_error(values: Array, reference: Array) -> float:
    """L2 norm of the difference relative to that of the reference; absolute if the reference is zero."""
    scale = float(np.abs(reference).max(initial=0)) or 1.0  # squares of large numbers must not overflow
    size = float(np.linalg.norm(reference / scale))
    difference = float(np.linalg.norm((values - reference) / scale))
    return difference / size if size else difference


class Worker:
    """The chunks of the model that one GPU holds.

    Attributes:
        stages: stage → its layers with their weights and the gradient accumulated so far.
        held: numbers of (micro-batch, chunk) pairs kept before and after their input gradient, after each forward.
    """

    def __init__(self, training: Training, rank: int, replica: int, pipeline_rank: int) -> None:
        plan = training.plan
        self.rank = rank
        self.replica = replica
        self._training = training
        self._plan = plan
        self.pipeline_rank = pipeline_rank
        self._stage_of = {chunk: plan.stage_of[pipeline_rank, chunk] for chunk in plan.chunks_of(pipeline_rank)}
        self.stages = {stage: training.new_stage(stage) for stage in self._stage_of.values()}
        self._optimizers = {stage: training.new_optimizer() for stage in self.stages}
        self._residuals: dict[int, Array] = {}
        self._kept: dict[tuple[int, int], tuple[Kept, Array | None]] = {}  # between F and the input gradient
        self._deferred: dict[tuple[int, int], Kept] = {}  # between the input and the weight gradient
        self._handed: dict[tuple[bool, int, int], Array] = {}  # between stages on this GPU, without a message
        self.held: set[tuple[int, int]] = set()
        if training.outer is not None:
            training.outer.join(self, replica // training.together)

    def run(self, step: int, op: Op, payload: Array | None) -> Array | None:
        """Run one op on the payload of its message.

        Args:
            step: the training step.
            op: F, B, I or W.
            payload: F: the stage's input, (batch, features), None on the model's first stage; B and I: the gradient
                of its output, None on the last; W, and inputs from a stage on the same GPU: None.

        Returns:
            Payload of the next message. F: the stage's output; B and I: the gradient of its input, None on the
            first stage; W: None.

        Raises:
            NumericsError: an input of the op is missing, or its result contains NaN or infinity.
        """
        forward = op.kind == "F"
        if op.kind != "W" and payload is None:
            payload = self._handed.pop((forward, op.microbatch, op.chunk), None)
        with np.errstate(all="ignore"):
            if op.kind == "W":
                self._weight(step, op)
                return None
            result = self._forward(step, op, payload) if forward else self._backward(step, op, payload)
        if result is None:
            return None
        if not np.isfinite(result).all():
            raise self.error(step, op, f"its result contains {_non_finite(result)}")
        receiver = self._plan.neighbour(self.pipeline_rank, op, TARGET[op.kind])
        if receiver is not None and receiver[0] == self.pipeline_rank:
            self._handed[forward, op.microbatch, receiver[1]] = result
        return result

    @property
    def weights(self) -> dict[int, list[Array]]:
        """W and b of each layer in turn, by stage."""
        return {stage: state.arrays for stage, state in sorted(self.stages.items())}

    def gradient(self, stage: int) -> Array:
        """The stage's gradient, flat: this GPU's share of the mean over the replica's samples; reduced in place."""
        return self.stages[stage].gradient

    def residual(self, stage: int) -> Array:
        """The error of a lossy codec, to be sent with the next gradient (error feedback); updated in place."""
        if stage not in self._residuals:
            self._residuals[stage] = self.stages[stage].gradient * 0
        return self._residuals[stage]

    def learn(self, step: int) -> None:
        """Take the optimizer step, on gradients that are reduced over their replica groups.

        Raises:
            NumericsError: a gradient or an updated weight is NaN or infinite, or a micro-batch's backward is not
                complete.
        """
        for stage, state in self.stages.items():
            self._check_complete(step, stage)
            state.gradient /= self._training.together
            first = self.replica < self._training.together
            if first:
                self._training.progress.before(step, stage, state)
            with np.errstate(all="ignore"):
                self._optimizers[stage].update(state.weights, state.gradient)
            self._check_finite(step, stage, "a weight", state.weights)
            if first:
                self._training.progress.after(step, stage, state)
            state.gradient[:] = 0
        if self._training.outer is not None:
            self._training.outer.learned(step)

    def _check_complete(self, step: int, stage: int) -> None:
        self._check_finite(step, stage, "the gradient", self.stages[stage].gradient)
        left = sorted(i for i, chunk in [*self._kept, *self._deferred] if self._stage_of[chunk] == stage)
        if left:
            where = self._optimizer_of(step, stage)
            raise NumericsError(f"{where}: micro-batch {left[0]} has not completed its backward")

    def _check_finite(self, step: int, stage: int, what: str, values: Array) -> None:
        if not np.isfinite(values).all():
            raise NumericsError(f"{self._optimizer_of(step, stage)}: {what} is {_non_finite(values)}")

    def _optimizer_of(self, step: int, stage: int) -> str:
        return f"rank {self.rank}, step {step}, optimizer of stage {stage}"

    def error(self, step: int, op: Op, problem: str) -> NumericsError:
        """An error at an op: its place and the problem."""
        return NumericsError(f"rank {self.rank}, step {step}, {self._plan.name(self.pipeline_rank, op)}: {problem}")

    def _forward(self, step: int, op: Op, payload: Array | None) -> Array:
        stage = self._stage_of[op.chunk]
        if stage == 0:
            payload = self._training.samples(step, self.replica, op.microbatch).inputs
        if payload is None:
            raise self.error(step, op, "its input is missing")
        output, kept = self.stages[stage].forward(payload)
        above: Array | None = None
        if stage == self._plan.stages - 1:
            labels = self._training.samples(step, self.replica, op.microbatch).labels
            loss, above = loss_and_gradient(output, labels, self._training.replica_samples)
            self._training.progress.loss(step, loss)
        self._kept[op.microbatch, op.chunk] = kept, above
        self.held.add((len(self._kept), len(self._deferred)))
        return output

    def _backward(self, step: int, op: Op, payload: Array | None) -> Array | None:
        key = op.microbatch, op.chunk
        if key not in self._kept:
            raise self.error(step, op, "its forward has not run")
        kept, above = self._kept.pop(key)
        if above is None:
            above = payload
        if above is None:
            raise self.error(step, op, "the gradient of its output is missing")
        below, self._deferred[key] = self.stages[self._stage_of[op.chunk]].input_gradient(above, kept)
        if op.kind == "B":
            self._weight(step, op)
        return below

    def _weight(self, step: int, op: Op) -> None:
        key = op.microbatch, op.chunk
        if key not in self._deferred:
            raise self.error(step, op, "its input gradient has not been computed")
        self.stages[self._stage_of[op.chunk]].add_weight_gradient(self._deferred.pop(key))


def _non_finite(values: Array) -> str:
    """The first non-finite element, as text: nan, inf or -inf."""
    return f"{values[~np.isfinite(values)][0]}"
