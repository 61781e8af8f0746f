"""How sure a prediction is: the errors of the measured runs most like it, and an interval that keeps its promise."""

import re
from collections import Counter
from math import comb, exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_des import simulate
from hybrid_des.analysis import experience
from hybrid_des.analysis.experience import error_left_out, of_runs, text, tied
from hybrid_des.analysis.experience_table import Likeness, Recorded, known, read, written
from hybrid_des.report.terminal import render
from hybrid_des.scenario.loading import load

LIKE = Likeness("h100", "16 bits", "dense", sharded=False, divided=False, parameters=8 * 10**9, gpus=8)
GPT2 = {"model": "gpt2", "batch": 8, "parallel": {"data": 8}}


def run_of(ratio=1.1, corpus="one", fitted=0, **like):
    return Recorded(corpus, LIKE._replace(**like), fitted, ratio, "2026-11-23", "abc1234")


def step_line(result):
    return next(line for line in render(result, width=200).splitlines() if line.startswith("step time"))


def test_a_table_is_read_as_it_was_written():
    runs = [run_of(ratio / 100, sharded=bool(ratio % 2), divided=ratio > 99) for ratio in range(95, 105)]
    assert sorted(read(written(runs))) == sorted(runs)


def test_the_interval_reaches_to_the_rank_that_conformal_prediction_asks():
    runs = [run_of(exp(error / 100)) for error in range(1, 20)]
    found = of_runs(LIKE, runs)
    assert found.reach == pytest.approx(0.18)  # the 18th of 19: ⌈0.9 · 20⌉
    low, high = found.interval(2.0)
    assert (low, high) == pytest.approx((2 * exp(-0.18), 2 * exp(0.18)))
    assert of_runs(LIKE, runs[:8]).reach is None  # nine of ten cannot be told from eight


def test_runs_count_less_the_more_unlike_they_are():
    """Of 19 equal ones and more that differ, only the former; of few, the others widen the interval."""
    runs, others = [run_of(exp(error / 100)) for error in range(1, 20)], [run_of(1.5, gpu="a100")] * 50
    assert of_runs(LIKE, [*runs, *others]).reach == pytest.approx(0.18, abs=0.011)
    assert of_runs(LIKE, [*runs[:4], *others]).reach == pytest.approx(log(1.5))
    nearer, farther = [run_of(1.2, gpu="a100")] * 30, [run_of(1.5, gpu="b200", kind="experts")] * 3
    assert of_runs(LIKE, [*runs[:4], *nearer, *farther]).reach == pytest.approx(log(1.2))


def test_unlikeness_counts_what_differs():
    other = LIKE._replace(gpu="a100", sharded=True, divided=True)
    assert LIKE.unlike(LIKE) == 0
    assert LIKE.unlike(other) == other.unlike(LIKE) == 3
    assert LIKE.unlike(LIKE._replace(parameters=8 * 10**10, gpus=80)) == pytest.approx(1)


def test_errors_of_fitted_runs_grow_as_if_left_out():
    assert of_runs(LIKE, [run_of(exp(0.03), fitted=2) for _ in range(8)]).errors[0] == pytest.approx(exp(0.04) - 1)
    assert of_runs(LIKE, [run_of(exp(0.03)) for _ in range(8)]).errors[0] == pytest.approx(exp(0.03) - 1)


def test_the_most_alike_runs_are_taken():
    runs = [run_of(1.5, sharded=True)] * 6 + [run_of(1.2, gpu="a100")] * 30 + [run_of(1.4, kind="experts")] * 30
    assert of_runs(LIKE._replace(sharded=True), runs).median == pytest.approx(0.5)
    assert of_runs(LIKE, runs).like == "h100, 16 bits, dense"  # sharded ones, for want of others
    nothing = of_runs(LIKE._replace(gpu="gb300"), runs)
    assert (nothing.like, nothing.errors, nothing.latest) == ("gb300, 16 bits, dense", (), None)
    assert nothing.reach == pytest.approx(log(1.5))
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


def covered(left_out):
    """For each corpus, whether the interval of each run holds it, known by the runs that are not left out with it.

    What a run is off is taken as if it had been left out of its corpus's fit, as it is for those it is held against.
    """
    runs, found = known(), {}
    of = Counter(one.corpus for one in runs)
    for number, one in enumerate(runs):
        rest = [other for place, other in enumerate(runs) if not left_out(number, one, place, other)]
        reach = of_runs(one.like, rest).reach
        assert reach is not None
        found.setdefault(one.corpus, []).append(error_left_out(one, of[one.corpus]) <= reach)
    assert len(runs) >= 100
    return found


def chance(held, count):
    """Of as many runs held or fewer, if nine of ten are."""
    return sum(comb(count, each) * 0.9**each * 0.1 ** (count - each) for each in range(held + 1))


@pytest.fixture(scope="module")
def without_itself():
    return covered(lambda number, one, place, other: number == place)


def test_recorded_intervals_cover_nine_of_ten_runs_left_out(without_itself):
    held = [one for each in without_itself.values() for one in each]
    assert 0.85 <= sum(held) / len(held) <= 0.97


def test_intervals_cover_nine_of_ten_in_each_corpus(without_itself):
    """Of twelve runs, all held are as good as eleven."""
    large = {corpus: each for corpus, each in without_itself.items() if len(each) >= 12}
    assert len(large) >= 6
    assert {corpus: sum(each) / len(each) for corpus, each in large.items() if sum(each) < 0.85 * len(each)} == {}
    wide = {corpus: len(each) for corpus, each in large.items() if sum(each) > 0.97 * len(each)}
    assert max(wide.values(), default=0) <= 12, wide
    assert all(sum(each) >= len(each) - 1 for each in without_itself.values() if len(each) <= 6)


def test_intervals_cover_corpora_that_no_run_is_known_of():
    """In each, as many as chance may bring in one of a hundred."""
    found = covered(lambda number, one, place, other: one.corpus == other.corpus)
    held = [one for each in found.values() for one in each]
    assert 0.85 <= sum(held) / len(held) <= 0.97
    assert {corpus: sum(each) for corpus, each in found.items() if chance(sum(each), len(each)) < 0.01} == {}


def test_the_report_and_the_summary_say_how_sure_they_are(monkeypatch):
    monkeypatch.setattr(experience, "known", lambda: tuple(run_of(1 + n / 100, gpu="a100") for n in range(-9, 11)))
    result = simulate(load(GPT2))
    figures, step = result.summary["experience"], result.summary["step_time_s"]
    assert figures["interval_s"][0] < step < figures["interval_s"][1]
    assert (figures["runs"], figures["commit"]) == (20, "abc1234")
    assert figures["like"] == "a100, 16 bits, dense"
    assert step_line(result).endswith(f"micro-batches/s; {figures['text']}")
    assert re.fullmatch(r"runs like it were predicted within 5.\d % \(median\), 9.\d % \(90 %\)", figures["text"])
    assert "measured runs" not in render(result)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "the only run like it was predicted within 10.0 %; "),
        (3, "the 3 runs like it were predicted within 10.0 %; "),
    ],
)
def test_few_runs_are_told_with_the_interval_of_all(count, said):
    others = [run_of(1.2, gpu="a100")] * 30
    found = of_runs(LIKE, [*[run_of(1.1)] * count, *others])
    assert text(found, 6.0) == f"{said}5 s to 7.2 s going by other runs (90 %)"


def test_where_no_run_is_alike_the_report_says_so(monkeypatch):
    monkeypatch.setattr(experience, "known", lambda: ())
    result = simulate(load(GPT2))
    assert result.summary["experience"] == {
        "like": "a100, 16 bits, dense", "runs": 0, "interval_s": None, "interval_runs": 0,
        "text": "nothing like this was measured",
    }  # fmt: skip
    assert step_line(result).endswith("micro-batches/s; nothing like this was measured")


def test_times_that_are_given_have_no_experience():
    given_times = {"schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": "1 s", "backward": "2 s"}}
    assert experience.experience(load(given_times)) is None
