"""Collectives of layers that are taken alone: what disturbs them, and what is simulated once.

That runs with them are the plain ones is in `test_plain`.
"""

from dataclasses import replace
from functools import cache

import pytest
from support.hot_experts import DRIFT

from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import EXPERT
from hybrid_des.cluster.transport import Transport
from hybrid_des.collectives.communicator import Communicator
from hybrid_des.collectives.group import Group
from hybrid_des.engine.recorder import Recorder
from hybrid_des.folding.refusals import DisturbedError
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts import collectives_alone
from hybrid_des.shortcuts.collectives_alone import (
    LAYERS,
    MOST_MEMBERS,
    CollectivesAlone,
    OfLayers,
    Part,
    taken_of_all_ranks,
)
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.communicators import layer_group, work_of
from hybrid_des.simulation.jobs import links_of

SMALL = [
    *("cluster.nodes=2", "cluster.gpus_per_node=4", "parallel.data=8", "parallel.expert=8"),
    *("batch=16", "model.layers=2", "steps=2"),
]


@cache
def small(*changes):
    scenario = load(DRIFT, [*SMALL, "record=compute", *changes])
    return scenario, parts_of(scenario)


def test_collectives_that_begin_alike_are_simulated_once(seen):
    scenario, parts = small()
    parts.fabric.found.pop("collectives alone", None)
    whole = run(scenario, parts=parts, by_messages=True)
    first, again = (run(scenario, parts=parts) for _ in range(2))
    assert whole.duration == first.duration == again.duration
    assert first.events == again.events < whole.events / 2
    assert first.left_out == f"the messages of {LAYERS}"
    assert 0 < seen["alone"] * 3 < seen["taken"]


@pytest.mark.slow
def test_other_links_are_other_times(seen):
    at = Variant.planned(*small())
    slower, alone, free = at.with_all_links(1 / 2), at.without_queueing(), at.with_all_links(None).with_latency(0)
    each = slower, at, alone, free
    durations = [one.duration for one in each]
    assert seen["taken"] == 4 * 48
    assert durations == [run(one.scenario, parts=one.parts, by_messages=True).duration for one in each]
    assert len({*durations}) == len(durations)
    shared = {"scenario": alone.scenario, "parts": at.parts}
    assert run(**shared).duration == run(**shared, by_messages=True).duration


def test_other_ranks_are_other_times(seen):
    members, known = Members(), {}
    work = work_of(members.call)
    for turn in (0, 1, 0):
        whole = replace(members.whole, ranks=[(rank + turn) % 8 for rank in range(8)])
        group = OfLayers(members.network, whole, known, [], "fifo")
        views = [Group(members.network, whole, place) for place in range(8)]
        group._parts = [Part(view, 0, members.call, lambda view: work.algorithm(view, work.buffer), None)
                        for view in views]  # fmt: skip
        group._outcome()
    assert (seen["taken"], seen["alone"]) == (3, 2)


def test_few_outcomes_are_known(monkeypatch):
    scenario, parts = small()
    monkeypatch.setattr(collectives_alone, "MOST_KNOWN", 3)
    parts.fabric.found.pop("collectives alone", None)
    assert run(scenario, parts=parts).duration == run(scenario, parts=parts, by_messages=True).duration
    assert len(parts.fabric.found["collectives alone"][parts.reductions]) <= 3


VARYING = {
    "messages": ["record=all"],
    "fair": ["cluster.sharing=fair"],
    "slow": ["slow=[{gpu: 1, factor: 0.5, from: 1 us, until: 5 us}]"],
    "jitter": ["jitter={distribution: lognormal, sigma: 0.1}"],
}


@pytest.mark.parametrize("changes", VARYING.values(), ids=VARYING)
def test_what_may_vary_is_simulated_by_messages(changes):
    assert taken_of_all_ranks(*small()) == LAYERS
    assert taken_of_all_ranks(*small(*changes)) is None


class Members:
    """The members of a group on a network, whose exchanges are taken alone."""

    def __init__(self, latency="1 us"):
        scenario, parts = small(f"cluster.nvlink.latency={latency}")
        self.call = next(iter(parts.costs.collectives_of(0)))._replace(launch=0)
        self.network = Transport(links_of(scenario, parts.fabric), Recorder())
        self.env, self.alone = self.network.env, CollectivesAlone(self.network, parts, LAYERS, "fifo")
        self.whole = layer_group(parts, self.call.axis, range(8))
        self.ended = []

    def begin(self, times, begin=None):
        """Let members begin at these picoseconds."""
        begin = begin or self.alone.of_layers(self.whole, work_of)
        for member, time in enumerate(times):
            group = Group(self.network, self.whole, member)
            self.env.process(self._member(member, time, Communicator(self.env, group, begin)))

    def _member(self, member, time, communicator):
        yield self.env.timeout(time)
        yield from communicator.run(0, self.call)
        self.ended.append((self.env.now, member))

    def other(self, time):
        """Another message on a link of a member."""
        flow, mailbox = self.network.flow(Channel(0, 1, EXPERT, "other", 7, 0))
        yield self.env.timeout(time)
        flow.send(Message(1000))
        yield mailbox.receive()


BEGINS = [0, 5, 5, 1000, 70_000, 0, 0, 123]


def test_members_end_in_the_order_of_their_messages(seen):
    ends = []
    for begin in (None, lambda: work_of):
        members = Members()
        members.begin(BEGINS, begin)
        members.env.run()
        sent = members.network.sent()
        ends.append((members.ended, sent))
    assert ends[0] == ends[1]
    assert (seen["taken"], len({time for time, _ in ends[0][0]}) > 1) == (1, True)


def last_of(begins):
    members = Members()
    members.begin(begins)
    members.env.run()
    return members.ended[-1][0]


def reached_first():
    """When the first message of members that begin at once reaches a link."""
    members, reached = Members(), set()
    members.begin([0] * 8, lambda: work_of)
    while members.env.agenda.times or members.env.apart.times:
        members.env.step()
        reached.add(members.env.now)
    return sorted(reached)[1]


def ends_early(member, buffer):
    yield from ()


DISTURBANCES = {
    "a message at first": (lambda members, last: members.env.process(members.other(1)), "another message uses"),
    "a message at last": (lambda members, last: members.env.process(members.other(last - 1)), "another message uses"),
    "a message before": (lambda members, last: (members.env.process(members.other(0)), members.begin([1] * 8)),
                         "something else uses"),
    "a group on the same links": (lambda members, last: members.begin([BEGINS[-1] + 1] * 8), "something else uses"),
    "an event when a member ends": (lambda members, last: members.env.timeout(last), "when members begin or end"),
    "an event booked for then": (lambda members, last: members.env.at(last - 1, (lambda _: members.env.timeout(1),)),
                                 "when members begin or end"),
}  # fmt: skip


@pytest.mark.parametrize("what", DISTURBANCES)
def test_whatever_else_happens_disturbs(what):
    disturb, why = DISTURBANCES[what]
    members, last = Members(), last_of(BEGINS)
    if what != "a message before":
        members.begin(BEGINS)
    disturb(members, last)
    with pytest.raises(DisturbedError, match=why):
        members.env.run()


def test_a_message_afterwards_does_not():
    members = Members()
    members.begin(BEGINS)
    members.env.process(members.other(last_of(BEGINS) + 1))
    members.env.run()
    assert len(members.ended) == 8


def test_members_that_begin_early_or_late_disturb():
    members, last = Members(), last_of(BEGINS)
    begin = members.alone.of_layers(members.whole, work_of)
    members.begin(BEGINS, begin)
    members.begin([last - 1] * 8, begin)
    with pytest.raises(DisturbedError, match="before all have ended"):
        members.env.run()
    members = Members()
    members.begin([*[0] * 7, reached_first()])
    with pytest.raises(DisturbedError, match="when members begin or end"):
        members.env.run()
    members = Members("2 us")  # in whose memory the ends of no other test are
    early = members.alone.of_layers(members.whole, lambda call: work_of(call)._replace(algorithm=ends_early))
    members.begin(BEGINS, early)
    with pytest.raises(DisturbedError, match="before all have begun"):
        members.env.run()


def test_groups_that_are_not_taken():
    """With a server, without a wiring, of one member or too many, or whose heads arrive at once."""
    members = Members()
    whole = members.whole
    assert members.alone.of_layers(whole, work_of)() is not work_of
    many = [rank % 8 for rank in range(MOST_MEMBERS + 1)]
    for changes in ({"ranks": range(9), "servers": 1}, {"tuned": None}, {"ranks": range(1)}, {"ranks": many}):
        assert members.alone.of_layers(replace(whole, **changes), work_of)() is work_of
    assert Members("0 s").alone.of_layers(whole, work_of)() is work_of
