"""Topologies: routes are connected, and sharing halves or doubles exactly what it should."""

from fractions import Fraction
from itertools import pairwise, permutations

import pytest
from support.fabrics import NETWORK, NVLINK, PCIE, US, build, node, star
from support.messages import GB, MS, carry

from hybrid_des.cluster import topologies
from hybrid_des.cluster.fabric import NodeSpec, PortSpec

CASES = {
    "nodes": [{}],
    "rails": [{}, {"cross_rail": "spine"}, {"cross_rail": "spine", "oversubscription": Fraction(3)}],
    "leaf-spine": [{}, {"leaf_size": 2, "oversubscription": Fraction(4)}],
    "pcie": [{"pcie": PCIE}, {"pcie": PCIE, "gpus_per_switch": 2}, {"pcie": PCIE, "gpus_per_switch": 3}],
    "links": [{"links": star(8)}],
}
FABRICS = [
    pytest.param(name, nics, options, id=f"{name}-{nics} NICs-{','.join(options)}")
    for name in topologies.names()
    for options in CASES.get(name, [{}])
    for nics in (1, 2, 4)
]


@pytest.mark.parametrize(("name", "nics", "options"), FABRICS)
def test_every_route_is_connected_from_sender_to_receiver(name, nics, options):
    fabric = build(name, node(4, nics), node(4, nics), **options)
    assert fabric.gpus == 8
    assert fabric.node_of == (0,) * 4 + (1,) * 4
    assert all(name == link.name for name, link in fabric.links.items())
    used = set()
    for sender, receiver in permutations(range(8), 2):
        route = fabric.route(sender, receiver)
        assert route == fabric.route(sender, receiver)
        assert len(route.latencies) == len(route.links) == len(set(route.links))
        path = [fabric.links[name] for name in route.links]
        at_ends = (path[0].source, f"gpu{sender}"), (path[-1].target, f"gpu{receiver}")
        assert all(point == gpu or "/nic" in point for point, gpu in at_ends)
        for link, further in pairwise(path):  # a GPU that hands a message to its NIC is no link
            assert link.target == further.source or (link.target.startswith("gpu") and "/nic" in further.source)
        used.update(route.links)
    idle = {"leaf0/up", "leaf0/down"} if options.get("leaf_size") == 2 else set()  # both nodes are on leaf 0
    if nics == 4:
        assert used | idle == set(fabric.links)


@pytest.mark.parametrize(("name", "nics", "options"), FABRICS)
def test_latency_is_counted_once_and_is_symmetric(name, nics, options):
    fabric = build(name, node(4, nics), node(4, nics), **options)
    for sender, receiver in permutations(range(8), 2):
        route = fabric.route(sender, receiver)
        assert route.latency == fabric.route(receiver, sender).latency
        same = fabric.node_of[sender] == fabric.node_of[receiver]
        if name in ("nodes", "leaf-spine", "pcie", "mesh", "direct"):
            assert route.latency == ((PCIE.port if name == "pcie" else NVLINK) if same else NETWORK).latency
        if name == "rails":
            handed_on = "nvlink" in route.links[0] and not same
            assert route.latency == (same or handed_on) * NVLINK.latency + (not same) * NETWORK.latency


@pytest.mark.parametrize("name", [name for name in topologies.names() if name not in ("links", "mesh", "direct")])
def test_links_grow_with_gpus_not_with_their_pairs(name):
    fabric = build(name, *[node(8)] * 256, **CASES.get(name, [{}])[0])
    assert len(fabric.links) <= 5 * 2048


def test_counts_of_links():
    nodes = [node(8, 4)] * 4
    assert len(build("direct", *nodes).links) == 4 * (8 * 7 + 2 * 4)
    assert len(build("nodes", *nodes).links) == 2 * (32 + 16)
    assert len(build("rails", *nodes).links) == 2 * (32 + 16)
    assert len(build("rails", *nodes, cross_rail="spine").links) == 2 * (32 + 16 + 4)
    assert len(build("leaf-spine", *nodes, leaf_size=2).links) == 2 * (32 + 16 + 2)
    assert len(build("leaf-spine", *nodes, leaf_size=3).links) == 2 * (32 + 16 + 2)
    assert len(build("pcie", *nodes, pcie=PCIE, gpus_per_switch=4).links) == 2 * (32 + 16 + 8)
    assert len(build("pcie", *nodes, pcie=PCIE, gpus_per_switch=8).links) == 2 * (32 + 16)  # one switch a node: no root
    assert len(build("ring", *nodes).links) == 2 * 32
    assert len(build("mesh", *nodes).links) == 32 * 31
    assert [len(build("ring", node(gpus)).links) for gpus in (1, 2, 3)] == [0, 2, 6]


# When has everybody's gigabyte arrived? Latencies are left out, so that times are those of bandwidth.
FREE = {"nvlink": PortSpec(Fraction(100 * GB), 0), "network": PortSpec(Fraction(10 * GB), 0)}


def last(fabric, *pairs, size=GB):
    return max(carry(fabric, [(0, *pair, size) for pair in pairs])[0])


@pytest.mark.parametrize("name", ["nodes", "rails", "leaf-spine"])
def test_two_gpus_sharing_a_nic_take_twice_as_long(name):
    pairs = [(gpu, gpu + 4) for gpu in range(4)]
    time_with = {nics: last(build(name, node(4, nics, **FREE), node(4, nics, **FREE)), *pairs) for nics in (4, 2, 1)}
    assert time_with == {4: 100 * MS, 2: 200 * MS, 1: 400 * MS}


def test_gpus_under_one_nic_are_the_ones_that_wait():
    fabric = build("nodes", node(4, 2, **FREE), node(4, 2, **FREE))
    assert last(fabric, (0, 4), (1, 6)) == 200 * MS  # both use NIC 0 of their node
    assert last(fabric, (0, 4), (2, 6)) == 100 * MS
    assert last(fabric, (0, 4), (2, 5)) == 200 * MS  # NICs 0 and 2 out, NIC 0 in
    assert last(fabric, (0, 4), (4, 0)) == 100 * MS  # both ways at once
    assert last(fabric, (0, 1), (0, 4)) == 100 * MS  # NVLink and NIC are different ports


@pytest.mark.parametrize("factor", [1, 2, 3, 4, Fraction(1, 2)])
def test_oversubscription_stretches_what_crosses_the_spine_by_its_factor(factor):
    four = [node(4, **FREE)] * 4
    fabric = build("leaf-spine", *four, leaf_size=2, oversubscription=Fraction(factor))
    across = [(gpu, gpu + 8) for gpu in range(8)]
    assert last(fabric, *across) == 100 * MS * max(factor, 1)
    within = [(gpu, gpu + 4) for gpu in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert last(fabric, *within) == 100 * MS
    alone = last(fabric, (0, 8))
    assert alone == 100 * MS  # one sender has the whole way up to itself


def test_rails_keep_apart_what_a_shared_leaf_brings_together():
    nodes = [node(4, **FREE)] * 2
    straight = [(gpu, gpu + 4) for gpu in range(4)]
    crossed = [(gpu, 4 + (gpu + 1) % 4) for gpu in range(4)]
    onto_one = [(gpu, 4) for gpu in range(4)]
    spine = {"cross_rail": "spine", "oversubscription": Fraction(2)}
    for options in ({}, spine):
        assert last(build("rails", *nodes, **options), *straight) == 100 * MS
        assert last(build("rails", *nodes, **options), *onto_one) == 400 * MS  # the receiver's port is one
    assert last(build("rails", *nodes), *crossed) == 100 * MS  # NVLink, then a rail for each
    # a rail has a NIC in each of two nodes: 20 GB/s below, 10 above; one sender a rail does not fill it …
    assert last(build("rails", *nodes, **spine), *crossed) == 100 * MS
    # … both directions at once do not meet, and two nodes' worth does
    back = [(receiver, sender) for sender, receiver in crossed]
    assert last(build("rails", *nodes, **spine), *crossed, *back) == 200 * MS
    assert last(build("rails", *nodes, cross_rail="spine"), *crossed, *back) == 100 * MS


def test_across_rails_a_message_crosses_nvlink_first():
    fabric = build("rails", node(4), node(4))
    assert fabric.route(0, 6).links == (
        "node0/gpu0/nvlink-out", "node0/gpu2/nvlink-in", "node0/nic2/out", "node1/nic2/in",
    )  # fmt: skip
    assert fabric.route(0, 6).latency == NVLINK.latency + NETWORK.latency
    assert build("rails", node(4), node(4), cross_rail="spine").route(0, 6).links == (
        "node0/nic0/out", "rail0/up", "rail2/down", "node1/nic2/in",
    )  # fmt: skip
    shared = build("rails", node(4, 2), node(4, 2))
    assert shared.route(0, 5).links == ("node0/nic0/out", "node1/nic0/in")
    small = build("rails", node(2, 2), node(4, 2))
    assert small.route(0, 5).links[:2] == ("node0/gpu0/nvlink-out", "node0/gpu1/nvlink-in")


def test_gpus_sharing_a_pcie_uplink_wait():
    fabric = build("pcie", node(4, 2, **FREE), node(4, 2, **FREE), pcie=PCIE, gpus_per_switch=2)
    assert last(fabric, (0, 1)) == last(fabric, (0, 2)) == 50 * MS + 2 * US
    assert last(fabric, (0, 1), (2, 3)) == 50 * MS + 2 * US  # under their own switches
    assert last(fabric, (0, 2), (1, 3)) == 100 * MS + 2 * US  # one way up
    assert last(fabric, (0, 4)) == 100 * MS  # the NIC's 10 GB/s
    # a message in the node and one between nodes share GPU 0's port out: 50 ms each; the second one's head leaves
    # then, and its NIC takes 100
    assert carry(fabric, [(0, 0, 1, GB), (0, 0, 4, GB)])[0] == [50 * MS + 2 * US, 150 * MS]


def test_a_nic_on_another_switch_is_reached_through_the_root():
    fabric = build("pcie", node(4, 1), node(4, 1), pcie=PCIE, gpus_per_switch=2)
    assert fabric.route(2, 6).links == (
        "node0/gpu2/pcie-out", "node0/switch1/up", "node0/switch0/down", "node0/nic0/out",
        "node1/nic0/in", "node1/switch0/up", "node1/switch1/down", "node1/gpu2/pcie-in",
    )  # fmt: skip
    near = build("pcie", node(4, 2), node(4, 2), pcie=PCIE, gpus_per_switch=2)
    assert len(near.route(2, 6).links) == 4


def test_a_ring_is_walked_the_shorter_way():
    fabric = build("ring", node(6))
    assert fabric.route(0, 2).links == ("gpu0/to/gpu1", "gpu1/to/gpu2")
    assert fabric.route(0, 4).links == ("gpu0/to/gpu5", "gpu5/to/gpu4")
    assert fabric.route(1, 4).links[0] == "gpu1/to/gpu2"  # as long both ways: upwards
    assert fabric.route(5, 0).links == ("gpu5/to/gpu0",)
    assert fabric.route(0, 2).latency == 2 * NVLINK.latency
    two = build("ring", node(2), node(2))
    assert [two.links[name].bandwidth for name in two.route(0, 2).links] == [300 * GB, 25 * GB]


def test_in_a_mesh_no_two_streams_meet():
    everybody = [(gpu, (gpu + turn) % 6) for turn in range(1, 6) for gpu in range(6)]
    assert last(build("mesh", node(6, **FREE)), *everybody) == 10 * MS
    assert last(build("nodes", node(6, **FREE)), *everybody) == 50 * MS  # the sender's own port: five messages


@pytest.mark.parametrize("name", ["nodes", "rails", "leaf-spine", "pcie"])
def test_a_direct_all_to_all_never_beats_the_senders_ports(name):
    nodes = [node(2, 1, **FREE)] * 3
    fabric = build(name, *nodes, **CASES.get(name, [{}])[0])
    everybody = list(permutations(range(6), 2))
    # each NIC sends 2 · 4 messages over 10 GB/s
    assert last(fabric, *everybody) >= 800 * MS
    assert last(fabric, *everybody, size=GB // 100) >= 8 * MS


def test_nodes_may_differ():
    slow = node(2, 1, PortSpec(Fraction(50 * GB), 3 * US), PortSpec(Fraction(5 * GB), 9 * US))
    fabric = build("nodes", node(4, 4), slow, node(1))
    assert fabric.node_of == (0, 0, 0, 0, 1, 1, 2)
    assert fabric.route(5, 4).latency == 3 * US
    assert fabric.route(3, 5).links == ("node0/nic3/out", "node1/nic0/in")
    assert fabric.route(3, 5).latency == 9 * US  # the slower end's
    assert fabric.route(3, 6).latency == NETWORK.latency
    assert last(fabric, (3, 5)) == 200 * MS + 9 * US
    assert build("ring", node(1), slow).links["gpu0/to/gpu1"].bandwidth == 5 * GB


@pytest.mark.parametrize("name", ["nodes", "rails", "leaf-spine"])
def test_nvswitches_that_add_up_have_places_behind_the_gpus(name):
    adding = NodeSpec(4, NVLINK, NETWORK, 4, in_switch=True)
    fabric = build(name, node(4), adding, adding)
    assert fabric.reducers == {1: 13, 2: 14}
    assert fabric.route(5, 13).links == ("node1/gpu1/nvlink-out",)
    assert fabric.route(14, 8).links == ("node2/gpu0/nvlink-in",)
    assert fabric.route(5, 13).latency + fabric.route(13, 5).latency == NVLINK.latency
    assert build(name, node(4), node(4)).reducers == {}


def test_leaves_of_differing_nodes_have_the_bandwidth_below_them():
    half = node(4, 2, **FREE)
    fabric = build("leaf-spine", node(4, **FREE), half, half, leaf_size=2, oversubscription=Fraction(3))
    assert fabric.links["leaf0/up"].bandwidth == 60 * GB / 3
    assert fabric.links["leaf1/down"].bandwidth == Fraction(20 * GB, 3)
    free = PortSpec(None, 0)
    assert build("leaf-spine", node(network=free)).links["leaf0/up"].bandwidth is None
