"""How sure a prediction is: the errors of the measured runs most like it, and an interval that keeps its promise."""

from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_des import simulate
from hybrid_des.analysis import experience
from hybrid_des.analysis.experience import Likeness, Recorded, known, of_runs, read, tied, written
from hybrid_des.report.terminal import render
from hybrid_des.scenario import load

LIKE = Likeness("h100", "16 bits", "dense", sharded=False, parameters=8 * 10**9, gpus=8)
GPT2 = {"model": "gpt2", "batch": 8, "parallel": {"data": 8}}


def run_of(ratio=1.1, corpus="one", fitted=0, **like):
    return Recorded(corpus, LIKE._replace(**like), fitted, ratio, "2026-11-23", "abc1234")


def test_a_table_is_read_as_it_was_written():
    runs = [run_of(ratio / 100, sharded=bool(ratio % 2)) for ratio in range(95, 105)]
    assert sorted(read(written(runs))) == sorted(runs)


def test_the_interval_reaches_to_the_rank_that_conformal_prediction_asks():
    runs = [run_of(exp(error / 100)) for error in range(1, 20)]
    found = of_runs(LIKE, runs)
    assert found.reach == pytest.approx(0.18)  # the 18th of 19: ⌈0.9 · 20⌉
    low, high = found.interval(2.0)
    assert (low, high) == pytest.approx((2 * exp(-0.18), 2 * exp(0.18)))
    assert of_runs(LIKE, runs[:8]).reach is None  # nine of ten cannot be told from eight


def test_errors_of_fitted_runs_grow_as_if_left_out():
    assert of_runs(LIKE, [run_of(exp(0.03), fitted=2) for _ in range(8)]).errors[0] == pytest.approx(exp(0.04) - 1)
    assert of_runs(LIKE, [run_of(exp(0.03)) for _ in range(8)]).errors[0] == pytest.approx(exp(0.03) - 1)


def test_the_most_alike_runs_are_taken():
    runs = [run_of(1.5, sharded=True)] * 6 + [run_of(1.2, gpu="a100")] * 30 + [run_of(1.4, kind="experts")] * 30
    assert of_runs(LIKE._replace(sharded=True), runs).median == pytest.approx(0.5)
    assert of_runs(LIKE, runs).like == "h100, 16 bits, dense"  # sharded ones, for want of others
    assert of_runs(LIKE._replace(gpu="gb300"), runs) == experience.Experience("gb300, 16 bits, dense")
    near, far = run_of(1.01), run_of(1.3, parameters=10**12, gpus=8192)
    assert of_runs(LIKE, [near] * 30 + [far] * 30).median == pytest.approx(0.01)


@settings(max_examples=30)
@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=40), st.floats(0.1, 100))
def test_intervals_contain_the_prediction_and_its_ties(ratios, step):
    found = of_runs(LIKE, [run_of(ratio) for ratio in ratios])
    if (interval := found.interval(step)) is None:
        assert len(ratios) < 9
        return
    assert interval[0] <= step <= interval[1]
    assert tied(found, step, step * exp(found.reach * 0.99))
    assert not tied(found, step, step * exp(found.reach + 0.01))


def test_recorded_intervals_cover_nine_of_ten_runs_left_out():
    runs = known()
    assert len(runs) >= 100
    told = []
    for number, one in enumerate(runs):
        found = of_runs(one.like, [*runs[:number], *runs[number + 1 :]])
        if found.reach is not None:
            told.append(abs(log(one.ratio)) <= found.reach)
    assert len(told) >= 80
    assert 0.85 <= sum(told) / len(told) <= 0.97


def test_the_report_and_the_summary_say_how_sure_they_are(monkeypatch):
    monkeypatch.setattr(experience, "known", lambda: tuple(run_of(1 + n / 100, gpu="a100") for n in range(-9, 11)))
    result = simulate(load(GPT2))
    figures, step = result.summary["experience"], result.summary["step_time_s"]
    assert figures["interval_s"][0] < step < figures["interval_s"][1]
    assert (figures["runs"], figures["commit"]) == (20, "abc1234")
    assert "like this (a100, 16 bits, dense) were predicted within" in render(result)


def test_where_no_run_is_alike_the_report_says_so(monkeypatch):
    monkeypatch.setattr(experience, "known", lambda: ())
    result = simulate(load(GPT2))
    assert result.summary["experience"] == {"like": "a100, 16 bits, dense", "runs": 0, "interval_s": None}
    assert "no measured run is like this: a100, 16 bits, dense" in render(result)


def test_times_that_are_given_have_no_experience():
    given_times = {"schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": "1 s", "backward": "2 s"}}
    assert experience.experience(load(given_times)) is None
