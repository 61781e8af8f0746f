"""Fabrics of a few nodes, for tests of topologies."""

from fractions import Fraction

from hybrid_des.cluster import topologies
from hybrid_des.cluster.fabric import ClusterSpec, NodeSpec, PortSpec
from hybrid_des.cluster.link_figures import LinkFigures
from hybrid_des.cluster.topologies.links import Wire
from support.messages import GB

NVLINK, NETWORK = PortSpec(Fraction(300 * GB), 15 * 10**5), PortSpec(Fraction(25 * GB), 5 * 10**6)
US = 10**6
PCIE = LinkFigures(bandwidth=20 * GB, latency="2 us")


def node(gpus=4, nics=None, nvlink=NVLINK, network=NETWORK):
    return NodeSpec(gpus, nvlink, network, gpus if nics is None else nics)


def build(name, *nodes, **options):
    entry = topologies.find(name)
    return entry.build(ClusterSpec(nodes), *entry.arguments(options))


def wires(*pairs, bandwidth=GB, latency=0, one_way=False):
    """Wires of one kind between points written "a-b"."""
    ends = [tuple(pair.split("-")) for pair in pairs]
    return tuple(Wire(between=pair, bandwidth=bandwidth, latency=f"{latency} ps", one_way=one_way) for pair in ends)


def star(gpus):
    return wires(*(f"gpu{gpu}-hub" for gpu in range(gpus)))
