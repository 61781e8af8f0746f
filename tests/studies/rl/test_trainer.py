"""The trainer of a loop: steps and forward passes over given samples, simulated, sampled and measured."""

import doctest
from itertools import pairwise

import numpy as np
import pytest

from hybrid_des import load
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.rl import trainer as module
from hybrid_des.studies.rl.measured_trainer import ConstantTimes, MeasuredTimes, read_times
from hybrid_des.studies.rl.trainer import MOST_SAMPLED, TrainerTimes, UpdateTime, trainer_step, with_samples

DENSE = {"base": "qwen2.5-7b", "layers": 4, "sequence": 8192}
MIXTURE = {"base": "qwen3-30b-a3b", "layers": 2, "sequence": 8192}
PASSES = ("old", "reference", "critic")


def drawn(count, seed=0, mean=600):
    """Lengths of samples, of which few are many times the mean."""
    lengths = np.exp(np.log(mean) - 0.5 + np.random.default_rng(seed).standard_normal(count))
    return np.clip(lengths, 30, 8192).astype(int).tolist()


def scenario(gpus=4, model=DENSE, **sections):
    """A trainer on one node, whose own documents are of no matter."""
    parallel = {"data": gpus, **sections.pop("parallel", {})}
    data = {"lengths": {"kind": "fixed"}, "packing": "balanced", "tokens": 8192, **sections.pop("data", {})}
    cluster = {"gpu": "h100", "gpus_per_node": gpus, **sections.pop("cluster", {})}
    common = {"model": model, "batch": 16, "schedule": {"kind": "1f1b"}, "on_oom": "warn"}
    return load({**common, "cluster": cluster, "parallel": parallel, "data": data, **sections})


LAYOUTS = {
    "replicas": {},
    "experts": {"model": MIXTURE, "parallel": {"expert": 4}},
    "pipeline": {"parallel": {"data": 2, "pipeline": 2}},
    "chunks": {"parallel": {"data": 2, "pipeline": 2}, "schedule": {"kind": "interleaved-1f1b", "chunks": 2}},
    "split backward": {"parallel": {"data": 2, "pipeline": 2}, "schedule": {"kind": "zb-v"}},
    "context": {"parallel": {"data": 2, "context": 2}},
    "tensor": {"parallel": {"data": 2, "tensor": 2, "sequence": True}},
    "weights divided": {"sharding": "zero-3"},
    "optimizer divided": {"sharding": "zero-1", "overlap": {"parameters": True}},
    "as they come": {"data": {"packing": "none", "tokens": None}},
}
QUICK = ("experts", "chunks", "weights divided")
LAYOUT = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in LAYOUTS]


@pytest.mark.parametrize("name", LAYOUT)
def test_a_step_is_that_of_a_file_with_these_documents(write, name):
    lengths, given = drawn(32, seed=1), scenario(**LAYOUTS[name])
    file = write("".join(f"{length}\n" for length in lengths), "lengths.csv")
    data = {"lengths": {"kind": "file", "file": str(file), "order": "given"}}
    sections = {**LAYOUTS[name], "batch": 32, "data": {**LAYOUTS[name].get("data", {}), **data}}
    assert trainer_step(given, np.array(lengths)) == run(scenario(**sections)).duration
    assert TrainerTimes(given).take([lengths, lengths]) == (UpdateTime(0, trainer_step(given, lengths)),) * 2


def forwards_of(result):
    """Rank → picoseconds of its forwards."""
    ops, program, took = result.timeline.ops, result.plan.programs[0], {}
    for rank, index, start, end in zip(*(ops[key].tolist() for key in ("rank", "index", "start", "end")), strict=True):
        if index >= 0 and program[index][0].kind == "F":
            took[rank] = took.get(rank, 0) + end - start
    return took


@pytest.mark.parametrize("name", LAYOUT)
def test_a_pass_is_the_forwards_of_a_step(name):
    """Where ranks meet for gradients only, the longest of all; a critic has no logits."""
    lengths, given = drawn(32, seed=1), scenario(**LAYOUTS[name])
    each = {kind: TrainerTimes(given, (kind,)).take([lengths])[0] for kind in PASSES}
    assert each["old"] == each["reference"]
    assert each["critic"].passes < each["old"].passes < each["old"].step
    if not (given.fsdp or given.parallel.expert > 1 or given.parallel.pipeline > 1):
        assert each["old"].passes == max(forwards_of(run(with_samples(given, lengths))).values())
    assert TrainerTimes(given, PASSES).take([lengths])[0].passes == sum(one.passes for one in each.values())


@pytest.mark.parametrize("packing", ["balanced", "greedy"])
def test_a_pass_is_what_forwards_take_on_one_gpu(packing):
    given, lengths = scenario(gpus=1, data={"packing": packing}, efficiency={"step_overhead": 0.005}), drawn(24, seed=2)
    (time,) = TrainerTimes(given, ("old",)).take([lengths])
    result = run(with_samples(given, lengths))
    assert time == UpdateTime(forwards_of(result)[0], result.duration)


@pytest.mark.parametrize("sections", [{}, {"sharding": "zero-3"}, LAYOUTS["experts"]])
def test_a_frozen_model_runs_the_pass_as_its_step(sections):
    model = {**sections.get("model", DENSE), "frozen": "all"}
    frozen, lengths = scenario(**{**sections, "model": model}), drawn(32, seed=3)
    time = TrainerTimes(scenario(**sections), ("old",)).take([lengths])[0].passes
    overhead = float(frozen.efficiency.step_overhead)
    assert trainer_step(frozen, lengths) == time + round(overhead * 10**12)


def test_steps_beyond_the_events_take_the_time_of_the_nearest():
    given, updates = scenario(), [drawn(16, seed) for seed in range(64)]
    times, known = TrainerTimes(given, updates=64, most_events=1), {}
    for lengths in updates:
        before = times.simulated
        (time,) = times.take([lengths])
        size = np.log([sum(lengths), sum(length**2 for length in lengths)])
        if times.simulated > before:
            assert time.step == trainer_step(given, lengths)
            known[tuple(size)] = time
        else:
            assert time == known[min(known, key=lambda one: float(np.hypot(*(size - one))))]
    assert 8 <= times.simulated <= MOST_SAMPLED
    assert times.simulated + times.sampled == 64
    wrong = []
    for size, time in known.items():
        nearest = min((one for one in known if one != size), key=lambda one: float(np.hypot(*np.subtract(size, one))))
        wrong.append(abs(sum(known[nearest]) / sum(time) - 1))
    assert times.error == pytest.approx(sum(wrong) / len(wrong))
    assert times.notes[0].startswith(f"{times.simulated} of 64 optimizer steps are simulated; others take")


def test_few_events_leave_every_step_simulated():
    times = TrainerTimes(scenario(), updates=12)
    times.take([drawn(16, seed) for seed in range(12)])
    assert (times.simulated, times.sampled, times.error, times.notes) == (12, 0, None, ())


def test_without_a_number_of_steps_events_are_counted():
    times, updates = TrainerTimes(scenario()), [drawn(16, seed) for seed in range(12)]
    times.take(updates[:1])
    limited = TrainerTimes(scenario(), most_events=4 * times._events)
    limited.take(updates * 2)
    assert limited.simulated >= 8
    assert limited.sampled > 0


def test_jitter_differs_from_step_to_step():
    times = TrainerTimes(scenario(jitter={"distribution": "lognormal", "sigma": 0.1}))
    assert len({time.step for time in times.take([drawn(16)] * 3)}) == 3


@pytest.mark.parametrize(
    ("lengths", "error", "said"),
    [
        ([], UsageError, "an optimizer step without samples; expected at least one"),
        ([9000, 5], Refusal, "data.tokens: a sample of 9000 tokens does not fit; balanced has room for 8192"),
    ],
)
def test_samples_that_no_step_can_have_are_refused(lengths, error, said):
    with pytest.raises(error) as refused:
        trainer_step(scenario(), lengths)
    assert str(refused.value) == said


def test_measured_times_are_on_lines_between_rows(write):
    times = read_times(write("tokens,seconds\n1000,2\n3000,3.5\n500,1\n", "steps.csv"))
    taken = times.take([[500], [250, 500], [1000], [1999, 1], [3000]])
    assert taken == tuple(
        UpdateTime(0, each) for each in (10**12, 3 * 10**12 // 2, 2 * 10**12, 11 * 10**12 // 4, 7 * 10**12 // 2)
    )
    assert times.notes == ()
    assert [time.step for time in times.take([[1], [4000]])] == [10**12, 7 * 10**12 // 2]
    assert times.notes == (
        "2 optimizer steps have fewer or more tokens than those measured (500 … 3000), and take the nearest time",
    )
    assert (times.simulated, times.sampled, times.error) == (0, 0, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a table with the columns tokens and seconds"),
        ("tokens,time\n5,1\n", "expected a table with the columns tokens and seconds"),
        ("tokens,seconds\n5,1\n0,1\n", ":3: expected tokens, at least 1, and seconds above 0"),
        ("tokens,seconds\n5,nan\n", ":2: expected tokens, at least 1, and seconds above 0"),
        ("tokens,seconds\n5\n", ":2: expected tokens, at least 1, and seconds above 0"),
        ("tokens,seconds\n5,1\n5,2\n", ":3: a second row of 5 tokens"),
    ],
)
def test_a_table_that_is_none_is_refused_in_one_line(write, text, said):
    with pytest.raises(UsageError) as refused:
        read_times(write(text, "steps.csv"))
    assert str(refused.value).endswith(said)
    assert "\n" not in str(refused.value)


def test_a_measured_batch_is_divided_over_its_steps_exactly():
    times = ConstantTimes(10**12 + 1, 3)
    taken = [time.step for time in times.take([[5]] * 6)]
    assert sum(taken[:3]) == sum(taken[3:]) == 10**12 + 1
    assert all(abs(one - other) <= 1 for one, other in pairwise(taken))
    assert MeasuredTimes([(5, 7)]).take([[1], [9]]) == (UpdateTime(0, 7),) * 2


@pytest.mark.slow
def test_the_example_of_a_step_holds():
    assert doctest.testmod(module) == (0, 4)
