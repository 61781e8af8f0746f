"""State shared by all GPUs of a training run: the model split into stages, and the data of each replica.

Initial weights depend on the seed, not on the split.
"""

import numpy as np

from hybrid_des.errors import UsageError
from hybrid_des.numerics import datasets
from hybrid_des.numerics.data import WEIGHTS, Data, Samples
from hybrid_des.numerics.layers import Array, LayerSpec, StageLayers
from hybrid_des.numerics.optimizers import OPTIMIZERS, Optimizer
from hybrid_des.numerics.settings import TrainingSettings
from hybrid_des.pipeline.plan import Plan
from hybrid_des.units import split_evenly


class TrainingSetup:
    """Model and data of one run.

    The plan gives the numbers of stages and micro-batches, the seed initial weights, data and sample order;
    `replica_samples` is the number of samples per replica and step.

    Raises:
        UsageError: there are fewer layers than stages, or the task needs a library that is not installed.
    """

    def __init__(self, settings: TrainingSettings, plan: Plan, replicas: int, seed: int) -> None:
        self.settings = settings
        self.plan = plan
        self.replicas = replicas
        self.replica_samples = plan.microbatches * settings.batch
        self._layers = layers_of_stages(settings, plan.stages)
        self._seed = seed
        self.data = Data(settings.task, seed, settings.float_type)

    @property
    def parameters(self) -> tuple[int, ...]:
        """Number of parameters of each stage."""
        return tuple(sum(layer.parameters for layer in layers) for layers in self._layers)

    def new_stage(self, stage: int) -> StageLayers:
        """A fresh copy of a stage with its initial weights."""
        layers = self._layers[stage]
        return StageLayers(layers, initial_weights(layers, self.settings, self._seed))

    def new_optimizer(self) -> Optimizer:
        """A fresh optimizer for one stage."""
        return OPTIMIZERS[self.settings.optimizer](float(self.settings.learning_rate))

    def samples(self, step: int, replica: int, microbatch: int) -> Samples:
        """One micro-batch: of m per replica, replica r takes micro-batches r·m … r·m+m−1 of the global batch."""
        batch = self.settings.batch
        start = ((step * self.replicas + replica) * self.plan.microbatches + microbatch) * batch
        return self.data.stream(start, start + batch)

    def global_batch(self, step: int) -> Samples:
        """All samples of a step, in order."""
        size = self.replicas * self.replica_samples
        return self.data.stream(step * size, (step + 1) * size)


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
