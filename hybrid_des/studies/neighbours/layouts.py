"""Moves of the layout: ranks go from one axis to another, and what depends on them follows.

    TP8 DP2 ─► TP4 DP4      half of an axis
    TP8 DP2 ─► TP1 DP16     all of it

The batch stays, so micro-batches per replica change; virtual stages keep their number of layers; a pipeline begins and
ends with 1F1B; a list of stages goes; experts are divided over as many ranks as can hold them; tensor ranks divide
norms and residuals too; nothing is sharded over a single rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from hybrid_des.studies.neighbours.position import Position

SHORT = {"tensor": "TP", "context": "CP", "pipeline": "PP", "data": "DP"}
PLAIN, VIRTUAL = "1f1b", "interleaved-1f1b"


def layouts(at: Position) -> Iterator[tuple[str, dict[str, object]]]:
    """Each layout to which ranks of one axis lead, with its kind: the axis that they go to."""
    sizes, scenario = at.sizes, at.scenario
    if scenario.model is None:
        if scenario.workload is None or scenario.workload.per != "model":
            return
        axes = ["pipeline", "data"]
    else:
        axes = [*sizes]
    for giver in (axis for axis in axes if sizes[axis] > 1):
        for factor in sorted({_half(sizes[giver]), sizes[giver]}):
            for taker in (axis for axis in axes if axis != giver):
                new = {**sizes, giver: sizes[giver] // factor, taker: sizes[taker] * factor}
                if new["tensor"] > max(sizes["tensor"], scenario.cluster.gpus_per_node):
                    continue
                for expert in _experts(at, new, factor):
                    if (settings := _laid_out(at, new, expert)) is not None:
                        yield f"layout: {taker}", settings


def _half(size: int) -> int:
    """The smallest number above 1 that divides a size."""
    return next(one for one in range(2, size + 1) if size % one == 0)


def _experts(at: Position, new: dict[str, int], factor: int) -> list[int]:
    """The numbers of ranks that may share experts: as many as before where that divides, and so many times more."""
    options = None if at.scenario.model is None else at.scenario.model.options
    experts = getattr(options, "experts", None)
    if experts is None:
        return [1]
    before, holders = at.scenario.parallel.expert, _holders(at, new)
    kept = gcd(before, holders)
    return list(dict.fromkeys(one for one in (kept, before * factor) if holders % one == 0 == experts.count % one))


def _holders(at: Position, new: dict[str, int]) -> int:
    each = _expert_tensor(at, new)
    return new["data"] * new["context"] * (new["tensor"] // each if each else 1)


def _expert_tensor(at: Position, new: dict[str, int]) -> int | None:
    """Tensor ranks that share an expert, where that is not all of them."""
    each = at.scenario.parallel.expert_tensor
    return None if each is None or new["tensor"] % each or each > new["tensor"] else each


def _laid_out(at: Position, new: dict[str, int], expert: int) -> dict[str, object] | None:
    """The settings of a layout, with those that depend on it; None if its replicas cannot share the batch."""
    scenario, parallel = at.scenario, at.scenario.parallel
    divided = at.divided(new["data"], scenario.schedule.microbatch_size)
    if divided is None:
        return None
    settings: dict[str, object] = {
        f"parallel.{axis}": size for axis, size in new.items() if size != getattr(parallel, axis)
    }
    if new["data"] != parallel.data:
        settings |= divided
    if expert != parallel.expert:
        settings["parallel.expert"] = expert
    if parallel.expert_tensor is not None and _expert_tensor(at, new) is None:
        settings["parallel.expert_tensor"] = None
    if (new["tensor"] > 1) != (parallel.tensor > 1):
        settings["parallel.sequence"] = new["tensor"] > 1
    if new["pipeline"] != parallel.pipeline:
        settings |= _scheduled(at, new["pipeline"])
    if new["data"] * new["context"] == 1 and scenario.sharding != "none":
        settings |= {"sharding": "none", **at.without("overlap.parameters", "gradients.pad")}
    return settings


def _scheduled(at: Position, pipeline: int) -> dict[str, object]:
    """The schedule of another number of pipeline ranks."""
    schedule, before = at.scenario.schedule, at.scenario.parallel.pipeline
    settings = at.without("parallel.stages") if isinstance(at.scenario.parallel.stages, tuple) else {}
    if schedule.file is not None or schedule.kind is None:
        return settings
    if 1 in (before, pipeline):
        return {**settings, **plain_schedule(at, pipeline)}
    if schedule.virtual:
        chunks, left = divmod(schedule.chunks * before, pipeline)
        if chunks > 1 and not left:
            return {**settings, "schedule.chunks": chunks}
        return {**settings, **plain_schedule(at, pipeline)}
    return settings


def plain_schedule(at: Position, pipeline: int) -> dict[str, object]:
    """1F1B, whose messages Megatron-LM waits for; without a pipeline there are none."""
    schedule = at.scenario.schedule
    settings = at.without("schedule.chunks", *(["schedule.p2p"] if pipeline == 1 else []))
    if schedule.kind != PLAIN:
        settings["schedule.kind"] = PLAIN
    if at.by_megatron and pipeline > 1 and schedule.p2p != "blocking":
        settings["schedule.p2p"] = "blocking"
    return settings
