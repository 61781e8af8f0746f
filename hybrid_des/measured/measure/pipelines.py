"""Real pipelines of PyTorch on all ranks: recordings of some schedules, from which others are predicted.

Of each number of chunks, a schedule with whole backwards and one that splits them are recorded; chunks tell host time
from work. Schedules take turns, round by round, so that none meets a quiet machine more often than others. Others
are run too, but nothing is taken from them: they are predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.errors import UsageError, one_line
from hybrid_des.measured.measure.folder import Folder
from hybrid_des.measured.measure.job import Job
from hybrid_des.measured.measure.recording import record
from hybrid_des.measured.measure.stages import Modules

if TYPE_CHECKING:
    import torch

SIZES = "stages.csv"


class Run(NamedTuple):
    """A schedule that is run: our name for it, PyTorch's, chunks per rank, and how stages lie on ranks.

    Attributes:
        wave: whether the second half of the stages goes back from the last rank to the first.
        proves: whether it is predicted, not used.
    """

    kind: str
    name: str
    chunks: int
    wave: bool = False
    proves: bool = False

    @property
    def table(self) -> str:
        """The file of its recording."""
        return f"run_{self.kind}_{self.chunks}.csv"

    def stages(self, rank: int, ranks: int) -> list[int]:
        """The stages of a rank."""
        if self.wave:
            return [rank, 2 * ranks - 1 - rank]
        return [rank + chunk * ranks for chunk in range(self.chunks)]


SPLIT = "split"  # our name for PyTorch's interleaved zero bubble, whose order we do not have


def runs_of(chunks: Sequence[int]) -> list[Run]:
    """The schedules for these numbers of chunks, those that are predicted last."""
    used, proof = [], []
    for count in chunks:
        whole, other = Run("interleaved-1f1b", "Interleaved1F1B", count), Run("looped-bfs", "LoopedBFS", count)
        if count == 1:
            whole, other = Run("1f1b", "1F1B", 1), Run("gpipe", "GPipe", 1)
        used += [whole, Run(SPLIT, "InterleavedZeroBubble", count)]
        proof.append(other._replace(proves=True))
        if count == 2:
            proof.append(Run("zb-v", "ZBVZeroBubble", 2, wave=True, proves=True))
    return used + proof


class Pipelines(NamedTuple):
    """The pipelines to run over all ranks: their stages, micro-batches and rounds."""

    job: Job
    folder: Folder
    modules: Modules
    microbatches: int
    rounds: int

    def tasks(self, runs: Sequence[Run]) -> Iterator[tuple[str, Callable[[], str | None]]]:
        """Each run of each round: what it is, and what does it; that returns why it could not, if so."""
        for number in range(self.rounds):
            for run in runs:
                if not self.folder.has(run.table, step=number):
                    yield f"{run.name}, chunks: {run.chunks}, round {number + 1}", partial(self._run, run, number)

    def _run(self, run: Run, number: int) -> str | None:
        """Do and keep one round of a schedule."""
        if number and not self.folder.rows(run.table):
            return None  # refused in the first round
        outputs: dict[int, int] = {}
        try:
            schedule = self._schedule(run, outputs)
        except (RuntimeError, ValueError, AssertionError) as error:  # the same on all ranks
            return f"{run.name} with {run.chunks} chunks: {str(error).strip().splitlines()[-1].strip()}"
        rows = self._recorded(run, schedule)
        self.folder.add(run.table, *({**row, "step": number} for row in rows))
        self._note_sizes(run, outputs)
        return None

    def _schedule(self, run: Run, outputs: dict[int, int]) -> Any:
        """The schedule of PyTorch with the stages of this rank, whose bytes of output are noted."""
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

        kind, count = get_schedule_class(run.name), self.job.ranks * run.chunks
        parts: list[Any] = []
        for stage in run.stages(self.job.rank, self.job.ranks):
            module = self.modules.module(stage, count, self.job)
            module.register_forward_hook(partial(_note, outputs, stage))
            parts.append(PipelineStage(module, stage, count, self.job.device))
        held: Any = parts[0] if issubclass(kind, PipelineScheduleSingle) else parts
        make: Any = kind
        return make(held, self.microbatches, loss_fn=self.modules.loss)

    def _recorded(self, run: Run, schedule: Any) -> list[dict[str, Any]]:
        """The rows of one step, after one that warms up."""
        rank, ranks = self.job.rank, self.job.ranks
        batch, mine = self.modules.batch(self.microbatches, self.job), run.stages(rank, ranks)
        target = {"target": batch[0], "losses": []} if ranks * run.chunks - 1 in mine else {}
        with TemporaryDirectory() as scratch:
            path = Path(scratch) / "run.csv"
            with record(path):
                for _ in range(2):
                    self.job.barrier()
                    self._step(run, schedule, batch if 0 in mine else [], target)
            rows: list[dict[str, Any]] = self.job.of_first(_rows(path) if rank == 0 else None)
        return rows

    def _step(self, run: Run, schedule: Any, batch: Sequence[torch.Tensor], target: Mapping[str, Any]) -> None:
        """One step of the schedule.

        Raises:
            UsageError: a user's module fails, or stages do not fit together.
        """
        try:
            schedule.step(*batch, **target)
        except Exception as error:  # anything that a user's module raises
            cause: BaseException = error
            while cause.__cause__ is not None:  # PyTorch's own errors say only in which stage
                cause = cause.__cause__
            why = f"{type(cause).__name__}: {one_line(str(cause), 200)}"
            raise UsageError(f"{self.modules.name}: a step of {run.name} fails: {why}") from error

    def _note_sizes(self, run: Run, outputs: Mapping[int, int]) -> None:
        """Outputs and parameters of the stages, once per number of chunks; and the time of an optimizer step."""
        if run.wave or self.folder.has(SIZES, chunks=run.chunks):
            return
        count, mine = self.job.ranks * run.chunks, []
        for stage in run.stages(self.job.rank, self.job.ranks):
            parameters = list(self.modules.module(stage, count, self.job).parameters())
            update = self.job.timed(_updates(parameters, self.job), UPDATES)
            mine.append({
                "chunks": run.chunks, "stage": stage, "pipeline_rank": self.job.rank, "output_bytes": outputs[stage],
                "parameters": sum(tensor.numel() for tensor in parameters),
                "update_s": update.median if parameters else 0.0,
            })  # fmt: skip
        rows = [row for of_rank in self.job.all_of(mine) for row in of_rank]
        self.folder.add(SIZES, *sorted(rows, key=lambda row: int(row["stage"])))


UPDATES = 5  # steps of the optimizer that are timed


def _updates(parameters: Sequence[torch.nn.Parameter], job: Job) -> Callable[[], object]:
    """A step of Adam on parameters with gradients."""
    import torch

    if not parameters:
        return lambda: None
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(parameters, fused=job.on_gpu or None)
    return lambda: optimizer.step()


def _note(outputs: dict[int, int], stage: int, module: object, inputs: object, output: Any) -> None:
    """Note the bytes of a stage's output: a tensor, or several."""
    tensors = output if isinstance(output, tuple | list) else [output]
    outputs[stage] = sum(tensor.nbytes for tensor in tensors)


def _rows(path: Path) -> list[dict[str, Any]]:
    import pandas as pd

    rows: list[dict[Any, Any]] = pd.read_csv(path).to_dict("records")
    return rows
