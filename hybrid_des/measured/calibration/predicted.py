"""What a collective takes by NCCL's laws on the machine where it was measured, and which machine that is.

The machine is that of a scenario, or the one that the log names: its GPU with the links and adapters of the catalogue,
and as many nodes as the list of ranks has hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from hybrid_des.analysis.collective_bench import Bench
from hybrid_des.cluster.gpus import NODE, named_in, part
from hybrid_des.collectives import algorithms, bus_factor, find
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.measured.calibration.nccl_tests import NcclTests
from hybrid_des.scenario.loading import Source, document_of, scenario_of
from hybrid_des.scenario.sections.cluster import Cluster

SIMULATED = {
    "all_reduce": "nccl", "all_gather": "nccl-all-gather", "reduce_scatter": "nccl-reduce-scatter",
    "alltoall": "nccl-all-to-all", "sendrecv": "nccl-send-receive",
}  # fmt: skip


OF_MACHINE = ("name", "cluster", "slow")  # what counts of a scenario


FORCES = {"ALGO": "nccl_algorithm", "PROTO": "nccl_protocol"}  # keys of `cluster`


class Given(NamedTuple):
    """What a user says of the machine where a benchmark ran.

    Attributes:
        scenario: the file of a scenario with its cluster.
        gpu: else, the name of the GPU in the catalogue.
        per_node: ranks of a node.
        overrides: changes of the scenario, or of the machine that the log names, such as "cluster.nodes=2".
    """

    scenario: Source | None = None
    gpu: str | None = None
    per_node: int | None = None
    overrides: tuple[str, ...] = ()


class Predicted:
    """The law of a benchmark: its collective, simulated on idle links.

    Attributes:
        ranks: of the group.
        nodes: on which they are.
        adapters: of each node.
        machine: GPUs, nodes, adapters and release of NCCL, in words.
        assumed: what the log does not say, one line each.
    """

    def __init__(self, run: NcclTests, given: Given) -> None:
        """Find the machine.

        Raises:
            UsageError: the collective is not simulated, the machine is not known, or it is another than the log's.
            ScenarioError: the scenario or an override is wrong.
        """
        self.ranks = _ranks_of(run)
        self._run, self._name = run, SIMULATED[run.test]
        self.assumed: list[str] = []
        source = machine_of(run, given, self.assumed) if given.scenario is None else given.scenario
        document = document_of(source, given.overrides)
        alone = _alone(self._name)
        document.value = alone | {key: document.value[key] for key in OF_MACHINE if key in document.value}
        try:
            scenario = scenario_of(document)
        except ScenarioError as error:
            if given.scenario is not None or given.overrides:
                raise
            raise UsageError(f"{run.source}: {error.problems[0].removeprefix('scenario: cluster.')}") from None
        if scenario.cluster.gpus < self.ranks:
            has = f"{self.ranks} ranks, but the cluster has {scenario.cluster.gpus} GPUs"
            raise UsageError(f"{run.source}: {has}; --set cluster.nodes=N")
        self._bench = Bench.of(scenario, self._name, len(run.times), self.ranks)
        self.nodes = len({self._bench.times.fabric.node_of[rank] for rank in range(self.ranks)})
        if given.scenario is not None and run.nodes not in (None, self.nodes):
            ran = f"{self.ranks} ranks ran on {run.nodes} nodes, in the scenario they are on {self.nodes}"
            raise UsageError(f"{run.source}: {ran}; --set cluster.gpus_per_node={self.ranks // (run.nodes or 1)}")
        self.adapters = scenario.cluster.infiniband.nics_per_node
        self.machine = self._words(scenario.cluster)
        self._of = cache(self._time)

    def time(self, size: int) -> int:
        """Picoseconds for `size` bytes."""
        return self._of(size)

    def bus_bandwidth(self, size: int, time: int) -> float:
        """The bus bandwidth, in GB/s, of a time in picoseconds (nccl-tests, doc/PERFORMANCE.md)."""
        factor = 1.0 if self._run.test == "sendrecv" else float(bus_factor(find(self._name).facts["does"], self.ranks))
        return size * 1000 / time * factor

    def _time(self, size: int) -> int:
        if self._run.test != "sendrecv":
            return self._bench.row(self._name, size).time
        return round(self._bench.row(self._name, size * self.ranks).time / (self.ranks - 1))  # one call of a ring

    def _words(self, cluster: Cluster) -> str:
        bandwidth = cluster.infiniband.bandwidth
        rate = "" if bandwidth is None else f" of {float(bandwidth) / 1e9:g} GB/s"
        adapters = f"{self.adapters} adapter{'s' * (self.adapters > 1)}{rate} a node"
        between = f", {adapters}" if self.nodes > 1 else ""
        forced = {f"NCCL_{variable}": getattr(cluster, key) for variable, key in FORCES.items()}
        also = "".join(f", {name}={value}" for name, value in forced.items() if value is not None)
        return f"{self.nodes} x {self.ranks // self.nodes} {cluster.gpu.name}{between}, NCCL {cluster.nccl}{also}"


def _ranks_of(run: NcclTests) -> int:
    """The number of ranks.

    Raises:
        UsageError: it is not known, or the collective is not simulated.
    """
    if run.test not in SIMULATED:
        raise UsageError(f"{run.source}: {run.test} is not simulated; {', '.join(SIMULATED)} are")
    if not run.ranks or run.ranks < 2:
        ranks = "the number of ranks is not known (--ranks N says it)" if run.ranks is None else f"{run.ranks} ranks"
        raise UsageError(f"{run.source}: {ranks}; a prediction needs at least 2")
    return run.ranks


def machine_of(run: NcclTests, given: Given, assumed: list[str]) -> Mapping[str, Any]:
    """The scenario of the machine that a log names; what it does not say is added to `assumed`.

    Raises:
        UsageError: the GPU is not known, or the ranks of nodes differ in number.
    """
    gpu = given.gpu or (named_in(run.device) if run.device else None)
    if gpu is None:
        lacking = f"{run.device} is not in the catalogue" if run.device else "the GPU is not named"
        raise UsageError(f"{run.source}: {lacking}; say where it ran: --gpu NAME or --scenario FILE")
    known, ranks = part(gpu), run.ranks or 0
    nodes = _nodes_of(run, given, known.gpus_per_node, assumed)
    if ranks % nodes:
        raise UsageError(f"{run.source}: {ranks} ranks on {nodes} nodes, not as many on each; --scenario FILE")
    each = ranks // nodes
    cluster: dict[str, Any] = {"gpu": gpu, "nodes": nodes, "gpus_per_node": each}
    if each < known.gpus_per_node:
        cluster["infiniband"] = {"nics_per_node": max(1, known.nics_per_node * each // known.gpus_per_node)}
    if run.release:
        cluster["nccl"] = run.release
    cluster |= {FORCES[variable]: value for variable, value in run.forced.items()}
    return {"name": "log", "cluster": cluster}


def _alone(name: str) -> dict[str, Any]:
    """A scenario of nothing but a collective, without its machine."""
    return {
        "schedule": {"kind": "gpipe", "microbatches": 1},
        "workload": {"forward": 0, "backward": 0}, "gradients": {"algorithm": name} if name in algorithms() else {},
    }  # fmt: skip


def _nodes_of(run: NcclTests, given: Given, domain: int, assumed: list[str]) -> int:
    """The nodes of a run, which are NVLink domains where those have more GPUs than a host."""
    ranks = run.ranks or 0
    if given.per_node is not None:
        return -(-ranks // given.per_node)
    if domain > NODE:
        assumed.append(f"hosts share an NVLink domain of up to {domain} GPUs (--gpus-per-node N says else)")
        return -(-ranks // domain)
    if run.nodes is None:
        assumed.append(f"hosts are not listed; taken for nodes of {NODE} GPUs (--gpus-per-node N says else)")
    return run.nodes or -(-ranks // NODE)
