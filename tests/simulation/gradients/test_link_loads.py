"""The least time of a collective by what its links carry: never more than it takes, and what `auto` need not try."""

from random import Random

import pytest

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.cost_model import link_loads
from hybrid_des.cost_model.collective_times import CollectiveTimes, Concurrent
from hybrid_des.errors import Refusal
from hybrid_des.layout import Layout
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import scenario_from

BF16 = codecs.find("bf16").build()
SENDING = ("double-binary-tree", "halving-doubling", "hierarchical", "parameter-server", "recursive-doubling", "ring")


def fabric_from(nodes, width, *, wan=None, **cluster):
    """Nodes of so many GPUs, each with an adapter; two sites with a link between them if `wan` says so."""
    ports = {"bandwidth": "50 GB/s", "latency": "5 us", "nics_per_node": width}
    cluster |= {"gpu": "h100", "nodes": nodes, "gpus_per_node": width, "infiniband": ports}
    if wan is not None:
        halves = range(nodes // 2), range(nodes // 2, nodes)
        cluster |= {"sites": [{"nodes": [*half]} for half in halves], "wan": wan}
    return fabric_of(
        scenario_from(
            {
                "cluster": cluster,
                "parallel": {"data": nodes * width},
                "schedule": {"kind": "gpipe", "microbatches": 1},
                "workload": {"forward": 0, "backward": 0, "parameters": 1},
            }
        )
    )


def bound(fabric, name, groups, elements, options=None):
    """The least time, however many act in the simulation."""
    site = [collectives.process_group(name, collectives.Site(fabric, ranks, ()), options, stage=number)
            for number, ranks in enumerate(groups)]  # fmt: skip

    def buffer(group, member):
        return Buffer(elements[group], BF16)

    return link_loads.least_time(fabric, collectives.configured(name, options), site, buffer, 10**9)


def random_case(rng):
    """A fabric, and groups over it that run a collective at once."""
    nodes, width, spread = rng.choice((2, 4, 6, 8)), rng.choice((1, 2, 4)), rng.choice((2, 4, 8))
    topology = rng.choice(
        ({}, {"topology": "rails"}, {"topology": "leaf-spine", "leaf_size": 2, "oversubscription": 2})
    )
    wan = rng.choice((None, {"bandwidth": "1 GB/s", "latency": "1 ms"}, {"bandwidth": "100 GB/s", "latency": 0}))
    fabric = fabric_from(nodes, width, wan=wan, **topology)
    ranks = nodes * width
    size = next(each for each in (spread, 2) if ranks % each == 0)
    groups = [list(range(first, ranks, ranks // size)) for first in range(ranks // size)] * rng.choice((1, 2))
    return fabric, groups, [rng.choice((1, 1000, 9_999_991)) for _ in groups]


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("name", SENDING)
def test_no_collective_takes_less_than_its_busiest_link(name, sharing):
    rng, close = Random(f"{name} {sharing}"), 0
    for case in range(12):
        fabric, groups, elements = random_case(rng)
        times = CollectiveTimes(fabric, Layout({"data": fabric.gpus}, ("data",)), sharing, folded=False)
        try:
            taken = times.of(name, Concurrent(groups, elements, BF16)).duration
        except Refusal:
            continue
        least = bound(fabric, name, groups, elements)
        assert 0 < least <= taken, f"case {case}"
        close += least > taken / 2
    assert close


@pytest.mark.parametrize(
    ("name", "share"),
    # each way between the halves of a group: all but a shard, twice; both trees, up and down; a member's buffer, or its
    # half, or its half by each of 8
    [("ring", 2 * 15), ("double-binary-tree", 2 * 16), ("recursive-doubling", 8 * 16), ("halving-doubling", 16)],
)
def test_the_link_between_sites_carries_what_each_algorithm_sends(name, share):
    """In sixteenths of the buffers of eight groups of sixteen, over 1 GB/s."""
    fabric = fabric_from(16, 8, wan={"bandwidth": "1 GB/s", "latency": 0})
    groups = [list(range(first, 128, 8)) for first in range(8)]
    options = {"partner": "nearest"} if name == "halving-doubling" else None
    least = bound(fabric, name, groups, [16 * 10**6] * 8, options)
    exact = 8 * share * 2 * 10**6 * 1000  # picoseconds: bytes, of 2 per element
    assert exact - 10_000 <= least <= exact  # a picosecond per message may be rounding


def test_auto_tries_only_what_may_be_the_fastest(monkeypatch):
    tried, run = [], CollectiveTimes._run

    def watched(self, name, *given):
        tried.append(name)
        return run(self, name, *given)

    fabric = fabric_from(8, 2, wan={"bandwidth": "1 GB/s", "latency": "1 ms"})
    groups = [list(range(first, 16, 2)) for first in range(2)] * 32  # as of as many stages
    asked = Concurrent(groups, [16 * 10**6] * len(groups), BF16, {"pieces": 2})
    times = CollectiveTimes(fabric, Layout({"data": 16}, ("data",)))
    every = {name: times.of(name, asked) for name in SENDING}
    monkeypatch.setattr(CollectiveTimes, "_run", watched)
    best = min(every, key=lambda name: (every[name].duration, name))
    assert times.fastest(asked) == (best, every[best])
    assert set(tried) == {"halving-doubling"}


def test_a_bound_that_costs_too_much_is_left_out():
    fabric = fabric_from(2, 8)
    group = collectives.process_group("ring", collectives.Site(fabric, range(16), ()))
    ring, buffer = collectives.configured("ring"), Buffer(10**6, BF16)
    assert link_loads.least_time(fabric, ring, [group], lambda number, member: buffer, 16) == 0
