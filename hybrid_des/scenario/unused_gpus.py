"""GPUs of a cluster that a job leaves unused."""

from __future__ import annotations

from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.scenario.sections.rl import engine_gpus
from hybrid_des.scenario.strict_yaml import Document

SIZES = {"nodes", "gpus_per_node"}  # keys of a cluster that say how many GPUs there are
RANKS = "parallel."  # keys that say how many are used begin so, or with that of the cluster


def used_gpus(scenario: Scenario) -> int:
    """The number of GPUs with a rank, that host servers of all-reduces, or whose engines generate samples."""
    options = scenario.gradients.options
    on_hosts = getattr(options, "servers_on", None) == "hosts"
    ranks, loop = scenario.parallel.ranks, scenario.rl
    apart = () if loop is None or loop.colocated else loop.rollout
    engines = sum(len(engine_gpus(rollout, scenario.cluster, ranks)) for rollout in apart)
    return ranks + engines + ((getattr(options, "servers", None) or 1) if on_hosts else 0)


def unused_gpus(document: Document, scenario: Scenario | None = None) -> str | None:
    """One line if a job leaves GPUs unused; None if it does not, or if nobody says how many there are.

    Also None if others use them, as jobs and background traffic may, if a sweep varies them, or if the scenario is not
    valid, which is said elsewhere.

    Args:
        document: the scenario, its base and overrides included.
        scenario: the same, validated.
    """
    cluster, values = document.value.get("cluster"), document.value
    sized = isinstance(cluster, dict) and cluster.keys() & SIZES
    if not sized or values.get("jobs") not in (None, "none") or _varies(values.get("sweep")):
        return None
    try:
        plain = {key: value for key, value in values.items() if key not in ("sweep", "plot")}
        scenario = scenario or scenario_of(Document(plain, document.source, document.places))
    except HybridDesError:
        return None
    gpus, used = scenario.cluster.gpus, used_gpus(scenario)
    if used >= gpus or scenario.background:
        return None
    return f"{document.source}: {left_unused(gpus, used)}{_ways_out(scenario)}"


def left_unused(gpus: int, used: int) -> str:
    """How many GPUs of a cluster are unused: "32 of 64 GPUs are unused"."""
    return f"{gpus - used} of {gpus} GPUs are unused"


def _varies(sweep: object) -> bool:
    """Whether cases of a sweep may have layouts or clusters of their own."""
    if not isinstance(sweep, list):
        return sweep not in (None, "none")
    paths = (path for item in sweep for path in (item if isinstance(item, dict) else [item]))
    return any(str(path).startswith((RANKS, "cluster")) or str(path) in ("parallel", "file") for path in paths)


def _ways_out(scenario: Scenario) -> str:
    """What would use all: more replicas, or fewer nodes."""
    cluster, parallel = scenario.cluster, scenario.parallel
    of_replica, used, ways = parallel.ranks // parallel.data, used_gpus(scenario), list[str]()
    if used == parallel.ranks and cluster.gpus % of_replica == 0:
        ways.append(f"parallel.data={cluster.gpus // of_replica}")
    if isinstance(cluster.nodes, int) and used % cluster.gpus_per_node == 0:
        ways.append(f"cluster.nodes={used // cluster.gpus_per_node}")
    return f"; {' or '.join(ways)} uses all" if ways else ""
