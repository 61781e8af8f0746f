"""The layers of one stage (forward, input gradient and weight gradient as separate functions), and serial training.

    input    y = tanh(x·W + b)
    hidden   y = x + tanh(x·W + b)      a residual layer, so that deep models stay trainable
    output   y = x·W + b                the logits

With g = ∂loss/∂y and δ = ∂loss/∂(x·W + b):  δ = g·(1 − tanh²) or g,  ∂loss/∂x = δ·Wᵀ (+ g),  ∂loss/∂W = xᵀ·δ.
F keeps x and tanh, I replaces them with x and δ, W consumes those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import UsageError
from hybrid_des.units import split_evenly
from hybrid_des.workload.numerics import datasets
from hybrid_des.workload.numerics.datasets import WEIGHTS, Array

Kept = list[tuple[Array, Array]]  # two arrays per layer


Role = Literal["input", "hidden", "output"]


_DTYPES = {"fp64": "float64", "fp32": "float32"}


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings; defaults are in a scenario's `numerics` section.

    The model has `layers`, split over the stages, with `width` features between them; `batch` counts the samples of a
    micro-batch, and `dtype`, fp64 or fp32, is that of weights, activations and gradients.
    """

    layers: int
    width: int
    batch: int
    task: str
    learning_rate: Fraction
    optimizer: str
    dtype: str

    @property
    def float_type(self) -> str:
        """NumPy's name of `dtype`."""
        return _DTYPES[self.dtype]


class LayerSpec(NamedTuple):
    """One layer: its position in the whole model, its role, and its sizes."""

    depth: int
    role: Role
    features: int
    outputs: int

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return (self.features + 1) * self.outputs


class StageLayers:
    """The layers of one stage with their weights in one flat array, and the gradient in another.

    Attributes:
        weights: flat, layer by layer, each W (features × outputs) and then b; changed in place by an optimizer.
        gradient: of the same shape; `add_weight_gradient` adds to it.
    """

    def __init__(self, specs: Sequence[LayerSpec], weights: Array) -> None:
        self._specs = tuple(specs)
        self.weights = weights
        self.gradient = weights * 0
        self._matrices = self._views(self.weights)
        self._gradients = self._views(self.gradient)

    @property
    def arrays(self) -> list[Array]:
        """W and b of each layer in turn, as views of `weights`."""
        return [array for pair in self._matrices for array in pair]

    def forward(self, x: Array) -> tuple[Array, Kept]:
        """Run (batch, features) through the layers; returns the output and the tensors kept for the backward."""
        kept = []
        for spec, (matrix, bias) in zip(self._specs, self._matrices, strict=True):
            inner = x @ matrix + bias
            bent = inner if spec.role == "output" else np.tanh(inner)
            kept.append((x, bent))
            x = x + bent if spec.role == "hidden" else bent
        return x, kept

    def input_gradient(self, g: Array, kept: Kept) -> tuple[Array | None, Kept]:
        """Gradient of the input (None for the first layer of the model), and the tensors kept for W."""
        needed: Kept = []
        layers = zip(reversed(self._specs), reversed(self._matrices), reversed(kept), strict=True)
        for spec, (matrix, _), (x, bent) in layers:
            delta = g if spec.role == "output" else g * (1 - bent * bent)
            needed.insert(0, (x, delta))
            if spec.depth == 0:
                return None, needed
            through = delta @ matrix.T
            g = through + g if spec.role == "hidden" else through
        return g, needed

    def add_weight_gradient(self, needed: Kept) -> None:
        """Add one micro-batch's share to `gradient`."""
        for (x, delta), (matrix, bias) in zip(needed, self._gradients, strict=True):
            matrix += x.T @ delta
            bias += delta.sum(axis=0)

    def _views(self, flat: Array) -> list[tuple[Array, Array]]:
        views, at = [], 0
        for spec in self._specs:
            cut = at + spec.features * spec.outputs
            views.append((flat[at:cut].reshape(spec.features, spec.outputs), flat[cut : cut + spec.outputs]))
            at = cut + spec.outputs
        return views


def loss_and_gradient(logits: Array, labels: NDArray[np.int64], samples: int) -> tuple[float, Array]:
    """Softmax cross-entropy over a micro-batch and its gradient, both divided by `samples`.

    With `samples` those of a whole replica, its micro-batches sum to the replica's mean loss and gradient.
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    losses = np.log(sums[:, 0]) - shifted[rows, labels]
    gradient = exponentials / sums
    gradient[rows, labels] -= 1
    return float(losses.sum()) / samples, gradient / samples


def all_layers(settings: TrainingSettings) -> list[LayerSpec]:
    """All layers of the model: one input, hidden and one output layer."""
    facts, last = datasets.find(settings.task).facts, settings.layers - 1
    sizes = [facts["features"], *[settings.width] * last, facts["classes"]]
    return [
        LayerSpec(i, "output" if i == last else "hidden" if i else "input", sizes[i], sizes[i + 1])
        for i in range(settings.layers)
    ]


def layers_of_stages(settings: TrainingSettings, stages: int) -> list[list[LayerSpec]]:
    """The layers of each stage.

    Raises:
        UsageError: there are fewer layers than stages.
    """
    if settings.layers < stages:
        raise UsageError(
            f"numerics.layers: {settings.layers} layers cannot be split over {stages} stages; "
            f"at least {stages} are needed"
        )
    layers = iter(all_layers(settings))
    return [[next(layers) for _ in range(count)] for count in split_evenly(settings.layers, stages)]


def initial_weights(layers: list[LayerSpec], settings: TrainingSettings, seed: int) -> Array:
    """Flat initial weights of some layers, drawn from the seed and each layer's depth; biases are zero.

    W is normal with standard deviation 1/√features, and a tenth of that in the output layer.
    """
    parts: list[Array] = []
    for layer in layers:
        generator = np.random.default_rng([WEIGHTS, seed, layer.depth])
        scale = (0.1 if layer.role == "output" else 1) / np.sqrt(layer.features)
        parts += [generator.normal(scale=scale, size=layer.features * layer.outputs), np.zeros(layer.outputs)]
    return np.concatenate(parts).astype(settings.float_type)


class Sgd:
    """w −= η·g."""

    def __init__(self, learning_rate: float) -> None:
        self._rate = learning_rate

    def update(self, weights: Array, gradient: Array) -> None:
        """Take one step down the gradient."""
        weights -= weights.dtype.type(self._rate) * gradient


class Adam:
    """Adam with β = 0.9, 0.999 and ε = 10⁻⁸, with bias correction (arXiv 1412.6980, algorithm 1)."""

    def __init__(self, learning_rate: float) -> None:
        self._rate = learning_rate
        self._steps = 0
        self._mean: Array | float = 0.0
        self._square: Array | float = 0.0

    def update(self, weights: Array, gradient: Array) -> None:
        """Take one step along the running mean over the root of the running square."""
        self._steps += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * (gradient * gradient)
        rate = self._rate * (1 - 0.999**self._steps) ** 0.5 / (1 - 0.9**self._steps)
        weights -= rate * self._mean / (self._square**0.5 + 1e-8)


Optimizer = Sgd | Adam


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}
