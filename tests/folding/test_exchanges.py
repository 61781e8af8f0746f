"""Exchanges of tokens alone: one member takes as long as all, where experts are equally wanted."""

from random import Random

import numpy as np
import pytest

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.permutation import Permutation
from hybrid_des.collectives.token_exchange import TokenExchange
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.errors import Refusal
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from

BOTH = ("per-node-dispatch", "per-node-combine")
WORKLOAD = {"schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": 0, "backward": 0}}
SHAPES = [(1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (3, 3), (4, 2), (4, 4)]  # nodes, and members on each
TOPOLOGIES = ({}, {}, {"topology": "rails"}, {"topology": "leaf-spine", "leaf_size": 2, "oversubscription": 4})
SEEDS = range(50)  # once 6,000: all alike


def wiring(random, count, members, sharing):
    """The wiring of some nodes, with as many GPUs as members on a node, or more."""
    gpus = members + random.choice([0, 0, 1])
    adapters = random.choice([1, gpus])
    topology = random.choice(TOPOLOGIES) if adapters == gpus else {}
    cluster = {
        "nodes": 2 * count,
        "gpus_per_node": gpus,
        "nvlink": {"bandwidth": f"{random.choice([2, 5, 9])} GB/s", "latency": f"{random.randrange(900)} ns"},
        "infiniband": {"bandwidth": "1 GB/s", "latency": f"{random.choice([0, 700])} ns", "nics_per_node": adapters},
    }
    values = {"cluster": {**cluster, **topology, "sharing": sharing}, "parallel": {"data": 2 * count * gpus}}
    scenario = scenario_from({**values, **WORKLOAD})
    return parts_of(scenario).fabric, scenario.parallel.layout, gpus


def asked(seed):
    """A random exchange in a group: its wiring, sharing, ranks, bytes and options."""
    random = Random(seed)
    (count, members), sharing = random.choice(SHAPES), random.choice(["fifo", "fifo", "fair"])
    fabric, layout, gpus = wiring(random, count, members, sharing)
    first, experts = random.randrange(count), count * members * random.choice([1, 2])
    ranks = [(first + node) * gpus + seat for node in range(count) for seat in range(members)]
    if random.random() < 0.1:
        random.shuffle(ranks)
    loads = tuple(random.choice([1.0, 1.5]) for _ in range(experts)) if random.random() < 0.2 else ()
    channels = random.choice([None, None, 1, members])
    options = TokenExchange(experts=experts, active=min(2, experts), loads=loads, channels=channels)
    size = random.choice([1, 999, 2**20, 10**7])
    return fabric, layout, sharing, ranks, size, options


@pytest.fixture
def orders(monkeypatch):
    """How many ranks each simulated one stands for, of all exchanges that are simulated."""
    seen, run = [], CollectiveTimes._run

    def watched(self, name, concurrent, groups, fold, limit):
        outcome = run(self, name, concurrent, groups, fold, limit)
        seen.append(1 if fold is None else fold.order)
        return outcome

    monkeypatch.setattr(CollectiveTimes, "_run", watched)
    return seen


def whole(name, fabric, sharing, ranks, size, options):
    """The same with all members."""
    buffer = Buffer(-(-size // 2), codecs.find("bf16").build())
    return measure(fabric, name, [ranks], lambda group, member: buffer, options=options, sharing=sharing)


@pytest.mark.parametrize("name", BOTH)
def test_few_members_take_as_long_as_all(orders, name):
    for seed in SEEDS:
        fabric, layout, sharing, ranks, size, options = asked(seed)
        times = CollectiveTimes(fabric, layout, sharing)
        assert times(name, size, ranks, options) == whole(name, fabric, sharing, ranks, size, options), f"seed {seed}"
    assert len(orders) == len(SEEDS)
    assert sum(order > 1 for order in orders) > len(SEEDS) / 3
    assert max(orders) == 16


def why_not(places, nodes, image_nodes=None, **options):
    """How the members of an exchange differ from their images."""
    seated = Permutation(np.array(places), nodes, image_nodes or nodes, [])
    return collectives.asymmetry("per-node-dispatch", seated, TokenExchange(**{"experts": 8, "active": 2, **options}))


ON_TWO = (0, 0, 4, 4)  # the node of each member
ON_THREE = (0, 0, 2, 2, 4, 4)
# a token's experts are one of six pairs; all members have halves of two, the first node of two pairs, others of three
OF_PAIRS = {"experts": 12, "groups": 6, "placed": ((0, 2), (1, 3), (4, 6), (5, 8), (7, 10), (9, 11))}
UNEQUAL = {"loads": (2.0, 0.5, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0)}


@pytest.mark.parametrize("places", [(2, 3, 0, 1), (1, 0, 3, 2), (3, 2, 1, 0)])
def test_nodes_and_members_of_all_nodes_are_rotated(places):
    assert why_not(places, ON_TWO) == why_not(places, ON_TWO, channels=None) == ""


@pytest.mark.parametrize(
    ("places", "nodes", "options", "reason"),
    [
        ((1, 0, 2, 3), ON_TWO, {}, "the members of nodes are not rotated in the same way"),
        ((2, 1, 0, 3), ON_TWO, {}, "the members of nodes are not rotated in the same way"),
        ((1, 2, 0, 3), (0, 0, 0, 3), {}, "not all nodes have as many members"),
        ((1, 0, 3, 2), ON_TWO, {"channels": 1}, "not all members take in tokens from other nodes"),
        ((2, 3, 0, 1), ON_TWO, UNEQUAL, "experts are not equally wanted"),
        ((2, 3, 4, 5, 0, 1), ON_THREE, OF_PAIRS, "experts are not equally wanted"),
        ((1, 0), (0, 0), {"loads": (2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0)}, "experts are not equally wanted"),
    ],
)
def test_members_differ(places, nodes, options, reason):
    assert why_not(places, nodes, **options) == reason


def test_channels_do_not_tell_nodes_apart():
    assert why_not((2, 3, 0, 1), ON_TWO, channels=1) == ""


def test_members_that_stay_do_the_same_whatever_experts_are_wanted():
    assert why_not((0, 1, 2, 3), ON_TWO, (7, 7, 9, 9), **UNEQUAL) == ""
    assert why_not((0, 1, 2, 3), ON_TWO, (7, 9, 7, 9)) == "the members of nodes are not rotated in the same way"


def test_fold_off_simulates_all(orders):
    fabric, layout, sharing, ranks, size, _ = asked(5)
    CollectiveTimes(fabric, layout, sharing, folded=False)(BOTH[0], size, ranks, TokenExchange(experts=len(ranks) * 2))
    assert orders == [1]


@pytest.mark.parametrize("seed", [3, 8, 12])
def test_exchanges_on_one_network_are_as_on_new_ones(seed):
    random = Random(seed)
    fabric, layout, gpus = wiring(random, 2, 3, "fifo")
    ranks = [node * gpus + seat for node in range(2) for seat in range(3)]
    times = CollectiveTimes(fabric, layout, folded=False)
    for number in range(5):
        loads = tuple(random.choice([0.5, 0.9, 1.3]) for _ in range(12))
        exchange = BOTH[number % 2], random.choice([999, 2**21, 10**7]), ranks, TokenExchange(experts=12, loads=loads)
        assert times(*exchange) == CollectiveTimes(fabric, layout, folded=False)(*exchange)
        if number == seed % 4:  # what fails leaves events behind
            with pytest.raises(Refusal):
                times(*exchange[:3], TokenExchange(experts=13))
