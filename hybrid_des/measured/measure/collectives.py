"""Times of collectives by size and number of members, all groups of consecutive ranks at once.

Bytes are those of a member's whole buffer: what an all-gather gathers, what a reduce-scatter takes. `send-receive` is a
shift around the ring of a group: every member sends to the next one and receives from the one before, as in a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid_des.cluster.time_table import MICROSECOND
from hybrid_des.measured.measure.folder import Folder
from hybrid_des.measured.measure.job import Job
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

TABLE = "collectives.csv"
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-receive")
LEAST, MOST_ON_GPU, MOST_ON_HOST = 4 * 2**10, 2**28, 2**24  # bytes
STEP = 4  # from size to size
PER_SECOND = PICOSECONDS_PER_SECOND // MICROSECOND  # microseconds


def sizes(job: Job) -> Sequence[int]:
    """The bytes of the buffers."""
    most = MOST_ON_GPU if job.on_gpu else MOST_ON_HOST
    return [LEAST * STEP**power for power in range(20) if LEAST * STEP**power <= most]


def members(job: Job) -> Sequence[int]:
    """The numbers of members: powers of two, and all."""
    powers = [2**power for power in range(1, job.ranks.bit_length()) if 2**power < job.ranks]
    return [*powers, job.ranks] if job.ranks > 1 else []


def tasks(job: Job, folder: Folder, repeats: int) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """Each what it measures, and what does so; that returns why it could not, if so."""
    for count in members(job):
        for kind in KINDS:
            if not folder.has(TABLE, collective=kind, ranks=count, bytes=sizes(job)[-1]):
                yield f"{kind} of {count}", partial(_measure, job, folder, kind, count, repeats)


def _measure(job: Job, folder: Folder, kind: str, count: int, repeats: int) -> str | None:
    group = job.group(count)
    if any(_fails(job, kind, group)):
        return f"{kind} of {count} ranks: this backend lacks it"
    for size in sizes(job):
        if folder.has(TABLE, collective=kind, ranks=count, bytes=size):
            continue
        sample = job.timed(_call(job, kind, group, size), repeats, together=True)
        times = {"time_us": sample.median, "p10_us": sample.p10, "p90_us": sample.p90}
        folder.add(TABLE, {
            "bytes": size, **{name: round(seconds * PER_SECOND, 3) for name, seconds in times.items()},
            "collective": kind, "ranks": count, "nodes": -(-count // job.per_node), "repeats": repeats,
        })  # fmt: skip
    return None


def _fails(job: Job, kind: str, group: dist.ProcessGroup | None) -> list[bool]:
    """Whether each rank finds that the backend lacks a collective."""
    try:
        _call(job, kind, group, LEAST)()
        job.clock.synchronize()
    except (RuntimeError, NotImplementedError):
        return job.all_of(True)
    return job.all_of(False)


def _call(job: Job, kind: str, group: dist.ProcessGroup | None, size: int) -> Callable[[], object]:
    """A call of a collective; ranks without a group do nothing meanwhile."""
    import torch
    import torch.distributed as dist

    if group is None:
        return lambda: None
    count = dist.get_world_size(group)
    elements = max(count, size // job.dtype.itemsize)
    elements -= elements % count
    whole = torch.zeros(elements, dtype=job.dtype, device=job.device)
    part = torch.zeros(elements // count, dtype=job.dtype, device=job.device)
    other = torch.zeros_like(whole)
    of_torch: Any = dist  # 2.13 has new names for two of them, and warns of the old ones
    gather = getattr(of_torch, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(of_torch, "reduce_scatter_single", dist.reduce_scatter_tensor)
    calls: dict[str, Callable[[], Any]] = {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: gather(whole, part, group=group),
        "reduce-scatter": lambda: scatter(part, whole, group=group),
        "all-to-all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send-receive": lambda: _shift(whole, other, group),
    }
    return calls[kind]


def _shift(out: torch.Tensor, into: torch.Tensor, group: dist.ProcessGroup) -> None:
    import torch.distributed as dist

    ranks, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    after, before = ranks[(me + 1) % len(ranks)], ranks[me - 1]
    sent = dist.P2POp(dist.isend, out, after, group)
    received = dist.P2POp(dist.irecv, into, before, group)
    for work in dist.batch_isend_irecv([sent, received]):
        work.wait()
