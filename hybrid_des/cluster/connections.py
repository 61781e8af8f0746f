"""Flows of messages between GPUs, and the canonical form of the links that they take."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.layout import SHORT


class Connection(NamedTuple):
    """Messages from one GPU to another; `what` distinguishes flows between the same two."""

    sender: int
    receiver: int
    what: str | int = ""


def links_of(fabric: Fabric, flows: Iterable[Connection]) -> set[str]:
    """The links on the routes of flows, of which several may be between the same two GPUs."""
    ends = {(flow.sender, flow.receiver) for flow in flows}
    return {link for sender, receiver in ends for link in fabric.route(sender, receiver).links}


def between_all(algorithm: str, ranks: Sequence[int]) -> Iterator[Connection]:
    """The pairs between which an all-reduce sends: neighbours on a ring, or possibly all."""
    return iter(around(ranks)) if algorithm == "ring" else (Connection(*pair) for pair in permutations(ranks, 2))


def around(ring: Sequence[int], what: str | int = "") -> list[Connection]:
    """The flows around a ring."""
    return [Connection(*ends, what) for ends in pairwise([*ring, ring[0]])]


def signature(fabric: Fabric, flows: Iterable[Connection]) -> tuple[Any, ...]:
    """The canonical form of routes: equal if the same flows share equal links in the same way."""
    names: dict[str, int] = {}
    routes = []
    for flow in flows:
        route = fabric.route(flow.sender, flow.receiver)
        hops = ((names.setdefault(name, len(names)), fabric.links[name].bandwidth) for name in route.links)
        routes.append((*hops, *route.latencies))
    return tuple(routes)


def in_blocks(fabric: Fabric, gpus: Iterable[int]) -> tuple[tuple[int, int], ...] | None:
    """The canonical form of GPUs under exchanges of equal blocks; None if the wiring has none."""
    if fabric.blocks is None:
        return None
    blocks: dict[int, int] = {}
    places = (divmod(gpu, fabric.blocks.size) for gpu in gpus)
    return tuple((blocks.setdefault(block, len(blocks)), place) for block, place in places)


def form_of(fabric: Fabric, gpus: Sequence[int]) -> Hashable:
    """The same with the nodes of GPUs, as they appear, and whether these reduce."""
    if fabric.blocks is None:
        return None
    if len(gpus) < SHORT:
        if max(gpus, default=0) >= fabric.gpus:
            return None
        number: dict[int, int] = {}
        on = tuple([number.setdefault(fabric.node_of[gpu], len(number)) for gpu in gpus])
        return in_blocks(fabric, gpus), on, tuple([node in fabric.reducers for node in number])
    ranks = np.fromiter(gpus, np.int64, len(gpus))
    if ranks.max() >= fabric.gpus:
        return None
    nodes = fabric.once("nodes", lambda: np.array(fabric.node_of[: fabric.gpus]))[ranks]
    blocks, places = np.divmod(ranks, fabric.blocks.size)
    first = _first_places(nodes)
    reducing = [int(node) in fabric.reducers for node in nodes[np.unique(first)]] if fabric.reducers else ()
    return first.tobytes(), _first_places(blocks).tobytes(), places.tobytes(), tuple(reducing)


def unlike(fabric: Fabric, groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The first of each set of groups that are the same but for an exchange of equal blocks."""
    first: dict[Hashable, Sequence[int]] = {}
    for gpus in groups:
        form = form_of(fabric, gpus)
        first.setdefault(tuple(gpus) if form is None else form, gpus)
    return list(first.values())


def unlike_pairs(fabric: Fabric, senders: NDArray[np.int64], receivers: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The same for many pairs of a sender and a receiver."""
    first = np.arange(len(senders))
    if fabric.blocks is not None:
        size = fabric.blocks.size
        together = senders // size == receivers // size
        form = (together * size + senders % size) * size + receivers % size
        first = np.unique(form, return_index=True)[1]
    return list(zip(senders[first].tolist(), receivers[first].tolist(), strict=True))


def _first_places(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each value, the first place at which it stands."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return first[inverse.ravel()]
