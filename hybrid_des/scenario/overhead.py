"""Host time of ops: what each takes however short it is, and the pause between two of them."""

from __future__ import annotations

from typing import NamedTuple

from hybrid_des.scenario.sections.training import Workload
from hybrid_des.units import to_picoseconds


class Overhead(NamedTuple):
    """Picoseconds that the host adds.

    Attributes:
        forward: to each forward.
        backward: to each backward, or to the input part of a split one.
        weight: to each weight part of a split backward.
        between: from the end of an op to the start of the next one on the same rank.
    """

    forward: int = 0
    backward: int = 0
    weight: int = 0
    between: int = 0

    @classmethod
    def of(cls, workload: Workload | None) -> Overhead:
        """That of a workload."""
        if workload is None:
            return NO_OVERHEAD
        return cls(*(to_picoseconds(getattr(workload.overhead, name)) for name in cls._fields))

    def held(self, kind: str, *, split: bool) -> int:
        """Its part in recorded ops of a kind; those of a whole backward that was recorded in parts hold it twice."""
        return {"F": self.forward, "B": self.backward + self.weight * split, "I": self.backward, "W": self.weight}[kind]


NO_OVERHEAD = Overhead()
