"""NCCL on nodes whose GPUs are linked pair by pair: as many rings as the links allow, which share them if need be.

Four A100s with four NVLinks between each two, as in JUWELS Booster, reach what a switch with all twelve gives.
"""

from collections import Counter

import pytest

from hybrid_des.cluster.connections import around
from hybrid_des.cluster.rings import channels
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.tuning import wiring_of
from hybrid_des.planning.wiring import fabric_of

FP32 = codecs.find("fp32").build()


def machine(gpu, gpus, topology="direct", nodes=1, **more):
    return fabric_of({
        "cluster": {"gpu": gpu, "nodes": nodes, "gpus_per_node": gpus, "topology": topology, **more},
        "parallel": {"data": 2}, "schedule": {"kind": "gpipe", "microbatches": 1},
        "workload": {"forward": 0, "backward": 0},
    })  # fmt: skip


def used(rings):
    return Counter((sender, receiver) for ring in rings for sender, receiver, _ in around(ring))


@pytest.mark.parametrize(
    ("gpus", "rings", "times"), [(2, 1, 1), (3, 2, 1), (4, 6, 2), (5, 4, 1), (6, 10, 2), (8, 7, 1)]
)
def test_rings_use_all_links_and_all_equally(gpus, rings, times):
    """Of four GPUs only two rings share no link, and of six four (Tillson); six and ten pass every link twice."""
    found = channels(machine("a100-40gb", gpus), range(gpus), tuned=True)
    assert len(found) == rings
    assert all(sorted(ring) == [*range(gpus)] for ring in found)
    assert used(found) == {(a, b): times for a in range(gpus) for b in range(gpus) if a != b}


def test_textbook_rings_share_no_link():
    assert len(channels(machine("a100-40gb", 4), range(4))) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_few_rings_have_links_of_their_own(count):
    mesh = machine("a100-40gb", 4)
    found = channels(mesh, range(4), count, tuned=True)
    assert max(used(found).values()) == 1
    assert wiring_of(mesh, range(4), count).rate == 80 * 10**9  # four links of 20 GB/s


@pytest.mark.parametrize(("gpu", "port", "counted"), [
    ("a100-40gb", 300, 20), ("v100-16gb", 150, 20),  # GB/s per link that topo.h counts on
])  # fmt: skip
def test_meshes_of_four_are_as_fast_as_a_switch(gpu, port, counted):
    """All links of a GPU carry rings: 3 · 4 or 3 · 2 of 25 GB/s."""
    mesh, switch = (machine(gpu, 4, topology) for topology in ("direct", "nodes"))
    known = wiring_of(mesh, range(4), 6)
    assert known.rate * known.channels == port // 25 * counted * 10**9
    times = [measure(fabric, "nccl", [range(4)], lambda *_: Buffer(2**26, FP32)).duration for fabric in (mesh, switch)]
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_channels_over_several_nodes_have_links_of_their_own():
    mesh = machine("a100-40gb", 4, nodes=3, infiniband={"bandwidth": "800 Gb/s", "nics_per_node": 4})
    assert wiring_of(mesh, range(12), 4).rate == 80 * 10**9


def test_two_nodes_of_meshes_take_trees():
    """Two nodes of four V100s, two NVLinks between each two, two adapters: 41.55 GB/s (nccl-tests, issue 251)."""
    mesh = machine("v100-16gb", 4, nodes=2, infiniband={"bandwidth": "100 Gb/s", "nics_per_node": 2})
    run = measure(mesh, "nccl", [range(8)], lambda *_: Buffer(2**28, FP32))
    assert 2**30 * 1000 / run.duration * 7 / 4 == pytest.approx(41.55, rel=0.15)
