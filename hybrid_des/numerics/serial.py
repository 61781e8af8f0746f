"""Serial training: the whole model in one process on the whole global batch, to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybrid_des.numerics import model
from hybrid_des.numerics.data import Samples
from hybrid_des.numerics.layers import loss_and_gradient
from hybrid_des.numerics.settings import Settings

if TYPE_CHECKING:
    from hybrid_des.numerics.layers import Array


def loss_and_gradients(settings: Settings, weights: Array, samples: Samples) -> tuple[float, Array]:
    """Mean loss and mean gradient over all samples, at flat weights of the whole model."""
    whole = model.whole(settings, weights)
    output, kept = whole.forward(samples.inputs)
    loss, upwards = loss_and_gradient(output, samples.labels, len(samples))
    whole.add_weight_gradient(whole.input_gradient(upwards, kept)[1])
    return loss, whole.gradient


def accuracy(settings: Settings, weights: Array, samples: Samples) -> float:
    """Share of samples whose largest logit is that of their class."""
    output, _ = model.whole(settings, weights).forward(samples.inputs)
    return float((output.argmax(axis=1) == samples.labels).mean())
