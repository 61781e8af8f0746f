"""A loop is the same as one that counts every token, whatever its settings."""

import random
from fractions import Fraction
from types import SimpleNamespace

import pytest
from studies.rl.per_token import PerToken
from support.loops import Engine, Training, loop_scenario, looped

from hybrid_des.studies.rl.draws import GroupDraws

CASES = 160


def drawn_case(number):
    """Settings, drawn; those of `loop_scenario`."""
    r = random.Random(number)
    samples, size, every = r.choice([1, 2, 3]), r.choice([2, 4]), r.choice([1, 1, 2])
    updates = r.choice([1, 2])
    prompt, longest = r.choice([1, 5, 9]), r.choice([3, 12, 30])
    rest = {"ahead": r.choice([0, Fraction(3, 10), 1, 2]), "counted": r.choice(["sync", "now"])}
    barrier = r.random() < 0.2 and every == 1
    drop = r.choice([None, None, 0, 1])
    case = SimpleNamespace(
        samples=samples, size=size, every=every, updates=updates, take=r.choice([1, updates]), prompt=prompt,
        longest=longest, concurrency=r.choice([1, 2, 3, 8]), room=prompt + longest + 8 + r.choice([0, 7, 10**6]),
        running=r.choice(["resume", "continue", "wait", "restart"]), order=r.choice(["completed", "oldest"]),
        ahead=rest["ahead"], now=rest["counted"] == "now", barrier=barrier, drop=drop, steps=r.choice([2, 4]),
        filter=r.choice([0, 0, Fraction(1, 4)]), replicas=r.choice([2, 4]), sync=r.choice([0, 700, 4000]),
        engine=Engine(r.choice([100, 1000]), r.choice([0, 10]), r.choice([0, 1, 7]), r.choice([0, 3, 50])),
        lent=r.choice([0, 0, 2]), below=r.choice([Fraction(1, 4), 1]), switch=r.choice([0, 1000]),
        turns=r.choice([0, 0, 3]), wait=r.choice([0, 2000]), answer=r.choice([0, 4]), keep=r.choice([True, False]),
        reward=r.choice([None, None, "sample", "group"]), workers=r.choice([1, 2, 9]), lasts=r.choice([0, 3000]),
        step=r.choice([0, 500, 20000]), token=r.choice([0, 1, 20]), passes=r.choice([0, 300]), seed=number,
        colocated=r.random() < 0.15,
    )  # fmt: skip
    if case.colocated:
        case.ahead, case.lent, case.replicas, case.barrier = 0, 0, 2, False
    return case


def as_scenario(case):
    turns = {
        "count": {"kind": "uniform", "max": max(1, case.turns)}, "tokens": case.answer, "keep": case.keep,
        "wait": {"time": f"{case.wait} ps", "distribution": "exponential"},
    }  # fmt: skip
    reward = {"time": f"{case.lasts} ps", "distribution": "exponential", "workers": case.workers, "per": case.reward}
    lend = {"below": float(case.below), "to_rollout": f"{case.switch} ps", "to_trainer": f"{case.switch} ps"}
    turn = {"on": "trainer", "switch": f"{case.switch} ps"} if case.colocated else {}
    return loop_scenario(
        turns=turns if case.turns else None, reward=reward if case.reward else None, lend=lend if case.lent else None,
        batch=case.samples * case.size, steps=case.steps, engines=case.replicas // 2, seed=case.seed,
        samples=case.samples, updates=case.updates, take=case.take, ahead=float(case.ahead),
        counted="now" if case.now else "sync", barrier=case.barrier, order=case.order, filter=float(case.filter),
        prompt=case.prompt, response={"kind": "uniform", "max": case.longest},
        rollout={"concurrency": case.concurrency, **turn},
        sync={"time": 0, "every": case.every, "running": case.running},
        **({} if case.drop is None else {"max_age": case.drop, "stale": "drop"}),
    )  # fmt: skip


def engine_of(case):
    return Engine(case.engine.step, case.engine.sequence, case.engine.token, case.engine.prefill, case.room)


def both(case):
    """What the package simulates, and what the tokens say."""
    scenario = as_scenario(case)
    engine = engine_of(case)
    record = looped(scenario, engine, Training(case.step, case.token, case.passes), case.sync)
    draws = GroupDraws(scenario.rl, scenario.seed)

    def draw(_):
        return draws.next()

    return record, PerToken(case, draw).run()


def rows(counted):
    return [
        (
            group.number, sample.replica, sample.response, sample.started, sample.ended, group.ready, sample.version,
            sample.last, group.batch, group.taken - sample.version if group.fate == "trained" else -1, group.fate,
            sample.recomputed, sample.discarded, sample.tokens,
        )
        for group in counted.groups for sample in group.samples
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(CASES))
def test_a_loop_is_that_of_its_tokens(number):
    record, counted = both(drawn_case(number))
    assert [(sync.begin, sync.end) for sync in record.syncs] == counted.syncs
    assert record.end == counted.now
    assert [
        (s.group, s.replica, s.response, s.started, s.ended, s.ready, s.version, s.last_version, s.batch, s.age, s.fate,
         s.recomputed, s.discarded, s.generated)
        for s in record.samples
    ] == rows(counted)  # fmt: skip
