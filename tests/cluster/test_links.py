"""A link that serves in order: against the textbook form, and the laws of messages on links in series."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import pytest
import simpy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.campaigns import TIMES
from support.messages import GB, MS, carry, chain

from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.cluster.rate import rate_of

SHARINGS = ["fifo", "fair"]

bandwidths = st.one_of(st.none(), st.integers(1, 50).map(lambda n: Fraction(n * GB)))
latencies = st.integers(0, 10**7)
sizes = st.integers(0, 10**6)


def textbook(routes, times, sends):
    """The same traffic with a `simpy.Resource` a link and a process a message and link.

    Right where no link is faster than the ones before it: then the head goes on as soon as it is served.
    """
    env = simpy.Environment()
    links = defaultdict(lambda: simpy.Resource(env, capacity=1))
    asked: list[tuple[str, int]] = []
    arrived, served = {}, []

    def hop(number, route, at, place):
        yield env.timeout(at - env.now)
        name, latency = route[place]
        asked.append((name, env.now))
        with links[name].request() as turn:
            yield turn
            start = env.now
            if place + 1 < len(route):
                env.process(hop(number, route, start + latency, place + 1))
            yield env.timeout(times[name, number])
            served.append((name, number, start, env.now))
        if place + 1 == len(route):
            arrived[number] = env.now + latency

    for number, (at, flow, _) in enumerate(sends):
        env.process(hop(number, routes[flow], at, 0))
    env.run()
    return [arrived[number] for number in range(len(sends))], sorted(served), len(asked) == len(set(asked))


def test_links_in_order_equal_the_textbook_form():
    compared = []

    @settings(max_examples=150 * TIMES)
    @given(st.data())
    def every_case(data):
        compared.append(equals_the_textbook_form(data))

    every_case()
    assert len(compared) >= 100


def equals_the_textbook_form(data):
    """Compare one case in which no two heads reach a link at the same time; equal times have a test of their own.

    Three layers of links, none faster than the layer before, random routes and sends, random sizes.
    """
    layers = sorted(data.draw(st.lists(st.integers(1, 50), min_size=3, max_size=3)), reverse=True)
    width = data.draw(st.integers(1, 3))
    speed = {f"{layer}/{n}": Fraction(layers[layer] * GB) for layer in range(3) for n in range(width)}
    hops = st.tuples(*(st.tuples(st.integers(0, width - 1), latencies) for _ in range(3)))
    depth = data.draw(st.integers(1, 3))
    routes = [
        [(f"{layer}/{n}", latency) for layer, (n, latency) in enumerate(way[:depth])]
        for way in data.draw(st.lists(hops, min_size=1, max_size=5))
    ]
    message = st.tuples(st.integers(0, 10**8), st.integers(0, len(routes) - 1), st.integers(1, 10**6))
    sends = data.draw(st.lists(message, min_size=1, max_size=20))
    times = {(name, i): rate_of(speed[name])[size] for name in speed for i, (_, _, size) in enumerate(sends)}

    expected, served, no_ties = textbook(routes, times, sends)
    assume(no_ties)
    links = {name: LinkSpec(name, bandwidth) for name, bandwidth in speed.items()}
    ways = [Route(*zip(*route, strict=True)) for route in routes]
    fabric = Fabric(links, lambda flow, receiver: ways[flow], len(ways), (0,) * len(ways))
    arrived, rows = carry(fabric, [(at, flow, 0, size) for at, flow, size in sends])
    assert arrived == expected
    assert sorted((link, message, start, end) for link, message, _, start, end in rows) == served


@pytest.mark.parametrize("sharing", SHARINGS)
@settings(max_examples=30 * TIMES)
@given(path=st.lists(st.tuples(bandwidths, latencies), min_size=1, max_size=5), size=sizes, at=st.integers(0, 10**6))
def test_a_message_pays_its_latency_and_slowest_link_once(sharing, path, size, at):
    arrived, _ = carry(chain(*zip(*path, strict=True)), [(at, 0, 1, size)], sharing)
    slowest = max(rate_of(bandwidth)[size] for bandwidth, _ in path)
    assert arrived == [at + sum(latency for _, latency in path) + slowest]


@pytest.mark.parametrize("sharing", SHARINGS)
@settings(max_examples=30 * TIMES)
@given(path=st.lists(st.tuples(bandwidths, latencies), min_size=1, max_size=4), size=sizes, data=st.data())
def test_more_bandwidth_never_delays_a_message_on_an_idle_route(sharing, path, size, data):
    which = data.draw(st.integers(0, len(path) - 1))
    bandwidth, latency = path[which]
    more = None if bandwidth is None else bandwidth + data.draw(st.integers(1, 100 * GB))
    faster = [*path[:which], (more, latency), *path[which + 1 :]]
    (before,), _ = carry(chain(*zip(*path, strict=True)), [(0, 0, 1, size)], sharing)
    (after,), _ = carry(chain(*zip(*faster, strict=True)), [(0, 0, 1, size)], sharing)
    assert after <= before


@settings(max_examples=50 * TIMES)
@given(
    path=st.lists(st.tuples(bandwidths, latencies), min_size=1, max_size=4),
    sends=st.lists(st.tuples(st.integers(0, 10**7), st.just(0), st.just(1), sizes), min_size=1, max_size=12),
)
def test_messages_never_overlap_on_a_fifo_link(path, sends):
    arrived, rows = carry(chain(*zip(*path, strict=True)), sends)
    for place, (bandwidth, _) in enumerate(path):
        served = sorted((start, end, asked, number) for link, number, asked, start, end in rows if link == str(place))
        assert len(served) == len(sends)
        for start, end, asked, number in served:
            assert start >= asked
            assert end - start == rate_of(bandwidth)[sends[number][3]]
        assert all(first[1] <= then[0] for first, then in pairwise(served))
    alone = [carry(chain(*zip(*path, strict=True)), [send])[0][0] for send in sends]
    assert all(shared >= own for shared, own in zip(arrived, alone, strict=True))


def test_a_fast_link_is_not_held_by_a_slow_sender():
    # two senders of 10 and 40 GB/s into one port of 40 GB/s: 1 GB of the slow one passes it within 25 ms of its 100,
    # so that the fast one's message, which comes 50 ms later, is not kept
    links = {name: LinkSpec(name, Fraction(n * GB)) for name, n in (("slow", 10), ("fast", 40), ("in", 40))}
    fabric = Fabric(links, lambda sender, _: Route((("slow", "fast")[sender], "in"), (0, 0)), 3, (0, 0, 0))
    arrived, rows = carry(fabric, [(0, 0, 2, GB), (50 * MS, 1, 2, GB)])
    assert arrived == [100 * MS, 75 * MS]
    assert [row for row in rows if row[0] == "in"] == [("in", 0, 0, 0, 25 * MS), ("in", 1, 50 * MS, 50 * MS, 75 * MS)]


def test_equal_times_are_served_in_the_order_asked():
    arrived, _ = carry(chain([Fraction(GB)], [0]), [(5, 0, 1, GB // 1000)] * 3)
    assert arrived == [5 + MS, 5 + 2 * MS, 5 + 3 * MS]
