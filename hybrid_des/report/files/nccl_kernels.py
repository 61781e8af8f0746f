"""What the collectives of a run are called, and what they move, as PyTorch's profiler describes kernels of NCCL.

Arguments are those that PyTorch copies from `record_param_comms` to a kernel (pytorch, torch/csrc/profiler/util.cpp;
pytorch/kineto, libkineto/src/output_json.cpp): elements of a member's input and output, their type, and the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hybrid_des import collectives
from hybrid_des.collectives import codecs
from hybrid_des.planning.bucket_streams import gathers_of
from hybrid_des.planning.gradients import ReplicaGroup
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program_table import Column, Columns
from hybrid_des.simulation.outcome import Run

Kernel = tuple[str, dict[str, Any]]  # name and arguments
NAMES = {  # of a kernel, and of what PyTorch calls
    "all-reduce": ("AllReduce_Sum", "allreduce"), "reduce-scatter": ("ReduceScatter_Sum", "_reduce_scatter_base"),
    "all-gather": ("AllGather", "_allgather_base"),
}  # fmt: skip
GENERIC = "Generic", "collective"  # one of a trace whose rows do not say what they do
TYPES = {"fp64": "Double", "fp32": "Float", "fp16": "Half", "bf16": "BFloat16"}  # others are sent as bytes
BYTE = "Byte"
MOST_LISTED = 30  # ranks of a group, as PyTorch cuts them
GATHERED = "bf16"  # parameters, as `simulation` gathers them


class NcclKernels:
    """The kernels of a run's collectives.

    A layer that is gathered counts its own parameters: of shared embeddings, a backward gathers others besides.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def reduction(self, row: Mapping[str, Any]) -> Kernel:
        """A row of `Timeline.reductions`, whose rank is its column `of`."""
        rank, stage, what = row["of"], row["stage"], f"gradients of stage {row['stage']}"
        codec = self._run.scenario.gradients.codec
        if self._parts.given:
            return _kernel(self._given("reductions"), 0, codec, (), what)
        if self._parts.meeting is not None:
            return _kernel("reduce-scatter", self._layer(rank, stage, row["bucket"]), codec, self._holders(rank), what)
        part, number = self._buckets(stage)[row["bucket"]]
        does, group = self._groups[rank, stage, part]
        return _kernel(does, group.buckets[number].elements, codec, group.ranks, what)

    def gather(self, row: Mapping[str, Any]) -> Kernel:
        """A row of `Timeline.gathers`, whose rank is its column `of`, and `turn` its place among those of its stage."""
        rank, stage, what = row["of"], row["stage"], f"parameters of stage {row['stage']}"
        if self._parts.given:
            return _kernel(self._given("gathers"), 0, GATHERED, (), what)
        if self._parts.meeting is not None:
            return _kernel("all-gather", self._layer(rank, stage, row["layer"]), GATHERED, self._holders(rank), what)
        gathers = gathers_of(self._parts.lowering.buckets[stage])
        _, part, number = gathers[row["turn"] % len(gathers)]
        _, group = self._groups[rank, stage, part]
        return _kernel("all-gather", group.buckets[number].elements, GATHERED, group.ranks, what)

    @property
    def _parts(self) -> Parts:
        return self._run.parts

    @cached_property
    def _groups(self) -> dict[tuple[int, int, int], tuple[str, ReplicaGroup]]:
        """What the collective of a rank, a stage and a part of it does, and in which group."""
        does = {processes.kind: str(collectives.find(processes.kind).facts["does"])
                for processes, _ in self._parts.reductions.processes}  # fmt: skip
        return {
            (rank, group.stage, group.part): (does[processes.kind], group)
            for processes, group in self._parts.reductions.processes
            for rank in self._run.ranks
            if rank in group.ranks
        }

    def _buckets(self, stage: int) -> Sequence[tuple[int, int]]:
        """The part and the number in it of each bucket of a stage, as rows number them."""
        parts = self._parts.reductions.buckets[stage]
        return [(part, number) for part, buckets in parts.items() for number in range(len(buckets))]

    def _layer(self, rank: int, stage: int, number: int) -> int:
        """Parameters of a layer that a rank holds."""
        position = self._run.scenario.parallel.layout.coordinate(rank, "pipeline")
        places = [path[stage] for path in self._parts.plan.paths]
        cost = self._parts.costs.stages[next(place for place in places if place[0] == position)]
        states = (cost.layers or (cost,))[number].states
        return states.parameters + states.experts

    def _holders(self, rank: int) -> Sequence[int]:
        """The ranks that hold the same layers, of which each has a shard."""
        groups = (ranks for of_part in self._parts.meeting or () for ranks in of_part)
        return next((ranks for ranks in groups if rank in ranks), ())

    def _given(self, table: str) -> str:
        """What the collectives of a trace do that a table has; empty if they do several things, or are replayed."""
        known = {
            "" if one.replayed else str(collectives.find(one.algorithm).facts["does"]) for one in self._parts.given
        }
        mine = {does for does in known if not does or (does == "all-gather") == (table == "gathers")}
        return mine.pop() if len(mine) == 1 else ""


def _kernel(does: str, elements: int, codec: str, ranks: Sequence[int], what: str) -> Kernel:
    """The kernel of a collective of so many elements in all, each as a codec sends it; `what` they are."""
    kernel, called = NAMES.get(does, GENERIC)
    name = f"{what} from rank {ranks[0]}" if ranks else what
    group = {"Process Group Name": name, "Group size": len(ranks)}
    about: dict[str, Any] = {"Collective name": called, **group}
    if not elements:
        return f"ncclDevKernel_{kernel}", about
    dtype = TYPES.get(codec, BYTE)
    count = elements if dtype != BYTE else codecs.find(codec).build().payload_bytes(elements)
    part = -(-count // max(1, len(ranks)))
    sizes = part if does == "all-gather" else count, part if does == "reduce-scatter" else count
    return f"ncclDevKernel_{kernel}", {**about, **moved(*sizes, dtype, ranks)}


def moved(received: int, given: int, dtype: str, ranks: Sequence[int]) -> dict[str, Any]:
    """The arguments of a kernel that reads and writes so many elements in a group of ranks."""
    more = ", ..." if len(ranks) > MOST_LISTED else ""
    return {
        "In msg nelems": received, "Out msg nelems": given, "dtype": dtype, "In split size": "[]",
        "Out split size": "[]", "Process Group Ranks": f"[{', '.join(map(str, ranks[:MOST_LISTED]))}{more}]",
    }  # fmt: skip


def numbered(table: Columns) -> Columns:
    """The same rows with their rank as `of`, and as `turn` their place among those of their rank, step and stage."""
    keys = [table[name] for name in ("stage", "step", "rank")]
    order = np.lexsort((table["end"], table["start"], *keys))
    turn = np.empty(len(order), dtype=np.int64)
    turn[order] = _places([key[order] for key in keys])
    return {**table, "of": table["rank"], "turn": turn}


def _places(keys: Sequence[Column]) -> Column:
    """The place of each row in its run of equal keys."""
    count = np.arange(len(keys[0]))
    first = np.ones(len(count), dtype=bool)
    if len(count) > 1:
        first[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    places: Column = count - np.maximum.accumulate(np.where(first, count, 0))
    return places
