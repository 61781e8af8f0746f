"""The section that has the simulated GPUs train a small model on real numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from hybrid_des.options import Count, Number, Section, choice, given, whole
from hybrid_des.scenario.sections.values import TaskName
from hybrid_des.workload.numerics.layers import TrainingSettings


class Numerics(Section):
    """A small model that the simulated GPUs actually train; times and bytes still come from the workload."""

    model: Annotated[str, choice("mlp")] = "mlp"
    """A multi-layer perceptron with residual hidden layers."""
    layers: Annotated[int, whole(1, 4096)] = 8
    """Total number of layers, split over the stages."""
    width: Annotated[int, whole(1, 4096)] = 32
    """Features between layers."""
    batch: Count = 4
    """Samples per micro-batch."""
    task: TaskName = "two-spirals"
    """The data set; digits needs scikit-learn."""
    learning_rate: Number = Fraction(1, 10)
    """Learning rate of the optimizer."""
    optimizer: Annotated[str, choice("sgd", "adam")] = "sgd"
    """Optimizer."""
    dtype: Annotated[str, choice("fp64", "fp32")] = "fp64"
    """Data type of weights, activations and gradients."""

    @property
    def settings(self) -> TrainingSettings:
        """The settings in the form that `hybrid_des.workload.numerics` takes."""
        return TrainingSettings(**{key: value for key, value in self if key != "model"})


NumericsOrNone = Annotated[Numerics | None, given(Numerics, Literal["none"] | Numerics, none=True)]
