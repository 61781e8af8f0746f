"""The arithmetic by itself: gradients, data, weights, optimizers, data sets that can be learnt."""

import numpy as np
import pytest

from hybrid_des.errors import UsageError
from hybrid_des.scenario.sections.numerics import Numerics
from hybrid_des.workload.numerics import datasets
from hybrid_des.workload.numerics.datasets import Data
from hybrid_des.workload.numerics.layers import (
    OPTIMIZERS,
    StageLayers,
    all_layers,
    initial_weights,
    layers_of_stages,
    loss_and_gradient,
)
from hybrid_des.workload.numerics.serial import accuracy, loss_and_gradients

GENERATED = ("two-spirals", "teacher-student")


def initial(settings, seed=0):
    return initial_weights(all_layers(settings), settings, seed)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_gradients_are_those_of_finite_differences(layers):
    settings = Numerics(layers=layers, width=5, task="teacher-student").settings
    samples = Data(settings.task, 0, "float64").stream(0, 7)
    weights = initial(settings) + 0.1
    _, gradient = loss_and_gradients(settings, weights, samples)
    for i in range(0, weights.size, 7):
        nudge = np.zeros_like(weights)
        nudge[i] = 1e-5
        up, down = (loss_and_gradients(settings, weights + sign * nudge, samples)[0] for sign in (1, -1))
        assert gradient[i] == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-9)


def test_stages_one_after_another_are_the_whole_model():
    settings = Numerics(layers=6, width=5).settings
    samples = Data(settings.task, 0, "float64").stream(0, 9)
    _, whole = loss_and_gradients(settings, initial(settings), samples)
    stages = [StageLayers(share, initial_weights(share, settings, 0)) for share in layers_of_stages(settings, 4)]
    x, kept = samples.inputs, []
    for stage in stages:
        x, layers = stage.forward(x)
        kept.append(layers)
    below = loss_and_gradient(x, samples.labels, len(samples))[1]
    for stage, layers in zip(reversed(stages), reversed(kept), strict=True):
        below, needed = stage.input_gradient(below, layers)
        stage.add_weight_gradient(needed)
    assert below is None
    assert np.array_equal(np.concatenate([stage.gradient for stage in stages]), whole)


def test_a_stage_shows_its_weights_as_matrices_and_biases():
    settings = Numerics(layers=3, width=5).settings
    stage = StageLayers(all_layers(settings), initial(settings))
    assert [array.shape for array in stage.arrays] == [(2, 5), (5,), (5, 5), (5,), (5, 2), (2,)]
    assert np.array_equal(np.concatenate([array.ravel() for array in stage.arrays]), stage.weights)


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_initial_weights_do_not_depend_on_the_cut(stages):
    settings = Numerics().settings
    parts = [initial_weights(share, settings, 3) for share in layers_of_stages(settings, stages)]
    assert np.array_equal(np.concatenate(parts), initial(settings, 3))
    assert not np.array_equal(initial(settings, 3), initial(settings, 4))


def test_fewer_layers_than_stages_are_refused():
    with pytest.raises(UsageError, match=r"numerics.layers: 3 layers .* 4 stages"):
        layers_of_stages(Numerics(layers=3).settings, 4)


def test_the_order_of_samples_is_one_stream():
    data = Data("two-spirals", 5, "float64")
    count = len(data.training)
    whole = data.stream(0, count + 22)  # into the second epoch
    parts = [data.stream(start, start + 15) for start in range(0, count + 22, 15)]
    assert np.array_equal(np.concatenate([part.inputs for part in parts])[: count + 22], whole.inputs)
    epoch = np.unique(whole.inputs[:count], axis=0)
    assert np.array_equal(epoch, np.unique(data.training.inputs, axis=0))


@pytest.mark.parametrize("name", GENERATED)
def test_generated_classes_are_balanced_and_the_seed_decides(name):
    first, again, other = (Data(name, seed, "float64") for seed in (1, 1, 2))
    for samples in (first.training, first.held_out):
        assert abs(samples.labels.mean() - 0.5) < 0.05
    assert np.array_equal(first.training.inputs, again.training.inputs)
    assert not np.array_equal(first.training.inputs, other.training.inputs)


def trained_accuracy(settings, steps, batch=96, seed=0):
    data, weights = Data(settings.task, seed, "float64"), initial(settings, seed)
    optimizer = OPTIMIZERS[settings.optimizer](float(settings.learning_rate))
    for step in range(steps):
        samples = data.stream(step * batch, (step + 1) * batch)
        optimizer.update(weights, loss_and_gradients(settings, weights, samples)[1])
    return accuracy(settings, weights, data.held_out)


@pytest.mark.parametrize(
    ("name", "chance"), [*((name, 0.5) for name in GENERATED), pytest.param("digits", 0.1, marks=pytest.mark.slow)]
)
def test_every_data_set_can_be_learnt_with_the_defaults(name, chance):
    if name == "digits":
        pytest.importorskip("sklearn")
    settings = Numerics(task=name).settings
    untrained = np.mean([trained_accuracy(settings, 0, seed=seed) for seed in range(3)])
    assert untrained == pytest.approx(chance, abs=0.1)
    assert trained_accuracy(settings, 200) >= 0.95


def test_every_registered_data_set_is_tested_above():
    assert set(datasets.names()) == {*GENERATED, "digits"}


def test_sgd_goes_down_the_gradient():
    weights = np.array([1.0, 2.0])
    OPTIMIZERS["sgd"](0.5).update(weights, np.array([1.0, -2.0]))
    assert weights.tolist() == [0.5, 3.0]


def test_adam_is_algorithm_1_of_its_paper():
    weights, mean, square = np.array([1.0, -2.0]), 0.0, 0.0
    expected, optimizer = weights.copy(), OPTIMIZERS["adam"](0.01)
    for t, gradient in enumerate((np.array([0.3, -4.0]), np.array([-0.1, 2.0]), np.array([0.7, 0.0])), start=1):
        optimizer.update(weights, gradient)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        expected -= 0.01 * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
        assert weights == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_single_precision_stays_single(optimizer):
    settings = Numerics(dtype="fp32", layers=2, optimizer=optimizer).settings
    data, weights = Data(settings.task, 0, "float32"), initial(settings)
    _, gradient = loss_and_gradients(settings, weights, data.stream(0, 4))
    assert weights.dtype == gradient.dtype == np.float32
    before = weights.copy()
    OPTIMIZERS[optimizer](0.1).update(weights, gradient)
    assert weights.dtype == np.float32
    assert not np.array_equal(weights, before)
