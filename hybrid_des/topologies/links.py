"""A wiring given link by link, with routes found by shortest path.

    links:
      - {from: gpu0, to: switch0, bandwidth: 300 GB/s, latency: 1 us}        # one link each way
      - {from: switch0, to: spine, bandwidth: 40 GB/s, one_way: true}
    routes:
      - {from: gpu0, to: gpu5, through: [switch0, spine, switch1]}           # instead of the shortest path

Points called gpu0, gpu1 … are the cluster's GPUs; every other name is a switch. A route has as few links as possible
(among equals, those that stand first in the list win at the first point where they differ), and may lead through GPUs.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.fabric import Bandwidth, ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.topologies import topology

_GPU = re.compile(r"gpu(\d+)")


@dataclass(frozen=True)
class Wire:
    """One direction of a link in the list: its ends, bytes a second (None: infinite), picoseconds."""

    source: str
    target: str
    bandwidth: Bandwidth
    latency: int

    @property
    def name(self) -> str:
        """What the timeline calls it."""
        return f"{self.source}/to/{self.target}"


@topology(
    "links", summary="a wiring of one's own, link by link; messages take the shortest path", options=("links", "routes")
)
def links(cluster: ClusterSpec) -> Fabric:
    """The links of the list, and routes over them."""
    wires: Sequence[Wire] = cluster.options.get("links", ())
    given: Sequence[Sequence[str]] = cluster.options.get("routes", ())
    ways: dict[str, list[Wire]] = {}
    by_ends: dict[tuple[str, str], Wire] = {}
    for wire in wires:
        if by_ends.setdefault((wire.source, wire.target), wire) is not wire:
            raise Refusal(f"links: there are two from {wire.source} to {wire.target}; give one with both bandwidths")
        ways.setdefault(wire.source, []).append(wire)
    _check_points(cluster, wires)
    _check_connected(cluster, ways)
    fixed = {(path[0], path[-1]): _along(path, by_ends) for path in given}
    _check_ends(cluster, fixed)

    @cache
    def tree(sender: str) -> Mapping[str, Wire]:
        return _shortest(sender, ways)

    def route(sender: int, receiver: int) -> Route:
        ends = (f"gpu{sender}", f"gpu{receiver}")
        path = fixed.get(ends)
        if path is None:
            path = _back(tree(ends[0]), *ends)
        return Route(tuple(wire.name for wire in path), tuple(wire.latency for wire in path))

    specs = {wire.name: LinkSpec(wire.name, wire.bandwidth, wire.source, wire.target) for wire in wires}
    return Fabric(specs, route, cluster.gpus, cluster.node_of)


def _shortest(start: str, ways: Mapping[str, Sequence[Wire]]) -> dict[str, Wire]:
    """The last link on the shortest path from a point to every other one that can be reached (breadth first)."""
    last: dict[str, Wire] = {}
    queue = deque([start])
    while queue:
        for wire in ways.get(queue.popleft(), ()):
            if wire.target not in last and wire.target != start:
                last[wire.target] = wire
                queue.append(wire.target)
    return last


def _back(last: Mapping[str, Wire], start: str, end: str) -> list[Wire]:
    """Walk back from the end of a path to its start."""
    path: list[Wire] = []
    while end != start:
        if end not in last:
            raise UsageError(f"links: there is no route from {start} to {end}")
        path.append(last[end])
        end = last[end].source
    return path[::-1]


def _along(points: Sequence[str], by_ends: Mapping[tuple[str, str], Wire]) -> list[Wire]:
    """The links of a route that is given point by point."""
    missing = [ends for ends in pairwise(points) if ends not in by_ends]
    if missing:
        source, target = missing[0]
        raise Refusal(f"routes: from {points[0]} to {points[-1]}: there is no link from {source} to {target}")
    return [by_ends[ends] for ends in pairwise(points)]


def _check_points(cluster: ClusterSpec, wires: Sequence[Wire]) -> None:
    points = dict.fromkeys(point for wire in wires for point in (wire.source, wire.target))
    for point in points:
        _gpu(cluster, point, "links")
    alone = next((f"gpu{gpu}" for gpu in range(cluster.gpus) if f"gpu{gpu}" not in points), None)
    if alone is not None and cluster.gpus > 1:
        raise Refusal(f"links: none ends at {alone}; the cluster has {cluster.gpus} GPUs, gpu0 … gpu{cluster.gpus - 1}")


def _check_ends(cluster: ClusterSpec, fixed: Mapping[tuple[str, str], object]) -> None:
    for ends in fixed:
        for point in ends:
            if _gpu(cluster, point, "routes") is None:
                raise Refusal(f'routes: "{point}" is a switch; a route goes from a GPU to a GPU')


def _gpu(cluster: ClusterSpec, point: str, where: str) -> int | None:
    """The GPU that a point is, if it is one."""
    match = _GPU.fullmatch(point)
    if match is None:
        return None
    if int(match.group(1)) >= cluster.gpus or point != f"gpu{int(match.group(1))}":
        raise Refusal(
            f'{where}: there is no "{point}"; the cluster has {cluster.gpus} GPUs, gpu0 … gpu{cluster.gpus - 1}'
        )
    return int(match.group(1))


def _check_connected(cluster: ClusterSpec, ways: Mapping[str, Sequence[Wire]]) -> None:
    """Every GPU reaches every other one if gpu0 reaches all and all reach it."""
    back: dict[str, list[Wire]] = {}
    for wires in ways.values():
        for wire in wires:
            back.setdefault(wire.target, []).append(Wire(wire.target, wire.source, wire.bandwidth, wire.latency))
    there, here = _shortest("gpu0", ways), _shortest("gpu0", back)
    for gpu in range(1, cluster.gpus):
        for reached, ends in ((there, ("gpu0", f"gpu{gpu}")), (here, (f"gpu{gpu}", "gpu0"))):
            if f"gpu{gpu}" not in reached:
                raise Refusal(f"links: the cluster is in pieces: no route from {ends[0]} to {ends[1]}")
