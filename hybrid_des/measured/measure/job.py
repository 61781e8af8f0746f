"""The processes that measure together: one per GPU, or per share of a host's processors, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybrid_des.errors import UsageError, installing, one_line
from hybrid_des.measured.measure.clocks import Clock, clock_of

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

LEAST_S = 1e-3  # of a sample: shorter calls are repeated within it
MOST_CALLS = 1000  # within a sample
BY_TORCHRUN = "by torchrun --nproc-per-node …"


class Sample(NamedTuple):
    """Seconds of a call, over repeats and ranks."""

    median: float
    p10: float
    p90: float
    repeats: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Sample:
        """From single times."""
        low, middle, high = np.percentile(seconds, [10, 50, 90]).tolist()
        return cls(middle, low, high, len(seconds))

    def columns(self, prefix: str = "") -> dict[str, float]:
        """As columns of a table."""
        return {
            f"{prefix}seconds": self.median, f"{prefix}p10_s": self.p10, f"{prefix}p90_s": self.p90,
            f"{prefix}repeats": self.repeats,
        }  # fmt: skip


@dataclass(frozen=True)
class Job:
    """This process among those that measure.

    Attributes:
        rank, ranks: its number, and how many there are.
        per_node: processes of each host.
        device: where it computes.
        clock: what times it.
        known: this rank's groups so far, by their size.
    """

    rank: int
    ranks: int
    per_node: int
    device: torch.device
    clock: Clock
    known: dict[int, dist.ProcessGroup | None] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return str(self.device.type) == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """That of activations and weights: 16 bits on GPUs, 32 elsewhere."""
        import torch

        return torch.bfloat16 if self.on_gpu else torch.float32

    def barrier(self) -> None:
        """Wait for the other ranks."""
        import torch.distributed as dist

        dist.barrier()

    def all_of(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values

    def of_first(self, value: Any) -> Any:
        """The value of rank 0."""
        import torch.distributed as dist

        shared = [value]
        dist.broadcast_object_list(shared, 0)
        return shared[0]

    def group(self, size: int) -> dist.ProcessGroup | None:
        """This rank's group of `size` consecutive ranks; all ranks call it, those left over have none."""
        import torch.distributed as dist

        if size not in self.known:
            self.known[size] = None
            for first in range(0, self.ranks - size + 1, size):
                members = list(range(first, first + size))
                group = dist.new_group(members)
                if self.rank in members:
                    self.known[size] = group
        return self.known[size]

    def timed(self, call: Callable[[], object], repeats: int, *, together: bool = False) -> Sample:
        """Seconds of a call that all ranks make at once, as often as given besides warming up.

        Args:
            call: what is timed.
            repeats: number of samples; a sample of less than a millisecond holds several calls.
            together: whether a call ends when it ends on the last rank, as collectives do; else ranks are pooled.
        """
        call()
        calls = self.of_first(min(MOST_CALLS, max(1, round(LEAST_S / max(self._seconds(call, 1), 1e-9)))))
        mine = []
        for _ in range(repeats):
            self.barrier()
            mine.append(self._seconds(call, calls))
        every = np.array(self.all_of(mine))
        return Sample.of((every.max(axis=0) if together else every.ravel()).tolist())._replace(repeats=repeats)

    def timed_once(self, call: Callable[[], object]) -> float:
        """Seconds of a call that all ranks make together, until the last has ended it."""
        self.barrier()
        return float(max(self.all_of(self._seconds(call, 1))))

    def _seconds(self, call: Callable[[], object], calls: int) -> float:
        self.clock.rebase()
        before = self.clock.mark()
        kept = [call() for _ in range(calls)]  # outputs take new memory, as in a step
        after = self.clock.mark()
        self.clock.synchronize()
        kept.clear()
        return (self.clock.seconds(after) - self.clock.seconds(before)) / calls


def rank_of_process() -> int:
    """This process' rank as torchrun gives it; 0 without torchrun."""
    return _given("RANK", 0)


def _given(name: str, otherwise: int) -> int:
    """A number that torchrun gives every process.

    Raises:
        UsageError: it is none.
    """
    text = os.environ.get(name, str(otherwise))
    if not text.isdecimal():
        shown = one_line(text, 20)
        raise UsageError(f'measure: {name} in the environment: "{shown}"; expected a number, as torchrun sets it')
    return int(text)


def gpu_of_process(gpus: int) -> int:
    """The number of this process' GPU among so many of its host.

    Raises:
        UsageError: there are more processes than GPUs.
    """
    number = _given("LOCAL_RANK", 0)
    if number >= gpus:
        processes = _given("LOCAL_WORLD_SIZE", number + 1)
        raise UsageError(
            f"measure: {processes} processes on a host with {gpus} GPUs; expected one per GPU: --nproc-per-node {gpus}"
        )
    return number


@contextmanager
def joined() -> Iterator[Job]:
    """Join the other processes, and leave them at the end.

    Raises:
        UsageError: PyTorch is not installed, there are more processes than GPUs, or the others are not met.
    """
    try:
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import HashStore
    except ImportError:
        raise UsageError(f"measure needs the measure extra: {installing('measure')}") from None
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(gpu_of_process(torch.cuda.device_count()))
    backend = "nccl" if gpu else "gloo"
    try:
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    except (ValueError, RuntimeError) as error:
        why = one_line(str(error).rpartition("rendezvous: ")[2], 200)
        raise UsageError(f"measure: the processes do not meet: {why}; expected a start {BY_TORCHRUN}") from error
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    ranks = dist.get_world_size()
    try:
        yield Job(dist.get_rank(), ranks, _given("LOCAL_WORLD_SIZE", ranks), device, clock_of(device))
    finally:
        dist.destroy_process_group()
