"""A user-defined wiring, link by link, with shortest-path routing.

    links:
      - {between: [gpu0, switch0], bandwidth: 300 GB/s, latency: 1 us}       # one link per direction
      - {between: [switch0, spine], bandwidth: 40 GB/s, one_way: true}       # only from the first to the second
    routes:
      - [gpu0, switch0, spine, switch1, gpu5]                                # instead of the shortest path

Points called gpu0, gpu1 … are the cluster's GPUs; every other name is a switch. Routes have the fewest links (ties go
to the links listed first) and may pass through GPUs.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

from hybrid_des.cluster.fabric import Bandwidth, ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.cluster.topologies.registration import topology
from hybrid_des.errors import OptionRefusal, UsageError
from hybrid_des.options import Flag, LinkBandwidth, Options, Reads, Section, Time, describe
from hybrid_des.units import grouped_by, to_picoseconds

_GPU = re.compile(r"gpu(\d+)")


def _points(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise ValueError(f"expected a list of points such as [gpu0, switch0], found {describe(value)}")
    for before, point in zip([None, *value], value, strict=False):
        if not isinstance(point, str) or not point:
            raise ValueError(f"expected a point such as gpu0, found {describe(point)}")
        if point == before:
            raise ValueError(f'"{point}" is given twice in a row')
    return tuple(value)


def _two(value: Any) -> tuple[str, ...]:
    points = _points(value)
    if len(points) > 2:
        raise ValueError(f"expected two points such as [gpu0, switch0], found {len(points)}")
    return points


_LIST = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 2}
Two = Annotated[tuple[str, ...], Reads(_two, {**_LIST, "maxItems": 2})]
Course = Annotated[tuple[str, ...], Reads(_points, _LIST)]


class Wire(Section):
    """A link between two points, for `topology: links`."""

    between: Two
    """Two points: gpu0, gpu1 … are GPUs, numbered across all nodes; every other name is a switch."""
    bandwidth: LinkBandwidth
    """Bytes per second per direction; inf for a free link."""
    latency: Time = Fraction(0)
    """Latency per direction."""
    one_way: Flag = False
    """Whether the link leads only from the first point to the second."""


class Links(Options):
    """The wiring."""

    links: tuple[Wire, ...] = ()
    """All links, such as {between: [gpu0, switch0], bandwidth: 25 GB/s, latency: 1 us}."""
    routes: tuple[Course, ...] = ()
    """Routes that replace the shortest path, point by point, such as [gpu0, switch1, gpu5]."""


class DirectedWire(NamedTuple):
    """One direction of a wire; `wire` is that wire's place in the list."""

    source: str
    target: str
    bandwidth: Bandwidth
    latency: int
    wire: int

    @property
    def name(self) -> str:
        """Name of the link in the timeline."""
        return f"{self.source}/to/{self.target}"


def check(cluster: ClusterSpec, options: Links) -> None:
    """Refuse unknown GPUs, duplicate links, disconnected clusters, and routes over missing links."""
    wires = _directed(options.links)
    _check_points(cluster, options.links)
    _check_doubles(wires)
    if cluster.gpus > 1:
        _check_connected(cluster, wires)
    _check_routes(cluster, options.routes, {(wire.source, wire.target) for wire in wires})


@topology("links", summary="user-defined wiring, link by link, with shortest-path routing", options=Links, check=check)
def links(cluster: ClusterSpec, options: Links) -> Fabric:
    """The given links, with routes over them."""
    check(cluster, options)
    wires = _directed(options.links)
    by_ends = {(wire.source, wire.target): wire for wire in wires}
    given = {(path[0], path[-1]): [by_ends[ends] for ends in pairwise(path)] for path in options.routes}
    leaving = _by_source(wires)

    @cache
    def tree(start: str) -> Mapping[str, DirectedWire]:
        return _shortest(start, leaving)

    def route(sender: int, receiver: int) -> Route:
        ends = (f"gpu{sender}", f"gpu{receiver}")
        path = given.get(ends) or _back(tree(ends[0]), *ends)
        return Route(tuple(wire.name for wire in path), tuple(wire.latency for wire in path))

    specs = {wire.name: LinkSpec(wire.name, wire.bandwidth, wire.source, wire.target, wire.latency) for wire in wires}
    return Fabric(specs, route, cluster.gpus, cluster.node_of, linked="wires")


def _directed(given: Sequence[Wire]) -> list[DirectedWire]:
    """Every direction of every wire, in list order."""
    wires = []
    for number, wire in enumerate(given):
        (this, other), figures = wire.between, (wire.bandwidth, to_picoseconds(wire.latency), number)
        wires.append(DirectedWire(this, other, *figures))
        if not wire.one_way:
            wires.append(DirectedWire(other, this, *figures))
    return wires


def _by_source(wires: Sequence[DirectedWire]) -> dict[str, list[DirectedWire]]:
    return grouped_by(wires, lambda wire: wire.source)


def _shortest(start: str, leaving: Mapping[str, Sequence[DirectedWire]]) -> dict[str, DirectedWire]:
    """For each point reachable from `start`, the last link on the shortest path (breadth-first search)."""
    last: dict[str, DirectedWire] = {}
    queue = deque([start])
    while queue:
        for wire in leaving.get(queue.popleft(), ()):
            if wire.target not in last and wire.target != start:
                last[wire.target] = wire
                queue.append(wire.target)
    return last


def _back(last: Mapping[str, DirectedWire], start: str, end: str) -> list[DirectedWire]:
    """The path from `start` to `end`, traced back along last links."""
    path: list[DirectedWire] = []
    while end != start:
        if end not in last:
            raise UsageError(f"there is no route from {start} to {end}")
        path.append(last[end])
        end = last[end].source
    return path[::-1]


def _check_points(cluster: ClusterSpec, wires: Sequence[Wire]) -> None:
    for number, wire in enumerate(wires):
        for point in wire.between:
            match = _GPU.fullmatch(point)
            if match and (int(match.group(1)) >= cluster.gpus or point != f"gpu{int(match.group(1))}"):
                raise OptionRefusal("links", f'there is no "{point}"; {_gpus(cluster)}', number)


def _check_doubles(wires: Sequence[DirectedWire]) -> None:
    seen: set[tuple[str, str]] = set()
    for source, target, _, _, wire in wires:
        if (source, target) in seen:
            message = f"duplicate link from {source} to {target}; give one with the bandwidth of both"
            raise OptionRefusal("links", message, wire)
        seen.add((source, target))


def _check_connected(cluster: ClusterSpec, wires: Sequence[DirectedWire]) -> None:
    """Check that gpu0 reaches all GPUs and all reach it, so that every GPU reaches every other."""
    there = _shortest("gpu0", _by_source(wires))
    here = _shortest("gpu0", _by_source([DirectedWire(wire.target, wire.source, *wire[2:]) for wire in wires]))
    for gpu in range(1, cluster.gpus):
        for reached, ends in ((there, ("gpu0", f"gpu{gpu}")), (here, (f"gpu{gpu}", "gpu0"))):
            if f"gpu{gpu}" not in reached:
                raise OptionRefusal("links", f"no path from {ends[0]} to {ends[1]}; {_gpus(cluster)}")


def _check_routes(cluster: ClusterSpec, routes: Sequence[Sequence[str]], known: set[tuple[str, str]]) -> None:
    gpus = {f"gpu{gpu}" for gpu in range(cluster.gpus)}
    seen: set[tuple[str, str]] = set()
    for number, path in enumerate(routes):
        for end in (path[0], path[-1]):
            if end not in gpus:
                message = f'a route connects two GPUs, but "{end}" is not one; {_gpus(cluster)}'
                raise OptionRefusal("routes", message, number)
        for source, target in pairwise(path):
            if (source, target) not in known:
                raise OptionRefusal("routes", f"there is no link from {source} to {target}", number)
        if path[0] == path[-1]:
            raise OptionRefusal("routes", f"a route leads from {path[0]} to itself; expected another GPU", number)
        if (path[0], path[-1]) in seen:
            message = f"duplicate route from {path[0]} to {path[-1]}; all messages between two GPUs take the same route"
            raise OptionRefusal("routes", message, number)
        seen.add((path[0], path[-1]))


def _gpus(cluster: ClusterSpec) -> str:
    return f"the cluster has {cluster.gpus} GPUs, gpu0 … gpu{cluster.gpus - 1}"
