"""The routes of folded messages: the simulated link for each of their links, if all images of a route are alike.

Exchanging equal blocks of GPUs (nodes, or the nodes of a leaf) maps routes to routes in most wirings, which declare
it (`Fabric.blocks`): then no image is examined. Along other folded axes all images of a route are.

`Endpoints` are the ends of folded messages: ranks, and the switches that serve groups of them without being ranks.

The image of a node's switch is the switch of the node of the images. Images of ranks within their node leave its switch
where it is: it does once what it does, whoever stands for whom, and what each member sends it and gets from it is what
all others do.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.fabric import Fabric, Route
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import SURE, Element, Fold
from hybrid_des.units import collected


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
        ranks = range(self._fold.layout.ranks if reducers else 0)
        return collected((reducers[nodes[rank]], rank) for rank in ranks if nodes[rank] in reducers)


class FoldedHop(NamedTuple):
    """A link of a route.

    Attributes:
        link: the link that is simulated in its place.
        name: its own name.
        latency: picoseconds after it.
        element: the element that maps the simulated link to it.
    """

    link: str
    name: str
    latency: int
    element: Element


class FoldedRoutes:
    """The routes of folded messages.

    Args:
        fabric: the wiring.
        fold: which ranks are simulated.
        endpoints: their images, and those of switches.

    Attributes:
        known: link → the simulated link, and the element that maps it here, where images are examined.
    """

    def __init__(self, fabric: Fabric, fold: Fold, endpoints: Endpoints) -> None:
        self._fabric = fabric
        self._fold, self._move = fold, endpoints.move
        self.known: dict[str, tuple[str, Element]] = {}
        self._found: dict[tuple[int, int], list[FoldedHop]] = {}
        self._elements: dict[int, tuple[Element, Element]] = {}

    def of(self, sender: int, receiver: int) -> list[FoldedHop]:
        """The legs of a message from a simulated rank.

        Raises:
            FoldRefusal: the images of the route differ, or a link carries the messages of several replicas.
        """
        legs = self._found.get((sender, receiver))
        if legs is None:
            route = self._fabric.route(sender, receiver)
            representatives = self._by_rule if any(self._blockwise) else self._by_images
            images = representatives(route, sender, receiver)
            legs = self._found[sender, receiver] = [
                FoldedHop(link, name, latency, element)
                for name, latency, (link, element) in zip(route.links, route.latencies, images, strict=True)
            ]
        return legs

    @cached_property
    def _blockwise(self) -> tuple[bool, ...]:
        """For each folded axis, whether images along it exchange whole blocks whose GPUs keep their places in them."""
        generators = self._fold.generators
        ranks = np.arange(self._fold.layout.ranks, dtype=np.int64)
        return tuple(
            all(self._exchanges_blocks(one, ranks) for one in generators if one[axis])
            for axis in range(len(self._fold.folded_axes))
        )

    def _exchanges_blocks(self, element: Element, ranks: NDArray[np.int64]) -> bool:
        blocks = self._fabric.blocks
        if blocks is None:
            return False
        images = self._fold.move(ranks, element)
        moved = images // blocks.size
        keeps_place = (ranks % blocks.size == images % blocks.size).all()
        return bool(keeps_place and (moved == moved[ranks // blocks.size * blocks.size]).all())

    def _by_rule(self, route: Route, sender: int, receiver: int) -> list[tuple[str, Element]]:
        """Exchange blocks by rule, and examine images only along axes within blocks."""
        fold, blocks = self._fold, self._fabric.blocks
        assert blocks is not None
        links = []
        for hop, name in enumerate(route.links):
            block = blocks.of(name)
            if block is None:
                raise FoldRefusal(f"link {name} carries the messages of all replicas")
            element, back = self._element_of(block * blocks.size)
            link, within = name, fold.identity
            if element != fold.identity or not all(self._blockwise):
                ends = self._move(sender, back), self._move(receiver, back)
                image = self._fabric.route(*ends)
                link, within = (
                    (image.links[hop], within) if all(self._blockwise) else self._by_images(image, *ends)[hop]
                )
            links.append((link, fold.combined(element, within)))
        return links

    def _element_of(self, first: int) -> tuple[Element, Element]:
        """The element that maps the simulated block to the one with this first rank, and its inverse."""
        pair = self._elements.get(first)
        if pair is None:
            _, whole = self._fold.representative(first)
            element = tuple(times if blocks else 0 for times, blocks in zip(whole, self._blockwise, strict=True))
            pair = self._elements[first] = element, self._fold.inverse(element)
        return pair

    def _by_images(self, route: Route, sender: int, receiver: int) -> list[tuple[str, Element]]:
        """Examine all images along axes that do not exchange whole blocks."""
        fold = self._fold
        routes = []
        for element in product(
            *(range(1 if whole else count) for whole, count in zip(self._blockwise, fold.counts, strict=True))
        ):
            here, there = self._move(sender, element), self._move(receiver, element)
            other = self._fabric.route(here, there)
            if other.latencies != route.latencies:
                ways = f"from rank {sender} to {receiver} and from rank {here} to {there}"
                raise FoldRefusal(f"the routes {ways} have other links or latencies")
            routes.append((element, other.links))
        return [
            self._representative([(element, links[hop]) for element, links in routes])
            for hop in range(len(route.links))
        ]

    def _representative(self, images: list[tuple[Element, str]]) -> tuple[str, Element]:
        """The link simulated for the first of these images of a link, and the element that maps it there."""
        first, known = images[0][1], self.known
        if first not in known:
            rate = self._fabric.links[first].bandwidth
            for element, name in images:
                if name in known:
                    raise FoldRefusal(f"link {name} carries the messages of several replicas")
                if self._fabric.links[name].bandwidth != rate:
                    raise FoldRefusal(f"link {name} has a different bandwidth from link {first}")
                known[name] = (first, element)
        link, first_element = known[first]
        for element, name in images:
            if known.get(name) != (link, self._fold.combined(first_element, element)):
                raise FoldRefusal(f"link {name} carries the messages of replicas that map differently")
        return link, first_element
