"""Links whose bandwidth or latency varies: service times integrated by hand, in both models of sharing."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages import GB, carry, chain

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric, LinkSpec, Route
from hybrid_des.cluster.link import LinkSchedule
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.engine.timetable import Interval, PiecewiseRate

S = 10**12
HALF, DOWN = Fraction(1, 2), Fraction(0)
BOTH = pytest.mark.parametrize("sharing", ["fifo", "fair"])


def on(link, *spells, latency=((0, 0),)):
    """The schedule of one link; times in seconds."""
    return {link: LinkSchedule(PiecewiseRate.of([Interval(a * S, b * S, f) for a, b, f in spells]), latency)}


def arrivals(sends, schedules, sharing, links=1, latency=0):
    """When messages (second, GB) over links of 1 GB/s arrive, in seconds; each is a flow of its own."""
    fabric = chain([Fraction(GB)] * links, [latency] * links)
    messages = [(at * S, 0, 1, size * GB) for at, size in sends]
    return [at / S for at in carry(fabric, messages, sharing, schedules)[0]]


@BOTH
def test_half_the_bandwidth_for_a_while_is_integrated(sharing):
    """10 GB: 2 by the second 2, 2 more by 6 at half the bandwidth, the other 6 by 12."""
    assert arrivals([(0, 10)], on("0", (2, 6, HALF)), sharing) == [12]
    assert arrivals([(3, 4)], on("0", (2, 6, HALF)), sharing) == [8.5]
    assert arrivals([(6, 4)], on("0", (2, 6, HALF)), sharing) == [10]


@BOTH
def test_a_flap_in_the_middle_costs_its_length(sharing):
    assert arrivals([(0, 10)], on("0", (3, 5, DOWN)), sharing) == [12]
    assert arrivals([(0, 10)], on("0", (3, 5, DOWN)), sharing, links=3) == [12]
    assert arrivals([(4, 1)], on("0", (3, 5, DOWN)), sharing) == [6]
    assert arrivals([(0, 10)], on("0", (3, 5, DOWN), (7, 8, DOWN)), sharing) == [13]


def test_messages_behind_one_another_are_served_around_a_change():
    """The first drains at 6 (2 + 2), the second has all of the bandwidth again."""
    assert arrivals([(0, 4), (1, 4)], on("0", (2, 6, HALF)), "fifo") == [6, 10]


def test_messages_that_share_a_link_share_what_is_left():
    """Two of 5 GB: 1 each by 2, 1 more by 6 at a quarter each, 3 more by 12."""
    assert arrivals([(0, 5), (0, 5)], on("0", (2, 6, HALF)), "fair") == [12, 12]
    assert arrivals([(0, 5), (0, 1)], on("0", (1, 3, DOWN)), "fair") == [8, 4]


def test_flows_on_other_links_take_what_a_slow_one_leaves():
    """Two flows share a link of 1 GB/s; the way on of one carries a quarter from 2 to 6, which it gets alone."""
    links = {name: LinkSpec(name, Fraction(GB)) for name in ("shared", "slow", "free")}
    routes = {1: Route(("shared", "slow"), (0, 0)), 2: Route(("shared", "free"), (0, 0))}
    fabric = Fabric(links, lambda sender, receiver: routes[receiver], 3, (0, 0, 0))
    sends = [(0, 0, 1, 4 * GB), (0, 0, 2, 4 * GB)]
    ends, _ = carry(fabric, sends, "fair", on("slow", (2, 6, Fraction(1, 4))))
    # both have 1 GB by 2; then 1/4 and 3/4: the second drains at 6, the first has 2 GB then
    assert [end / S for end in ends] == [8, 6]


@BOTH
def test_other_links_are_served_as_ever(sharing):
    fabric = chain([Fraction(GB), Fraction(3 * GB)], [7, 9])
    sends = [(0, 0, 1, 10**9 + 1), (5, 0, 1, 17), (10**11, 0, 1, 12345), (5 * 10**11, "1", 0, 77)]
    never = on("0", (10**4, 10**4 + 1, HALF))
    assert carry(fabric, sends, sharing, never) == carry(fabric, sends, sharing)


@BOTH
def test_latency_in_addition_holds_while_it_lasts(sharing):
    """A message that leaves at 1 has a second more; one that leaves at 3 has none, and does not overtake."""
    slow = on("0", latency=((0, S), (2 * S, 0)))
    assert arrivals([(0, 1), (2, 1)], slow, sharing) == [2, 3]
    late = on("0", latency=((0, 5 * S), (2 * S, 0)))
    fabric = chain([Fraction(GB)], [0])
    assert carried_by_one_flow(fabric, [GB, 2 * GB], sharing, late) == [6 * S, 6 * S]


def carried_by_one_flow(fabric, sizes, sharing, schedules):
    env = Environment()
    network = Transport(Links(env, fabric, sharing, schedules), Recorder())
    flow, mailbox = network.flow(Channel(0, 1, REDUCTION, "one", 0, 0))
    arrived = []

    def receive():
        for _ in sizes:
            yield mailbox.receive()
            arrived.append(env.now)

    for size in sizes:
        flow.send(Message(size))
    env.process(receive())
    env.run()
    return arrived


@BOTH
def test_what_a_process_transmits_is_slowed_too(sharing):
    fabric = chain([Fraction(GB)], [0])
    assert carry(fabric, [(0, "0", 0, 10 * GB)], sharing, on("0", (2, 6, HALF)))[0] == [12 * S]


def test_a_change_that_comes_too_late_is_no_event():
    """The clock stops with the last message, not at a change of bandwidth after it."""
    for sharing in ("fifo", "fair"):
        env = Environment()
        links = Links(env, chain([Fraction(GB)], [0]), sharing, on("0", (50, 60, HALF)))
        env.process(_send(links["0"]))
        env.run()
        assert env.now == S


def _send(link):
    yield link.transmit(GB)


FACTORS = st.sampled_from([DOWN, Fraction(1, 3), HALF, Fraction(2)])
SPELLS = st.lists(
    st.builds(
        lambda start, length, factor: Interval(start, start + length, factor), *[st.integers(1, 10**6)] * 2, FACTORS
    ),
    max_size=4,
)


@BOTH
@given(SPELLS, st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_a_link_with_work_to_do_loses_none(sharing, spells, sizes):
    """Messages that all start at 0: the last one arrives when the link has done the work of all.

    Each end is rounded by at most half a picosecond, in which the link serves at most what it can at full bandwidth.
    """
    table = PiecewiseRate.of(spells)
    fabric = chain([Fraction(GB)], [0])
    arrived, _ = carry(fabric, [(0, 0, 1, size) for size in sizes], sharing, {"0": LinkSchedule(table)})
    assert abs(table.work(0, max(arrived)) - 1000 * sum(sizes)) <= len(sizes) * max(table.factors) / 2


@BOTH
@given(SPELLS, st.integers(0, 10**6), st.integers(1, 2000), st.integers(1, 3))
def test_a_message_alone_takes_its_integral_over_any_links(sharing, spells, at, size, links):
    """Equal links in series under the same schedules are passed as one, where the head does not wait for a flap."""
    table = PiecewiseRate.of([spell for spell in spells if spell.factor])
    fabric = chain([Fraction(GB)] * links, [0] * links)
    schedules = {str(link): LinkSchedule(table) for link in range(links)}
    arrived, _ = carry(fabric, [(at, 0, 1, size)], sharing, schedules)
    assert abs(arrived[0] - table.end(at, 1000 * size)) <= 1
