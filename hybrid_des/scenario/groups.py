"""Sites, and groups of replicas that seldom exchange: what `cluster` and `gradients` must agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hybrid_des.scenario.keys import ScenarioKeys
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.training import Parallel


def ranks_of_group(parallel: Parallel, groups: int, group: int) -> Sequence[int]:
    """The ranks of consecutive replicas that form one of the groups, in the order of their own layout."""
    each = parallel.data // groups
    inner, layout = parallel.model_copy(update={"data": each}).layout, parallel.layout
    places = map(inner.coordinates, range(inner.ranks))
    return [layout.rank(**{**here, "data": here["data"] + group * each}) for here in places]


def misfits_of_sites(cluster: Cluster) -> Iterator[Problem]:
    """Sites that do not divide the nodes, and links between none."""
    nodes = len(cluster.spec.nodes)
    if cluster.wan is not None and len(cluster.sites) < 2:
        yield misfit("is the link between sites; expected at least two `sites`", "cluster.wan", "cluster.sites")
    if not cluster.sites:
        return
    if len(cluster.sites) > 1 and cluster.wan is None:
        yield misfit(
            "need a `wan` between them, such as {bandwidth: 10 Gb/s, latency: 10 ms}", "cluster.sites", "cluster.wan"
        )
    held = Counter(node for site in cluster.sites for node in site.nodes)
    wrong = [node for node in held if node >= nodes]
    twice = [node for node, count in held.items() if count > 1]
    missing = [node for node in range(nodes) if node not in held]
    for misplaced, what in (
        (wrong, f"beyond the {nodes} nodes of the cluster"),
        (twice, "in two sites"),
        (missing, "in no site"),
    ):
        if misplaced:
            yield misfit(f"node {misplaced[0]} is {what}", "cluster.sites", "cluster.nodes")
            return


def misfits_of_outer(scenario: ScenarioKeys) -> Iterator[Problem]:
    """Groups that do not divide the replicas, exchanges without groups, and what is not supported with them."""
    gradients, outer, data = scenario.gradients, scenario.gradients.outer, scenario.parallel.data
    if gradients.every == 1:
        if outer is not None:
            yield misfit("is read with `every` above 1 only", "gradients.outer", "gradients.every")
        return
    groups, every = scenario.outer_groups, "gradients.every"
    if groups < 2:
        yield misfit(
            "a single group of replicas has no other to synchronise with; expected more `parallel.data`",
            every,
            "parallel.data",
        )
    elif data % groups:
        yield misfit(
            f"{data} replicas cannot be divided into {groups} groups", "gradients.outer.groups", "parallel.data"
        )
    elif problem := _across(scenario, groups):
        yield problem
    if scenario.sharding not in ("none", "zero-1"):
        yield misfit("is not supported with `sharding` beyond zero-1", every, "sharding")
    if outer is not None and outer.fragments > gradients.every:
        message = f"{outer.fragments} fragments in {gradients.every} steps; expected at most one per step"
        yield misfit(message, "gradients.outer.fragments", every)
    if outer is not None and outer.overlap >= gradients.every:
        message = f"a synchronisation must arrive before the next one; expected less than {gradients.every} steps"
        yield misfit(message, "gradients.outer.overlap", every)
    if scenario.numerics is not None and not scenario.barrier:
        yield misfit(
            "needs `barrier` with `numerics`, so that groups synchronise after the same step", every, "barrier"
        )


def _across(scenario: ScenarioKeys, groups: int) -> Problem | None:
    """The first group whose ranks are at several sites."""
    cluster = scenario.cluster
    if len(cluster.sites) < 2 or scenario.parallel.ranks > cluster.gpus:
        return None
    for group in range(groups):
        sites = {cluster.site_of[cluster.node_of(rank)] for rank in ranks_of_group(scenario.parallel, groups, group)}
        if len(sites) > 1:
            each = scenario.parallel.data // groups
            which = f"replicas {group * each} … {(group + 1) * each - 1} are at sites {min(sites)} and {max(sites)}"
            hint = "expected each group at one site, as with parallel.order: [tensor, pipeline, data]"
            return misfit(f"{which}; {hint}", "gradients.every", "parallel.order", "cluster.sites")
    return None
