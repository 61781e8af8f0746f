"""Local SGD with an outer optimizer: the simulated GPUs against a loop that shares nothing but the layers."""

import numpy as np
import pytest
from support import scenarios

from hybrid_des.collectives import codecs
from hybrid_des.errors import ScenarioError
from hybrid_des.shortcuts.run import run
from hybrid_des.workload.numerics.datasets import Data
from hybrid_des.workload.numerics.layers import all_layers, initial_weights
from hybrid_des.workload.numerics.serial import loss_and_gradients


def trained(p=1, d=4, steps=12, **gradients):
    return scenarios.scenario(
        "1f1b", p, 2, d, steps=steps, cluster={"nodes": 1, "gpus_per_node": p * d},
        gradients={"codec": "fp64", **gradients}, numerics={"width": 8, "batch": 2, "layers": 4},
    )  # fmt: skip


def serial(scenario, groups, every, codec, rate=0.7, momentum=0.9, fragments=1):
    """The losses and final common weights, computed by one process."""
    numerics, d = scenario.numerics.settings, scenario.parallel.data
    layers, samples = all_layers(numerics), scenario.schedule.microbatches * numerics.batch
    data = Data(numerics.task, scenario.seed, numerics.float_type)
    common = initial_weights(layers, numerics, scenario.seed)
    own, velocity, losses = [common.copy() for _ in range(groups)], np.zeros_like(common), []
    each = d // groups
    for step in range(scenario.steps):
        found = []
        for group in range(groups):
            first = (step * d + group * each) * samples
            loss, gradient = loss_and_gradients(numerics, own[group], data.stream(first, first + each * samples))
            own[group] = own[group] - float(numerics.learning_rate) * gradient
            found.append(loss)
        losses.append(np.mean(found))
        for fragment in range(fragments):
            if (step + 1) % every == (fragment + 1) * every // fragments % every:
                at = slice(len(common) * fragment // fragments, len(common) * (fragment + 1) // fragments)
                change = np.mean([codec.decode(codec.encode(common[at] - weights[at])) for weights in own], axis=0)
                velocity[at] = momentum * velocity[at] + change
                common[at] = common[at] - rate * (change + momentum * velocity[at])
                for weights in own:
                    weights[at] = common[at]
    return losses, own


@pytest.mark.parametrize(
    ("groups", "every", "codec", "fragments"),
    [(4, 3, "fp64", 1), (2, 3, "fp64", 1), (2, 4, "fp64", 2), (4, 2, "int8", 1), (2, 12, "bf16", 3), (4, 3, "fp4", 2)],
)
def test_groups_train_as_one_process_would(groups, every, codec, fragments):
    outer = {"groups": groups, "codec": codec, "fragments": fragments}
    scenario = trained(every=every, outer=outer)
    result = run(scenario)
    losses, own = serial(scenario, groups, every, codecs.find(codec).build(), fragments=fragments)
    assert result.numerics["loss"] == pytest.approx(losses, rel=1e-9)
    for replica in range(4):
        weights = np.concatenate([array.ravel() for array in result.weights[replica][0]])
        expected = own[replica * groups // 4]
        assert np.allclose(np.sort(weights), np.sort(expected), rtol=1e-9, atol=1e-12)
    assert result.numerics["gradient_error"] < 1e-12


def test_stages_train_as_the_whole_model_does():
    """A pipeline of two ranks, whose stages are exchanged one by one."""
    outer = {"groups": 2}
    one, two = (run(trained(p=p, every=4, outer=outer)) for p in (1, 2))
    assert one.numerics["loss"] == pytest.approx(two.numerics["loss"], rel=1e-9)


def test_an_exchange_that_arrives_later_is_mixed_in():
    late = run(trained(every=4, outer={"groups": 2, "overlap": 2})).numerics["loss"]
    mixed = run(trained(every=4, outer={"groups": 2, "overlap": "2 steps", "mixing": 1})).numerics["loss"]
    alone = run(trained(every=12, steps=11, outer={"groups": 2})).numerics["loss"]
    assert late[:6] == pytest.approx(alone[:6]) and late[6] != pytest.approx(alone[6])
    assert mixed[:11] == pytest.approx(alone[:11])  # own weights are all that is kept


def test_seldom_talk_learns_nearly_as_well():
    """Two spirals, 60 steps: the loss at the end beside plain data parallelism, and less than at the start."""
    plain = run(trained(steps=60)).numerics["loss"]
    seldom = run(trained(steps=60, every=10, outer={"groups": 2})).numerics["loss"]
    assert np.mean(seldom[-10:]) < 0.9 * np.mean(seldom[:10])
    assert np.mean(seldom[-10:]) < 1.15 * np.mean(plain[-10:])


def test_groups_with_numerics_need_the_barrier():
    with pytest.raises(ScenarioError, match=r"gradients\.every: needs `barrier` with `numerics`"):
        scenarios.scenario(
            "1f1b", 1, 2, 4, barrier=False, gradients={"every": 2}, numerics={"width": 8, "batch": 2, "layers": 4}
        )
