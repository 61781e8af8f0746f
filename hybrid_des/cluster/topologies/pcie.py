"""Nodes without NVLink: GPUs and NICs under PCIe switches, switches under one root complex.

                       root
              up/down ──┴── up/down                 every GPU port and uplink: `pcie` per direction
            switch0           switch1
         ┌────┬──┴─┐       ┌────┬──┴─┐
        gpu0 gpu1 nic0    gpu2 gpu3 nic1

    gpu0 ─pcie-out─► switch0 ─pcie-in─► gpu1                                    one switch: peer to peer
    gpu0 ─pcie-out─► switch0 ─up─► root ─down─► switch1 ─pcie-in─► gpu2         two switches: through the root
    gpu0 ─pcie-out─► switch0 ─nic-out─► network ─nic-in─► … ─pcie-in─► gpu4     between nodes

A switch has `gpus_per_switch` GPUs (default 4); a node's NICs are spread evenly over its switches, and a GPU whose NIC
is on another switch reaches it through the root. GPUs under one switch share its uplink, as do messages within the node
and between nodes. `pcie` (bandwidth and latency, by default the GPU's own) replaces `nvlink`. The latency is that of
`pcie` within a node and that of the network between nodes, counted once.
"""

from collections.abc import Iterator
from functools import partial

from pydantic import Field

from hybrid_des.cluster.fabric import ClusterSpec, Fabric, LinkSpec, Route
from hybrid_des.cluster.link_figures import LinkFigures
from hybrid_des.cluster.topologies.building_blocks import blocks_of, both_ways, links_of, nics
from hybrid_des.cluster.topologies.registration import topology
from hybrid_des.options import Count, Options


class Pcie(Options):
    """The PCIe tree of a node."""

    pcie: LinkFigures = Field(default_factory=LinkFigures)
    """Each GPU's port and each switch's uplink. Default from the GPU."""
    gpus_per_switch: Count = 4
    """GPUs per switch."""


@topology("pcie", summary="no NVLink: GPUs and NICs under PCIe switches under a root complex", options=Pcie)
def pcie(cluster: ClusterSpec, options: Pcie) -> Fabric:
    """Two links per GPU, per switch and per NIC: out and in, or up and down."""
    tree = _Tree(cluster, options)
    network = partial(nics, cluster, beyond=lambda node, nic: "network", inside=tree.point_of_nic)

    def route(sender: int, receiver: int) -> Route:
        (node, index), (to_node, to_index) = cluster.places[sender], cluster.places[receiver]
        switch, to_switch = index // tree.width, to_index // tree.width
        out, into = f"node{node}/gpu{index}/pcie-out", f"node{to_node}/gpu{to_index}/pcie-in"
        if node == to_node:
            names = (out, *tree.across(node, switch, to_switch), into)
            return Route(names, (tree.port.latency, *(0 for _ in names[1:])))
        nic, to_nic = cluster.nodes[node].nic_of(index), cluster.nodes[to_node].nic_of(to_index)
        there = (out, *tree.across(node, switch, tree.switch_of_nic(node, nic)), f"node{node}/nic{nic}/out")
        back = (*tree.across(to_node, tree.switch_of_nic(to_node, to_nic), to_switch), into)
        latencies = (*(0 for _ in there[1:]), cluster.latency(node, to_node), *(0 for _ in back), 0)
        return Route((*there, f"node{to_node}/nic{to_nic}/in", *back), latencies)

    links = links_of(cluster, tree.ports, tree.uplinks, network)
    return Fabric(links, route, cluster.gpus, cluster.node_of, blocks=blocks_of(cluster))


class _Tree:
    """The position of GPUs, NICs and switches in the tree of a node."""

    def __init__(self, cluster: ClusterSpec, options: Pcie) -> None:
        self.cluster = cluster
        self.port = options.pcie.port
        self.width = options.gpus_per_switch

    def switches(self, node: int) -> int:
        """Number of switches in a node."""
        return -(-self.cluster.nodes[node].gpus // self.width)

    def switch_of_nic(self, node: int, nic: int) -> int:
        """The switch of a NIC."""
        return nic * self.switches(node) // self.cluster.nodes[node].nics

    def point_of_nic(self, node: int, nic: int) -> str:
        """The point a NIC is connected to within its node."""
        return f"node{node}/switch{self.switch_of_nic(node, nic)}"

    def across(self, node: int, switch: int, other: int) -> tuple[str, ...]:
        """The links from one switch of a node to another: none, or up and down."""
        return () if switch == other else (f"node{node}/switch{switch}/up", f"node{node}/switch{other}/down")

    def ports(self, node: int) -> Iterator[LinkSpec]:
        """The links of a node's GPUs."""
        bandwidth, latency, first = self.port.bandwidth, self.port.latency, self.cluster.first_gpu(node)
        for index in range(self.cluster.nodes[node].gpus):
            ends = (f"gpu{first + index}", f"node{node}/switch{index // self.width}")
            yield from both_ways(f"node{node}/gpu{index}/pcie-", ("out", "in"), bandwidth, ends, latency)

    def uplinks(self, node: int) -> Iterator[LinkSpec]:
        """The links of a node's switches."""
        for switch in range(self.switches(node) if self.switches(node) > 1 else 0):
            point = f"node{node}/switch{switch}"
            yield from both_ways(f"{point}/", ("up", "down"), self.port.bandwidth, (point, f"node{node}/root"))
