"""The endpoints of messages in a folded run: ranks, and the switches that serve groups of them without being ranks.

The image of a node's switch is the switch of the node of the images. Images of ranks within their node leave its switch
where it is: it does once what it does, whoever stands for whom, and what each member sends it and gets from it is what
all others do.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import SURE, Element, Fold


class Endpoints:
    """The images of ranks and switches.

    Args:
        fold: those of ranks.
        fabric: the wiring.
    """

    def __init__(self, fold: Fold, fabric: Fabric) -> None:
        self._fold, self._fabric = fold, fabric

    def move(self, endpoint: int, element: Element) -> int:
        """The image of a rank or switch."""
        if endpoint < self._fold.layout.ranks:
            return self._fold.move(endpoint, element)
        here = self._around[endpoint][0]
        return self._fabric.reducers[self._fabric.node_of[self._fold.move(here, element)]]

    def move_switches(self, switches: NDArray[np.int64], element: tuple[Any, ...]) -> NDArray[np.int64]:
        """The images of switches, each by an element of its own: a column per folded axis."""
        firsts = np.array([self._around[switch][0] for switch in switches.tolist()], dtype=np.int64)
        ranks = self._fold.move(firsts, element).tolist()
        reducers, nodes = self._fabric.reducers, self._fabric.node_of
        return np.array([reducers[nodes[rank]] for rank in ranks], dtype=np.int64)

    def element(self, sender: int, receiver: int) -> Element:
        """What maps the simulated image of a message to it: that of the rank at its end, the sender if both are."""
        return self._fold.representative(receiver if self.is_switch(sender) else sender)[1]

    def is_switch(self, endpoint: int) -> bool:
        """Whether an endpoint is the switch of a node."""
        return endpoint >= self._fold.layout.ranks and endpoint in self._around

    def serves(self, switch: int, members: Sequence[int]) -> bool:
        """Whether a switch is simulated for a group of ranks: if some on its node are, who stand for all others there.

        Raises:
            FoldRefusal: others on its node are represented by ranks that it does not serve.
        """
        served = self.on_node(switch, members)
        if not any(map(self._fold.simulated, served)):
            return False
        if any(self._fold.representative(rank)[0] not in served for rank in served):
            raise FoldRefusal(f"others stand for ranks that the switch of rank {served[0]} serves")
        return True

    def on_node(self, switch: int, members: Sequence[int]) -> list[int]:
        """Those of a group's ranks that are on the node of a switch."""
        return sorted(set(self._around[switch]).intersection(members))

    def certain(self, switch: int) -> int:
        """How many digits of ranks, the slowest first, are the same in all images that leave a switch in place."""
        fold, (here, *others) = self._fold, self._around[switch]
        alike = [rank for rank in others if fold.representative(rank)[0] == fold.representative(here)[0]]
        return min((fold.shared(here, rank) for rank in alike), default=SURE)

    @cached_property
    def _around(self) -> dict[int, list[int]]:
        """The ranks on the node of each switch."""
        nodes, reducers = self._fabric.node_of, self._fabric.reducers
        around: dict[int, list[int]] = {}
        for rank in range(self._fold.layout.ranks) if reducers else ():
            if nodes[rank] in reducers:
                around.setdefault(reducers[nodes[rank]], []).append(rank)
        return around
