"""Serial training, the reference: one process, one micro-batch after another through all stages."""

from collections.abc import Sequence
from typing import NamedTuple

from hybrid_des.workload.numerics.datasets import Array, Samples
from hybrid_des.workload.numerics.layers import StageLayers, TrainingSettings, all_layers, loss_and_gradient


class PassResult(NamedTuple):
    """Loss of one forward and backward pass, and stage by stage its outputs and its flat gradients.

    The loss is the sum over samples, divided by the given number of them; the first stage has no input gradient.
    """

    loss: float
    outputs: Sequence[Array]
    input_gradients: Sequence[Array | None]
    weight_gradients: Sequence[Array]


def forward_and_backward(stages: Sequence[StageLayers], batch: Samples, samples: int) -> PassResult:
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
    return PassResult(loss, outputs, input_gradients[::-1], weight_gradients[::-1])


def loss_and_gradients(settings: TrainingSettings, weights: Array, samples: Samples) -> tuple[float, Array]:
    """Mean loss and gradient over all samples, at flat weights of the whole model."""
    passed = forward_and_backward([StageLayers(all_layers(settings), weights)], samples, len(samples))
    return passed.loss, passed.weight_gradients[0]


def accuracy(settings: TrainingSettings, weights: Array, samples: Samples) -> float:
    """Share of samples classified correctly."""
    output, _ = StageLayers(all_layers(settings), weights).forward(samples.inputs)
    return float((output.argmax(axis=1) == samples.labels).mean())
