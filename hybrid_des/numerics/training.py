"""One run's training: what all its GPUs share, and what is known of its progress."""

from __future__ import annotations

from hybrid_des.numerics import model
from hybrid_des.numerics.data import Data, Samples
from hybrid_des.numerics.layers import Stage
from hybrid_des.numerics.optimizers import OPTIMIZERS, Optimizer
from hybrid_des.numerics.progress import Progress
from hybrid_des.numerics.settings import DTYPES, Settings
from hybrid_des.numerics.worker import Worker
from hybrid_des.pipeline.plan import Plan


class Training:
    """Model, data and bookkeeping of one run.

    Args:
        settings: what the scenario says under `numerics`.
        plan: the schedule; says how many stages and micro-batches there are.
        replicas: the data-parallel size.
        seed: of initial weights, data and the order of samples.

    Raises:
        UsageError: there are fewer layers than stages, or the task needs a library that is not installed.
    """

    def __init__(self, settings: Settings, plan: Plan, replicas: int, seed: int) -> None:
        self.settings = settings
        self.plan = plan
        self.replicas = replicas
        self.replica_samples = plan.microbatches * settings.batch
        self._shares = model.shares(settings, plan.stages)
        self._seed = seed
        self.data = Data(settings.task, seed, DTYPES[settings.dtype])
        self.progress = Progress(self, holders=replicas * len(plan.paths))

    @property
    def parameters(self) -> tuple[int, ...]:
        """How many parameters each stage holds."""
        return tuple(sum(spec.parameters for spec in share) for share in self._shares)

    def worker(self, rank: int, replica: int, pipeline_rank: int) -> Worker:
        """The arithmetic of one GPU."""
        return Worker(self, rank, replica, pipeline_rank)

    def new_stage(self, stage: int) -> Stage:
        """A fresh copy of a stage with its initial weights."""
        share = self._shares[stage]
        return Stage(share, model.initial_weights(share, self.settings, self._seed))

    def new_optimizer(self) -> Optimizer:
        """A fresh optimizer for one stage."""
        return OPTIMIZERS[self.settings.optimizer](float(self.settings.learning_rate))

    def samples(self, step: int, replica: int, microbatch: int) -> Samples:
        """One micro-batch: replica r takes micro-batches r·m … r·m+m−1 of the step's global batch."""
        batch = self.settings.batch
        start = ((step * self.replicas + replica) * self.plan.microbatches + microbatch) * batch
        return self.data.stream(start, start + batch)

    def global_batch(self, step: int) -> Samples:
        """All samples of a step, in order."""
        size = self.replicas * self.replica_samples
        return self.data.stream(step * size, (step + 1) * size)
