"""Rails: NIC i of every node is on leaf i, so that traffic of different rails never shares a network link.

    gpu0 ─nic0-out─► rail0 ─nic0-in─► gpu8                                     the same rail
    gpu0 ─nvlink─► gpu1 ─nic1-out─► rail1 ─nic1-in─► gpu9                      across, cross_rail: nvlink (default)
    gpu0 ─nic0-out─► rail0 ─up─► spine ─down─► rail1 ─nic1-in─► gpu9           across, cross_rail: spine

`nvlink` first forwards a message to the GPU of the sender's node on the receiver's rail, as NCCL does since 2.12
(PXN), and needs no spine (Wang et al., "Rail-only", HotI 2024). With `spine`, a rail's uplink has the total bandwidth
of its NICs divided by `oversubscription` (default 1). The latencies of NVLink and network are each counted once.
"""

from fractions import Fraction
from functools import partial
from typing import Annotated, Literal

from hybrid_des.cluster.fabric import ClusterSpec, Fabric, Route
from hybrid_des.cluster.topologies.building_blocks import blocks_of, nics, through_nics
from hybrid_des.cluster.topologies.nodes import switched, through_nvswitch, uplinks
from hybrid_des.cluster.topologies.registration import topology
from hybrid_des.errors import OptionRefusal, Refusal
from hybrid_des.options import Factor, Options, choice


class Rails(Options):
    """How rails are connected."""

    cross_rail: Annotated[Literal["nvlink", "spine"], choice("nvlink", "spine")] = "nvlink"
    """How messages cross rails; nvlink: through the GPU of the sender's node on the receiver's rail."""
    oversubscription: Factor = Fraction(1)
    """Bandwidth below a switch divided by its bandwidth towards the spine."""


def check_rails(cluster: ClusterSpec, options: Rails) -> None:
    """Refuse clusters in which a node would have no NIC or no GPU on some rail."""
    counts = sorted({node.nics for node in cluster.nodes})
    if len(counts) > 1:
        raise Refusal(f"rails need the same number of NICs in every node, not {' and '.join(map(str, counts))}")
    fewest = min(node.gpus for node in cluster.nodes)
    if fewest < counts[0]:
        raise Refusal(
            f"rails need at least one GPU per NIC of a node; {fewest} GPUs leave some of the {counts[0]} rails empty"
        )
    if options.oversubscription != 1 and options.cross_rail != "spine":
        raise OptionRefusal("oversubscription", "applies to the spine, which exists only with cross_rail: spine")


@topology(
    "rails",
    summary="NIC i of every node on leaf i; crossing rails over NVLink (PXN) or a spine",
    options=Rails,
    check=check_rails,
)
def rails(cluster: ClusterSpec, options: Rails) -> Fabric:
    """The links of `nodes` and, with a spine, an uplink and a downlink per rail."""
    check_rails(cluster, options)
    network = partial(nics, cluster, beyond=lambda node, nic: f"rail{nic}")
    spine = options.cross_rail == "spine"
    ports = [node.infiniband.bandwidth for node in cluster.nodes]
    named = [f"rail{rail}" for rail in range(cluster.nodes[0].nics if spine else 0)]
    above = {rail: uplinks(rail, ports, options.oversubscription) for rail in named}

    def route(sender: int, receiver: int) -> Route:
        (node, index), (to_node, to_index) = cluster.places[sender], cluster.places[receiver]
        rail, to_rail = cluster.nodes[node].nic_of(index), cluster.nodes[to_node].nic_of(to_index)
        if rail == to_rail:
            return through_nics(cluster, sender, receiver)
        if spine:
            return through_nics(cluster, sender, receiver, (f"rail{rail}/up", f"rail{to_rail}/down"))
        relay = sender - index + _on_rail(cluster, node, to_rail, to_index)
        first, second = through_nvswitch(cluster, sender, relay), through_nics(cluster, relay, receiver)
        return Route(first.links + second.links, first.latencies + second.latencies)

    return switched(cluster, network, route, above, blocks_of(cluster))


def _on_rail(cluster: ClusterSpec, node: int, rail: int, like: int) -> int:
    """The GPU of a node that forwards to a rail: preferably the one with the receiver's index."""
    spec = cluster.nodes[node]
    if like < spec.gpus and spec.nic_of(like) == rail:
        return like
    return next(gpu for gpu in range(spec.gpus) if spec.nic_of(gpu) == rail)
