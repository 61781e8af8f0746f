"""The training of one run: the arithmetic of its GPUs, and its progress."""

from hybrid_des.layout import Layout
from hybrid_des.numerics.progress import TrainingProgress
from hybrid_des.numerics.settings import TrainingSettings
from hybrid_des.numerics.setup import TrainingSetup
from hybrid_des.numerics.worker import Worker
from hybrid_des.pipeline.plan import Plan


class Training(TrainingSetup):
    """Model, data, workers and progress (losses, accuracies and errors so far) of a run."""

    def __init__(self, settings: TrainingSettings, plan: Plan, replicas: int, seed: int) -> None:
        super().__init__(settings, plan, replicas, seed)
        self.progress = TrainingProgress(self, copies=replicas * len(plan.paths))

    def workers_of(self, layout: Layout) -> dict[int, Worker]:
        """Rank → its arithmetic."""
        at = map(layout.coordinates, range(layout.ranks))
        return {rank: self.worker(rank, here["data"], here["pipeline"]) for rank, here in enumerate(at)}

    def worker(self, rank: int, replica: int, pipeline_rank: int) -> Worker:
        """The arithmetic of one GPU."""
        return Worker(self, self.progress, rank, replica, pipeline_rank)
