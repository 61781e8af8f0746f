"""The simulated GPUs train as one process would: every schedule, every codec, and what goes wrong on purpose."""

import numpy as np
import pytest
from support import scenarios
from support.campaigns import thinned
from support.sizes import chunks_of, exists
from support.tables import from_table

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import measure
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.errors import NumericsError
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import Op, Plan
from hybrid_des.planning.planner import plan_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.verification import verify
from hybrid_des.workload.numerics.datasets import Data
from hybrid_des.workload.numerics.layers import StageLayers, all_layers, initial_weights
from hybrid_des.workload.numerics.serial import accuracy, loss_and_gradients


def scenario(kind="1f1b", p=2, m=4, d=2, codec="fp64", **sections):
    small = {
        "schedule": {"chunks": chunks_of(kind)},
        "workload": {"activation": "1 kB"},
        "gradients": {"codec": codec},
        "numerics": {"width": 8, "batch": 2},
        "steps": 2,
    }
    return scenarios.scenario(kind, p, m, d, **scenarios.merged(small, sections))


def plan_for(scenario):
    return plan_of(scenario)


def weights_of(result):
    """The whole model, from the first rank that holds each stage."""
    stages = {stage: arrays for rank in result.weights for stage, arrays in result.weights[rank].items()}
    return np.concatenate([array.ravel() for _, arrays in sorted(stages.items()) for array in arrays])


LAYOUTS = [(2, 4, 1), (2, 8, 2), (4, 8, 1), (4, 4, 2)]  # p, m, d


@pytest.mark.parametrize(
    "kind",
    thinned(
        schedules.names(),
        slow=["eager-1f1b", "hanayo", "interleaved-1f1b", "looped-bfs", "v-half", "zb-auto", "zb-h1", "zb-v"],
    ),
)
def test_every_schedule_computes_what_serial_training_computes(kind):
    layouts = [(p, m, d) for p, m, d in LAYOUTS if exists(kind, (p, m, chunks_of(kind)))]
    assert len(layouts) >= 3
    for layout in layouts:
        chosen = scenario(kind, *layout)
        result = run(chosen)
        assert result.numerics["gradient_error"] <= 1e-10
        assert result.numerics["replica_difference"] == 0
        assert verify(chosen)  # op by op, and the activations kept


def test_the_error_is_reported_against_gradients_anyone_can_compute():
    chosen = scenario(d=2, codec="int8", steps=1)
    result = run(chosen)
    settings, samples = chosen.numerics.settings, Data("two-spirals", 0, "float64").stream(0, 2 * 4 * 2)
    before = initial_weights(all_layers(settings), settings, 0)
    _, gradient = loss_and_gradients(settings, before, samples)
    after = np.concatenate(
        [array.ravel() for rank in (0, 2) for stage in result.weights[rank].values() for array in stage]
    )
    reduced = (before - after) / 0.1
    error = np.linalg.norm(reduced - gradient) / np.linalg.norm(gradient)
    assert 1e-3 < error < 0.05
    assert result.numerics["gradient_error"] == pytest.approx(error, rel=1e-9)


def test_losses_and_accuracies_are_those_of_the_weights():
    chosen = scenario(steps=1)
    result = run(chosen)
    settings, data = chosen.numerics.settings, Data("two-spirals", 0, "float64")
    before = initial_weights(all_layers(settings), settings, 0)
    loss, _ = loss_and_gradients(settings, before, data.stream(0, 16))
    assert result.numerics["loss"] == [pytest.approx(loss, rel=1e-12)]
    after = np.concatenate(
        [array.ravel() for rank in (0, 2) for stage in result.weights[rank].values() for array in stage]
    )
    assert result.numerics["accuracy"] == [accuracy(settings, after, data.held_out)]


def test_one_seed_trains_one_model_on_any_layout():
    layouts = [("1f1b", 1, 8, 1), ("gpipe", 4, 8, 1), ("zb-v", 2, 4, 2), ("hanayo", 2, 2, 4), ("dualpipe", 2, 8, 1)]
    first, *others = (weights_of(run(scenario(*layout, steps=3))) for layout in layouts)
    assert len(others) == 4
    for other in others:
        assert np.linalg.norm(other - first) <= 1e-12 * np.linalg.norm(first)
    elsewhere = weights_of(run(scenario(*layouts[0], steps=3, seed=1)))
    assert np.linalg.norm(elsewhere - first) > 0.1 * np.linalg.norm(first)


@pytest.mark.parametrize("kind", ["1f1b", "zb-h1", "dualpipe"])
def test_simulated_time_is_the_same_with_and_without_numerics(kind):
    workload = {"forward": "1 ms", "backward": "2 ms", "activation": "1 MB", "parameters": 1000}
    chosen = scenario(kind, workload=workload)
    with_numbers, without = run(chosen), run(chosen.model_copy(update={"numerics": None}))
    for table in ("ops", "messages", "steps", "memory"):
        one, other = (getattr(result.timeline, table) for result in (with_numbers, without))
        assert all(np.array_equal(one[column], other[column]) for column in one)
    assert with_numbers.numerics is not None
    assert without.numerics is without.weights is None


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("codec", codecs.names())
def test_replicas_stay_bit_identical_with_every_codec(codec, feedback):
    result = run(scenario(p=2, d=4, codec=codec, steps=3, gradients={"error_feedback": feedback}))
    assert result.numerics["replica_difference"] == 0
    for stage in (0, 1):
        copies = [weights[stage] for weights in result.weights.values() if stage in weights]
        assert len(copies) == 4
        assert all(np.array_equal(a, b) for copy in copies for a, b in zip(copies[0], copy, strict=True))


@pytest.mark.parametrize("rule", ["stage", "ddp", "megatron"])
@pytest.mark.parametrize("kind", ["1f1b", "zb-v", "dualpipe"])
def test_buckets_that_overlap_the_backward_reduce_the_same_gradients(kind, rule):
    gradients = {"overlap": True, "bucket": "1 kB", "bucket_rule": rule}
    result = run(scenario(kind, gradients=gradients, barrier=False))
    assert result.numerics["gradient_error"] <= 1e-10
    assert result.numerics["replica_difference"] == 0


@pytest.mark.parametrize("algorithm", collectives.all_reduces())
def test_every_all_reduce_trains(algorithm):
    chosen = scenario(d=4, codec="int8", gradients={"algorithm": algorithm}, cluster={"gpu": "h100"})
    assert verify(chosen)
    result = run(chosen)
    assert 0 < result.numerics["gradient_error"] < 0.05
    assert result.numerics["replica_difference"] == 0


def ring(buffers):
    """Run one ring all-reduce, in place."""
    ranks = range(len(buffers))
    measure(fabric_of(scenario(p=1, d=len(buffers))), "ring", [ranks], lambda group, place: buffers[place])


@from_table
def test_a_ring_gives_the_mean_to_the_codecs_rounding(codec, least, most):
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=121) for _ in range(4)]
    mean = np.mean(arrays, axis=0)
    ring([Buffer(121, codecs.find(codec).build(), array) for array in arrays])
    assert all(np.array_equal(array, arrays[0]) for array in arrays)
    error = np.linalg.norm(arrays[0] / 4 - mean) / np.linalg.norm(mean)
    assert least <= error <= most


@pytest.mark.parametrize("codec", ["int8", "top-k"])
def test_error_feedback_pays_back_what_a_codec_lost(codec):
    generator = np.random.default_rng(1)
    gradients = [generator.normal(size=64) for _ in range(3)]
    mean = np.mean(gradients, axis=0)

    def average(residuals, rounds=40):
        total = np.zeros(64)
        for _ in range(rounds):
            arrays = [gradient.copy() for gradient in gradients]
            pairs = zip(arrays, residuals, strict=True)
            ring([Buffer(64, codecs.find(codec).build(), *pair) for pair in pairs])
            total += arrays[0] / 3 / rounds
        return np.linalg.norm(total - mean) / np.linalg.norm(mean)

    forgetful, patient = average([None] * 3), average([np.zeros(64) for _ in range(3)])
    assert patient < forgetful / 5


def test_the_prototypes_real_arrays_take_the_counted_bytes(scenarios):
    result = run(load(scenarios / "prototype_12gpu.yaml", ["numerics={}"]))
    assert (result.bytes_gradients, result.bytes_scales) == (2160, 288)
    assert 0 < result.numerics["gradient_error"] < 0.05
    assert result.numerics["replica_difference"] == 0


def test_without_workload_parameters_the_models_own_count_travels():
    result = run(scenario(p=2, d=2, codec="fp32", steps=1))
    assert result.bytes_gradients == 2 * weights_of(result).size * 4  # a ring of two sends the buffer once a rank


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "in-switch"])
@pytest.mark.parametrize("parameters", [0, [0, 50], [50, 0], 3])
def test_arrays_ride_along_with_few_or_no_parameters(parameters, algorithm):
    workload = {"forward": "1 ms", "backward": "2 ms", "parameters": parameters}
    gradients = {"algorithm": algorithm, "overlap": True, "bucket": "40 B"}
    result = run(scenario(workload=workload, gradients=gradients, cluster={"gpu": "h100"}))
    total = sum(parameters) if isinstance(parameters, list) else 2 * parameters
    assert result.bytes_gradients == 2 * 2 * total * 8  # two steps; two replicas send the buffer once each
    assert result.bytes_switched == (result.bytes_gradients if algorithm == "in-switch" else 0)
    assert result.numerics["gradient_error"] <= 1e-10
    assert result.numerics["replica_difference"] == 0


@pytest.mark.slow
def test_the_training_scenario_learns_with_every_codec(scenarios):
    reached = {}
    for codec in ("fp32", "fp16", "int8"):
        result = run(load(scenarios / "prototype_12gpu_training.yaml", [f"gradients.codec={codec}", "record=none"]))
        reached[codec] = result.numerics["accuracy"][-1]
        assert result.numerics["replica_difference"] == 0
        assert result.numerics["loss"][-1] < result.numerics["loss"][0] / 5
    assert min(reached["fp32"], reached["fp16"]) >= 0.95
    assert all(abs(share - reached["fp32"]) <= 0.02 for share in reached.values())
    settings = load(scenarios / "prototype_12gpu_training.yaml").numerics.settings
    untrained = initial_weights(all_layers(settings), settings, 0)
    assert accuracy(settings, untrained, Data(settings.task, 0, "float64").held_out) < 0.6


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_replicas_without_a_barrier_agree_as_well(optimizer, dtype):
    uneven = {"forward": ["1 ms", "3 ms"], "backward": ["2 ms", "1 ms"], "activation": "1 kB"}
    numerics = {"optimizer": optimizer, "dtype": dtype}
    result = run(scenario(barrier=False, steps=4, codec="fp32", numerics=numerics, workload=uneven))
    assert result.numerics["replica_difference"] == 0
    assert result.numerics["gradient_error"] <= 1e-5
    assert len(result.numerics["loss"]) == len(result.numerics["accuracy"]) == 4


# what goes wrong on purpose


def test_overflow_on_the_wire_names_rank_op_and_step():
    chosen = scenario(codec="fp16", steps=9, numerics={"learning_rate": "1e4"})
    where = r"rank \d, step \d, reduction of stage \d: element \d+ of \d+ is .* too large for float16"
    with pytest.raises(NumericsError, match=where):
        run(chosen)


def test_a_non_finite_value_names_rank_op_and_step(monkeypatch):
    clean = Data.stream

    def spoilt(self, start, stop):
        samples = clean(self, start, stop)
        samples.inputs[13 - start if start <= 13 < stop else slice(0)] = np.nan
        return samples

    monkeypatch.setattr(Data, "stream", spoilt)
    with pytest.raises(NumericsError, match=r"^rank 0, step 1, 0F2: its result contains nan$"):
        run(scenario(d=1))  # 8 samples a step, 2 a micro-batch


def test_a_non_finite_gradient_names_rank_stage_and_step(monkeypatch):
    right = StageLayers.add_weight_gradient

    def overflowing(self, needed):
        right(self, needed)
        self.gradient[3] = np.inf

    monkeypatch.setattr(StageLayers, "add_weight_gradient", overflowing)
    with pytest.raises(NumericsError, match=r"^rank 1, step 0, optimizer of stage 1: the gradient is inf$"):
        run(scenario(d=1))


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("rate", ["1e4", "1e15"])
def test_training_that_runs_away_has_a_finite_summary(rate, dtype):
    summary = run(scenario(steps=9, codec="fp64", numerics={"learning_rate": rate, "dtype": dtype})).numerics
    assert np.isfinite([*summary["loss"], *summary["accuracy"], summary["gradient_error"]]).all()
    assert summary["loss"][-1] > 100


def swapped(program, one, other):
    program = list(program)
    i, j = program.index((one,)), program.index((other,))
    program[i], program[j] = program[j], program[i]
    return program


BROKEN = {
    "backward before its forward": ("1f1b", 1, lambda p: swapped(p, Op("F", 0), Op("B", 0)), "1B0: its forward"),
    "backward missing": ("1f1b", 0, lambda p: p[:-1], "micro-batch 3 has not completed its backward"),
    "backward twice": ("1f1b", 1, lambda p: [*p, p[-1]], "1B3: its forward has not run"),
    "weight before input gradient": ("zb-h1", 1, lambda p: swapped(p, Op("I", 0), Op("W", 0)), "1W0: its input"),
    "weight gradient missing": ("zb-h1", 0, lambda p: p[:-1], "has not completed its backward"),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_numbers_alone_catch_a_broken_plan(mistake, monkeypatch):
    kind, rank, spoil, message = BROKEN[mistake]
    chosen = scenario(kind, d=1)
    plan = plan_for(chosen)
    programs = [spoil(program) if r == rank else program for r, program in enumerate(plan.programs)]
    broken = Plan(tuple(map(tuple, programs)), plan.paths, plan.path_of)
    monkeypatch.setattr(Plan, "check", lambda self: None)
    with pytest.raises(NumericsError, match=message):
        verify(chosen, broken)
