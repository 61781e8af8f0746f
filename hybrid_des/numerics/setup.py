"""What all GPUs of one training run share: the model split into stages, the data, and who sees which samples."""

from __future__ import annotations

from hybrid_des.numerics import perceptron
from hybrid_des.numerics.data import Data, Samples
from hybrid_des.numerics.layers import StageLayers
from hybrid_des.numerics.optimizers import OPTIMIZERS, Optimizer
from hybrid_des.numerics.settings import TrainingSettings
from hybrid_des.pipeline.plan import Plan


class TrainingSetup:
    """Model and data of one run.

    Args:
        settings: the model and how it is trained.
        plan: the schedule, which has the numbers of stages and micro-batches.
        replicas: the data-parallel size.
        seed: of initial weights, data and the order of samples.

    Attributes:
        replica_samples: samples per replica and step.

    Raises:
        UsageError: there are fewer layers than stages, or the task needs a library that is not installed.
    """

    def __init__(self, settings: TrainingSettings, plan: Plan, replicas: int, seed: int) -> None:
        self.settings = settings
        self.plan = plan
        self.replicas = replicas
        self.replica_samples = plan.microbatches * settings.batch
        self._layers = perceptron.layers_of_stages(settings, plan.stages)
        self._seed = seed
        self.data = Data(settings.task, seed, settings.float_type)

    @property
    def parameters(self) -> tuple[int, ...]:
        """Number of parameters of each stage."""
        return tuple(sum(layer.parameters for layer in layers) for layers in self._layers)

    def new_stage(self, stage: int) -> StageLayers:
        """A fresh copy of a stage with its initial weights."""
        layers = self._layers[stage]
        return StageLayers(layers, perceptron.initial_weights(layers, self.settings, self._seed))

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
