"""Settings of the small model that the simulated GPUs train."""

from dataclasses import dataclass
from fractions import Fraction

_DTYPES = {"fp64": "float64", "fp32": "float32"}


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings; defaults are in a scenario's `numerics` section.

    The model has `layers`, split over the stages, with `width` features between them; `batch` counts the samples of a
    micro-batch, and `dtype`, fp64 or fp32, is that of weights, activations and gradients.
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
