"""What is measured: steps whose cost is that of messages, from a ring of 8 GPUs to a folded step of a million."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_from


@dataclass(frozen=True)
class Case:
    """A scenario, how many GPUs it has, and how many ops that take time; `fold` is that of the scenario."""

    name: str
    scenario: Scenario
    ranks: int
    ops: int

    @property
    def size(self) -> int:
        """GPUs; of a folded case a 64th, so that it stands with those that take as long."""
        return self.ranks // 64 if self.scenario.fold == "auto" else self.ranks


def ring(ranks: int, topology: str = "nodes", sharing: str = "fifo") -> Case:
    """A ring all-reduce of 1 GiB, one GPU a node, links of 25 GiB/s and 1 µs.

    On `nodes` a message takes the sender's port out and the receiver's port in; on `ring` one link between the two.
    """
    values = {
        "name": f"ring {ranks} on {topology}",
        "cluster": {
            "nodes": ranks,
            "gpus_per_node": 1,
            "infiniband": {"bandwidth": "25 GiB/s", "latency": "1 us", "nics_per_node": 1},
            "topology": topology,
            "sharing": sharing,
        },
        "parallel": {"data": ranks},
        "schedule": {"kind": "1f1b", "microbatches": 1},
        "workload": {"forward": 0, "backward": 0, "parameters": 2**28},
        "fold": "off",
    }
    return Case(values["name"], scenario_from(values), ranks, 0)


def pipeline(microbatches: int, stages: int = 64) -> Case:
    """1F1B without data parallelism."""
    return _step(f"1f1b p={stages} m={microbatches}", stages, 1, microbatches, {}, {})


def mixed(replicas: int, sharing: str = "fifo", **cluster: Any) -> Case:
    """1F1B over 16 stages with a NIC a GPU; gradients are reduced while the backward still runs."""
    name = " ".join(["mixed p=16", f"d={replicas}", "m=16", *(str(value) for value in cluster.values())])
    return _step(name, 16, replicas, 16, {"sharing": sharing, **cluster}, {"overlap": True})


def folded(replicas: int) -> Case:
    """The same, with replicas that do the same simulated once."""
    gradients = {"overlap": True, "pad": True}
    return _step(f"folded p=16 d={replicas} m=16", 16, replicas, 16, {}, gradients, fold="auto")


def _step(
    name: str,
    stages: int,
    replicas: int,
    microbatches: int,
    cluster: Mapping[str, Any],
    gradients: Mapping[str, Any],
    *,
    fold: str = "off",
) -> Case:
    ranks = stages * replicas
    values = {
        "name": name if cluster.get("sharing") != "fair" else f"{name} fair",
        "cluster": {"nodes": ranks // 8, **cluster},
        "parallel": {"pipeline": stages, "data": replicas},
        "schedule": {"kind": "1f1b", "microbatches": microbatches},
        "workload": {"forward": "50 ms", "backward": "80 ms", "activation": "16 MiB", "parameters": 125_000_000},
        "gradients": {"channels": 1, **gradients},  # one ring in the order of ranks
        "fold": fold,
    }
    return Case(values["name"], scenario_from(values), ranks, 2 * microbatches * ranks)
