"""Computation beside a collective or a copy: the share of its speed that it loses.

A collective over all ranks, as large as the largest that was measured, is started before each call; a call at whose end
it has ended too does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid_des.measured.measure.collectives import sizes
from hybrid_des.measured.measure.folder import Folder, Rows
from hybrid_des.measured.measure.job import Job, Sample

if TYPE_CHECKING:
    import torch

TABLE = "overlap.csv"
SIDES = (512, 2048)  # of a product's matrices, on processors and on GPUs
PASS_BYTES = 2**24, 2**28  # moved by an addition
TRIES = 5  # per repeat, until a collective lasted long enough
WORK = ("product", "memory")
LEAST = 3  # calls that count


def tasks(job: Job, folder: Folder, repeats: int) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """What is timed beside an all-reduce, and beside copies from the host on GPUs."""
    beside = [*(["all-reduce"] if job.ranks > 1 else []), *(["copy"] if job.on_gpu else [])]
    for other in beside:
        for work in WORK:
            if not folder.has(TABLE, work=work, beside=other):
                yield f"{work} beside {other}", partial(_measure, job, folder, work, other, repeats)


def _measure(job: Job, folder: Folder, work: str, other: str, repeats: int) -> str | None:
    compute, start = _computation(job, work), _started(job, other)
    alone, times = job.timed(compute, repeats), list[float]()
    for _ in range(repeats * TRIES):
        job.barrier()
        has_ended, wait = start()
        before = job.clock.mark()
        compute()
        after = job.clock.mark()
        job.clock.reach(after)
        lasted = not has_ended()
        wait()
        job.clock.synchronize()
        if lasted:
            times.append(job.clock.seconds(after) - job.clock.seconds(before))
    every = [seconds for of_rank in job.all_of(times[:repeats]) for seconds in of_rank]
    if len(every) < LEAST:
        return f"{work} beside {other}: it ends before the computation does"
    both = Sample.of(every)
    folder.add(TABLE, {
        "work": work, "beside": other, "alone_s": alone.median, **both.columns(),
        "slowed": max(0.0, 1 - alone.median / both.median),
    })  # fmt: skip
    return None


UnderWay = tuple[Callable[[], bool], Callable[[], object]]  # whether it has ended, and what waits for its end


def _computation(job: Job, work: str) -> Callable[[], object]:
    """A product of square matrices, or an addition."""
    import torch

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=job.device)

    if work == "product":
        side = SIDES[job.on_gpu]
        left, right = made(side, side), made(side, side)
        return lambda: left @ right
    left, right = (made(PASS_BYTES[job.on_gpu] // 6) for _ in range(2))
    return lambda: left + right


def _started(job: Job, other: str) -> Callable[[], UnderWay]:
    """What starts a collective or a copy."""
    import torch
    import torch.distributed as dist

    size = sizes(job)[-1]
    if other == "all-reduce":
        buffer = torch.zeros(size // job.dtype.itemsize, dtype=job.dtype, device=job.device)

        def reduce() -> UnderWay:
            work: Any = dist.all_reduce(buffer, async_op=True)
            return work.is_completed, work.wait

        return reduce
    stream, host = torch.cuda.Stream(), torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device=job.device)

    def copy() -> UnderWay:
        with torch.cuda.stream(stream):
            device.copy_(host, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        return event.query, event.synchronize

    return copy


def slowed(rows: Rows, work: str) -> float | None:
    """The share of its speed that work loses, the mean beside everything; None if that was not measured."""
    shares: Sequence[float] = [float(row["slowed"]) for row in rows if row["work"] == work]
    return sum(shares) / len(shares) if shares else None
