"""What each stage costs: the record that a workload hands to the simulation, however it came to its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybrid_des.pipeline.op import Kind, Place


@dataclass(frozen=True)
class StageCosts:
    """What one micro-batch costs on one stage.

    Attributes:
        forward, backward, weight: picoseconds; `backward` is the whole of it, with the forwards that are recomputed
            before it, and `weight` its weight-gradient part.
        message: bytes of the activation that the stage sends on; its gradient comes back in the same size.
        kept: bytes of activations kept from the start of a forward to the end of its backward.
        parameters: how many parameters the stage holds.
    """

    forward: int
    backward: int
    weight: int
    message: int
    kept: int
    parameters: int

    def time(self, kind: Kind) -> int:
        """Picoseconds of an op of this kind."""
        if kind == "I":
            return max(0, self.backward - self.weight)  # rounding may leave a picosecond less than none
        return {"F": self.forward, "B": self.backward, "W": self.weight}[kind]


@dataclass(frozen=True)
class Costs:
    """What a plan costs.

    Attributes:
        stages: (pipeline rank, chunk) → the costs of the stage there; where the model has two copies, those of both.
        parameters: per stage, of one copy of the model.
        resident: per pipeline rank, the bytes that it holds throughout for parameters, gradients and optimizer state.
        optimizer: per pipeline rank, picoseconds of its optimizer step.
    """

    stages: Mapping[Place, StageCosts]
    parameters: tuple[int, ...]
    resident: tuple[int, ...]
    optimizer: tuple[int, ...]
