"""The fabric of a scenario's cluster, with checks for user-defined topologies.

Permanently slow links are as if the machine were built that way (`slowed`).

Sites are data centers whose nodes are wired as ever, with one link from each site to each other.

    gpu0 ─nic-out─► … ─wan/site0-site1─► … ─nic-in─► gpu64       the link stands in the middle of the route

All traffic from one site to another shares that link.
"""

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from typing import Any

from hybrid_des.cluster import topologies
from hybrid_des.cluster.fabric import Fabric, LinksByOwner, LinkSpec, PortSpec, Route, placed
from hybrid_des.cluster.topologies.nodes import KNOWN_ROUTES
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.errors import UsageError
from hybrid_des.options import describe, plain
from hybrid_des.registry import called
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.perturbations import Slow
from hybrid_des.scenario.sections.training import Parallel
from hybrid_des.scenario.sizes import too_many
from hybrid_des.units import to_picoseconds

WAN = "wan"


def across_sites(fabric: Fabric, site_of: Sequence[int], wan: PortSpec) -> Fabric:
    """The fabric with links between sites.

    Its blocks are no longer equal: exchanging nodes of two sites changes routes.

    Args:
        fabric: the wiring as if there was one site.
        site_of: the site of each node.
        wan: the bandwidth of a link between two sites, and its latency, which adds to that of the route.
    """
    pairs = permutations(sorted(set(site_of)), 2)
    between = {
        name: LinkSpec(name, wan.bandwidth, f"site{a}", f"site{b}", wan.latency)
        for a, b in pairs
        for name in [name_of(a, b)]
    }
    links: Any = ChainMap(between, fabric.links)  # type: ignore[arg-type]  # that of the fabric is only read

    @lru_cache(maxsize=KNOWN_ROUTES)
    def route(sender: int, receiver: int) -> Route:
        usual = fabric.route(sender, receiver)
        if max(sender, receiver) >= fabric.gpus:  # a switch of its own node
            return usual
        here, there = (site_of[fabric.node_of[end]] for end in (sender, receiver))
        if here == there:
            return usual
        half = -(-len(usual.links) // 2)
        return Route(
            (*usual.links[:half], name_of(here, there), *usual.links[half:]),
            (*usual.latencies[:half], wan.latency, *usual.latencies[half:]),
        )

    return replace(fabric, links=links, route=route, blocks=None)


def name_of(sender: int, receiver: int) -> str:
    """The link from one site to another."""
    return f"{WAN}/site{sender}-site{receiver}"


def fabric_of(scenario: Source) -> Fabric:
    """Build the fabric of the scenario's cluster, as seen from its ranks.

    Raises:
        Refusal: the topology does not support the cluster.
        UsageError: a user-defined topology has a link without bandwidth.

    Example:
        >>> from hybrid_des import fabric_of
        >>> fabric_of("scenarios/a100_8x.yaml").route(0, 1).links
        ('node0/gpu0/nvlink-out', 'node0/gpu1/nvlink-in')
    """
    scenario = scenario if isinstance(scenario, Scenario) else load(scenario)
    return wired(scenario.cluster, scenario.link_shares, scenario.slow)


def wired(cluster: Cluster, shares: tuple[Fraction, Fraction], slow: Sequence[Slow]) -> Fabric:
    """The fabric of a cluster whose links within and beyond nodes reach these shares, some of them slower.

    Raises:
        Refusal, UsageError: as `fabric_of`.
    """
    fabric = topologies.find(cluster.topology).build(cluster.spec, *cluster.arguments)
    own = not isinstance(fabric.links, LinksByOwner)  # the others have links and bandwidths that need no check
    if own:
        _check_gpus(fabric, cluster)
        _check_links(fabric.links, cluster.topology)
    fabric = replace(fabric, route=_checked(fabric, cluster.topology) if own else fabric.route)
    fabric = replace(fabric, nccl=cluster.release, nccl_allows=cluster.nccl_allows)
    if min(shares) < 1:
        fabric = replace(fabric, links=_reached(fabric.links, *shares), reached=shares)
    if slow:
        fabric = slowed(fabric, slow)
    if len(cluster.sites) > 1 and cluster.wan is not None:
        fabric = across_sites(fabric, cluster.site_of, cluster.wan.port)
    return fabric if cluster.placement == range(cluster.gpus) else placed(fabric, cluster.placement)


def times_of(scenario: Scenario, fabric: Fabric) -> CollectiveTimes:
    """How long collectives take alone on the scenario's wiring; each is simulated when first asked for."""
    checked = scenario.numerics is None  # else every op is compared with serial training
    return times_on(fabric, scenario.cluster.alone, scenario.parallel, folded=scenario.fold != "off", checked=checked)


def times_on(
    fabric: Fabric, sharing: str, parallel: Parallel, *, folded: bool, checked: bool = True
) -> CollectiveTimes:
    """The same, from what it depends on; `folded`: whether equal members may be simulated once."""
    return CollectiveTimes(fabric, parallel.layout, sharing, folded=folded, checked=checked, too_many=too_many)


def _check_gpus(fabric: Fabric, cluster: Cluster) -> None:
    """Check what a topology says of GPUs.

    Raises:
        UsageError: it has another number of them than the cluster, does not know their nodes, or has no routes.
    """
    about, nodes = f"topology {cluster.topology}", fabric.node_of
    if fabric.gpus != cluster.gpus:
        raise UsageError(f"{about}: it has {fabric.gpus} GPUs; expected {cluster.gpus}, those of the cluster")
    known = hasattr(nodes, "__len__") and len(nodes) >= cluster.gpus
    if not known or not all(isinstance(node, int) for node in plain(nodes)):
        raise UsageError(f"{about}: node_of: expected the number of the node of each GPU, found {describe(nodes)}")
    if not callable(fabric.route):
        raise UsageError(
            f"{about}: route: expected a function from two GPUs to a Route, found {describe(fabric.route)}"
        )


def _check_links(links: Mapping[str, LinkSpec], topology: str) -> None:
    """Check the links of a topology.

    Raises:
        UsageError: they are not links by name, or one has no bandwidth.
    """
    if not isinstance(links, Mapping):
        raise UsageError(f"topology {topology}: its links are in a {type(links).__name__}; expected a dict, by name")
    for name, link in links.items():
        if not isinstance(link, LinkSpec):
            raise UsageError(f'topology {topology}: link "{name}" is a {type(link).__name__}; expected a LinkSpec')
        if link.name != name:
            raise UsageError(f'topology {topology}: link "{name}" is called "{link.name}"; expected its own name')
        bandwidth = link.bandwidth
        number = isinstance(bandwidth, int | float | Fraction)
        if not (bandwidth is None or (number and bandwidth > 0)):
            message = f'link "{link.name}" has a bandwidth of {bandwidth}; expected more than 0, or None if free'
            raise UsageError(f"topology {topology}: {message}")


def _reached(links: Mapping[str, LinkSpec], inside: Fraction, beyond: Fraction) -> Mapping[str, LinkSpec]:
    """The links with the achieved share of their bandwidths; measured tables already hold achieved rates."""

    def reached(link: LinkSpec) -> LinkSpec:
        share = beyond if link.beyond_nodes else inside
        return link._replace(bandwidth=link.bandwidth * share) if type(link.bandwidth) is Fraction else link

    if isinstance(links, LinksByOwner):
        return links.changed(reached)
    return {name: reached(link) for name, link in links.items()}


def _checked(fabric: Fabric, topology: str) -> Callable[[int, int], Route]:
    """The routes of a topology, with checks against its links."""

    def route(sender: int, receiver: int) -> Route:
        about = f"topology {topology}: the route from gpu{sender} to gpu{receiver}"
        try:
            answer = called(f"topology {topology}: its route", fabric.route, (sender, receiver), ", two GPUs")
        except LookupError:
            answer = None
        if answer is None:
            raise UsageError(f"{about} is missing")
        if not isinstance(answer, Route) or not all(
            isinstance(one, Sequence) for one in (answer.links, answer.latencies)
        ):
            raise UsageError(f"{about} is {answer!r}; expected a Route of link names and as many latencies")
        unknown = next((name for name in answer.links if name not in fabric.links), None)
        if unknown is not None:
            raise UsageError(f'{about} uses a link "{unknown}", which does not exist')
        if not answer.links or len(answer.links) != len(answer.latencies):
            counts = f"{len(answer.links)} links and {len(answer.latencies)} latencies"
            raise UsageError(f"{about} has {counts}; expected one latency per link, and at least one link")
        if any(not isinstance(latency, int) or latency < 0 for latency in answer.latencies):
            raise UsageError(f"{about} has latencies {answer.latencies}; expected whole picoseconds of at least 0")
        return answer

    return route


def slowed(fabric: Fabric, slow: Sequence[Slow], sign: int = 1) -> Fabric:
    """The fabric with permanent slowdowns: less bandwidth of links, and more latency on routes over them.

    With sign −1, without those that it includes; exact, as bandwidths are fractions.
    """
    links, latency = dict(fabric.links), Counter[str]()
    for entry in (one for one in slow if one.permanent):
        for name in filter(links.__contains__, entry.links):
            links[name] = _scaled(links[name], entry.spell.factor**sign)
            latency[name] += sign * to_picoseconds(entry.latency)
    if links == fabric.links and not latency.total():
        return fabric

    def route(sender: int, receiver: int) -> Route:
        usual = fabric.route(sender, receiver)
        more = (latency[name] for name in usual.links)
        return Route(usual.links, tuple(map(sum, zip(usual.latencies, more, strict=True))))

    return replace(fabric, links=links, route=route if latency.total() else fabric.route, blocks=None)


def _scaled(link: LinkSpec, factor: Fraction) -> LinkSpec:
    return link if not isinstance(link.bandwidth, Fraction) else link._replace(bandwidth=link.bandwidth * factor)
