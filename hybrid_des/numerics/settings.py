"""Settings of the small model that the simulated GPUs train."""

from dataclasses import dataclass
from fractions import Fraction

_DTYPES = {"fp64": "float64", "fp32": "float32"}


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings; defaults are in a scenario's `numerics` section.

    Attributes:
        layers: number of layers, split over the stages.
        width: features between layers.
        batch: samples per micro-batch.
        task: name of a data set.
        learning_rate: step size of the optimizer.
        optimizer: name of an optimizer.
        dtype: fp64 or fp32, for weights, activations and gradients.
    """

    layers: int
    width: int
    batch: int
    task: str
    learning_rate: Fraction
    optimizer: str
    dtype: str

    @property
    def float_type(self) -> str:
        """NumPy's name of `dtype`."""
        return _DTYPES[self.dtype]
