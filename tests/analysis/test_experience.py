"""How sure a prediction is: the errors of the measured runs most like it, and an interval that keeps its promise."""

import re
from collections import Counter
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_des import simulate
from hybrid_des.analysis import experience
from hybrid_des.analysis.experience import error_left_out, of_runs, text
from hybrid_des.analysis.experience_table import Likeness, Recorded, known, read, unlikeness, written
from hybrid_des.report.explained import opening
from hybrid_des.report.page.document import PageRun, page_of
from hybrid_des.report.terminal import render
from hybrid_des.scenario.loading import load

LIKE = Likeness(
    "h100", "16 bits", "dense", "megatron", sharded=False, divided=False, recomputed="none", graphs="none",
    pipelined=False, calibrated=False, parameters=8 * 10**9, gpus=8, work=1e12, rows=0.0,
    sequence=4096,
)  # fmt: skip
GPT2 = {"model": {"base": "gpt2", "written": "megatron"}, "batch": 8, "parallel": {"data": 8}}


def run_of(ratio=1.1, corpus="one", fitted=0, **like):
    return Recorded(corpus, LIKE._replace(**like), fitted, ratio, "2026-11-23", "abc1234")


def unlike(first, second):
    return unlikeness([first], [second])[0, 0]


def step_line(result):
    return next(line for line in render(result, width=200).splitlines() if line.startswith("step time"))


def test_a_table_is_read_as_it_was_written():
    runs = [run_of(ratio / 100, sharded=bool(ratio % 2), divided=ratio > 99) for ratio in range(95, 105)]
    assert sorted(read(written(runs))) == sorted(runs)


def test_the_interval_reaches_to_the_rank_that_conformal_prediction_asks():
    """The 18th of 19, ⌈0.9 · 20⌉, in units of the mean error of runs like it, itself left out, and 2 %."""
    errors = [n / 100 for n in range(1, 20)]
    runs = [run_of(exp(error)) for error in errors]
    found = of_runs(LIKE, runs)
    scores = [error / ((sum(errors) - error) / 18 + 0.02) for error in errors]
    assert found.reach == pytest.approx(sorted(scores)[17] * (sum(errors) / 19 + 0.02))
    low, high = found.interval(2.0)
    assert (low, high) == pytest.approx((2 * exp(-found.reach), 2 * exp(found.reach)))
    assert of_runs(LIKE, runs[:8]).reach is None  # nine of ten cannot be told from eight


def test_runs_count_less_the_more_unlike_they_are():
    """Of 29 equal ones and more that differ, only the former; of few, the others widen the interval."""
    runs, others = [run_of(exp(error / 100)) for error in range(1, 30)], [run_of(1.5, gpu="a100")] * 50
    alone = of_runs(LIKE, runs).reach
    assert of_runs(LIKE, [*runs, *others]).reach == pytest.approx(alone, abs=0.011)
    usual = (sum(range(1, 6)) / 100 + 50 * log(1.5)) / 55 + 0.02  # the ten nearest, and those as near as the tenth
    widened = log(1.5) / (log(1.5) + 0.02) * usual
    assert of_runs(LIKE, [*runs[:5], *others]).reach == pytest.approx(widened)
    nearer, farther = [run_of(1.2, gpu="a100")] * 30, [run_of(1.5, gpu="b200", kind="experts")] * 3
    assert 0.05 < of_runs(LIKE, [*runs[:5], *nearer, *farther]).reach < log(1.2)


def test_a_source_far_off_widens_only_intervals_of_its_like():
    """Its errors are large, but no larger than is usual for such runs; others keep their own scale."""
    near, far = [run_of(exp(error / 100)) for error in range(1, 13)], [run_of(exp(0.8), "far", gpu="b200")] * 12
    assert of_runs(LIKE, [*near, *far]).reach < 0.15
    assert of_runs(LIKE._replace(gpu="b200"), [*near, *far]).reach > 0.75


def test_unlikeness_counts_what_differs():
    other = LIKE._replace(gpu="a100", sharded=True, divided=True)
    assert unlike(LIKE, LIKE) == 0
    assert unlike(LIKE, other) == unlike(other, LIKE) == 3
    assert unlike(LIKE, LIKE._replace(parameters=8 * 10**10, gpus=80)) == pytest.approx(1)
    assert unlike(LIKE, LIKE._replace(work=1e10)) == pytest.approx(2)  # a decade of work per operation counts 1
    assert unlike(LIKE, LIKE._replace(stack="pytorch")) == 3
    assert unlike(LIKE, LIKE._replace(recomputed="all", graphs="full", pipelined=True)) == 3
    experts = LIKE._replace(kind="experts", rows=256.0)
    assert unlike(experts, experts._replace(rows=2560.0)) == pytest.approx(1)
    assert unlike(experts, LIKE) == 1  # that of a dense one has no rows to compare


def test_runs_are_like_a_scenario_in_what_decides_their_errors():
    """Work and rows are per operation: as much for twice the tensor ranks at twice the micro-batch."""
    one = {"model": "mixtral-8x7b", "cluster": {"gpu": "h100"}, "batch": 16, "parallel": {"data": 8, "expert": 8}}
    like = Likeness.of(load(one))
    tokens = load(one).model.network.tokens
    assert like.rows == pytest.approx(tokens * 2 / 8 * 8)  # two of eight experts, from eight ranks, for one expert each
    assert (like.stack, like.kind, like.calibrated) == ("megatron", "experts", False)
    halved = Likeness.of(
        load({**one, "parallel": {"data": 4, "expert": 4, "tensor": 2}, "schedule": {"microbatch_size": 2}})
    )
    assert halved.work == pytest.approx(like.work)
    assert Likeness.of(load({**one, "efficiency": {"gemm": 0.5}})).calibrated
    assert Likeness.of(load({**one, "recompute": "full", "cuda_graphs": "layers"}))[6:8] == ("all", "layers")


def test_linear_mixers_and_frozen_weights_are_kinds_of_their_own():
    """So that intervals say where nobody measured them: recorded are LoRA on H200 and Blackwell, and Mamba-2 there."""
    hybrid = {"model": "nemotron-3-nano-30b-a3b", "cluster": {"gpu": "h100"}, "batch": 8, "parallel": {"data": 8}}
    tuned = {**hybrid, "model": {"base": "llama3-8b", "frozen": "all", "adapters": {"rank": 16}}}
    for scenario, kind, words in ((hybrid, "linear", "linear mixers"), (tuned, "adapters", "frozen weights")):
        like = Likeness.of(load(scenario), "megatron")
        assert like.kind == kind
        said = text(of_runs(like, known()), 1.0)
        assert f"no measured runs of Megatron with {words} on H100" in said
        assert of_runs(like._replace(gpu="gb300"), known()).measured == (kind == "linear")


def test_errors_of_fitted_runs_grow_as_if_left_out():
    assert of_runs(LIKE, [run_of(exp(0.03), fitted=2) for _ in range(8)]).errors[0] == pytest.approx(exp(0.04) - 1)
    assert of_runs(LIKE, [run_of(exp(0.03)) for _ in range(8)]).errors[0] == pytest.approx(exp(0.03) - 1)


def test_the_most_alike_runs_are_taken():
    runs = [run_of(1.5, sharded=True)] * 6 + [run_of(1.2, gpu="a100")] * 30 + [run_of(1.4, kind="experts")] * 30
    assert of_runs(LIKE._replace(sharded=True), runs).median == pytest.approx(0.5)
    mixed = [*runs, *[run_of(1.1, stack="pytorch", sharded=True)] * 6]
    assert of_runs(LIKE._replace(stack="pytorch"), mixed).median == pytest.approx(0.1)  # of the same software first
    assert of_runs(LIKE, runs).like == "h100, 16 bits, dense"  # sharded ones, for want of others
    nothing = of_runs(LIKE._replace(gpu="gb300"), runs)
    assert (nothing.like, nothing.errors, nothing.latest) == ("gb300, 16 bits, dense", (), None)
    assert nothing.reach == pytest.approx(log(1.5))
    near, far = run_of(1.01), run_of(1.3, parameters=10**12, gpus=8192)
    assert of_runs(LIKE, [near] * 30 + [far] * 30).median == pytest.approx(0.01)


@settings(max_examples=30)
@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=40), st.floats(0.1, 100))
def test_intervals_contain_the_prediction(ratios, step):
    found = of_runs(LIKE, [run_of(ratio) for ratio in ratios])
    if (interval := found.interval(step)) is None:
        assert len(ratios) < 9
        return
    assert interval[0] <= step <= interval[1]


def covered(left_out):
    """For each corpus, of each run: whether its interval holds it, and whether its stack and sizes are known.

    Known by the runs that are not left out with it. What a run is off is taken as if it had been left out of its
    corpus's fit, as it is for those it is held against.
    """
    runs, found = known(), {}
    of = Counter(one.corpus for one in runs)
    for number, one in enumerate(runs):
        rest = [other for place, other in enumerate(runs) if not left_out(number, one, place, other)]
        told = of_runs(one.like, rest)
        assert told.reach is not None
        inside = error_left_out(one, of[one.corpus]) <= told.reach
        found.setdefault(one.corpus, []).append((inside, not told.unmeasured))
    assert len(runs) >= 300
    return found


def chance_of_all(count):
    """That all of so many runs are held, if nine of ten are."""
    return 0.9**count


@pytest.mark.slow
def test_recorded_intervals_cover_nine_of_ten_runs_left_out():
    """Of all; and in each source with twelve rows or more: of fifteen, all held are as good as fourteen."""
    found = covered(lambda number, one, place, other: number == place)
    held = {corpus: [inside for inside, _ in each] for corpus, each in found.items()}
    every = [one for each in held.values() for one in each]
    assert 0.85 <= sum(every) / len(every) <= 0.97
    large = {corpus: each for corpus, each in held.items() if len(each) >= 12}
    assert len(large) >= 8
    assert {corpus: sum(each) / len(each) for corpus, each in large.items() if sum(each) < 0.85 * len(each)} == {}
    wide = {corpus: len(each) for corpus, each in large.items() if sum(each) > 0.97 * len(each)}
    assert [corpus for corpus, count in wide.items() if chance_of_all(count) < 0.2] == []


@pytest.mark.slow
def test_intervals_cover_sources_that_no_run_is_known_of():
    """Of stacks and sizes that others measured nine of ten lie inside; the rest are told to be of none such."""
    found = covered(lambda number, one, place, other: one.corpus == other.corpus)
    every = [one for each in found.values() for one in each]
    assert sum(inside for inside, _ in every) >= 0.85 * len(every)
    measured = [inside for inside, measured in every if measured]
    assert len(measured) >= 100
    assert sum(measured) >= 0.9 * len(measured)


def test_a_stack_that_nobody_measured_has_a_wider_interval():
    """Many runs of another software are off by little; a small corpus, off by much, counts as much as the large one."""
    runs = [run_of(exp(error / 1000)) for error in range(1, 40)] + [run_of(1.5, "two", gpu="a100")] * 4
    near = of_runs(LIKE, runs)
    assert near.measured
    assert near.reach < 0.05
    other = of_runs(LIKE._replace(stack="jax"), runs)
    assert not other.measured
    assert other.reach == pytest.approx(log(1.5))
    assert "no measured runs of JAX on H100; from " in text(other, 6.0)


def test_fitted_runs_do_not_tell_of_the_catalogue():
    """Unless they are those of another corpus, or in the catalogue."""
    runs = [run_of(exp(error / 1000), fitted=2, calibrated=True) for error in range(1, 40)]
    assert of_runs(LIKE._replace(calibrated=True), runs).measured
    assert not of_runs(LIKE, runs).measured
    assert of_runs(LIKE, [*runs, *[run_of(calibrated=True)] * 5]).measured
    assert of_runs(LIKE, [*runs, *[run_of(fitted=2)] * 5]).measured  # to which those of the catalogue were fitted


NEAR = [run_of(exp(error / 1000)) for error in range(1, 40)]
SCATTERED = [*NEAR, *[run_of(1.5, "two", gpu="a100", sequence=10**6, gpus=10**4)] * 4]


@pytest.mark.parametrize(("changed", "said"), [
    ({"sequence": 4097}, "sequences longer than 4,096 tokens (this: 4,097)"),
    ({"gpus": 1024}, "more than 8 GPUs (this: 1,024)"),
    ({"sequence": 65536, "gpus": 9},
     "sequences longer than 4,096 tokens (this: 65,536) or more than 8 GPUs (this: 9)"),
])  # fmt: skip
def test_sizes_beyond_all_measured_widen_an_interval(changed, said):
    """Those of other GPUs are no bound, but their errors count as they do for a stack that nobody measured."""
    beyond = of_runs(LIKE._replace(**changed), SCATTERED)
    assert beyond.measured
    assert beyond.reach == pytest.approx(log(1.5))
    assert " or ".join(beyond.beyond) == said
    assert f"no measured runs of Megatron on H100 with {said}; from " in text(beyond, 6.0)


@pytest.mark.parametrize("changed", [{}, {"sequence": 512}, {"gpus": 1}], ids=str)
def test_sizes_that_were_measured_keep_their_interval(changed):
    within = of_runs(LIKE._replace(**changed), SCATTERED)
    assert (within.beyond, within.unmeasured) == ((), "")
    assert within.reach < 0.05


def test_every_run_of_a_stack_extends_what_was_measured():
    """With fitted efficiencies too; of a stack of which too few tell, sizes are not said besides."""
    long = LIKE._replace(sequence=65536)
    assert of_runs(long, [*SCATTERED, run_of(sequence=65536, fitted=2, calibrated=True)]).beyond == ()
    assert of_runs(long, [*SCATTERED, run_of(sequence=65536, kind="experts")]).beyond != ()
    unknown = of_runs(long._replace(stack="jax"), SCATTERED)
    assert (unknown.measured, unknown.beyond) == (False, ())


def test_sizes_beyond_all_measured_are_said_everywhere(monkeypatch):
    """In the summary, the report, the page and the explanation."""
    runs = tuple(run_of(1 + n / 100, gpu="a100", gpus=4, sequence=1024) for n in range(-9, 11))
    monkeypatch.setattr(experience, "known", lambda: runs)
    result = simulate(load(GPT2))
    figures, said = result.summary["experience"], "Megatron on A100 with more than 4 GPUs (this: 8)"
    assert (figures["stack_measured"], figures["beyond_measured"]) == (True, [said])
    assert f"s   {figures['text']}" in step_line(result)
    assert f"; no measured runs of {said}; from 20 similar measured runs" in figures["text"]
    assert f"<p>No runs of {said} were measured, which makes the interval wider. The " in page_of([PageRun(result)])
    assert f"s; no measured runs of {said}): " in opening(result.run, width=1000)


def test_the_report_and_the_summary_say_how_sure_they_are(monkeypatch):
    monkeypatch.setattr(experience, "known", lambda: tuple(run_of(1 + n / 100, gpu="a100") for n in range(-9, 11)))
    result = simulate(load(GPT2))
    figures, step = result.summary["experience"], result.summary["step_time_s"]
    assert figures["interval_s"][0] < step < figures["interval_s"][1]
    assert (figures["runs"], figures["commit"]) == (20, "abc1234")
    assert figures["like"] == "a100, 16 bits, dense"
    assert (figures["stack"], figures["stack_measured"]) == ("Megatron on A100", True)
    assert figures["rests_on"] == {"Megatron on A100": 20}
    assert step_line(result).endswith(f"s   {figures['text']}")
    assert re.fullmatch(
        r"90 % interval [\d.]+ to [\d.]+ m?s; from 20 similar measured runs, Megatron on A100", figures["text"]
    )


def test_an_interval_says_which_runs_it_rests_on():
    others = [run_of(1.2, gpu="a100")] * 30
    found = of_runs(LIKE, [*[run_of(1.1)] * 5, *others, *[run_of(1.1, gpu="b200")] * 4, *[run_of(1.1, gpu="h200")] * 3])
    # 30 of 42 are off by 1.2, where 0.158 is usual: by a factor of exp(log(1.2) / (log(1.2) + 0.02) · 0.178)
    assert (
        text(found, 6.0) == "90 % interval 5.1 to 7 s; from 42 similar measured runs: "
        "Megatron on A100 (30), Megatron on H100 (5), others (7)"
    )


def test_where_no_run_is_known_the_report_says_so(monkeypatch):
    monkeypatch.setattr(experience, "known", lambda: ())
    result = simulate(load(GPT2))
    assert result.summary["experience"] == {
        "like": "a100, 16 bits, dense", "runs": 0, "interval_s": None, "interval_runs": 0, "stack": "Megatron on A100",
        "stack_measured": False, "beyond_measured": [], "rests_on": {}, "text": "nothing like this was measured",
    }  # fmt: skip
    assert step_line(result).endswith("s   nothing like this was measured")


def test_times_that_are_given_have_no_experience():
    given_times = {"schedule": {"kind": "gpipe", "microbatches": 1}, "workload": {"forward": "1 s", "backward": "2 s"}}
    assert experience.experience(load(given_times)) is None
