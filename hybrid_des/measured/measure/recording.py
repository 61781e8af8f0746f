"""Record the ops of torch.distributed.pipelining: which rank ran what, and when.

    with hybrid_des.record("run.csv"):
        for _ in range(4):
            schedule.step(inputs, target=targets)       # on all ranks

    step,pipeline_rank,chunk,kind,microbatch,start_s,end_s
    0,0,0,F,0,0.000000000,0.030520311

While the block runs, the methods of PyTorch's stages that compute one micro-batch are timed; messages, and waits for
them, are between the ops. So every schedule can be recorded, those too that name nothing in a profiler's trace. The
table is written by rank 0, and `hybrid-des import` makes a scenario of it.

Processes of one host share a clock. Between hosts, each rank sends a message to rank 0, which answers with its time;
the answer of the shortest of several round trips was sent about in its middle (Cristian, Distributed Computing 3,
1989), wrong by at most half of that trip.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.errors import UsageError, installing
from hybrid_des.measured.measure.clocks import Clock, clock_of
from hybrid_des.report.files.staging import write_files

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("step", "replica", "pipeline_rank", "chunk", "kind", "microbatch", "start_s", "end_s")
DIGITS = 9  # of seconds: nanoseconds
TRIPS = 20  # between two hosts, of which the shortest tells the difference between their clocks


class Op(NamedTuple):
    """An op of this rank: its step, stage, kind and micro-batch, and the marks at its start and its end."""

    step: int
    stage: int
    kind: str
    microbatch: int
    start: Any
    end: Any


class Recorder:
    """The ops of this rank.

    Attributes:
        path: the table that is written at the end.
        warmup: the number of first steps that are left out.
        ops: those recorded so far.
    """

    def __init__(self, path: str | Path, warmup: int = 1) -> None:
        self.path, self.warmup = Path(path), warmup
        self.ops: list[Op] = []
        self._steps = 0
        self._ranks: tuple[int, ...] | None = None  # of the pipeline
        self._pipeline_rank = 0
        self._schedule: object | None = None
        self._clock: Clock | None = None

    def begin(self, schedule: object) -> None:
        """A step begins.

        Raises:
            UsageError: it is that of another schedule than before.
        """
        if self._schedule is not None and self._schedule is not schedule:
            raise UsageError(f"{self.path}: two schedules in one recording; record each in a file of its own")
        self._schedule = schedule
        self._steps += 1
        if self._clock is not None:
            self._clock.rebase()

    def timed(self, stage: Any, kind: str, microbatch: int, compute: Callable[[], Any]) -> Any:
        """Do and record an op of a stage."""
        if self._clock is None:
            import torch.distributed as dist

            self._clock = clock_of(stage.device)
            self._ranks = tuple(dist.get_process_group_ranks(stage.group or dist.group.WORLD))
            self._pipeline_rank = stage.group_rank
        start = self._clock.mark()
        result = compute()
        self.ops.append(Op(self._steps - 1, stage.stage_index, kind, microbatch, start, self._clock.mark()))
        return result

    def rows(self) -> list[tuple[Any, ...]]:
        """Ranks of the pipeline, and then as `COLUMNS` without the replica, on this rank's clock."""
        if self._clock is None:
            return []
        self._clock.synchronize()
        at = self._clock.seconds
        chunks = {stage: chunk for chunk, stage in enumerate(sorted({op.stage for op in self.ops}))}
        return [
            (self._ranks, op.step - self.warmup, self._pipeline_rank, chunks[op.stage], op.kind, op.microbatch,
             at(op.start), at(op.end))
            for op in self.ops
            if op.step >= self.warmup
        ]  # fmt: skip

    def check(self, rows: object) -> None:
        """Refuse an empty recording.

        Raises:
            UsageError: no op was recorded.
        """
        if not rows:
            why = f"{self._steps} steps, of which the first {self.warmup} warm up" if self._steps else "no step"
            raise UsageError(f"{self.path}: nothing was recorded: {why}; expected steps of a pipeline schedule")


Around = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def record(path: str | Path, warmup: int = 1) -> Iterator[Recorder]:
    """Record the ops that pipeline schedules of PyTorch run in this block, on all ranks, as a table.

    All ranks enter and leave the block together; at its end rank 0 gets the ops of all and writes them. If the block
    ends with an error, each rank writes its own ops to a file next to it, with its rank in the name.

    Args:
        path: the CSV file, as `hybrid-des import` and `workload.durations` read it.
        warmup: number of initial steps to leave out: in its first step, a schedule infers shapes.

    Raises:
        UsageError: PyTorch is not installed, several schedules were run, nothing was recorded, or the file cannot be
            written.

    Example:
        with hybrid_des.record("run.csv"):
            for _ in range(4):
                schedule.step(inputs, target=targets)
    """
    recorder = Recorder(path, warmup)
    methods = list(_methods(recorder))
    try:
        with _patched(methods):
            yield recorder
    except BaseException:
        _write(recorder.path.with_suffix(f".rank{_rank()}.csv"), recorder.rows())
        raise
    rows = _gathered(recorder.rows())
    if _rank() == 0:
        recorder.check(rows)
        _write(recorder.path, rows)


@contextmanager
def _patched(methods: Sequence[tuple[type, str, Around]]) -> Iterator[None]:
    """Time the methods of stages that compute, and count steps of schedules."""
    before: list[tuple[type, str, Any]] = []
    for owner, name, around in methods:
        before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, around(vars(owner)[name]))
    try:
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def _methods(recorder: Recorder) -> Iterator[tuple[type, str, Around]]:
    """The class and the name of each method, and what goes around it.

    Raises:
        UsageError: PyTorch is not installed.
    """
    try:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
    except ImportError:
        raise UsageError(f"recording pipelines needs the measure extra: {installing('measure')}") from None

    def kind_of(name: str, options: Mapping[str, Any]) -> str:
        if name == "backward_one_chunk":
            return "B" if options.get("full_backward", True) else "I"
        return "F" if name == "forward_one_chunk" else "W"

    def op(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(stage: Any, microbatch: int, *more: Any, **options: Any) -> Any:
            kind = kind_of(method.__name__, options)
            if kind != "F" and not stage.has_backward:  # it does nothing
                return method(stage, microbatch, *more, **options)
            return recorder.timed(stage, kind, microbatch, lambda: method(stage, microbatch, *more, **options))

        return timed

    def step(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def counted(schedule: Any, *inputs: Any, **options: Any) -> Any:
            recorder.begin(schedule)
            return method(schedule, *inputs, **options)

        return counted

    for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
        yield next(owner for owner in PipelineStage.__mro__ if name in vars(owner)), name, op
    for owner in (PipelineScheduleSingle, PipelineScheduleMulti):
        yield owner, "step", step


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_initialized() else 0


def _gathered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows of all ranks, on the clock of rank 0."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return rows
    ahead = ahead_of_first()
    each: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(each, [(*row[:-2], row[-2] - ahead, row[-1] - ahead) for row in rows])
    return [row for of_rank in each for row in of_rank]


def ahead_of_first() -> float:
    """Seconds by which this rank's clock is ahead of that of rank 0; all ranks call it together."""
    import torch
    import torch.distributed as dist

    hosts: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    if len(set(hosts)) == 1:
        return 0.0
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    me, told = dist.get_rank(), torch.zeros(1, dtype=torch.float64, device=device)
    trips: list[tuple[float, float]] = []
    for rank in range(1, dist.get_world_size()):
        for _ in range(TRIPS if me in (0, rank) else 0):
            if me == 0:
                dist.recv(told, rank)
                told.item()  # a GPU has received it
                dist.send(torch.full_like(told, perf_counter()), rank)
                continue
            before = perf_counter()
            dist.send(told, 0)
            dist.recv(told, 0)
            at_first, after = float(told.item()), perf_counter()
            trips.append((after - before, (before + after) / 2 - at_first))
    return min(trips)[1] if trips else 0.0


def _write(path: Path, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        write_files(path.parent, {path.name: table_of(rows)})


def table_of(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    """Rows with the ranks of their pipelines as a table; times begin with the first op."""
    import pandas as pd

    replicas = {ranks: number for number, ranks in enumerate(sorted({row[0] for row in rows}))}
    zero = min(row[-2] for row in rows)
    numbered = [(step, replicas[ranks], *place, start - zero, end - zero) for ranks, step, *place, start, end in rows]
    table = pd.DataFrame(numbered, columns=list(COLUMNS))
    table = table.sort_values(["step", "replica", "pipeline_rank", "start_s"], ignore_index=True)
    table = table.round({"start_s": DIGITS, "end_s": DIGITS})
    return table if len(replicas) > 1 else table.drop(columns="replica")
