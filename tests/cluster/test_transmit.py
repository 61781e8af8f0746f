"""Links as SimPy resources: processes transmit over links that flows use."""

import doctest
from collections import defaultdict
from fractions import Fraction

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from support.messages import GB, MS, carry

from hybrid_des.cluster import link as link_module
from hybrid_des.cluster import topologies
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import ClusterSpec, Fabric, LinkSpec, NodeSpec, PortSpec, Route
from hybrid_des.cluster.link import Link
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import ACTIVATION, REDUCTION
from hybrid_des.cluster.rate import rate_of
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import MESSAGE_COLUMNS, Recorder, Rows
from hybrid_des.errors import UsageError

LATENCY = 5


def one_wire(bandwidth=Fraction(10 * GB), latency=LATENCY):
    """GPUs that all share one wire."""
    wire = LinkSpec("wire", bandwidth, latency=latency)
    return Fabric({"wire": wire}, lambda sender, receiver: Route(("wire",), (latency,)), 3, (0, 0, 0))


def test_the_example_of_the_module_runs():
    failed, attempted = doctest.testmod(link_module)
    assert (failed, attempted > 5) == (0, True)


def test_a_link_is_a_simpy_resource():
    env = Environment()
    link = Link(env, LinkSpec("wire", Fraction(GB), latency=3))
    assert isinstance(link, simpy.resources.base.BaseResource)
    assert (link.capacity, link.bandwidth, link.latency) == (1, GB, 3)
    both = link.put(1000) & link.transmit(1000)
    env.run(until=both)
    assert env.now == 2 * 10**6 + 3
    assert not link.put_queue


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 30)), max_size=20), st.integers(0, 20))
def test_processes_and_flows_share_a_link_in_order(sends, latency):
    """Ties included: in the textbook form everybody requests a `simpy.Resource` and holds it for the service time."""
    byte = 100  # picoseconds at 10 GB/s
    textbook = simpy.Environment()
    resource = simpy.Resource(textbook)
    expected = defaultdict(int)

    def occupy(number, at, size):
        yield textbook.timeout(at * byte)
        with resource.request() as turn:
            yield turn
            yield textbook.timeout(size * byte)
        yield textbook.timeout(latency)
        expected[number] = textbook.now

    for number, (at, _, size) in enumerate(sends):
        textbook.process(occupy(number, at, size))
    textbook.run()
    mixed = [(at * byte, "wire" if alone else 0, 1, size) for at, alone, size in sends]
    arrived, rows = carry(one_wire(latency=latency), mixed)
    assert arrived == [expected[number] for number in range(len(sends))]
    assert [message for _, message, *_ in sorted(rows)] == [n for n, (_, alone, _) in enumerate(sends) if not alone]


def test_a_cut_through_message_meets_transmissions_on_later_links():
    # 1 GB over "first" (20 GB/s) and "second" (10 GB/s): its head is there at once, behind what was asked for before
    links = {name: LinkSpec(name, Fraction(n * GB)) for name, n in (("first", 20), ("second", 10))}
    fabric = Fabric(links, lambda sender, receiver: Route(("first", "second"), (0, 0)), 2, (0, 0))
    sends = [(0, "second", None, GB), (MS, 0, 1, GB), (2 * MS, "second", None, GB), (3 * MS, "first", None, GB)]
    arrived, _ = carry(fabric, sends)
    assert arrived == [100 * MS, 200 * MS, 300 * MS, 101 * MS]


def test_under_fair_a_transmission_is_a_flow_of_its_own():
    # a flow of 2 GB on 10 GB/s; from 50 ms a transmission of 0.5 GB takes half of it, for 100 ms
    sends = [(0, 0, 1, 2 * GB), (50 * MS, "wire", None, GB // 2)]
    arrived, rows = carry(one_wire(), sends, "fair")
    assert arrived == [250 * MS + LATENCY, 150 * MS + LATENCY]
    assert rows == [("wire", 0, 0, 0, 250 * MS)]
    # three transmissions at once get a third each, and one of no bytes does not wait
    sends = [(0, "wire", None, GB), (0, "wire", None, GB), (0, "wire", None, 2 * GB), (MS, "wire", None, 0)]
    arrived, _ = carry(one_wire(), sends, "fair")
    assert arrived == [300 * MS + LATENCY, 300 * MS + LATENCY, 400 * MS + LATENCY, MS + LATENCY]


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_an_unlimited_link_serves_everybody_at_once(sharing):
    sends = [(1, "wire", None, GB), (1, 0, 1, GB), (1, "wire", None, 0)]
    assert carry(one_wire(bandwidth=None), sends, sharing)[0] == [1 + LATENCY] * 3


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_link_carries_messages_that_no_process_waits_for(sharing):
    env = Environment()
    transport = Transport(Links(env, one_wire(latency=0), sharing), Recorder(Rows(MESSAGE_COLUMNS)))
    wire, log = transport.links["wire"], []

    def impatient():
        with wire.transmit(GB) as transmission:
            try:
                yield transmission
            except simpy.Interrupt:
                log.append(env.now)

    def hasty(other):
        yield env.timeout(10 * MS)
        other.interrupt()
        yield wire.transmit(GB)
        log.append(env.now)

    env.process(hasty(env.process(impatient())))
    env.run()
    assert log == [10 * MS, 200 * MS if sharing == "fifo" else 190 * MS + 10 * MS]


def test_transmissions_are_not_messages_of_the_run():
    env, trace = Environment(), Recorder(Rows(MESSAGE_COLUMNS))
    transport = Transport(Links(env, one_wire(), "fifo"), trace)
    flow, mailbox = transport.flow(Channel(0, 1, REDUCTION, "ring"))
    flow.send(Message(8))
    env.run(until=transport.links["wire"].transmit(8) & mailbox.receive())
    assert transport.sent()["messages"] == len(trace.messages) == 1
    transport.check_empty()
    transport.pipeline_flow(0, 1, ACTIVATION).send(Message(8), 0)
    with pytest.raises(Exception, match="1 messages were sent but never received"):
        transport.check_empty()


def test_a_link_is_found_by_name_and_made_once():
    links = Links(Environment(), one_wire(), "fifo")
    assert links["wire"] is links["wire"]
    with pytest.raises(UsageError, match='there is no link "wier"; such as: wire'):
        links["wier"]


@pytest.mark.parametrize("name", ["nodes", "ring", "mesh"])
def test_a_single_links_latency_is_that_of_its_port(name):
    port, nic = PortSpec(Fraction(300 * GB), 7), PortSpec(Fraction(25 * GB), 9)
    fabric = topologies.find(name).build(ClusterSpec((NodeSpec(2, port, nic, 2),) * 2))
    for sender, receiver in ((0, 1), (1, 2)):
        route = fabric.route(sender, receiver)
        assert fabric.links[route.links[0]].latency == route.latency == (9, 7)[sender == 0]


def test_links_of_one_bandwidth_share_its_rate():
    wires = {n: LinkSpec(n, Fraction(GB)) for n in "ab"}
    links = Links(Environment(), Fabric(wires, lambda *_: Route(("a", "b"), (0, 0)), 2, (0, 0)), "fifo")
    assert links["a"].rate is links["b"].rate
    assert links["a"].rate[1000] == rate_of(Fraction(GB))[1000] == 10**6
