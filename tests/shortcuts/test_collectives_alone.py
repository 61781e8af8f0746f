"""Collectives of layers that are taken at once: a run has the rows, peaks and end of one by messages."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support.campaigns import TIMES
from support.folded_causes import KINDS
from support.paths import SCENARIOS
from support.runs import totals

from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import EXPERT
from hybrid_des.cluster.transport import Transport
from hybrid_des.collectives.communicator import Communicator
from hybrid_des.collectives.group import Group
from hybrid_des.engine.recorder import Recorder
from hybrid_des.errors import HybridDesError
from hybrid_des.folding.refusals import DisturbedError
from hybrid_des.planning.layer_groups import layer_group
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts import collectives_alone
from hybrid_des.shortcuts.attempts import Attempt, of_all_ranks_at_once
from hybrid_des.shortcuts.collectives_alone import Begun, CollectivesAlone
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.communicators import work_of
from hybrid_des.simulation.jobs import links_of

TABLES = "ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges"
DRIFT = SCENARIOS / "experts/drift.yaml"
SMALL = [
    *("cluster.nodes=2", "cluster.gpus_per_node=4", "parallel.data=8", "parallel.expert=8"),
    *("batch=16", "model.layers=2", "steps=2"),
]


@pytest.fixture
def seen(monkeypatch):
    """Collectives that were taken, simulated alone, or disturbed."""
    counts, outcome_of, simulated = Counter(), CollectivesAlone.outcome_of, CollectivesAlone._simulated

    def taken(*given):
        counts["taken"] += 1
        return outcome_of(*given)

    def alone(*given):
        counts["alone"] += 1
        return simulated(*given)

    class Refused(DisturbedError):
        def __init__(self, *why):
            counts["refused"] += 1
            super().__init__(*why)

    monkeypatch.setattr(CollectivesAlone, "outcome_of", taken)
    monkeypatch.setattr(CollectivesAlone, "_simulated", alone)
    monkeypatch.setattr(collectives_alone, "DisturbedError", Refused)
    return counts


def hot_experts(rng):
    """A random scenario of ranks that compute unequally, with exchanges among all or some of them."""
    nodes, width = rng.choice((1, 1, 2)), rng.choice((2, 4, 8))
    ranks = nodes * width
    changes = {
        "cluster.nodes": nodes, "cluster.gpus_per_node": width, "parallel.data": ranks,
        "parallel.expert": rng.choice([size for size in (2, 4, 8, 16) if ranks % size == 0]),
        "batch": ranks * rng.choice((1, 2)), "model.layers": rng.choice((1, 2, 3)),
        "model.sequence": rng.choice((64, 512, 4096)), "experts.workload": f"W{rng.randint(1, 7)}",
        "experts.replan": rng.choice((1, 2)), "steps": rng.choice((1, 2, 4)),
        "barrier": rng.choice(("true", "true", "false")), "gradients.overlap": rng.choice(("true", "false")),
    }  # fmt: skip
    return load(DRIFT, [*(f"{key}={value}" for key, value in changes.items()), "fold=off", "record=compute"])


def drawn(kind, rng):
    if kind == "hot experts":
        return hot_experts(rng)
    values = {**KINDS[kind](rng), "fold": "off", "record": "compute"}
    values["cluster"]["sharing"] = "fifo"
    return scenario_from(values)


def same(kind, seed, seen):
    """Whether a random run has collectives that were taken, refused, or none; it ends as with all messages."""
    rng = Random(seed)
    try:
        scenario = drawn(kind, rng)
        parts, order = parts_of(scenario), rng.choice((None, 3))
        whole, other = (run(scenario, parts=parts, by_messages=every, order=order) for every in (True, False))
    except HybridDesError:
        return "impossible"
    assert (whole.duration, whole.peak_memory, totals(whole)) == (other.duration, other.peak_memory, totals(other))
    for name in TABLES:
        mine, its = (getattr(one.timeline, name) for one in (whole, other))
        assert all(np.array_equal(mine[column], its[column]) for column in mine), (name, seed)
    counts = Counter(seen)
    seen.clear()
    return "refused" if counts["refused"] else "taken" if counts["taken"] else "none"


def test_random_runs_end_as_with_all_messages(seen):
    found = Counter(same("hot experts", seed, seen) for seed in range(40))
    assert min(found["taken"], found["refused"]) > 3, found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("hot experts", 400), ("model", 20), ("spanning", 60)])
def test_many_random_runs_end_as_with_all_messages(kind, count, seen):
    found = Counter(same(kind, seed, seen) for seed in range(60, 60 + count * TIMES))
    assert found["taken"] or found["refused"], found


def small():
    scenario = load(DRIFT, [*SMALL, "record=compute"])
    return scenario, parts_of(scenario)


def test_collectives_that_begin_alike_are_simulated_once(seen):
    scenario, parts = small()
    whole = run(scenario, parts=parts, by_messages=True)
    first, again = (run(scenario, parts=parts) for _ in range(2))
    assert whole.duration == first.duration == again.duration
    assert first.events == again.events < whole.events / 2
    assert not seen["refused"]
    assert seen["alone"] * 3 < seen["taken"]


def test_other_links_are_other_times(seen):
    at = Variant.planned(*small())
    slower, alone, free = at.with_all_links(1 / 2), at.without_queueing(), at.with_all_links(None).with_latency(0)
    durations = [one.duration for one in (slower, at, alone, free)]
    assert not seen["refused"]
    assert durations == [
        run(one.scenario, parts=one.parts, by_messages=True).duration for one in (slower, at, alone, free)
    ]
    assert len({*durations}) == len(durations)
    assert seen["taken"] == 4 * 48
    shared = {"scenario": alone.scenario, "parts": at.parts}
    assert run(**shared).duration == run(**shared, by_messages=True).duration


def test_other_ranks_are_other_times(seen):
    members = Members()
    members.alone._known.clear()
    begun = [Begun(place, 0, members.call, work_of(members.call), None) for place in range(8)]
    for turn in (0, 1, 0):
        whole = replace(members.whole, ranks=[(rank + turn) % 8 for rank in range(8)])
        members.alone.outcome_of(whole, begun)
    assert seen["alone"] == 2


def test_few_beginnings_are_known(seen, monkeypatch):
    scenario, parts = small()
    monkeypatch.setattr(collectives_alone, "MOST_KNOWN", 3)
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
    scenario = load(DRIFT, [*SMALL, "record=compute", *changes])
    usual, _ = small()
    of = {one: SimpleNamespace(scenario=one, parts=parts_of(one)) for one in (usual, scenario)}
    assert of_all_ranks_at_once(of[usual]) == (Attempt(alone="collectives of layers"),)
    assert of_all_ranks_at_once(of[scenario]) == ()


@cache
def planned(latency):
    scenario = load(DRIFT, [*SMALL, "record=compute", f"cluster.nvlink.latency={latency}"])
    return scenario, parts_of(scenario)


class Members:
    """The members of a group on a network, whose exchanges are taken at once."""

    def __init__(self, latency="1 us"):
        scenario, parts = planned(latency)
        self.call = next(iter(parts.costs.collectives_of(0)))._replace(launch=0)
        self.network = Transport(links_of(scenario, parts.fabric), Recorder())
        self.env, self.alone = self.network.env, CollectivesAlone(self.network, parts, "fifo")
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
        ends.append(members.ended)
    assert ends[0] == ends[1]
    assert (seen["taken"], len({time for time, _ in ends[0]}) > 1) == (1, True)


def last_of(begins):
    members = Members()
    members.begin(begins)
    members.env.run()
    return members.ended[-1][0]


@pytest.mark.parametrize("when", ["first", "later", "last", "after"])
def test_another_message_on_a_link_ends_the_run(when):
    last = last_of(BEGINS)
    time = {"first": 1, "later": 69_999, "last": last - 1, "after": last + 1}[when]
    members = Members()
    members.begin(BEGINS)
    members.env.process(members.other(time))
    with nullcontext() if when == "after" else pytest.raises(DisturbedError):
        members.env.run()
    assert (len(members.ended) == 8) == (when == "after")


def test_links_that_are_busy_are_not_taken():
    members = Members()
    members.env.process(members.other(0))
    members.begin([1] * 8)
    with pytest.raises(DisturbedError, match="something else uses"):
        members.env.run()


@pytest.mark.parametrize("early", [True, False])
def test_something_else_when_a_member_ends_ends_the_run(early):
    time = last_of(BEGINS)
    members = Members()
    if early:
        members.env.timeout(time)
    members.begin(BEGINS)
    if not early:
        members.env.at(time - 1, (lambda _: members.env.timeout(1),))
    with pytest.raises(DisturbedError, match="when members begin or end"):
        members.env.run()


def test_a_member_that_begins_with_a_message_ends_the_run():
    times = [0] * 8
    members = Members()
    members.begin(times, lambda: work_of)
    reached = set()
    while members.env.agenda.times or members.env.apart.times:
        members.env.step()
        reached.add(members.env.now)
    between = sorted(reached)[1]
    other = Members()
    other.begin([*times[:-1], between])
    with pytest.raises(DisturbedError, match="when members begin or end"):
        other.env.run()


def test_a_member_that_begins_again_early_ends_the_run():
    members = Members()
    begin = members.alone.of_layers(members.whole, work_of)
    members.begin(BEGINS, begin)
    members.begin([last_of(BEGINS) - 1] * 8, begin)
    with pytest.raises(DisturbedError, match="before all have ended"):
        members.env.run()


def test_two_groups_on_the_same_links_end_the_run():
    members = Members()
    members.begin(BEGINS)
    members.begin([BEGINS[-1] + 1] * 8)
    with pytest.raises(DisturbedError, match="something else uses"):
        members.env.run()


def test_a_member_that_ends_before_others_begin_ends_the_run():
    def nothing(member, buffer):
        yield from ()

    members = Members("2 us")  # in whose memory the ends of no other test are
    members.begin(
        BEGINS, members.alone.of_layers(members.whole, lambda call: work_of(call)._replace(algorithm=nothing))
    )
    with pytest.raises(DisturbedError, match="before all have begun"):
        members.env.run()


@pytest.mark.parametrize("changes", [{"ranks": range(9), "servers": 1}, {"tuned": None}, {"ranks": range(1)}])
def test_other_groups_are_not_taken(changes):
    members = Members()
    assert members.alone.of_layers(replace(members.whole, **changes), work_of)() is work_of


def test_large_groups_are_not_taken(monkeypatch):
    members = Members()
    for most in (7, 8):
        monkeypatch.setattr(collectives_alone, "MOST_MEMBERS", most)
        assert (members.alone.of_layers(members.whole, work_of)() is work_of) == (most == 7)


def test_groups_whose_heads_arrive_at_once_are_not_taken():
    assert Members("0 s").alone.of_layers(Members().whole, work_of)() is work_of
    assert Members().alone.of_layers(Members().whole, work_of)() is not work_of
