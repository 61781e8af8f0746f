"""Channels: a group over several nodes uses all of its adapters, and folded rings take as long as whole ones."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import scenarios
from support.campaigns import TIMES
from support.paths import SCENARIOS

from hybrid_des.cluster.connections import around
from hybrid_des.cluster.rings import channels as channels_of
from hybrid_des.cluster.rings import orders
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure, run_collective
from hybrid_des.collectives.buffer import Buffer, Channels
from hybrid_des.collectives.nccl import tuned
from hybrid_des.collectives.registration import Site
from hybrid_des.collectives.tuning import wiring_of
from hybrid_des.cost_model import collective_times, long_rings
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.long_rings import representatives
from hybrid_des.layout import Layout
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import load

BF16 = codecs.find("bf16").build()
US = 10**6  # picoseconds


def fabric(nodes, gpus, topology="nodes", sharing="fifo", nics=8, **cluster):
    infiniband = {"bandwidth": "25 GB/s", "latency": "5 us", "nics_per_node": min(nics, gpus)}
    machine = {"topology": topology, "sharing": sharing, "infiniband": infiniband, **cluster}
    sections = {"cluster": {"nodes": nodes, "gpus_per_node": gpus, **machine}}
    return fabric_of(scenarios.scenario("1f1b", 1, 1, nodes * gpus, **sections))


def replayed(fabric, name, groups, elements, sharing="fifo"):
    return CollectiveTimes(fabric, Layout({"data": fabric.gpus}, ("data",)), sharing).around(name, groups, elements)


def whole(fabric, name, groups, elements, sharing):
    """All members act, whether or not they could be folded."""
    rings = [ring for ranks in groups for ring in channels_of(fabric, ranks)]
    size = elements * len(groups) // len(rings)
    alone = Channels(channels=1)
    return measure(fabric, name, rings, lambda ring, place: Buffer(size, BF16), options=alone, sharing=sharing)


def test_every_member_of_a_node_leaves_it_once():
    rings = channels_of(fabric(2, 3), range(6))
    assert rings == [[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], [2, 0, 1, 5, 3, 4]]
    assert channels_of(fabric(2, 3), [0, 1]) == [[0, 1]]
    assert channels_of(fabric(2, 3), [0, 1, 3]) == [[0, 1, 3]]


def test_all_adapters_together_are_as_fast_as_one_wire():
    """Each of 4 adapters carries a quarter: 15 steps of a sixteenth of it, 5 µs later every fourth step at most."""
    machine = fabric(4, 4, nvlink={"bandwidth": "inf", "latency": 0})
    elements = 16 * 4 * 25_000  # a message has 50 kB: 2 µs on an adapter of 25 GB/s
    found = replayed(machine, "ring-all-gather", [range(16)], elements)
    assert 15 * 2 * US <= found.duration <= 15 * 2 * US + 4 * 5 * US
    assert found.bytes == 15 * 2 * elements


# Nodes of linked GPUs, without a switch.


def hops(rings):
    return Counter((sender, receiver) for ring in rings for sender, receiver, _ in around(ring))


@pytest.mark.parametrize(("gpus", "rings"), [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (8, 7)])
def test_rings_of_linked_gpus_share_no_link(gpus, rings):
    mesh = fabric(1, gpus, "direct", nvlink={"bandwidth": "1 GB/s"})
    found = channels_of(mesh, range(gpus))
    assert [sorted(ring) for ring in found] == [[*range(gpus)]] * rings
    assert hops(found).most_common(1)[0][1] == 1


def test_a_dgx1_has_rings_on_all_nvlinks():
    cube = fabric_of(load(SCENARIOS / "dgx1_cube_mesh.yaml"))
    assert channels_of(cube, range(8)) == [[*range(8)]]  # of textbooks
    found = channels_of(cube, range(8), tuned=True)
    assert len(found) == 6  # as NCCL on these eight V100s, with six NVLinks each
    lanes = {ends: cube.links[cube.route(*ends).links[0]].bandwidth // (25 * 10**9) for ends in hops(found)}
    assert hops(found) == lanes
    assert sum(lanes.values()) == 8 * 6


def test_channels_cross_a_mesh_on_paths_of_their_own():
    mesh = fabric(2, 8, "direct", nvlink={"bandwidth": "1 GB/s"})
    inside = {(a, b): count for (a, b), count in hops(channels_of(mesh, range(16))).items() if a // 8 == b // 8}
    assert len(inside) == 2 * 8 * 7
    assert set(inside.values()) == {1}


@pytest.mark.parametrize(("gpus", "rings"), [(3, 2), (5, 4), (8, 7)])
def test_rings_of_a_mesh_add_up_to_its_links(gpus, rings):
    """2(n−1) steps, of a latency and of a message of an n-th of a channel's share over one link."""
    links = {"bandwidth": f"{64 * (gpus - 1)} GB/s", "latency": "1.5 us"}  # of a GPU, all of its links
    mesh = fabric(1, gpus, "direct", nvlink=links)
    found = replayed(mesh, "ring", [range(gpus)], gpus * rings * 32_000)
    assert found.duration == 2 * (gpus - 1) * (3 * US // 2 + US)  # 64 kB over 64 GB/s: 1 µs


@settings(max_examples=20 * TIMES)
@given(
    nodes=st.sampled_from([4, 6, 8, 9]),
    gpus=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2]),
    topology=st.sampled_from(["nodes", "leaf-spine", "rails"]),
    sharing=st.sampled_from(["fifo", "fair"]),
    nics=st.sampled_from([1, 8]),
    name=st.sampled_from(["ring", "ring-all-gather", "ring-reduce-scatter"]),
)
def test_folded_rings_take_as_long_as_whole_ones(nodes, gpus, tensor, topology, sharing, nics, name):
    machine = fabric(nodes, gpus, topology, sharing, nics)
    tensor = min(tensor, gpus)
    groups = [range(first, nodes * gpus, tensor) for first in range(tensor)]
    rings = [ring for ranks in groups for ring in channels_of(machine, ranks)]
    members = nodes * gpus // tensor
    assert representatives(machine, rings) == (3 if nodes == 9 else 2) * gpus // tensor < members
    elements = 100 * members * gpus
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective_times, "LONG", 1)
        found = replayed(machine, name, groups, elements, sharing)
    assert found == whole(machine, name, groups, elements, sharing)


def test_padding_of_folded_shards_is_not_sent():
    machine = fabric(16, 2)
    found = replayed(machine, "ring-all-gather", [range(32)], 1001)
    assert found.bytes == 31 * 2 * 1001
    assert found.messages == 2 * 32 * 31


@pytest.mark.parametrize("kinds", [[{"count": 7}, {"infiniband": {"bandwidth": "1 GB/s"}}], [{"count": 8}]])
def test_rings_over_different_nodes_are_not_folded(kinds):
    groups = [range(16)]
    machine = fabric_of(
        scenarios.scenario("1f1b", 1, 1, 16, cluster={"nodes": kinds, "gpus_per_node": 2, "topology": "nodes"})
    )
    rings = channels_of(machine, groups[0])
    assert representatives(machine, rings) == (16 if len(kinds) == 2 else 4)


def test_groups_that_are_connected_alike_share_a_simulation(monkeypatch):
    measured = []

    def counted(*arguments, **more):
        measured.append(arguments)
        return run_collective(*arguments, **more)

    monkeypatch.setattr(long_rings, "run_collective", counted)
    machine = fabric(4, 4)
    asked = CollectiveTimes(machine, Layout({"data": 16}, ("data",)))
    found = [asked("ring", 1000, ranks) for ranks in ([0, 1, 2, 3], range(4, 8), [3, 1, 2, 0])]
    assert found[0] == found[1] == found[2] == CollectiveTimes(machine, asked.layout)("ring", 1000, range(8, 12))
    assert len(measured) == 2
    assert asked("ring", 1000, [0, 4, 8, 12]).duration > found[0].duration
    assert asked("ring-all-gather", 1000, [0, 1, 2, 3]).duration < found[0].duration
    assert len(measured) == 4


@pytest.mark.parametrize("topology", ["nodes", "rails", "leaf-spine"])
@pytest.mark.parametrize("nics", [1, 2, 8])
def test_groups_in_other_blocks_share_their_channels(topology, nics):
    """Found once for all of a form, which tells apart whose members sit elsewhere, or together."""
    whole, alone = (fabric(4, 8, topology, nics=nics) for _ in range(2))
    for ranks in [(0, 1, 8, 9), (16, 17, 24, 25), (0, 8, 1, 9), (0, 4, 8, 12), (0, 1, 2, 8), (8, 0, 1, 9), range(32)]:
        site = Site(whole, ranks, ())
        assert site.orders(None, tuned=True) == orders(alone, ranks, None, tuned=True)
        assert tuned(site, Channels()) == wiring_of(alone, ranks, len(orders(alone, ranks, None, tuned=True)))
    assert Site(whole, (0, 1, 8, 9), ()).orders(None, tuned=True) is Site(whole, (16, 17, 24, 25), ()).orders(
        None, tuned=True
    )
    changed = replace(whole, links=alone.links)
    assert not changed.found
