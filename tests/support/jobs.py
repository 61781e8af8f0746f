"""Two random jobs on one fabric, and what tables of a run hold."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from random import Random
from typing import Any

import numpy as np

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.errors import HybridDesError
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.jobs import on_common_links
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.jobs import links_of
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.run import JobRequest, run_jobs
from support.foldings import scenario_values
from support.layered_foldings import model_values

TABLES = ("ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges", "messages")
TOTALS = (
    "messages", "bytes_pipeline", "bytes_gradients", "bytes_scales", "bytes_parameters", "bytes_tensor",
    "bytes_context", "bytes_expert", "bytes_switched", "duration", "ranks", "peak_activations", "peak_memory",
    "algorithm", "channels", "tensor_delay",
)  # fmt: skip
MOST_RANKS = 16
WIDTH = 4
WIRINGS: tuple[dict[str, Any], ...] = (
    {"topology": "nodes"},
    {"topology": "rails"},
    {"topology": "leaf-spine", "oversubscription": 2},
    {"topology": "pcie", "gpus_per_switch": 2},
)


def cluster_values(rng: Random) -> dict[str, Any]:
    """A cluster of twelve nodes of four GPUs."""
    sharing = rng.choice(("fifo", "fifo", "fair", "priority", "priority-fair"))
    urgent = {"pipeline": rng.randrange(3), "gradients": rng.randrange(3)} if "priority" in sharing else {}
    return {
        "nodes": 12,
        "gpus_per_node": WIDTH,
        "nvlink": {"bandwidth": "10 GB/s", "latency": "100 ns"},
        "infiniband": {"bandwidth": "1 GB/s", "latency": "1 us", "nics_per_node": rng.choice((1, 2, 4))},
        "sharing": sharing,
        **({"priorities": urgent} if urgent else {}),
        **rng.choice(WIRINGS),
    }


def drawn(rng: Random, cluster: dict[str, Any]) -> Scenario:
    """A random scenario of up to sixteen ranks on a cluster, which supports it."""
    while True:
        values = {**(scenario_values(rng) if rng.random() < 0.6 else model_values(rng)), "cluster": cluster}
        values["fold"] = "off"
        if "model" in values:  # the fabric is one for both jobs
            values["efficiency"] = {"gemm": 0.5, "attention": 0.5, "memory": 0.5, "network": 1, "adapters": 1}
        if rng.random() < 0.3:
            values["jitter"] = {"distribution": "lognormal", "sigma": 0.1}
        try:
            scenario = scenario_from(values)
            if scenario.parallel.ranks <= MOST_RANKS:
                run(scenario)  # some are refused only there
                return scenario
        except HybridDesError:
            continue


def by_priority(jobs: list[Scenario], rng: Random) -> tuple[Scenario, Scenario]:
    """The same jobs, with priorities of their own where the links read them."""
    jobs = on_common_links(jobs)
    levels = [rng.randrange(3) for _ in jobs] if "priority" in jobs[0].cluster.sharing else [0, 0]
    urgent = [one.cluster.urgent(level, levels) for one, level in zip(jobs, levels, strict=True)]
    first, second = (one.model_copy(update={"cluster": cluster}) for one, cluster in zip(jobs, urgent, strict=True))
    return first, second


def on_own_nodes(rng: Random) -> tuple[Scenario, Scenario]:
    """Two jobs on random nodes of their own, with some GPUs to spare."""
    cluster = cluster_values(rng)
    nodes = rng.sample(range(12), 12)
    jobs = []
    for _ in range(2):
        scenario = drawn(rng, cluster)
        mine, nodes = nodes[:6], nodes[6:]
        jobs.append(scenario.placed([node * WIDTH + gpu for node in mine for gpu in range(WIDTH)]))
    return by_priority(jobs, rng)


def on_shared_nodes(rng: Random) -> tuple[Scenario, Scenario]:
    """Two jobs on two GPUs each of every node."""
    cluster = cluster_values(rng)
    jobs = [
        drawn(rng, cluster).placed([node * WIDTH + gpu for node in range(12) for gpu in mine])
        for mine in ((0, 2), (3, 1))
    ]
    return by_priority(jobs, rng)


def fabric_of_jobs(jobs: tuple[Scenario, ...]) -> Fabric:
    """The fabric that they share."""
    cluster = jobs[0].cluster
    return fabric_of(jobs[0].placed(range(cluster.gpus)))


def shared_links(fabric: Fabric, *placements: Sequence[int]) -> set[str]:
    """The links on routes within more than one of these sets of GPUs; jobs that share none run as if alone."""
    found = Counter[str]()
    for gpus in placements:
        found.update({link for ends in permutations(gpus, 2) for link in fabric.route(*ends).links})
    return {link for link, count in found.items() if count > 1}


def together(jobs: tuple[Scenario, ...]) -> list[Run]:
    """Run jobs on one fabric."""
    return run_jobs([JobRequest(one) for one in jobs], links_of(jobs[0], fabric_of_jobs(jobs)))


def differences(one: Run, other: Run) -> list[str]:
    """The columns and totals in which two runs differ."""
    found = [name for name in TOTALS if getattr(one, name) != getattr(other, name)]
    found += [] if list(one.timeline.channels) == list(other.timeline.channels) else ["channels of the timeline"]
    for name in TABLES:
        mine, theirs = getattr(one.timeline, name) or {}, getattr(other.timeline, name) or {}
        found += [f"{name}.{key}" for key in {*mine, *theirs} if not np.array_equal(mine[key], theirs[key])]
    return found


def bytes_per_link(*runs: Run) -> Counter[str]:
    """Bytes that the messages of some runs put on each link."""
    found = Counter[str]()
    for one in runs:
        links = [channel.link for channel in one.timeline.channels]
        for channel, size in zip(one.timeline.messages["channel"], one.timeline.messages["bytes"], strict=True):
            found[links[channel]] += int(size)
    return found


def services(*runs: Run) -> dict[str, list[tuple[int, int]]]:
    """For each link the times during which it serves a message, in order."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in runs:
        rows = one.timeline.messages
        links = [channel.link for channel in one.timeline.channels]
        for channel, start, end in zip(rows["channel"], rows["start"], rows["end"], strict=True):
            found.setdefault(links[channel], []).append((int(start), int(end)))
    return {link: sorted(each) for link, each in found.items()}
