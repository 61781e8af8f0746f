"""What training asks of a scenario's `numerics` section, which holds the defaults."""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol


class Settings(Protocol):
    """The small model that the simulated GPUs train."""

    @property
    def layers(self) -> int:
        """Layers in all, shared out over the stages."""

    @property
    def width(self) -> int:
        """Features between layers."""

    @property
    def batch(self) -> int:
        """Samples in a micro-batch."""

    @property
    def task(self) -> str:
        """Name of a data set."""

    @property
    def learning_rate(self) -> Fraction:
        """How far a step goes."""

    @property
    def optimizer(self) -> str:
        """Name of an optimizer."""

    @property
    def dtype(self) -> str:
        """fp64 or fp32: of weights, activations and gradients."""


DTYPES = {"fp64": "float64", "fp32": "float32"}
