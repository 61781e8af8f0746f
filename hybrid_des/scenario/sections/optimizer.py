"""The section that says what the optimizer keeps."""

from __future__ import annotations

from hybrid_des.options import Bytes, Section


class Optimizer(Section):
    """What the optimizer keeps."""

    state: Bytes = 12
    """Bytes per parameter of a model: a copy of the weights and Adam's two moments of 32 bits.

    8: the moments only; 4: moments of 16 bits, as PyTorch's Adam has them for parameters of 16 bits."""
