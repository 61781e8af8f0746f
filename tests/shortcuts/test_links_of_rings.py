"""What tells rings from others, and links that rings hold."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from support.fabrics import GB
from support.two_stages import planned

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import LinkSpec
from hybrid_des.cluster.link import Hop, Link
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.folded_transport import folded_transport
from hybrid_des.folding.refusals import FoldRefusal, TieError
from hybrid_des.folding.symmetry import Fold, FoldedAxis, root_of
from hybrid_des.layout import Layout
from hybrid_des.shortcuts import rings_alone


class View(NamedTuple):
    """A member's view of a ring: its place among members, its paces and its mailboxes."""

    me: int
    size: int
    paces: tuple[int, int]
    sends: object
    hears: object

    def end_of(self, peer):
        assert peer == (self.me + 1) % self.size
        return self.sends

    def from_(self, peer):
        assert peer == (self.me - 1) % self.size
        return self.hears


def link(bandwidth=GB):
    return Link(Environment(), LinkSpec("cable", bandwidth, 0))


def over(link, latency=5):
    """A flow over one hop."""
    return SimpleNamespace(hops=(Hop(link, latency, 0),))


CABLE = link()


def form(change):
    """What tells two parts from others, the first of which is changed."""
    boxes = object(), object()
    views = View(0, 4, (1, 2), *boxes), View(1, 4, (1, 2), *reversed(boxes))
    parts = [rings_alone.Part(view, 8, None, over(CABLE), None) for view in views]
    view = views[0]._replace(**{key: value for key, value in change.items() if key in View._fields})
    more = {key: value for key, value in change.items() if key not in View._fields}
    if "hears" in change:
        view = view._replace(hears=boxes[0])
    return rings_alone._form([parts[0]._replace(ring=view, **more), parts[1]])


@pytest.mark.parametrize("change", [
    {"me": 2}, {"size": 5}, {"paces": (1, 3)}, {"hears": 0}, {"elements": 9},
    {"flow": over(CABLE, 6)}, {"flow": over(link())}, {"flow": over(link(GB // 2))},
])  # fmt: skip
def test_what_tells_rings_from_others(change):
    assert form({}) == form({}) != form(change)


def test_the_order_in_which_members_begin_is_unknown():
    known, (one, other) = rings_alone.Unordered(), map(root_of, (0, 1))
    assert known.ordered(one, one)
    assert not known.ordered(one, other)
    assert not known.ordered(known.joined(one, other), one)
    assert known.ordered(known.joined(one, one), one)
    assert not known.ordered(known.joined(one, other), known.joined(one, other))


def opened(*lanes, watched):
    """A network in which one of two nodes is simulated, and flows from its first rank to the other node."""
    fold = Fold(Layout({"data": 8}, ["data"]), [FoldedAxis("data", 4)])
    transport = folded_transport(planned().parts.fabric, "fifo", Recorder(), fold, watched=watched)
    return transport, [transport.flow(Channel(0, 4, REDUCTION, "ring", 0, 0), lane)[0] for lane in lanes]


def sent(transport, flow):
    transport.env.at(7, (lambda _: flow.send(Message(1000)),))
    transport.env.run()


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("hop", [0, 1])
@pytest.mark.parametrize("later", [0, 1])
def test_no_message_reaches_a_link_while_a_ring_has_it(hop, later, watched):
    transport, (flow, _) = opened(0, 1, watched=watched)
    sent(transport, flow)
    reached = flow.hops[hop].link.when
    transport, (flow, _) = opened(0, 1, watched=watched)
    flow.hops[hop].link.take(reached - 1)
    sent(transport, flow)
    transport, (flow, _) = opened(0, 1, watched=watched)
    flow.hops[hop].link.take(reached + later)
    with pytest.raises(FoldRefusal):
        sent(transport, flow)


@pytest.mark.parametrize("watched", [False, True])
def test_first_links_are_taken_as_soon_as_members_begin(watched):
    transport, (flow, other) = opened(0, 1, watched=watched)
    transport.env.at(7, (lambda _: flow.take_first(),))
    with pytest.raises(FoldRefusal):
        sent(transport, other)


@pytest.mark.parametrize("watched", [False, True])
def test_one_link_is_not_taken_by_two_rings(watched):
    transport, (flow, _) = opened(0, 1, watched=watched)
    flow.hops[0].link.take(9)
    transport.env.at(7, (lambda _: flow.take_first(),))
    with pytest.raises(FoldRefusal):
        transport.env.run()


@pytest.mark.parametrize("watched", [False, True])
def test_a_ring_keeps_links_when_other_flows_open(watched):
    transport, (flow,) = opened(0, watched=watched)
    flow.hops[0].link.take(7)
    other, _ = transport.flow(Channel(0, 4, REDUCTION, "ring", 0, 0), 1)
    with pytest.raises(FoldRefusal):
        sent(transport, other)


def test_rings_follow_messages_of_the_same_event_only():
    """If their sender does not stand for an image."""
    for turned, same in ((False, True), (False, False), (True, True)):
        transport, (flow, other) = opened(0, 1, watched=True)
        flow.turned = other.turned = turned

        def send_and_take(_, flow=flow, other=other):
            other.send(Message(1000))
            flow.take_first()

        if same:
            transport.env.at(7, (send_and_take,))
        else:
            transport.env.at(7, (lambda _, other=other: other.send(Message(1000)),))
            transport.env.at(7, (lambda _, flow=flow: flow.take_first(),))
        with nullcontext() if same and not turned else pytest.raises(TieError):
            transport.env.run(until=8)
