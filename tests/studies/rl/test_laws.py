"""Laws of loops: closed forms, identities and bounds."""

from collections import defaultdict
from copy import copy
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from studies.rl.test_per_token import as_scenario, drawn_case, engine_of
from support.campaigns import thinned
from support.loops import MODEL, Engine, Training, loop_scenario, looped

from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.rl.draws import drawn_lengths
from hybrid_des.studies.rl.loop import run_loop

FREE = Engine(0, 0, 0, 0)


def ends(record):
    """Cycles: from the end of a sync to that of the next."""
    times = [0, *(sync.end for sync in record.syncs)]
    return [after - before for before, after in pairwise(times)]


def idle(record, states):
    """Time in some states, of both sides."""
    return sum(span.end - span.begin for span in (*record.engines, *record.trainer) if span.state in states)


def taken_at(record):
    """When each batch was taken: with one take per batch, the end of the waiting for it."""
    times = {}
    for span in record.trainer:
        if span.state in ("passes", "train"):
            times.setdefault(span.batch, span.begin)
    return times


def simulated(case):
    return looped(as_scenario(case), engine_of(case), Training(case.step, case.token, case.passes), case.sync)


TURNS = {"count": {"kind": "uniform", "max": 4}, "wait": {"time": "5 ns", "distribution": "exponential"}, "tokens": 5}
REWARD = {"time": "3 ns", "distribution": "exponential", "workers": 2}
LEND = {"below": 0.5, "to_rollout": "1 ns", "to_trainer": "2 ns"}
VARIED = [
    {"rollout": {"on": "trainer", "switch": "1 ns"}, "engines": 1, "sync": {"time": 0, "every": 2}},
    {"lend": LEND, "ahead": 1, "response": 40, "batch": 64, "engines": 1, "rollout": {"concurrency": 4}},
    {"lend": LEND, "ahead": 0.5, "batch": 32, "turns": TURNS, "rollout": {"concurrency": 2}},
    {"turns": TURNS, "reward": REWARD, "ahead": 1},
    {"turns": {**TURNS, "keep": False}, "reward": {**REWARD, "per": "group"}, "sync": {"time": 0, "running": "wait"}},
    {"turns": TURNS, "ahead": 2, "sync": {"time": 0, "running": "restart"}, "rollout": {"concurrency": 2}},
    {"barrier": True, "filter": 0.3, "sync": {"time": 0, "running": "wait"}},
    {"turns": {**TURNS, "keep": True}, "room": 70, "ahead": 2, "sync": {"time": 0, "running": "continue"}},
    {"ahead": 1, "rest": "2 ns", "passes": {"old": True}, "max_age": 1, "stale": "drop", "room": 90},
]


def varied(number, **changes):
    keys = {**VARIED[number], **changes}
    room = keys.pop("room", 10**9)
    return looped(loop_scenario(**keys), Engine(tokens=room), Training(5000, 2, 100))


def test_law_1_colocated_equal_lengths_are_a_closed_sum():
    engine, training = Engine(1000, 10, 7, 3), Training(4000, 3, 250)
    record = looped(
        loop_scenario(batch=16, engines=1, prompt=9, response=23, rollout={"on": "trainer"}), engine, training, 700
    )
    b, p, length = 8, 9, 23  # two groups of four on each of two replicas
    generation = 3 * 4 * p + length * (1000 + 10 * b) + 7 * b * (p * length + length * (length - 1) // 2)
    assert ends(record) == [generation + 250 + 4000 + 3 * 16 * (p + length) + 700] * 3


def test_law_2_syncs_that_take_no_time_cut_no_stretch():
    engine = Engine(1000, 10, 7, 3)
    record = looped(
        loop_scenario(
            samples=1, batch=2, steps=30, engines=1, response=50, ahead=4, counted="now",
            rollout={"tensor": 2, "concurrency": 1}, sync={"time": 0, "running": "continue"},
        ), engine, Training(777), 0,
    )  # fmt: skip
    ended = [sample for sample in record.samples if sample.ended >= 0]
    assert len(ended) >= 60
    assert {one.ended - one.started for one in ended} == {3 * 10 + engine.stretch_ps(1, 10, 50)}


@pytest.mark.parametrize("step", [100, 10**6])
def test_law_3_one_step_off_hides_the_shorter_side(step):
    engine, training = Engine(), Training(step, 0, 30)
    keys = {"samples": 1, "batch": 16, "response": 23, "barrier": True, "sync": {"time": 0, "running": "wait"}}
    record = looped(loop_scenario(steps=5, **keys), engine, training, 700)
    generation = 3 * 4 * 10 + engine.stretch_ps(4, 4 * 10, 23)
    assert ends(record)[1:] == [max(generation, 30 + step) + 700] * 4


def test_law_4_free_engines_leave_training_and_sync():
    record = looped(loop_scenario(), FREE, Training(5000, 0, 100), 700)
    assert ends(record) == [5100 + 700] * 3
    assert idle(record, ("first samples", "long tail")) == 0


def test_law_4_a_free_trainer_leaves_the_engines():
    keys = {"samples": 1, "batch": 8, "response": 23, "ahead": 3, "rollout": {"concurrency": 2}}
    engine = Engine()
    record = looped(loop_scenario(steps=8, **keys), engine, Training(0), 0)
    assert ends(record) == [3 * 2 * 10 + engine.stretch_ps(2, 20, 23)] * 8
    assert {span.state for span in record.engines} == {"prefill", "decode"}


@pytest.mark.parametrize("every", [2, 3, 4, 6])
def test_law_5_fewer_syncs_save_their_time(every):
    each = looped(loop_scenario(steps=12, ahead=1), FREE, sync=700)
    fewer = looped(loop_scenario(steps=12 // every, ahead=1, sync={"time": 0, "every": every}), FREE, sync=700)
    assert fewer.end == each.end - 12 * 700 + 12 // every * 700


@pytest.mark.parametrize("number", thinned(range(60), slow=range(30, 60)))
def test_law_6_ages_count_samples_at_syncs(number):
    case = drawn_case(number)
    case.take, case.step, case.sync = case.updates, 500 + case.step, 700 + case.sync
    case.running = "resume" if case.running == "restart" else case.running  # begun anew, a sample has an age of its own
    record = simulated(case)
    trained = [sample for sample in record.samples if sample.fate == "trained"]
    taken = taken_at(record)
    waiting = sum(sample.begun < sync.end <= taken[sample.batch] for sync in record.syncs for sample in trained)
    assert sum(sample.age for sample in trained) == waiting


@pytest.mark.parametrize(("ahead", "ages"), [(0, [0] * 6), (1, [0, 1, 1, 1, 1, 1]), (2, [0, 1, 2, 2, 2, 2])])
def test_law_6_a_full_allowance_is_the_mean_age(ahead, ages):
    record = looped(loop_scenario(steps=6, ahead=ahead, order="oldest"), FREE)
    assert [{one.age for one in record.samples if one.batch == batch} for batch in range(6)] == [{age} for age in ages]


def test_law_6_half_a_batch_ahead_is_half_an_age():
    record = looped(loop_scenario(steps=9, batch=64, ahead=0.5, order="oldest"), FREE)
    assert {np.mean([one.age for one in record.samples if one.batch == batch]) for batch in range(1, 9)} == {0.5}


@pytest.mark.parametrize("number", thinned(range(60), slow=range(30, 60)))
def test_law_6_in_order_no_age_exceeds_the_allowance(number):
    case = drawn_case(number)
    case.order, case.now, case.barrier, case.drop = "oldest", False, False, None
    record = simulated(case)
    assert max(sample.age for sample in record.samples) <= ceil(case.ahead)


@pytest.mark.parametrize("share", thinned([Fraction(1, 8), Fraction(1, 2)], slow=[Fraction(1, 8)]))
def test_law_7_the_longest_of_a_group_sets_its_age(share):
    samples, prompts = 16, 64
    response = {"kind": "lognormal", "mean": 400, "sigma": 1, "max": 8000}
    places = int(share * samples * prompts) // 4
    scenario = loop_scenario(
        samples=samples, batch=samples * prompts, steps=40, ahead=50, response=response, prompt=1,
        rollout={"concurrency": places}, sync={"time": 0, "running": "continue"},
    )  # fmt: skip
    record = looped(scenario, Engine(1000, 0, 0, 0), Training(0), 0)
    lengths = drawn_lengths(scenario.rl.response, np.random.default_rng(0))
    groups = np.array([[lengths.take() for _ in range(samples)] for _ in range(2000)])
    expected = float(share) * groups.max(axis=1).mean() / groups.mean()
    assert np.mean([one.age for one in record.samples if one.batch >= 8]) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("number", thinned(range(60), slow=range(30, 60)))
def test_law_8_no_loop_is_shorter_than_its_bounds(number):
    case = drawn_case(number)
    record = simulated(case)
    tokens = sum(sample.response for sample in record.samples if sample.fate == "trained")
    training = case.steps * case.every * case.updates * (case.step + case.passes)
    assert record.end >= training + case.steps * case.sync
    each = case.engine.step / case.concurrency + case.engine.sequence
    assert record.end * (case.replicas + case.lent) >= tokens * each


def test_law_9_lending_conserves_work():
    keys = {"samples": 1, "batch": 512, "steps": 4, "response": 100, "ahead": 0, "prompt": 1}
    keys |= {"rollout": {"concurrency": 4}, "engines": 1}
    engine, training, switch = Engine(1000, 0, 0, 0), Training(10**6), 10**4
    alone = looped(loop_scenario(**keys), engine, training, 0)
    lent = {"below": 0.5, "to_rollout": "10 ns", "to_trainer": "10 ns"}
    record = looped(loop_scenario(lend=lent, **keys), engine, training, 0)
    assert record.lent == 2 and record.gpus_of_replicas == (1, 1, 1, 1)
    generation = ends(alone)[0] - 10**6
    least = (2 * generation + 2 * (10**6 + 2 * switch)) / 4
    assert all(least <= cycle < generation + 10**6 for cycle in ends(record))


@pytest.mark.parametrize("number", range(len(VARIED)))
def test_law_10_samples_in_engines_obey_little(number):
    record = varied(number)
    changes = [*record.queue, record.queue[-1]._replace(time=record.end)]
    area = sum(a.running * (b.time - a.time) for a, b in pairwise(changes))
    started = [sample for sample in record.samples if sample.started >= 0]
    assert area == sum((record.end if one.ended < 0 else one.ended) - one.started for one in started)


@pytest.mark.parametrize("number", range(len(VARIED) - 1))  # when the last one drops samples, the record does not say
def test_law_10_groups_in_the_queue_obey_little(number):
    record = varied(number)
    groups = {sample.group: sample for sample in record.samples if sample.fate in ("trained", "queued")}
    taken = taken_at(record)
    changes = [*record.queue, record.queue[-1]._replace(time=record.end)]
    area = sum(a.groups * (b.time - a.time) for a, b in pairwise(changes))
    expected = sum((record.end if one.batch < 0 else taken[one.batch]) - one.ready for one in groups.values())
    assert area == expected > 0


def changed(case, **changes):
    other = copy(case)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


@pytest.mark.parametrize("number", thinned(range(60), slow=range(30, 60)))
def test_law_11_faster_syncs_and_engines_lengthen_nothing(number):
    case = changed(drawn_case(number), lent=0, turns=0, reward=None)
    end = simulated(case).end
    assert simulated(changed(case, sync=case.sync // 2)).end <= end
    assert simulated(changed(case, engine=replace(case.engine, step=case.engine.step // 2))).end <= end


@pytest.mark.parametrize("number", thinned(range(60), slow=range(30, 60)))
def test_law_11_more_places_and_allowance_lengthen_nothing(number):
    """Where samples do not slow each other down; but each sync may wait for one decode step more."""
    case = changed(
        drawn_case(number), running="continue", filter=0, drop=None, room=10**6, barrier=False, colocated=False
    )
    case.turns, case.lent, case.reward = 0, 0, None  # servers of rewards have a queue, in which samples delay others
    case.engine = Engine(case.engine.step, 0, 0, 0)
    most = simulated(case).end + case.steps * case.engine.step
    assert simulated(changed(case, concurrency=2 * case.concurrency)).end <= most
    assert simulated(changed(case, ahead=case.ahead + 1)).end <= most


def test_law_11_samples_ahead_can_slow_those_awaited():
    """A counterexample: samples for later batches make every decode step longer."""
    keys = {"samples": 1, "batch": 8, "response": 20, "steps": 1, "rollout": {"concurrency": 4}}
    engine = Engine(100, 100, 0, 0)
    ends_of = [looped(loop_scenario(ahead=ahead, **keys), engine, Training(0)).end for ahead in (0, 1)]
    assert ends_of[0] < ends_of[1]


@pytest.mark.parametrize("number", range(len(VARIED)))
def test_law_12_tokens_are_conserved(number):
    record = varied(number)
    assert record.generated == sum(one.generated + one.discarded for one in record.samples)
    assert all(one.generated == one.response for one in record.samples if one.ended >= 0)
    by_fate = defaultdict(int)
    for sample in record.samples:
        by_fate[sample.fate] += sample.generated
    assert by_fate["trained"] > 0
    reads = record.prefilled - sum(sample.recomputed for sample in record.samples)
    prompts = {sample.group: sample.prompt for sample in record.samples if sample.started >= 0}
    assert reads >= sum(prompts.values())


@pytest.mark.parametrize("number", thinned(range(120), slow=range(60, 120)))
def test_law_12_tokens_of_random_loops_are_conserved(number):
    record = simulated(drawn_case(number))
    assert record.generated == sum(one.generated + one.discarded for one in record.samples)


@pytest.mark.parametrize("number", range(len(VARIED)))
def test_spans_follow_each_other_from_0_to_the_end(number):
    record = varied(number)
    sides = defaultdict(list)
    for span in record.engines:
        sides[span.replica].append(span)
    assert sorted(sides) == list(range(len(record.gpus_of_replicas)))
    for spans in (*sides.values(), list(record.trainer)):
        edges = [0, *(span.end for span in spans)]
        assert [span.begin for span in spans] == edges[:-1] and edges[-1] == record.end
        assert all(span.begin < span.end for span in spans)


def test_a_loop_is_the_step_alone_and_a_closed_sum():
    scenario = loop_scenario(batch=16, engines=1, prompt=9, response=23, rollout={"on": "trainer"})
    engine = Engine(1000, 10, 7, 3)
    record = run_loop(scenario, engines=engine, sync_ps=700)
    alone = scenario_from(
        {
            "cluster": {"nodes": 2, "gpus_per_node": 2, "gpu": "h100"}, "parallel": {"data": 2}, "model": MODEL,
            "batch": 16, "data": {"lengths": {"kind": "fixed", "length": 32, "max": 32}},
        }
    )  # fmt: skip
    generation = 3 * 4 * 9 + engine.stretch_ps(8, 8 * 9, 23)
    assert ends(record) == [generation + run(alone).duration + 700] * 3


def test_the_same_scenario_gives_the_same_record():
    assert varied(3) == varied(3)
    assert varied(3) != varied(3, seed=1)
