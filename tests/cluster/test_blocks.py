"""Exchanging equal blocks of GPUs takes routes to routes, as wirings say of themselves."""

import re
from random import Random

import numpy as np
import pytest
from support.fabrics import PCIE, build, node

from hybrid_des.cluster.connections import in_blocks, unlike_pairs

CASES = [
    ("nodes", 1, {}),
    ("rails", 1, {}),
    ("rails", 1, {"cross_rail": "spine"}),
    ("leaf-spine", 3, {"leaf_size": 3}),
    ("pcie", 1, {"pcie": PCIE, "gpus_per_switch": 2}),
]


@pytest.mark.parametrize(("name", "nodes", "options"), CASES)
def test_exchanged_blocks_take_routes_to_routes(name, nodes, options):
    kind = node()
    fabric = build(name, *(kind,) * 12, **options)
    size, rng = nodes * 4, Random(1)
    assert fabric.blocks.size == size
    for _ in range(5):
        order = rng.sample(range(12 // nodes), 12 // nodes)

        def gpu(number, order=order):
            return order[number // size] * size + number % size

        def link(name, order=order):
            """The same link of the block in the place of its own."""
            owner, number = re.match(r"(\D+)(\d+)/", name).groups()
            block = fabric.blocks.of(name)
            if block is None:
                assert owner == "rail"
                return name
            here = int(number)
            there = order[block] if owner == "leaf" else order[block] * nodes + here % nodes
            assert block == (here if owner == "leaf" else here // nodes)
            return name.replace(f"{owner}{here}/", f"{owner}{there}/", 1)

        for sender in range(0, 48, 5):
            for receiver in set(range(48)) - {sender}:
                route, image = fabric.route(sender, receiver), fabric.route(gpu(sender), gpu(receiver))
                assert image.links == tuple(map(link, route.links))
                assert image.latencies == route.latencies
                assert [fabric.links[one].bandwidth for one in image.links] == [
                    fabric.links[one].bandwidth for one in route.links
                ]


@pytest.mark.parametrize(("name", "nodes", "options"), CASES)
def test_of_pairs_one_of_each_form_is_kept(name, nodes, options):
    fabric, rng = build(name, *(node(),) * 12, **options), Random(2)
    pairs = [tuple(rng.sample(range(48), 2)) for _ in range(200)]
    kept = unlike_pairs(fabric, *np.array(pairs).T)
    assert set(kept) <= set(pairs)
    assert sorted(in_blocks(fabric, pair) for pair in kept) == sorted({in_blocks(fabric, pair) for pair in pairs})


def test_every_pair_is_kept_without_blocks():
    fabric = build("nodes", node(), node(gpus=2))
    assert unlike_pairs(fabric, np.array([0, 1]), np.array([1, 4])) == [(0, 1), (1, 4)]


def test_unlike_nodes_make_no_blocks():
    assert build("nodes", node(), node(gpus=2)).blocks is None
    assert build("nodes", *(node() for _ in range(4))).blocks is None  # equal, but not the same object
    kind = node()
    assert build("leaf-spine", *(kind,) * 5, leaf_size=2).blocks is None  # the last leaf is half full


def test_links_by_owner_are_those_of_the_whole_table():
    kind = node()
    fabric = build("leaf-spine", *(kind,) * 4, leaf_size=2)
    every = dict(fabric.links.items())
    assert len(fabric.links) == len(every) == 4 * 16 + 4
    assert all(fabric.links[name] == spec and spec.name == name for name, spec in every.items())
    for unknown in ("node4/nic0/out", "nodes/nic0/out", "leaf2/up", "node0/nic9/out", "hub"):
        assert unknown not in fabric.links
