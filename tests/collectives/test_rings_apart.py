"""Of rings that share no link and are wired alike, one is simulated, and all take as long as together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import scenarios
from support.campaigns import TIMES

from hybrid_des.cluster.rings import channels as channels_of
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure, run_collective
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.cost_model import long_rings
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.layout import Layout
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.units import split_evenly

BF16 = codecs.find("bf16").build()


def wired(nodes, gpus, nics, nvlink, sharing="fifo", topology="nodes"):
    infiniband = {"bandwidth": "25 GB/s", "latency": "5 us", "nics_per_node": min(nics, gpus)}
    cluster = {"nodes": nodes, "gpus_per_node": gpus, "sharing": sharing, "topology": topology,
               "infiniband": infiniband, "nvlink": {"bandwidth": nvlink, "latency": "1 us"}}  # fmt: skip
    return fabric_of(scenarios.scenario("1f1b", 1, 1, nodes * gpus, cluster=cluster))


def timed(fabric, name, groups, elements, sharing="fifo"):
    return CollectiveTimes(fabric, Layout({"data": fabric.gpus}, ("data",)), sharing).around(name, groups, elements)


@pytest.fixture
def simulated(monkeypatch):
    """The number of members of each simulation."""
    counts = []

    def counted(network, algorithm, members, *rest, **more):
        members = list(members)
        counts.append(len(members))
        return run_collective(network, algorithm, members, *rest, **more)

    monkeypatch.setattr(long_rings, "run_collective", counted)
    return counts


@pytest.mark.parametrize("name", ["ring", "ring-all-gather", "nccl-all-gather", "nccl-reduce-scatter"])
def test_one_of_many_rings_is_simulated(simulated, name):
    """Eight rings of two nodes, each by an adapter of its own; within nodes, nothing is shared that takes time."""
    fabric = wired(4, 8, nics=8, nvlink="inf")
    done = timed(fabric, name, [range(32)], 32 * 8 * 10**6)
    assert simulated == [16] and done.messages == (62 if name == "ring" else 31) * 32 * 8


def test_rings_that_share_ports_are_simulated_together(simulated):
    timed(wired(4, 8, nics=8, nvlink="300 GB/s"), "ring-all-gather", [range(32)], 32 * 8 * 1000)
    assert simulated == [8 * 16]


def test_groups_on_nodes_of_their_own_are_one(simulated):
    groups = [range(first, first + 4) for first in range(0, 16, 4)]
    done = timed(wired(4, 4, nics=4, nvlink="300 GB/s"), "ring-all-gather", groups, 4 * 1000)
    assert simulated == [4] and done.messages == 4 * 3 * 4


@settings(max_examples=30 * TIMES, deadline=None)
@given(
    nodes=st.sampled_from([1, 2, 3]), gpus=st.sampled_from([1, 2, 4]), nics=st.sampled_from([1, 2, 8]),
    nvlink=st.sampled_from(["inf", "100 GB/s"]), sharing=st.sampled_from(["fifo", "fair"]),
    topology=st.sampled_from(["nodes", "leaf-spine", "direct"]), elements=st.integers(1, 100_000),
    name=st.sampled_from(["ring", "ring-all-gather", "ring-reduce-scatter"]), each=st.sampled_from([1, 2]),
)  # fmt: skip
def test_rings_apart_do_what_they_do_together(nodes, gpus, nics, nvlink, sharing, topology, elements, name, each):
    """Also with shares of unequal size, and whether all members end at the same time."""
    each = min(each, gpus)
    fabric = wired(nodes, gpus, nics, nvlink, sharing, topology)
    groups = [range(first, nodes * gpus, each) for first in range(each)]
    if nodes * gpus // each < 2:
        return
    whole = [channels_of(fabric, ranks) for ranks in groups]
    rings = [ring for of_group in whole for ring in of_group]
    sizes = [size for of_group in whole for size in split_evenly(elements, len(of_group))]
    together = measure(
        fabric, name, rings, lambda ring, _: Buffer(sizes[ring], BF16), options=Channels(channels=1), sharing=sharing
    )
    assert timed(fabric, name, groups, elements, sharing) == together
