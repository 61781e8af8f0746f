"""From a scenario's cluster to its wiring: what a topology may know of it, and what does not fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.network import topologies
from hybrid_des.network.fabric import ClusterSpec, Fabric, NodeSpec, PortSpec, Route
from hybrid_des.network.times import TableBandwidth
from hybrid_des.network.topologies import OptionRefusal
from hybrid_des.network.topologies.links import Wire
from hybrid_des.scenario.problem import Problem
from hybrid_des.scenario.section import MOST
from hybrid_des.scenario.strict_yaml import KeyPath
from hybrid_des.units import to_picoseconds

if TYPE_CHECKING:
    from hybrid_des.scenario.machine import Cluster, LinkFigures, NodeKind
    from hybrid_des.scenario.model import Scenario

OPTIONS = ("oversubscription", "leaf_size", "cross_rail", "pcie", "gpus_per_switch", "links", "routes")
TOPOLOGY = ("cluster", "topology")


def fabric_of(cluster: Cluster) -> Fabric:
    """Wire a cluster up.

    Raises:
        Refusal: the topology does not exist for it.
        UsageError: a topology of a user's own has a link that never ends.
    """
    fabric = topologies.find(cluster.topology).build(spec_of(cluster))
    for link in fabric.links.values():
        if link.bandwidth is not None and link.bandwidth <= 0:
            message = f'link "{link.name}" has a bandwidth of {link.bandwidth}; expected more than 0, or None if free'
            raise UsageError(f"topology {cluster.topology}: {message}")
    return replace(fabric, route=_checked(fabric, cluster.topology))


def spec_of(cluster: Cluster) -> ClusterSpec:
    """What a topology may know of a cluster."""
    nodes = tuple(node for kind in cluster.kinds for node in (_node(kind),) * kind.count)
    return ClusterSpec(nodes, dict(_options(cluster)))


def _checked(fabric: Fabric, topology: str) -> Callable[[int, int], Route]:
    """A topology's routes, held against its links: one of a user's own may have forgotten something."""

    def route(sender: int, receiver: int) -> Route:
        about = f"topology {topology}: the route from gpu{sender} to gpu{receiver}"
        try:
            found: Route | None = fabric.route(sender, receiver)
        except LookupError:
            found = None
        if found is None:
            raise UsageError(f"{about} is missing")
        unknown = next((name for name in found.links if name not in fabric.links), None)
        if unknown is not None:
            raise UsageError(f'{about} takes a link "{unknown}", which is not there')
        if not found.links or len(found.links) != len(found.latencies):
            counts = f"{len(found.links)} links and {len(found.latencies)} latencies"
            raise UsageError(f"{about} has {counts}; expected one latency a link, and at least one link")
        if any(not isinstance(latency, int) or latency < 0 for latency in found.latencies):
            raise UsageError(f"{about} has latencies {found.latencies}; expected whole picoseconds of at least 0")
        return found

    return route


def wiring_problems(scenario: Scenario) -> Iterator[Problem]:
    """Options that the topology does not read, and clusters that it does not exist for."""
    cluster = scenario.cluster
    facts = topologies.find(cluster.topology).facts
    for option in OPTIONS:
        if getattr(cluster, option) is not None and option not in facts["options"]:
            readers = [name for name in topologies.names() if option in topologies.find(name).facts["options"]]
            path: KeyPath = ("cluster", option)
            yield Problem(path, f"is not read by {cluster.topology}; read by {', '.join(readers)}", (path, TOPOLOGY))
    if facts["check"] is None or cluster.gpus > MOST:
        return
    needs = (TOPOLOGY, *(("cluster", key) for key in ("nodes", "gpus_per_node", "nvlink", "infiniband", *OPTIONS)))
    try:
        facts["check"](spec_of(cluster))
    except OptionRefusal as refusal:
        path = ("cluster", refusal.option, *refusal.at)
        yield Problem(path, refusal.message, needs)
    except Refusal as refusal:
        yield Problem(TOPOLOGY, str(refusal), needs)


def _node(kind: NodeKind) -> NodeSpec:
    return NodeSpec(
        gpus=kind.gpus_per_node,
        nvlink=_port(kind.nvlink),
        infiniband=_port(kind.infiniband),
        nics=kind.infiniband.nics_per_node,
        in_switch=kind.nvlink.in_switch,
    )


def _port(link: LinkFigures) -> PortSpec:
    if link.table is not None:
        return PortSpec(TableBandwidth(link.table), link.table.latency)
    return PortSpec(link.bandwidth, to_picoseconds(link.latency))


def _options(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """The options that are given, in the topologies' own terms."""
    for option in OPTIONS:
        value = getattr(cluster, option)
        if option == "pcie" and value is not None:
            yield option, _port(value)
        elif option == "links" and value is not None:
            yield option, tuple(Wire(w.between, w.bandwidth, to_picoseconds(w.latency), w.one_way) for w in value)
        elif value is not None:
            yield option, value
