"""What fills the GPU closest to its memory, and when: its peak by kind of tensor, and the activations held then.

    peak = parameters + gradients + optimizer state + transients + activations of the micro-batches in flight

All but activations are there during the whole step (transients, which exist only while a backward runs, are reserved).
A micro-batch's activations are held from the start of its forward to the end of its backward or, if that is split, a
part of them to the end of its weight gradients. Of a model they are told apart by layer: those that a stage keeps. Of a
forward and a backward that are one op, the one keeps what the other frees, and they count as one micro-batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.cost_model.rank_costs import StageCosts
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.pipeline.plan import Op
from hybrid_des.simulation.memory import MemoryPeak, memory_parts
from hybrid_des.simulation.outcome import Run, fullest
from hybrid_des.units import PICOSECONDS_PER_SECOND

NEAR = 0.05  # of the peak: as long as so much less or less is held, the GPU is called nearly full


class KeptLayers(NamedTuple):
    """What layers of one kind keep of the micro-batches in flight.

    Attributes:
        name: of the layers, such as "block".
        layers: number of them on this GPU.
        bytes: all that is kept.
        each: bytes of one layer and one micro-batch, if all are alike; else of the mean.
    """

    name: str
    layers: int
    bytes: int
    each: int


@dataclass(frozen=True)
class MemoryUse:
    """What fills the fullest GPU.

    Attributes:
        peak: the GPU, and the most that it holds.
        pipeline_rank: its place in the pipeline.
        parts: bytes by kind of tensor at the peak; they sum to it.
        at_s: seconds from the start of the run to the first time that it holds so much; None without recorded memory.
        during: the op that begins then, such as "F3" (the forward of micro-batch 3).
        held, unit: number of micro-batches whose activations are held then; with several chunks per rank, of the
            chunks that hold one.
        layers: what kinds of layers keep of these, the most first; empty without a model.
        least: the least bytes that it holds at any time.
        nearly_full: share of the run for which it holds at least 95 % of its peak.
    """

    peak: MemoryPeak
    pipeline_rank: int
    parts: Mapping[str, int]
    at_s: float | None
    during: str
    held: int
    unit: str
    layers: Sequence[KeptLayers]
    least: int
    nearly_full: float

    def to_mapping(self) -> dict[str, Any]:
        """As plain values: bytes and seconds."""
        return {
            "rank": self.peak.rank,
            "pipeline_rank": self.pipeline_rank,
            "gpu": self.peak.gpu.name,
            "peak_bytes": self.peak.held,
            "memory_bytes": self.peak.gpu.memory,
            "fits": self.peak.fits,
            "parts_bytes": dict(self.parts),
            "at_s": self.at_s,
            "during": self.during,
            "held": self.held,
            "held_unit": self.unit,
            "layers": [layer._asdict() for layer in self.layers],
            "least_bytes": self.least,
            "nearly_full": self.nearly_full,
        }


def memory_use(run: Run) -> MemoryUse:
    """What fills the GPU of a run that is closest to its memory, or furthest above it."""
    layout = run.timeline.layout
    peak = fullest(run)
    pipeline_rank, lane = layout.coordinate(peak.rank, "pipeline"), layout.lane(peak.rank)
    parts = memory_parts(run.costs, pipeline_rank, peak.held, lane)
    rows, duration = run.timeline.memory, max(run.timeline.duration, 1)
    mine = rows["rank"] == peak.rank
    if not mine.any():
        return MemoryUse(peak, pipeline_rank, parts, None, "", 0, "micro-batch", (), peak.held, 1.0)
    time, held = rows["time"][mine], rows["bytes"][mine]
    when = int(time[held.argmax()])
    lasts = np.diff(np.append(time, duration))
    nearly = int(lasts[held >= (1 - NEAR) * peak.held].sum()) / duration
    unit = "chunk" if run.scenario.schedule.chunks > 1 else "micro-batch"
    during, kept = _held_at(run, peak.rank, when)
    return MemoryUse(
        peak, pipeline_rank, parts, when / PICOSECONDS_PER_SECOND, during, len(kept), unit,
        _by_layer(run, kept, pipeline_rank, parts["activations"]), int(held.min()), nearly,
    )  # fmt: skip


def _held_at(run: Run, rank: int, when: int) -> tuple[str, Counter[tuple[int, int]]]:
    """The op of a rank that begins at a time, and (chunk, micro-batch) of the activations that it holds then."""
    ops, pipeline_rank = run.timeline.ops, run.timeline.layout.coordinate(rank, "pipeline")
    rows = np.flatnonzero((ops["rank"] == rank) & (ops["start"] <= when) & (ops["index"] != OPTIMIZER))
    programs = run.plan.programs
    if not len(rows) or not programs:
        return "", Counter()
    held: Counter[tuple[int, int]] = Counter()
    last: Sequence[Op] = ()
    step = ops["step"][rows].max()
    for row in sorted(rows[ops["step"][rows] == step].tolist(), key=lambda row: int(ops["start"][row])):
        last = programs[pipeline_rank][int(ops["index"][row])]
        held += Counter({(op.chunk, op.microbatch): 1 for op in last if op.kind == "F"})
        if ops["end"][row] <= when or (len(last) > 1 and run.scenario.model is not None):  # of a pair, layer by layer
            held -= Counter({(op.chunk, op.microbatch): 1 for op in last if op.kind in ("B", "W")})
    return "+".join(f"{op.kind}{op.microbatch}" for op in last), held


def _by_layer(run: Run, held: Counter[tuple[int, int]], pipeline_rank: int, activations: int) -> list[KeptLayers]:
    """What kinds of layers keep of the micro-batches held, in shares of all activations."""
    if run.scenario.model is None or not held:
        return []
    chunks = Counter(chunk for chunk, _ in held.elements())
    kept, layers, each = Counter[str](), Counter[str](), dict[str, list[int]]()
    for chunk, count in chunks.items():
        for name, layer in _layers(run, pipeline_rank, chunk):
            kept[name] += count * layer.kept
            layers[name] += 1
            each.setdefault(name, []).append(layer.kept)
    whole = sum(kept.values())
    return [
        KeptLayers(name, layers[name], round(activations * size / whole), round(np.mean(each[name])))
        for name, size in kept.most_common()
        if size
    ]


def _layers(run: Run, pipeline_rank: int, chunk: int) -> Iterator[tuple[str, StageCosts]]:
    """The layers of a stage, each with its name without its number."""
    assert run.scenario.model is not None
    stage = run.plan.stage_of[pipeline_rank, chunk]
    sizes = {number: len(run.costs.stages[where].layers) for where, number in run.plan.stage_of.items()}
    first = sum(sizes[number] for number in range(stage))
    mine = run.costs.stages[pipeline_rank, chunk].layers
    names = [layer.name for layer in run.scenario.model.network.layers[first : first + len(mine)]]
    for name, layer in zip(names, mine, strict=True):
        yield re.sub(r" \d+$", "", name), layer
