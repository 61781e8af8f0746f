"""Groups that share no link are simulated once for all that are alike; what shares a link stays together."""

from dataclasses import replace

import pytest
from support.fabrics import build, node, star

from hybrid_des.cluster.components import Isomorphic, independent_sets
from hybrid_des.cluster.fabric import PortSpec


def nodes(count, **one):
    return [node(**one)] * count


def sets(fabric, groups, does=None):
    return [(list(one.groups), one.sets) for one in independent_sets(fabric, groups, does or [1] * len(groups))]


def test_groups_with_adapters_of_their_own_are_alike():
    fabric = build("nodes", *nodes(4, gpus=2))
    assert sets(fabric, [(0, 2), (1, 3), (4, 6), (5, 7)]) == [([0], 4)]


def test_groups_that_share_an_adapter_stay_together():
    fabric = build("nodes", *nodes(4, gpus=2, nics=1))
    assert sets(fabric, [(0, 2), (1, 3), (4, 6), (5, 7)]) == [([0, 1], 2)]


def test_groups_within_a_node_do_not_meet_those_between_nodes():
    fabric = build("nodes", *nodes(2, gpus=4, nics=1))
    assert sets(fabric, [(0, 1), (2, 3), (4, 5), (6, 7), (0, 4)]) == [([0], 4), ([4], 1)]


def test_what_groups_do_tells_them_apart():
    fabric = build("nodes", *nodes(2, gpus=4))
    assert sets(fabric, [(0, 4), (1, 5), (2, 6), (3, 7)], [7, 7, 9, 7]) == [([0], 3), ([2], 1)]


def test_the_order_of_members_tells_groups_apart():
    fabric = build("nodes", *nodes(4, gpus=2, nics=1))
    assert sets(fabric, [(0, 1, 2), (4, 5, 6)]) == [([0], 2)]
    assert sets(fabric, [(0, 1, 2), (4, 6, 7)]) == [([0], 1), ([1], 1)]


def test_members_on_adapters_that_others_share_are_not_alike():
    fabric = build("nodes", *nodes(2, gpus=4, nics=2))
    assert sets(fabric, [(0, 4), (1, 2, 5, 6)]) == [([0, 1], 1)]
    assert sets(fabric, [(0, 1, 4, 5), (2, 3, 6, 7)]) == [([0], 2)]


def test_a_spine_joins_all_that_cross_it():
    fabric = build("rails", *nodes(2, gpus=2), cross_rail="spine")
    assert sets(fabric, [(0, 2), (1, 3)]) == [([0], 2)]
    assert sets(fabric, [(0, 3), (1, 2)]) == [([0, 1], 1)]


def test_leaves_are_exchanged_with_all_their_nodes():
    fabric = build("leaf-spine", *nodes(8, gpus=1), leaf_size=2, oversubscription=4)
    assert sets(fabric, [(0, 2), (4, 6)]) == [([0], 2)]
    assert sets(fabric, [(0, 2), (1, 3)]) == [([0, 1], 1)]
    assert sets(fabric, [(0, 1), (2, 3), (4, 6)]) == [([0], 2), ([2], 1)]


def test_the_switch_of_a_node_belongs_to_its_group():
    spec = replace(node(gpus=4), in_switch=True)
    fabric = build("nodes", spec, spec)
    assert sets(fabric, [(0, 1, 8), (2, 3, 8), (6, 7, 9)]) == [([0], 3)]
    assert sets(fabric, [(0, 1, 9), (2, 3, 8)]) == [([0, 1], 1)]  # the switch of another node


@pytest.mark.parametrize(
    "fabric",
    [
        build("links", *nodes(2, gpus=2), links=star(4)),
        build("ring", *nodes(2, gpus=2)),
        build("nodes", node(gpus=2), node(gpus=2, network=PortSpec(None, 0))),
    ],
    ids=["links", "ring", "unequal nodes"],
)
def test_without_equal_blocks_all_groups_are_one_set(fabric):
    assert independent_sets(fabric, [(0, 1), (2, 3)], [1, 1]) == [Isomorphic(range(2), 1)]
