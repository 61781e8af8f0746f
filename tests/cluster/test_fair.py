"""Max-min fair sharing, checked against hand-worked cases and a brute-force fluid model in exact fractions."""

from collections import defaultdict
from fractions import Fraction

import pytest
from benchmarks import cases
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.cluster import sharing
from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rate import rate_of
from hybrid_des.cluster.time_table import TableBandwidth, TimeTable
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Rows
from hybrid_des.result import simulate

GB = 10**9
MS = 10**9  # picoseconds


def play(bandwidths, routes, sends, kind="fair", latency=0):
    """Send messages (time, flow, size) and give when each has arrived, the trace rows and the events it took.

    `routes` lists the links of each flow by number; a message's tag is its place in `sends`; the latency is behind
    a route's last link.
    """
    env, rows = Environment(), Rows(MESSAGE_COLUMNS)
    model = sharing.find(kind).build(env, {})
    exact = [Fraction(b) if isinstance(b, int) else b for b in bandwidths]
    links = [model.link(LinkSpec(str(i), b), rate_of(b)) for i, b in enumerate(exact)]
    arrived = {}

    def put(message, tag, at):
        assert at >= env.now
        arrived[tag] = at

    flows = [
        model.flow(tuple(Hop(links[n], latency if n == route[-1] else 0, 100 * i + n) for n in route), put, rows)
        for i, route in enumerate(routes)
    ]

    def drive():
        for tag, (at, flow, size) in sorted(enumerate(sends), key=lambda item: item[1][0]):
            if at > env.now:
                yield env.timeout(at - env.now)
            flows[flow].send(Message(size), tag)

    env.process(drive())
    env.run()
    table = [tuple(int(x) for x in row) for row in zip(*rows.table().values(), strict=True)]
    return [arrived[tag] for tag in range(len(sends))], table, env.events


def fluid(bandwidths, routes, sends):
    """When each message has drained, in exact picoseconds: all rates grow alike until a link is full, and so on."""
    queues = defaultdict(list)
    coming = sorted(enumerate(sends), key=lambda item: item[1][0])
    left, done, now = {}, {}, Fraction(0)
    while coming or any(queues.values()):
        rates = water_fill(bandwidths, {s: routes[s] for s in queues if queues[s]})
        steps = [left[queues[s][0]] / rate for s, rate in rates.items() if rate is not None]
        steps += [Fraction(0) for rate in rates.values() if rate is None]
        steps += [coming[0][1][0] - now] if coming else []
        step = min(steps)
        now += step
        for s, rate in rates.items():
            tag = queues[s][0]
            left[tag] = Fraction(0) if rate is None else left[tag] - rate * step
            if not left[tag]:
                done[tag] = now
                queues[s].pop(0)
        while coming and coming[0][1][0] <= now:
            tag, (_, flow, size) = coming.pop(0)
            queues[flow].append(tag)
            left[tag] = Fraction(size)
    return [done[tag] for tag in range(len(sends))]


def water_fill(bandwidths, routes):
    """Max-min rates in bytes a picosecond; None where nothing limits a flow."""
    room = {n: Fraction(b) / 10**12 for n, b in enumerate(bandwidths) if b is not None}
    rates = {s: None for s, route in routes.items() if not any(n in room for n in route)}
    while len(rates) < len(routes):
        growing = {n: [s for s in routes if s not in rates and n in routes[s]] for n in room}
        level = {n: room[n] / len(growing[n]) for n in room if growing[n]}
        tight = min(level, key=level.get)
        for s in growing[tight]:
            rates[s] = level[tight]
            for n in set(routes[s]) & set(room):
                room[n] -= level[tight]
    return rates


def test_two_flows_on_one_link_get_half_each():
    arrived, rows, _ = play([10 * GB], [[0], [0]], [(0, 0, GB), (0, 1, GB)])
    assert arrived == [200 * MS, 200 * MS]
    assert rows == [(0, 0, 0, 0, 200 * MS, GB), (100, 1, 0, 0, 200 * MS, GB)]


def test_what_is_left_of_a_link_goes_to_who_stays():
    arrived, _, _ = play([10 * GB], [[0], [0]], [(0, 0, GB), (50 * MS, 1, 2 * GB)])
    assert arrived == [150 * MS, 300 * MS]  # alone, half each for 100 ms, alone


def test_three_flows_over_two_links_get_the_textbook_rates():
    # a over both links, b over the 10 GB/s link, c over the 40 GB/s link: a 5, b 5, c 35 GB/s
    arrived, _, _ = play([10 * GB, 40 * GB], [[0, 1], [0], [1]], [(0, 0, 5 * GB), (0, 1, 5 * GB), (0, 2, 35 * GB)])
    assert arrived == [1000 * MS] * 3


def test_a_newcomer_can_speed_others_up():
    # b takes half of link 0 until c takes two thirds … of link 1 from it: then a gets what b leaves
    routes = [[0], [0, 1], [1], [1]]
    arrived, _, _ = play(
        [12 * GB, 6 * GB], routes, [(0, 0, 16 * GB), (0, 1, 8 * GB), (1000 * MS, 2, 2 * GB), (1000 * MS, 3, 2 * GB)]
    )
    assert arrived == [2000 * MS, 2000 * MS, 2000 * MS, 2000 * MS]


def test_messages_of_one_flow_go_one_after_another():
    arrived, rows, _ = play([10 * GB], [[0], [0]], [(0, 0, GB), (0, 0, GB), (0, 1, GB)])
    assert arrived == [200 * MS, 300 * MS, 200 * MS]
    assert (0, 1, 0, 200 * MS, 300 * MS, GB) in rows


def test_path_latency_is_counted_once_and_occupies_nothing():
    arrived, _, _ = play([10 * GB, 20 * GB], [[0, 1]], [(0, 0, GB), (0, 0, GB)], latency=7)
    assert arrived == [100 * MS + 7, 200 * MS + 7]


@pytest.mark.parametrize("route", [[0], [0, 1], []])
def test_links_of_infinite_bandwidth_and_empty_messages_take_no_time(route):
    arrived, _, _ = play([None, None], [route], [(5, 0, GB), (5, 0, 0), (9, 0, 1)])
    assert arrived == [5, 5, 9]
    arrived, _, _ = play([None, 10 * GB], [[0, 1], [0, 1]], [(5, 0, 0), (5, 1, 0), (5, 0, 0)])
    assert arrived == [5, 5, 5]


@st.composite
def traffic(draw):
    """Links, routes and messages, with many ties among sizes, times and bandwidths."""
    bandwidths = draw(st.lists(st.sampled_from([None, GB, 3 * GB, 25 * GB, 7_123_456_789]), min_size=1, max_size=5))
    link = st.integers(0, len(bandwidths) - 1)
    routes = draw(st.lists(st.lists(link, max_size=4, unique=True), min_size=1, max_size=6))
    at = st.integers(0, 10**7) | st.sampled_from([0, 10**6])
    size = st.integers(0, 10**5) | st.sampled_from([0, 10**4])
    return bandwidths, routes, draw(st.lists(st.tuples(at, st.integers(0, len(routes) - 1), size), max_size=25))


@given(traffic())
def test_agrees_with_a_brute_force_fluid_model(case):
    _, routes, sends = case
    arrived, rows, _ = play(*case)
    for got, exact in zip(arrived, fluid(*case), strict=True):
        assert abs(got - exact) <= 10
    sent = sum(len(routes[flow]) * size for _, flow, size in sends)
    assert sum(row[-1] for row in rows) == sent
    assert play(*case)[:2] == (arrived, rows)


@given(traffic())
def test_messages_of_a_flow_drain_in_order(case):
    _, _, sends = case
    _, rows, _ = play(*case)
    order = {tag: place for place, tag in enumerate(sorted(range(len(sends)), key=lambda tag: sends[tag][0]))}
    ends = {}
    for channel, tag, asked, start, end, _ in rows:
        assert asked == sends[tag][0] <= start <= end
        place, last = ends.get(channel, (-1, 0))
        assert order[tag] > place and start >= last
        ends[channel] = (order[tag], end)


@given(
    st.sampled_from([GB, 25 * GB]),  # a byte takes whole picoseconds
    st.lists(st.tuples(st.integers(0, 10**7), st.just(0), st.integers(0, 10**6))),
)
def test_one_flow_alone_is_served_as_under_fifo(bandwidth, sends):
    case = [bandwidth, 2 * bandwidth, None], [[1, 0, 2]], sends
    assert play(*case, latency=3)[0] == play(*case, kind="fifo", latency=3)[0]


@pytest.mark.parametrize("topology", ["ring", "nodes"])
def test_an_idle_ring_takes_the_same_time_under_both_sharings(topology):
    fifo, fair = (simulate(cases.ring(6, topology, kind).scenario).run for kind in ("fifo", "fair"))
    assert fifo.duration == fair.duration
    assert fifo.timeline.ops["end"].tolist() == fair.timeline.ops["end"].tolist()
    assert len(fifo.timeline.messages["end"]) == len(fair.timeline.messages["end"])


def test_a_measured_link_is_shared_at_its_large_message_rate():
    table = TableBandwidth(TimeTable(((1000, 5000), (2000, 5500), (4000, 7500))))  # at last 1 byte a picosecond
    for size, time in ((1000, 500), (3000, 2000), (4000, 3000)):  # what is over the 4500 ps of latency
        case = [table, GB * 1000], [[0, 1]], [(0, 0, size)]
        assert play(*case)[0] == play(*case, kind="fifo")[0] == [max(time, size)]
    assert play([table], [[0], [0]], [(0, 0, 1000), (0, 1, 4000)])[0] == [1000, 3500]


@given(traffic())
def test_events_are_few(case):
    _, _, sends = case
    _, _, events = play(*case)
    moments = len({at for at, _, _ in sends})
    assert events <= 3 * len(sends) + moments + 3  # the driver takes one a moment, and three to begin and end
