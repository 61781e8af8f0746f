"""Outcomes of collectives, each simulated once, alone, on the scenario's own wiring and then replayed in every op.

The duration is exact where the members start together and no other traffic uses a link of the group's routes. Groups
whose members are connected alike share one simulation. A group over several nodes sends along all of its channels.
"""

from collections.abc import Sequence
from typing import Any

from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import NOTHING, Outcome, measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.channels import measure_rings
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.symmetry import connection

ALGORITHMS = {
    "all-reduce": "ring",
    "reduce-scatter": "ring-reduce-scatter",
    "all-gather": "ring-all-gather",
    "all-to-all": "all-to-all",
}
CODEC = "bf16"
ELEMENT = 2  # bytes


def elements_of(size: int) -> int:
    """Number of 16-bit elements in `size` bytes, rounded up."""
    return -(-size // ELEMENT)


class Replay:
    """Outcomes of collectives on one fabric.

    Args:
        fabric: the wiring.
        sharing: how links are shared.
    """

    def __init__(self, fabric: Fabric, sharing: str) -> None:
        self._fabric = fabric
        self._sharing = sharing
        self._codec = codecs.find(CODEC).build()
        self._known: dict[tuple[Any, ...], Outcome] = {}

    def outcome(self, does: str, ranks: Sequence[int], size: int) -> Outcome:
        """Time and traffic of a collective over these ranks; `size` in bytes is that of a member's whole buffer."""
        if len(ranks) == 1 or not size:
            return NOTHING
        key = (does, size, connection(self._fabric, ranks))
        if key not in self._known:
            self._known[key] = self._measure(ALGORITHMS[does], ranks, elements_of(size))
        return self._known[key]

    def _measure(self, name: str, ranks: Sequence[int], elements: int) -> Outcome:
        codec, sharing = self._codec, self._sharing
        if name == "all-to-all":
            return measure(self._fabric, name, [ranks], lambda group, place: Buffer(elements, codec), sharing=sharing)
        return measure_rings(self._fabric, name, [ranks], elements, codec, sharing)
