"""Rings that are taken alone in folded runs: what disturbs them, what tells one from another, and links that they hold.

That runs with them are the plain ones is in `test_plain`.
"""

from contextlib import nullcontext
from itertools import chain
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from support.fabrics import GB, build, node, star, wires
from support.rings_alone import ring_values
from support.scenarios import merged
from support.two_stages import TWO_STAGES, planned

from hybrid_des import collectives
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import EXPERT, REDUCTION
from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.communicator import on_channels
from hybrid_des.collectives.group import Group, ProcessGroup
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.folded_transport import folded_transport
from hybrid_des.folding.refusals import DisturbedError, FoldRefusal, TieError
from hybrid_des.folding.symmetry import Fold, FoldedAxis, root_of
from hybrid_des.layout import Layout
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.collectives_alone import (
    GATHERS,
    REDUCTIONS,
    RINGS,
    AroundRings,
    Part,
    Unordered,
    _form,
    _last_at,
    taken_in_fold,
)
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.speeds import DurationOverride

FP32 = codecs.find("fp32").build()
RING = collectives.configured("ring", {"channels": 1})
LONG = {  # two stages of eight replicas, each on a node: rings of five channels are long enough
    "cluster": {"nodes": 2, "gpus_per_node": 8, "infiniband": {"nics_per_node": 8}},
    "gradients": {"channels": 5, "pad": True},
}
CHUNKS = {**LONG, "schedule": {"kind": "interleaved-1f1b", "microbatches": 4, "chunks": 2}}
MEETING = {  # rings of one chunk begin while messages of the other are under way
    "cluster": {"nodes": 8, "nvlink": {"latency": "1 ns"}, "infiniband": {"latency": "10 ns"}},
    "parallel": {"data": 16}, "schedule": CHUNKS["schedule"], "workload": {"parameters": 128},
    "gradients": {"channels": 4, "pad": True},
}  # fmt: skip


def ends_of(fabric, fold, groups, *, at_once):
    """When each simulated member of some rings ends, of which one begins every millisecond, and what they leave behind.

    That is what was sent, and for each link when a message last reached it, and when it is free.

    Args:
        fabric: the wiring.
        fold: which ranks are simulated.
        groups: for each ring its ranks and the elements of its buffer.
        at_once: whether rings are taken alone.
    """
    rings = [ProcessGroup("ring", stage, ranks, [0] * len(ranks)) for stage, (ranks, _) in enumerate(groups)]
    transport, known, ends = folded_transport(fabric, "fifo", Recorder(), fold, rings), {}, []

    def part(collective, group, buffer, begin):
        yield transport.env.timeout(begin)
        yield from collective(group, buffer)
        ends.append((begin, group.me, transport.env.now))

    for whole, (ranks, elements) in zip(rings, groups, strict=True):
        places = [place for place, rank in enumerate(ranks) if fold.simulated(rank)]
        collective = AroundRings(transport, whole, len(places), known, "ring", RING) if at_once else RING
        for place in places:
            transport.begin(ranks[place])
            buffer = Buffer(elements, FP32)
            transport.env.process(part(collective, Group(transport, whole, place), buffer, 10**9 * (1 + whole.stage)))
    transport.env.run()
    used = [link for link in transport.links.values() if link.free and link.bandwidth is not None]
    return sorted(ends), transport.sent(), sorted((link.spec.name, _last_at(link), link.free) for link in used)


def folded(ranks, keep):
    return Fold(Layout({"data": ranks}, ["data"]), [FoldedAxis("data", keep)])


def of_other_places():
    """In the second one, members send to others: 0 to the image of 2, 1 to that of 0, and 2 to that of 1."""
    ups = [wires(f"gpu{rank}-hub", bandwidth=(1 + rank % 3) * GB, one_way=True) for rank in range(9)]
    downs = wires(*(f"hub-gpu{rank}" for rank in range(9)), one_way=True)
    fabric = build("links", node(9), links=(*chain(*ups), *downs))
    return fabric, folded(9, 3), [(range(9), 9000), ((0, 8, 1, 3, 2, 4, 6, 5, 7), 9000)]


def crossing(latency, first=0):
    """Two rings of two ranks, whose messages share a link: a slow one in the first, the next one in the second.

    Args:
        latency: of the first links of ranks 1 and 3, in picoseconds.
        first: of that of rank 0.
    """
    of_first = wires("gpu0-a", latency=first, one_way=True) + wires("b-c", "b-d", "d-gpu0", one_way=True)
    of_second = wires("gpu2-e", "g-h", "h-gpu2", one_way=True)
    slow = wires("a-b", "e-g", "f-g", bandwidth=GB // 2, one_way=True)
    late = wires("gpu1-a", "gpu3-f", latency=latency, one_way=True) + wires(
        "c-gpu1", "h-gpu3", latency=7000, one_way=True
    )
    between = wires("gpu0-v", "v-w", "w-x", "x-y", "y-gpu2")
    fabric = build("links", node(4), links=(*of_first, *of_second, *slow, *late, *between))
    return fabric, Fold(Layout({"data": 4}, ["data"]), [])


def pairs(**second):
    """Rings of ranks 0 and 1, and of ranks 2 and 3 over links of their own, which may be others."""
    links = wires("gpu0-gpu1", latency=1000) + wires("gpu2-gpu3", **{"latency": 1000, **second})
    return build("links", node(4), links=(*links, *wires("gpu1-gpu2"))), Fold(Layout({"data": 4}, ["data"]), [])


def star_of(*rings):
    return build("links", node(8), links=star(8)), folded(8, 1), rings


TWO = [((0, 1), 8), ((2, 3), 8)]
UNLIKE = {  # rings, of which so many are simulated alone
    "none": (*pairs(), TWO, 1),
    "in elements": (*pairs(), [TWO[0], ((2, 3), 16)], 2),
    "in bandwidth": (*pairs(bandwidth=GB // 2), TWO, 2),
    "in latency": (*pairs(latency=1001), TWO, 2),
    "in members": (*star_of((range(8), 80), (range(0, 8, 2), 80)), 2),
    "in images": (*star_of((range(8), 80), ((0, 3, 6, 1, 4, 7, 2, 5), 80)), 2),
    "in places": (*of_other_places(), 2),
    "in shared links": (*crossing(3000), TWO, 2),
}


@pytest.mark.parametrize("how", UNLIKE)
def test_rings_that_differ_are_simulated_apart(how, seen):
    fabric, fold, groups, alone = UNLIKE[how]
    at_once, by_messages = (ends_of(fabric, fold, groups, at_once=way) for way in (True, False))
    assert at_once == by_messages
    assert (seen["taken"], seen["alone"]) == (len(groups), alone)


class View(NamedTuple):
    """A member's view of a ring: its place among members, its paces and its mailboxes."""

    me: int = 0
    size: int = 4
    paces: tuple[int, int] = (1, 2)
    sends: str = "a mailbox"
    hears: str = "another one"

    def end_of(self, peer):
        assert peer == (self.me + 1) % self.size
        return self.sends

    def from_(self, peer):
        assert peer == (self.me - 1) % self.size
        return self.hears

    def to(self, peer):
        return SimpleNamespace(hops=())


@pytest.mark.parametrize("change", [{}, {"me": 2}, {"size": 5}, {"paces": (1, 3)}, {"hears": "a mailbox"}])
def test_what_a_member_of_a_ring_depends_on(change):
    other = Part(View(1, sends="another one", hears="a mailbox"), 0, 8, None, None)
    forms = [_form([Part(view, 0, 8, None, None), other]) for view in (View(), View(**change))]
    assert (forms[0] == forms[1]) == (not change)


@pytest.mark.parametrize(("fabric", "groups", "why"), [
    (crossing(0, 0), [TWO[0]], "messages of a ring arrive when it begins"),
    (crossing(3000, 3000), [TWO[0]], "messages of ranks 0 and 1 reach link a/to/b at the same time, and which .*"),
])  # fmt: skip
def test_rings_whose_messages_meet_in_unknown_order_are_not_taken(fabric, groups, why):
    with pytest.raises(DisturbedError, match=f"^{why}$"):
        ends_of(*fabric, groups, at_once=True)


@pytest.mark.parametrize("time", [4, 5])
def test_a_message_at_a_first_link_when_rings_begin_ties(time):
    whole = ProcessGroup("ring", 0, range(8), [0] * 8)
    transport = folded_transport(star_of()[0], "fifo", Recorder(), folded(8, 1), [whole], watched=True)
    env, taken = transport.env, AroundRings(transport, whole, 1, {}, "ring", RING)
    other, _ = transport.flow(Channel(0, 1, EXPERT, "other", 7, 0))
    env.at(time, (lambda _: other.send(Message(8)),))

    def part():
        yield env.timeout(5)
        yield from taken(Group(transport, whole, 0), Buffer(80, FP32))

    env.process(part())
    with pytest.raises(TieError) if time == 5 else nullcontext():
        env.run()


def test_what_follows_the_end_of_a_ring_is_unordered(seen):
    """But among itself, and whichever of a member's channels ends last."""
    whole = ProcessGroup("ring", 0, range(8), [0] * 8, channels=[range(8), range(8)])
    quick = wires(*(f"gpu{rank}-hub" for rank in range(8)), bandwidth=10**6 * GB, latency=1000)  # both end at one time
    fabric = build("links", node(8), links=quick)
    transport, at = folded_transport(fabric, "fifo", Recorder(), Fold(Layout({"data": 8}, ["data"]), []), [whole]), []
    env, taken = transport.env, AroundRings(transport, whole, 16, {}, "ring", RING)

    def part(group):
        yield from on_channels(group, Buffer(1600, FP32), taken)
        at.append(env.lineage)

    for place in range(8):
        transport.begin(place)
        env.process(part(Group(transport, whole, place)))
    env.run()
    assert seen["taken"] == 1
    assert len({chain for chain, *_ in at} - {None}) == 8
    assert not any(env.decided(one, other) for one in at for other in at if one != other)


def test_the_order_in_which_members_begin_is_unknown():
    known, (one, other) = Unordered(), map(root_of, (0, 1))
    assert known.ordered(one, one)
    assert not known.ordered(one, other)
    assert not known.ordered(known.joined(one, other), one)
    assert known.ordered(known.joined(one, one), one)
    assert not known.ordered(known.joined(one, other), known.joined(one, other))


@pytest.mark.parametrize(("change", "tied", "expected"), [
    ({}, False, REDUCTIONS),
    ({"sharding": "zero-1"}, False, RINGS),
    ({"sharding": "zero-1", "overlap": {"parameters": True}}, False, REDUCTIONS),
    (CHUNKS, False, None),
    (CHUNKS, True, REDUCTIONS),
    ({**CHUNKS, "gradients": {**LONG["gradients"], "overlap": False}}, False, REDUCTIONS),
    ({**CHUNKS, "sharding": "zero-1"}, False, GATHERS),
    ({**CHUNKS, "sharding": "zero-1"}, True, RINGS),
    ({"gradients": {"channels": 4}}, True, None),  # 7 × 4 messages are too few
    ({"gradients": {"algorithm": "halving-doubling", "channels": None}}, True, None),
    ({"cluster": {"sharing": "fair"}}, True, None),
])  # fmt: skip
def test_rings_that_nothing_is_expected_to_disturb(change, tied, expected):
    variant = planned(merged(LONG, change))
    assert taken_in_fold(variant.scenario, variant.parts, tied=tied) == expected


@pytest.mark.parametrize(("forward", "why"), [
    (1_019_999, "messages of a ring and rank 0 reach link node4/nic0/in at the same time, and which comes first"),
    (1_020_000, "other messages reach link node4/nic0/in when a ring begins"),
    (1_020_001, None),
])  # fmt: skip
def test_a_message_that_reaches_a_link_meanwhile_disturbs_once(forward, why, seen):
    """And what was disturbed is not tried again with these parts."""
    variant, tried = planned(MEETING), []
    retime = DurationOverride(lambda _, call, took: forward if call.kind == "F" else took, lambda _: 0)
    for _ in range(2):
        seen.clear()
        made = run(variant.scenario, parts=variant.parts, retime=retime, fold_from=2)
        assert [one.why.startswith(why) for one in made.refused] == ([] if why is None else [True])
        assert made.duration == run(variant.scenario, parts=variant.parts, retime=retime, by_messages=True).duration
        assert (REDUCTIONS in made.left_out) == (why is None)
        tried.append(seen["taken"])
    assert tried[0] > 0
    assert tried[1] == (tried[0] if why is None else 0)


@pytest.mark.parametrize(("seed", "why"), [
    (1, "messages of ranks 2 and 3 reach link node0/nic1/out at the same time"),
    (3, "members of a ring begin at different times"),
    (6, "messages of a ring arrive when it begins"),
])  # fmt: skip
def test_why_rings_are_not_taken(seed, why):
    made = run(scenario_from(ring_values(Random(seed))), fold_from=2)
    assert [one.why[: len(why)] for one in made.refused] == [why]
    assert made.left_out.startswith("ranks that repeat others") and "rings" not in made.left_out


def test_members_that_stand_for_another_ring_are_not_taken():
    """Rank 2 of the ring of ranks 0, 2 and 4 sends to rank 1, which stands for rank 4."""
    fabric = build("links", node(6), links=star(6))
    with pytest.raises(DisturbedError, match="members of a ring stand for those of another one"):
        ends_of(fabric, folded(6, 3), [((0, 2, 4), 8)], at_once=True)


def test_rows_of_messages_are_kept_if_asked_for():
    scenario = scenario_from(merged(merged(TWO_STAGES, LONG), {"record": "all"}))
    rows = [
        len(run(scenario, fold_from=2, by_messages=whole).timeline.all_messages()["start"]) for whole in (False, True)
    ]
    assert rows[0] == rows[1] > 0


def opened(*lanes, watched):
    """A network in which one of two nodes is simulated, and flows from its first rank to the other node."""
    transport = folded_transport(planned().parts.fabric, "fifo", Recorder(), folded(8, 4), watched=watched)
    return transport, [transport.flow(Channel(0, 4, REDUCTION, "ring", 0, 0), lane)[0] for lane in lanes]


def sent(transport, flow):
    transport.env.at(7, (lambda _: flow.send(Message(1000)),))
    transport.env.run()


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("hop", [0, 1])
def test_no_message_reaches_a_link_while_a_ring_has_it(hop, watched):
    transport, (flow, _) = opened(0, 1, watched=watched)
    sent(transport, flow)
    reached = flow.hops[hop].link.when
    for until in (-1, 0, 1):
        transport, (flow, _) = opened(0, 1, watched=watched)
        flow.hops[hop].link.take(reached + until)
        with nullcontext() if until < 0 else pytest.raises(FoldRefusal):
            sent(transport, flow)


@pytest.mark.parametrize("watched", [False, True])
def test_first_links_are_taken_when_members_begin_by_one(watched):
    transport, (flow, other) = opened(0, 1, watched=watched)
    transport.env.at(7, (lambda _: flow.take_first(),))
    with pytest.raises(FoldRefusal):
        sent(transport, other)
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
    for foreign, same in ((False, True), (False, False), (True, True)):
        transport, (flow, other) = opened(0, 1, watched=True)
        flow.foreign = other.foreign = foreign

        def send_and_take(_, flow=flow, other=other):
            other.send(Message(1000))
            flow.take_first()

        if same:
            transport.env.at(7, (send_and_take,))
        else:
            transport.env.at(7, (lambda _, other=other: other.send(Message(1000)),))
            transport.env.at(7, (lambda _, flow=flow: flow.take_first(),))
        with nullcontext() if same and not foreign else pytest.raises(TieError):
            transport.env.run(until=8)
