"""What a run's training came to: losses, accuracies, and how far it is from serial training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hybrid_des.numerics.layers import Stage
from hybrid_des.numerics.serial import accuracy, loss_and_gradients

if TYPE_CHECKING:
    from hybrid_des.numerics.layers import Array
    from hybrid_des.numerics.training import Training


@dataclass
class _Page:
    """What is known of one step: from the first GPU to finish each stage, and how many have."""

    loss: float = 0.0
    weights: dict[int, Array] = field(default_factory=dict)
    gradients: dict[int, Array] = field(default_factory=dict)
    updated: dict[int, Array] = field(default_factory=dict)
    updates: int = 0


class Progress:
    """What training came to, step by step.

    Attributes:
        losses: mean loss over the global batch, at the weights each step started from.
        accuracies: share of held-out samples classified right, after each step.
        gradient_errors: relative L2 distance of each step's reduced gradients from serial ones at the weights that the
            step started from.
        replica_difference: largest difference between two copies of a weight after the same step, so far.
    """

    def __init__(self, training: Training, holders: int) -> None:
        self._training = training
        self._expected = holders * training.plan.stages
        self._pages: dict[int, _Page] = {}
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.gradient_errors: list[float] = []
        self.replica_difference = 0.0

    def loss(self, step: int, share: float) -> None:
        """Add a micro-batch's share of its replica's mean loss."""
        self._page(step).loss += share / self._training.replicas

    def before(self, step: int, stage: int, state: Stage) -> None:
        """Take down a stage's weights and mean gradient before the optimizer step."""
        page = self._page(step)
        if stage not in page.weights:
            page.weights[stage] = state.weights.copy()
            page.gradients[stage] = state.gradient.copy()

    def after(self, step: int, stage: int, state: Stage) -> None:
        """Take down a stage's weights after it, and compare them with those of the other replicas."""
        page = self._page(step)
        first = page.updated.setdefault(stage, state.weights)
        if first is state.weights:
            page.updated[stage] = first.copy()
        else:
            self.replica_difference = max(self.replica_difference, float(abs(state.weights - first).max()))
        page.updates += 1
        if page.updates == self._expected:
            self._close(step)

    def summary(self) -> dict[str, Any]:
        """The summary's keys."""
        return {
            "replica_difference": self.replica_difference,
            "gradient_error": max(self.gradient_errors, default=0.0),
            "loss": self.losses,
            "accuracy": self.accuracies,
        }

    def _page(self, step: int) -> _Page:
        if step not in self._pages:
            self._pages[step] = _Page()
        return self._pages[step]

    def _close(self, step: int) -> None:
        import numpy

        page = self._pages.pop(step)
        settings, stages = self._training.settings, range(self._training.plan.stages)
        weights, gradient, updated = (
            numpy.concatenate([parts[stage] for stage in stages])
            for parts in (page.weights, page.gradients, page.updated)
        )
        self.losses.append(page.loss)
        with numpy.errstate(all="ignore"):
            _, serial = loss_and_gradients(settings, weights, self._training.global_batch(step))
            self.gradient_errors.append(relative_error(gradient, serial))
            self.accuracies.append(accuracy(settings, updated, self._training.data.held_out))


def relative_error(values: Array, reference: Array) -> float:
    """L2 norm of the difference over that of the reference (the difference's own, where the reference is zero)."""
    import numpy

    scale = float(numpy.abs(reference).max(initial=0)) or 1.0  # squares of large numbers must not overflow
    size = float(numpy.linalg.norm(reference / scale))
    difference = float(numpy.linalg.norm((values - reference) / scale))
    return difference / size if size else difference
