"""Copies of a network with crossed routes carry the same traffic at the same times, whichever flow comes first."""

from fractions import Fraction
from random import Random

import pytest
from support.campaigns import TIMES, thinned

from hybrid_des.cluster import sharing
from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop, LinkSchedule
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.rate import rate_of
from hybrid_des.cluster.sharing.max_min import Port, max_min
from hybrid_des.engine.bookings import succeed_at
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.timetable import Interval, PiecewiseRate

GB = 10**9
# a few bytes take a few picoseconds, so that what happens within one picosecond matters
BANDWIDTHS = (None, *(Fraction(bandwidth * GB) for bandwidth in (300, 300, 712, 1000)))
MOST = 4  # copies
CAMPAIGNS, EACH = 3 * TIMES, 100


def traffic(rng):
    """Bandwidths, flows as hops (link, copies further, latency), and messages of flows in the order of sending.

    A message (flow, size, cause, copies further, time) is sent when its cause has arrived, not before its time.
    """
    bandwidths = [rng.choice(BANDWIDTHS) for _ in range(rng.randint(1, 5))]
    flows = []
    for _ in range(rng.randint(4, 9)):
        links = rng.sample(range(len(bandwidths)), rng.randint(1, min(3, len(bandwidths))))
        flows.append([(link, rng.randrange(MOST), rng.choice((0, 0, 0, 2))) for link in links])
    messages = []
    for place in range(rng.randint(10, 40)):
        cause = rng.randrange(place) if place and rng.random() < 0.6 else None
        size = rng.choice((0, 1, 2, 5, 5, 7, 10))
        messages.append((rng.randrange(len(flows)), size, cause, rng.randrange(MOST), rng.choice((0, 0, 20))))
    return bandwidths, flows, messages


def arrivals(case, copies, rng, spell):
    """When each message arrives in each copy; flows are started in random order, and `spell` slows all of link 0."""
    bandwidths, flows, messages = case
    env = Environment()
    schedules = {f"0 {copy}": LinkSchedule(PiecewiseRate.of([spell]), ((0, 0),)) for copy in range(copies) if spell}
    model = sharing.find("fair").build(env, schedules)
    links = {
        (link, copy): model.link(LinkSpec(f"{link} {copy}", bandwidth), rate_of(bandwidth))
        for copy in range(copies)
        for link, bandwidth in enumerate(bandwidths)
    }
    there = {(tag, copy): env.event() for tag in range(len(messages)) for copy in range(copies)}
    arrived = {}

    def drive(number, copy):
        def put(message, tag, at):
            arrived[tag, copy] = at
            succeed_at(env, there[tag, copy], at)

        hops = (Hop(links[link, (copy + turn) % copies], latency, 0) for link, turn, latency in flows[number])
        flow = model.flow(tuple(hops), put, None)
        for tag, (sender, size, cause, turn, at) in enumerate(messages):
            if sender != number:
                continue
            if cause is not None:
                event = there[cause, (copy + turn) % copies]
                if event.callbacks is not None:
                    yield event
            if at > env.now:
                yield env.timeout(at - env.now)
            flow.send(Message(size), tag)

    processes = [(number, copy) for number in range(len(flows)) for copy in range(copies)]
    for number, copy in rng.sample(processes, len(processes)):
        env.process(drive(number, copy))
    env.run()
    assert len(arrived) == len(there)
    return arrived


@pytest.mark.parametrize("campaign", thinned(range(CAMPAIGNS), slow=range(1, CAMPAIGNS)))
def test_copies_with_crossed_routes_take_the_same_times(campaign):
    for seed in range(campaign * EACH, (campaign + 1) * EACH):
        rng = Random(seed)
        case = traffic(rng)
        spell = Interval(rng.choice((0, 10)), 40, Fraction(rng.choice((0, 1, 2)), 3)) if rng.random() < 0.3 else None
        alone = arrivals(case, 1, rng, spell)
        for (tag, copy), at in arrivals(case, rng.randint(2, MOST), rng, spell).items():
            assert at == alone[tag, 0], f"seed {seed}, message {tag}, copy {copy}"


class Path:
    def __init__(self, *ports):
        self.ports = ports
        for port in ports:
            port.flows[self] = None


def test_links_with_equal_shares_are_filled_at_once():
    """Five units for two flows on each of two links: the remainder goes to nobody, whichever link is first."""
    for turned in (False, True):
        one, other = ports = Port(5), Port(5)
        flows = Path(one), Path(one, other), Path(other)
        rates = max_min([*reversed(ports)] if turned else [*ports])
        assert [rates[flow] for flow in flows] == [2, 2, 2]
