"""Rings that a run takes at once: everything else happens as it does with their messages."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from support.campaigns import TIMES
from support.ring_runs import RingRuns, alone, alone_case, variants

from hybrid_des.analysis.counterfactual.what_if import builder_of
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.purposes import ACTIVATION, GRADIENT
from hybrid_des.engine.recorder import Recorder
from hybrid_des.simulation import ways
from hybrid_des.simulation.folds import Replicas, folds_of_pipelines
from hybrid_des.simulation.planning.planner import parts_of
from hybrid_des.simulation.ring_links import (
    DisturbedError,
    PassedError,
    RingEnvironment,
    RingLinks,
    RingTransport,
    ring_transport,
)
from hybrid_des.simulation.rings_at_once import Ring, RingsAtOnce
from hybrid_des.simulation.speeds import DurationOverride

FOLDED, ALL, MESSAGES = "FoldedRings", "RingTransport", "Transport"  # networks
TAKEN = {
    0: (MESSAGES, MESSAGES), 1: (ALL, ALL), 3: (FOLDED, FOLDED), 5: (ALL, ALL), 6: (MESSAGES, MESSAGES), 7: (ALL, ALL),
    8: (FOLDED, FOLDED), 9: (MESSAGES, ALL), 10: (ALL, ALL), 11: (ALL, ALL), 13: (MESSAGES, ALL),
    14: (MESSAGES, FOLDED),
    17: (MESSAGES, ALL), 23: (FOLDED, FOLDED), 28: (MESSAGES, ALL), 32: (FOLDED, FOLDED), 35: (ALL, ALL),
    37: (FOLDED, FOLDED), 38: (MESSAGES, ALL), 40: (ALL, ALL), 41: (MESSAGES, FOLDED), 46: (ALL, ALL),
    50: (MESSAGES, ALL),
    52: (FOLDED, FOLDED), 53: (MESSAGES, ALL), 56: (FOLDED, FOLDED), 58: (ALL, ALL),
}  # fmt: skip
ALONE = {  # rings by themselves
    "in turn": 18, "together": 3, "messages of rings reach a link at the same time, or in an unknown order": 18,
    "members begin at different times": 14, "members end while links are still reached": 7,
}  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    return RingRuns(monkeypatch)


def same_alone(seed):
    """Whether members and links end as with messages, or why rings are not taken at once."""
    case = alone_case(Random(seed))
    try:
        found, held = alone(*case, at_once=True)
    except DisturbedError as refusal:
        return str(refusal)
    assert held[-1] == 0
    return found == alone(*case, at_once=False)[0] and ("in turn" if held[0] else "together")


def test_rings_alone_take_the_times_of_their_messages(runs):
    assert Counter(map(same_alone, range(60))) == ALONE


@pytest.mark.parametrize("seed", TAKEN)
def test_random_runs_end_as_they_do_with_messages(runs, seed):
    assert tuple(runs.check(variant).network for variant in variants(seed)) == TAKEN[seed]


def test_ties_are_refused_once_orders_may_differ(runs):
    base, _ = variants(1)
    runs.of(base)
    assert runs.network.env.differs  # after the first end
    for differs in (False, True):
        env = RingEnvironment(differs=differs)
        transport = RingTransport(RingLinks(env, base.parts.fabric, "fifo"), Recorder())
        flows = [transport.pipeline_flow(*ends, ACTIVATION) for ends in ((0, 1), (0, 2))]
        assert flows[0].hops[0].link is flows[1].hops[0].link
        for flow in flows:
            env.at(5, (lambda booking: booking[1].send(Message(8), 0), flow))
        with pytest.raises(DisturbedError) if differs else nullcontext():
            env.run()


def test_a_ring_begins_after_what_its_cause_sends(runs):
    base, _ = variants(1)
    for differs, other, tied in ((True, 0, False), (True, 1, True), (False, 1, False)):
        env = RingEnvironment(differs=differs)
        transport = RingTransport(RingLinks(env, base.parts.fabric, "fifo"), Recorder())
        flow, _ = (transport.pipeline_flow(0, rank, ACTIVATION) for rank in (1, 2))

        def begin(booking, flow=flow, other=other):
            flow.send(Message(8), 0)
            flow.hops[0].link.begin(object(), booking[1].events - other)

        env.at(5, (begin, env))
        with pytest.raises(DisturbedError) if tied else nullcontext():
            env.run()


def test_orders_may_differ_from_the_start_where_steps_repeat(runs):
    base, _ = variants(1)
    for steps in (1, 2):
        scenario = base.scenario.model_copy(update={"steps": steps})
        assert ring_transport(scenario, base.parts, Recorder(), None).env.differs == (steps > 1)


def test_replicas_that_differ_in_more_than_rings_are_all_simulated(runs):
    (base, _), one = variants(23), DurationOverride(lambda rank, call, took: took, lambda rank: rank == 5)
    replicas = Replicas(base.scenario, base.parts)
    assert len([*folds_of_pipelines(replicas)]) > 0
    assert not [*folds_of_pipelines(replace(replicas, retime=one))]
    (processes, group), *others = base.parts.reductions.processes
    halves = [(replace(processes, ranks=processes.ranks[part::2]), group) for part in (0, 1)]
    parts = replace(base.parts, reductions=SimpleNamespace(processes=[*halves, *others]))
    assert not [*folds_of_pipelines(replace(replicas, parts=parts))]
    count = base.scenario.cluster.nodes
    slower = builder_of(base.scenario)([f"cluster.nodes=[{{count: 1}}, {{count: {count - 1}, speed: 0.5}}]"])
    assert not [*folds_of_pipelines(Replicas(slower, parts_of(slower)))]


def test_links_of_rings_are_known_before_others_use_them(runs):
    base, _ = variants(23)
    fold = next(folds_of_pipelines(Replicas(base.scenario, base.parts)))
    name = base.parts.fabric.route(1, 0).links[0]
    for begun in (False, True):
        transport = ring_transport(base.scenario, base.parts, Recorder(), fold)
        transport.pipeline_flow(0, 1, ACTIVATION)
        link = transport.whole.links[name]
        if begun:
            link.begin(object())
        with pytest.raises(DisturbedError) if begun else nullcontext():
            transport.pipeline_flow(1, 0, GRADIENT)


@pytest.mark.parametrize("error", [PassedError, DisturbedError])
def test_no_other_way_is_tried_where_others_pass_in_each(runs, error):
    base, _ = variants(23)
    replicas, tried = Replicas(base.scenario, base.parts), []
    tries = len(ways.tries_of(replicas))

    def simulate(fold, way):
        tried.append(way)
        if way == "followed":
            raise error
        return "by messages"

    ways._DISTURBED.clear()
    for _ in range(2):
        assert ways.undisturbed(simulate, replicas, None, ordered=False) == "by messages"
    assert tried == [*["followed"] * (1 if error is PassedError else tries), "by messages", "by messages"]
    assert tries > 1


def test_others_pass_in_each_way_until_a_ring_ends(runs):
    base, _ = variants(1)
    for differs in (False, True):
        env = RingEnvironment(differs=differs)
        transport = RingTransport(RingLinks(env, base.parts.fabric, "fifo"), Recorder())
        flow = transport.pipeline_flow(0, 1, ACTIVATION)
        flow.hops[0].link.begin(object())
        with pytest.raises(DisturbedError) as refusal:
            flow.send(Message(8), 0)
        assert isinstance(refusal.value, PassedError) != differs


@pytest.mark.parametrize("later", [0, 1])
def test_links_are_left_if_all_images_are_free_together(runs, later):
    base, _ = variants(23)
    fold = next(folds_of_pipelines(Replicas(base.scenario, base.parts)))
    transport = ring_transport(base.scenario, base.parts, Recorder(), fold)
    link = transport.pipeline_flow(0, 1, ACTIVATION).hops[0].link
    rings = RingsAtOnce(transport, base.parts)
    ring = next(
        Ring(transport, whole, rings._flows(whole), rings._shared)
        for whole, _ in base.parts.reductions.processes
        if 0 in whole.ranks
    )
    ring.begin(0, 0, transport.arrival())
    assert link.rings == {ring}
    images = [one for one in transport.whole.links.values() if transport.stand_in(one) is link]
    images[0].free += later
    transport.leave(ring, images)
    assert bool(link.rings) == bool(later)
    transport.leave(ring, images[1:])
    assert bool(link.rings) == bool(later)


@pytest.mark.slow
def test_many_rings_alone_take_the_times_of_their_messages(runs):
    found = Counter(map(same_alone, range(60, 1000 * TIMES)))
    assert found["together"] + found["in turn"] > 300 * TIMES
    assert not found[False]


@pytest.mark.slow
def test_many_random_runs_end_as_they_do_with_messages(runs):
    found = Counter()
    for seed in range(400 * TIMES):
        for variant in variants(seed):
            outcome = runs.check(variant)
            found[outcome.network if outcome.taken else ""] += 1
    assert min(found[FOLDED], found[ALL], found[MESSAGES]) > 50 * TIMES, found
