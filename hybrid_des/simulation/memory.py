"""GPU memory: current and peak use during a simulation, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import error
from typing import TYPE_CHECKING

from hybrid_des.cost_model.rank_costs import Costs
from hybrid_des.engine.recorder import Rows, out_of_range
from hybrid_des.units import format_bytes

if TYPE_CHECKING:
    from hybrid_des.scenario.sections.cluster import GpuKind


class MemoryLedger:
    """The memory use of one GPU during a simulation.

    Attributes:
        bytes, activations: in use now; activations in flight are counted in parts of a chunk (`CHUNK`).
        peak_bytes, peak_activations: the peaks so far.
    """

    __slots__ = ("_rank", "_rows", "activations", "bytes", "peak_activations", "peak_bytes")

    def __init__(self, rank: int, resident: int, rows: Rows | None) -> None:
        self._rank = rank
        self._rows = rows
        self.bytes = self.peak_bytes = resident
        self.activations = self.peak_activations = 0
        if rows is not None:
            rows.add((rank, 0, resident, 0))

    def hold(self, now: int, change: tuple[int, int]) -> None:
        """Allocate activations: their bytes, and the parts of a chunk that they count as."""
        size, parts = change
        held = self.bytes = self.bytes + size
        activations = self.activations = self.activations + parts
        if held > self.peak_bytes:
            self.peak_bytes = held
        if activations > self.peak_activations:
            self.peak_activations = activations
        if self._rows is not None:
            self._record(self._rows, now)

    def free(self, now: int, change: tuple[int, int]) -> None:
        """Release activations."""
        size, parts = change
        self.bytes -= size
        self.activations -= parts
        if self._rows is not None:
            self._record(self._rows, now)

    def _record(self, rows: Rows, now: int) -> None:
        try:
            rows.write(rows.pack(self._rank, now, self.bytes, self.activations))
        except error as refusal:
            raise out_of_range(refusal, now) from None


@dataclass(frozen=True)
class MemoryPeak:
    """The GPU that exceeds its memory most or, if all fit, has the least headroom.

    Attributes:
        rank: its global rank.
        held: its peak in bytes.
        gpu: its kind.
    """

    rank: int
    held: int
    gpu: GpuKind

    @property
    def excess(self) -> int:
        """Bytes beyond the memory; negative if there is headroom."""
        return self.held - self.gpu.memory

    @property
    def fits(self) -> bool:
        """Whether no GPU exceeds its memory."""
        return self.excess <= 0


def worst_peak(ranks: Sequence[int], held: Sequence[int], gpus: Sequence[GpuKind]) -> MemoryPeak:
    """Find the GPU closest to or furthest above its memory; all arguments have one entry per rank."""
    worst = max(range(len(held)), key=lambda index: held[index] - gpus[index].memory)
    return MemoryPeak(ranks[worst], held[worst], gpus[worst])


def memory_parts(costs: Costs, pipeline_rank: int, peak: int, lane: int = 0) -> dict[str, int]:
    """Memory of a pipeline rank at its peak by part, in bytes; a workload gives all but activations as one number."""
    resident = costs.held(pipeline_rank, lane)
    states = [stage.states for (rank, _), stage in costs.stages.items() if rank == pipeline_rank]
    given = sum(one.resident for one in states)
    if not any(stage.layers for stage in costs.stages.values()):
        return {"parameters, gradients and optimizer": resident, "activations": peak - resident}
    weights, gradients = sum(one.weights for one in states), sum(one.gradients for one in states)
    return {
        "parameters": weights,
        "gradients": gradients,
        "optimizer": given - weights - gradients,
        "activations": peak - resident,
        "transients": costs.transients(pipeline_rank, lane),
    }


def misfit(parts: Mapping[str, int], memory: int) -> str:
    """The first part that does not fit into the memory that those before it leave; activations are last."""
    left = memory
    for name in sorted(parts, key=lambda name: name == "activations"):
        if parts[name] > left:
            return f"{name}: {format_bytes(parts[name])}, {format_bytes(left)} left"
        left -= parts[name]
    return ""
