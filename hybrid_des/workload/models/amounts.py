"""Amounts of a layer: numbers of parameters, and bytes kept from its forward to its backward, by what divides them."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

ELEMENT = 2  # bytes, as in bf16


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    Attributes:
        tensor: divided by t.
        replicated: held by every tensor rank.
        expert: divided by e and x.
        idle: those of `expert` that a token does not use, at balanced load.
        tied: parameters of the first layer that this layer uses too: not counted, and held once more only by a rank
            that has no first layer.
    """

    tensor: int = 0
    replicated: int = 0
    expert: int = 0
    idle: int = 0
    tied: int = 0

    @property
    def total(self) -> int:
        """All that are counted."""
        return self.tensor + self.replicated + self.expert

    @property
    def active(self) -> int:
        """Those that a token uses."""
        return self.total - self.idle

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(*_sums(self, other))


@dataclass(frozen=True)
class Kept:
    """Bytes per token kept from forward to backward: inputs of operations, the layer's own input included.

    Source: Korthikanti et al., arXiv 2205.05198, section 4. Expert parallelism changes nothing: a rank sends as many
    tokens as it receives, except for `Layer.balance`.

    Attributes:
        sequence: divided by t with sequence parallelism.
        tensor: divided by t.
        scores: the score matrices of plain attention, divided by t; not kept if the attention core is recomputed.
        received: tokens received by experts, divided by t/x.
        expert: other activations of experts, divided by t.
        copied: kept by every tensor rank.
    """

    sequence: int = 0
    tensor: int = 0
    scores: int = 0
    received: int = 0
    expert: int = 0
    copied: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """All fields."""
        return astuple(self)

    @property
    def total(self) -> int:
        """Sum of all fields."""
        return sum(self.sizes)

    def __add__(self, other: Kept) -> Kept:
        return Kept(*_sums(self, other))

    def __mul__(self, times: int) -> Kept:
        return Kept(*(times * size for size in self.sizes))

    def __sub__(self, other: Kept) -> Kept:
        return Kept(*(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True)))


def _sums(this: Parameters | Kept, other: Parameters | Kept) -> list[int]:
    return [getattr(this, field.name) + getattr(other, field.name) for field in fields(this)]


NO_PARAMETERS = Parameters()
NOTHING_KEPT = Kept()
