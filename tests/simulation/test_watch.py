"""Runs that are watched: how far they are, and what is known when their budget is spent."""

import pytest
from support.scenarios import scenario

from hybrid_des.engine import clock
from hybrid_des.result import simulate
from hybrid_des.simulation import watch
from hybrid_des.simulation.watch import BudgetSpentError, RunProgress, UnfinishedError, Watch


@pytest.fixture
def seconds(monkeypatch):
    """A clock that the test sets: what it shows is its only item."""
    shown = [0.0]
    monkeypatch.setattr(watch.time, "perf_counter", lambda: shown[0])
    return shown


def test_the_time_left_follows_from_the_share_of_ops():
    assert RunProgress(share=0.25, events=1, elapsed_s=10, still_s=0).left_s == 30
    assert RunProgress(share=0, events=1, elapsed_s=10, still_s=0).left_s is None
    assert RunProgress(share=0.97, events=1, elapsed_s=10, still_s=3).left_s is None


def test_progress_is_shown_a_few_times_per_second(seconds):
    shown = []
    one = Watch(show=shown.append)
    for tenth in range(100):
        seconds[0] = tenth / 10
        one.look(min(tenth, 50), 50, 1000 * tenth)
    assert 30 <= len(shown) <= 40
    assert [standing.share for standing in shown] == sorted(standing.share for standing in shown)
    assert shown[-1].share == 1
    assert shown[-1].still_s > 4


def test_a_budget_counts_from_the_start(seconds):
    seconds[0] = 100.0
    one = Watch(budget_s=60)
    seconds[0] = 160.0
    one.look(0, 1, 0)
    seconds[0] = 160.1
    with pytest.raises(BudgetSpentError):
        one.look(0, 1, 0)


def test_a_run_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(clock, "BEAT", 50)
    monkeypatch.setattr(watch, "SHOWN_EVERY_S", 0)
    shown = []
    result = simulate(scenario("1f1b", 4, 8, 2, steps=3), progress=shown.append)
    shares = [standing.share for standing in shown]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5 < shares[-1] < 1
    assert shown[-1].events <= result.run.events


@pytest.mark.parametrize("beats", [1, 4, 9])
def test_facts_of_an_unfinished_run_are_those_until_then(monkeypatch, seconds, beats):
    """Of what happens at the very last moment, some is known."""
    monkeypatch.setattr(clock, "BEAT", 50)
    one = scenario("1f1b", 2, 8, 2, steps=4, workload={"parameters": 1000, "memory": {"activation": "1 GB"}})
    whole = simulate(one).run.timeline
    looked = Watch.look

    def look(self, *standing):
        seconds[0] += 1
        looked(self, *standing)

    monkeypatch.setattr(Watch, "look", look)
    with pytest.raises(UnfinishedError, match=r"not complete: the budget of .* is spent") as error:
        simulate(one, budget_s=beats - 0.5)
    facts = error.value.facts
    now = round(facts["simulated_s"] * 10**12)
    ops = whole.ops
    assert facts["events"] == 50 * beats
    assert (ops["end"] < now).sum() <= facts["share_of_ops"] * len(ops["end"]) <= (ops["end"] <= now).sum()
    assert 0 < facts["share_of_ops"] < 1
    for place, busy in enumerate(facts["busy_s"]):
        mine = whole.pipeline_rank[ops["rank"]] == place
        least, most = (
            sum((ops["end"] - ops["start"])[mine & ended].tolist()) for ended in (ops["end"] < now, ops["end"] <= now)
        )
        assert least <= round(busy * 2 * 10**12) <= most
    assert facts["steps_done"] <= 4 * facts["share_of_ops"] <= facts["steps_done"] + 1
    assert facts["peak_memory_bytes"][0] >= 10**9


def test_an_unwatched_run_looks_at_no_clock(monkeypatch):
    monkeypatch.setattr(Watch, "look", None)
    monkeypatch.setattr(clock, "BEAT", 10)
    assert simulate(scenario("1f1b", 2, 8, 2)).run.events > 10
