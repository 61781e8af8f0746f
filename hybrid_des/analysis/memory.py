"""What GPUs held at most, and whether that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybrid_des.layout import Layout
    from hybrid_des.scenario.machine import Cluster, GpuKind


@dataclass(frozen=True)
class MemoryPeak:
    """The GPU that exceeds its memory most; where all of it fits, the one that comes nearest to it.

    Attributes:
        rank: its global rank.
        held: the most bytes that it held.
        gpu: what it is.
    """

    rank: int
    held: int
    gpu: GpuKind

    @property
    def fits(self) -> bool:
        """Whether no GPU held more than its memory."""
        return self.held <= self.gpu.memory


def gpus_of(cluster: Cluster, layout: Layout) -> list[GpuKind]:
    """The GPU that each global rank runs on."""
    gpus = [node.gpu for node, _ in zip(cluster.each_gpu(), range(layout.ranks), strict=False)]
    return [gpus[layout.gpu_of(rank)] for rank in range(layout.ranks)]


def worst_peak(held: Sequence[int], gpus: Sequence[GpuKind]) -> MemoryPeak:
    """Find the GPU that decides whether a run fits; both arguments have one entry per global rank."""
    rank = max(range(len(held)), key=lambda rank: held[rank] - gpus[rank].memory)
    return MemoryPeak(rank, held[rank], gpus[rank])
