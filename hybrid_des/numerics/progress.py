"""Progress of training: losses, accuracies, and the error relative to serial training."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybrid_des.numerics.layers import Array, StageLayers
from hybrid_des.numerics.serial import accuracy, loss_and_gradients
from hybrid_des.numerics.setup import TrainingSetup


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
        setup: model and data.
        copies: number of GPUs that hold each stage.

    Attributes:
        losses: mean loss over the global batch per step, at the initial weights of the step.
        accuracies: share of held-out samples classified correctly after each step.
        gradient_errors: relative L2 error of each step's reduced gradients against serial ones at the same weights.
        replica_difference: largest difference so far between copies of a weight after the same step.
    """

    def __init__(self, setup: TrainingSetup, copies: int) -> None:
        self._setup = setup
        self._expected = copies * setup.plan.stages
        self._records: dict[int, _StepRecord] = {}
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.gradient_errors: list[float] = []
        self.replica_difference = 0.0

    def loss(self, step: int, share: float) -> None:
        """Add a micro-batch's share of its replica's mean loss."""
        self._record(step).loss += share / self._setup.replicas

    def before(self, step: int, stage: int, state: StageLayers) -> None:
        """Record a stage's weights and mean gradient before the optimizer step."""
        record = self._record(step)
        if stage not in record.weights:
            record.weights[stage] = state.weights.copy()
            record.gradients[stage] = state.gradient.copy()

    def after(self, step: int, stage: int, state: StageLayers) -> None:
        """Record a stage's weights after the optimizer step, and compare them with other replicas."""
        record = self._record(step)
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

    def _record(self, step: int) -> _StepRecord:
        return self._records.setdefault(step, _StepRecord())

    def _close(self, step: int) -> None:
        record = self._records.pop(step)
        settings, stages = self._setup.settings, range(self._setup.plan.stages)
        weights, gradient, updated = (
            np.concatenate([parts[stage] for stage in stages])
            for parts in (record.weights, record.gradients, record.updated)
        )
        self.losses.append(record.loss)
        with np.errstate(all="ignore"):
            _, serial = loss_and_gradients(settings, weights, self._setup.global_batch(step))
            self.gradient_errors.append(relative_error(gradient, serial))
            self.accuracies.append(accuracy(settings, updated, self._setup.data.held_out))


def relative_error(values: Array, reference: Array) -> float:
    """L2 norm of the difference relative to that of the reference; absolute if the reference is zero."""
    scale = float(np.abs(reference).max(initial=0)) or 1.0  # squares of large numbers must not overflow
    size = float(np.linalg.norm(reference / scale))
    difference = float(np.linalg.norm((values - reference) / scale))
    return difference / size if size else difference
