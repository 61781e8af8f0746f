"""Serial training, the reference: one process, one micro-batch after another through all stages."""

from collections.abc import Sequence
from typing import NamedTuple

from hybrid_des.numerics.data import Samples
from hybrid_des.numerics.layers import Array, StageLayers, loss_and_gradient
from hybrid_des.numerics.settings import TrainingSettings
from hybrid_des.numerics.setup import TrainingSetup, all_layers


class Passed(NamedTuple):
    """Loss of one forward and backward pass, and stage by stage its outputs and its flat gradients.

    The loss is the sum over samples, divided by the given number of them; the first stage has no input gradient.
    """

    loss: float
    outputs: Sequence[Array]
    input_gradients: Sequence[Array | None]
    weight_gradients: Sequence[Array]


def forward_and_backward(stages: Sequence[StageLayers], batch: Samples, samples: int) -> Passed:
    """Run forward and backward of a batch through all stages, whose `gradient` is overwritten.

    Loss and gradients are divided by `samples`.
    """
    outputs, kept = [], []
    x = batch.inputs
    for stage in stages:
        x, layers = stage.forward(x)
        outputs.append(x)
        kept.append(layers)
    loss, gradient = loss_and_gradient(x, batch.labels, samples)
    below: Array | None = gradient
    input_gradients, weight_gradients = [], []
    for stage, layers in zip(reversed(stages), reversed(kept), strict=True):
        assert below is not None
        below, needed = stage.input_gradient(below, layers)
        stage.gradient[:] = 0
        stage.add_weight_gradient(needed)
        input_gradients.append(below)
        weight_gradients.append(stage.gradient.copy())
    return Passed(loss, outputs, input_gradients[::-1], weight_gradients[::-1])


def loss_and_gradients(settings: TrainingSettings, weights: Array, samples: Samples) -> tuple[float, Array]:
    """Mean loss and gradient over all samples, at flat weights of the whole model."""
    passed = forward_and_backward([StageLayers(all_layers(settings), weights)], samples, len(samples))
    return passed.loss, passed.weight_gradients[0]


def accuracy(settings: TrainingSettings, weights: Array, samples: Samples) -> float:
    """Share of samples classified correctly."""
    output, _ = StageLayers(all_layers(settings), weights).forward(samples.inputs)
    return float((output.argmax(axis=1) == samples.labels).mean())


class SerialTraining:
    """Serial training in lockstep with a simulated one (all ranks start a step together)."""

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        stages = range(setup.plan.stages)
        self._stages = [setup.new_stage(stage) for stage in stages]
        self._optimizers = [setup.new_optimizer() for _ in stages]
        self._step = 0
        self._known: dict[tuple[int, int], Passed] = {}

    def microbatch(self, step: int, replica: int, microbatch: int) -> Passed:
        """Expected results of a micro-batch's ops, at the initial weights of the step."""
        while self._step < step:
            self._learn()
        key = replica, microbatch
        if key not in self._known:
            samples = self._setup.samples(self._step, replica, microbatch)
            self._known[key] = forward_and_backward(self._stages, samples, self._setup.replica_samples)
        return self._known[key]

    def gradient(self, step: int, stage: int) -> Array:
        """Expected gradient of a stage: the mean of the replicas' means."""
        total = self._stages[stage].weights * 0
        for replica in range(self._setup.replicas):
            for microbatch in range(self._setup.plan.microbatches):
                total += self.microbatch(step, replica, microbatch).weight_gradients[stage]
        return total / self._setup.replicas

    def _learn(self) -> None:
        gradients = [self.gradient(self._step, stage) for stage in range(len(self._stages))]
        for stage, optimizer, gradient in zip(self._stages, self._optimizers, gradients, strict=True):
            optimizer.update(stage.weights, gradient)
        self._step += 1
        self._known.clear()
