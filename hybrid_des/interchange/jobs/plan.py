"""Replicas, batch, schedule and stages from the quantities that programs state instead of them.

    gpus           of all nodes
    shards, copies ranks that share a weight, and groups of these (fully_shard: `shard` and `replicate` degrees)
    accumulation   micro-batches per replica and step
    per_gpu        samples per GPU of a forward, also of GPUs that share a sample
    local_batch    samples per replica of a pass through the pipeline, or of one forward
    layers_per_stage, less_first, less_last
                   layers of a stage, and how many fewer the first and the last one have

Values by path become those of a scenario; `sharding: unless-pipeline` is zero-3, and zero-2 in a pipeline, each of
whose micro-batches would gather weights again. The number of GPUs is that of nodes, or of ranks, or follows from a
global batch; where nothing says it, replicas and nodes are unknown.
"""

import math
from collections.abc import Mapping
from typing import Any

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN

PER_NODE = 8
UNLESS_PIPELINE = "unless-pipeline"
QUANTITIES = (
    "per_gpu", "gpus", "shards", "copies", "accumulation", "local_batch", "layers_per_stage", "less_first", "less_last",
)  # fmt: skip
_OF_AXES = {  # of no meaning without the axis
    "parallel.context_method": "parallel.context", "parallel.sequence": "parallel.tensor",
    "experts.dispatcher": "parallel.expert",
}  # fmt: skip
_AXES = ("parallel.tensor", "parallel.pipeline", "parallel.context")


def complete(values: dict[str, Any], stated: Mapping[str, Any], layers: int | None, name: str) -> list[str]:
    """Replace quantities by a scenario's values; what had to be assumed, one line each.

    Args:
        values: by path, and quantities, which are taken out.
        stated: values by path that hold in any case, such as the number of nodes.
        layers: of the model, if they are known.
        name: where the values come from, for errors.

    Raises:
        UsageError: numbers of GPUs contradict each other.
    """
    taken = {key: values.pop(key, None) for key in QUANTITIES}
    known = {**values, **stated}
    assumed = [*_batch(values, known, taken)]
    known = {**values, **stated}
    assumed += _replicas(values, known, taken, name)
    assumed += [*_sharding(values, known, taken), *_stages(values, known, taken, layers)]
    for path, axis in _OF_AXES.items():
        if known.get(axis, 1) == 1:
            values.pop(path, None)
    return assumed


def _batch(values: dict[str, Any], known: Mapping[str, Any], taken: Mapping[str, Any]) -> list[str]:
    """Micro-batches of a step."""
    local, each = taken["local_batch"], known.get("schedule.microbatch_size") or 1
    if taken["per_gpu"] is not None:
        each = values["schedule.microbatch_size"] = max(1, round(taken["per_gpu"] * _ranks(known)))
    passes = 1
    if local is not None and known.get("parallel.pipeline", 1) == 1:
        each = values["schedule.microbatch_size"] = local
    elif local is not None:
        values["schedule.microbatch_size"] = each
        passes = max(1, local // each)
    if "batch" not in known and "schedule.microbatches" not in known:
        values["schedule.microbatches"] = passes * (taken["accumulation"] or 1)
    replicas = (taken["shards"] or 0) * (taken["copies"] or 1)
    if "batch" in known and passes > 1 and replicas > 0 and known["batch"] > passes * each * replicas:
        return [f"schedule.microbatches: all of the batch in one pipeline, where passes of {passes} follow each other"]
    return []


def _replicas(values: dict[str, Any], known: Mapping[str, Any], taken: Mapping[str, Any], name: str) -> list[str]:
    replica = _ranks(known)
    nodes, per_node = known.get("cluster.nodes"), known.get("cluster.gpus_per_node")
    data = known.get("parallel.data")
    if data is None and (taken["shards"] or 0) > 0:
        data = taken["shards"] * (taken["copies"] or 1)
    gpus = taken["gpus"] or (nodes * (per_node or PER_NODE) if nodes else None)
    if data is None and gpus is None:
        data = _of_batch(known, taken)
    if data is not None and gpus is None:
        gpus = data * replica
    if gpus is None:
        values["parallel.data"] = UNKNOWN
        values.setdefault("cluster.nodes", UNKNOWN)
        return ["parallel.data: UNKNOWN: nothing says how many GPUs there are; --set cluster.nodes=N gives both"]
    if gpus % replica or (data is not None and gpus != data * replica):
        ranks = f"{replica} tensor, pipeline and context ranks" + (f" × {data} replicas" if data else "")
        raise UsageError(
            f"{name}: {gpus} GPUs do not divide into {ranks}; state the cluster with --set cluster.nodes=N"
        )
    values["parallel.data"] = gpus // replica
    assumed = [] if per_node else ["cluster.gpus_per_node: nothing says how many GPUs a node has"]
    per_node = per_node or (gpus // nodes if nodes and taken["gpus"] else min(PER_NODE, gpus))
    values["cluster.gpus_per_node"] = per_node
    values["cluster.nodes"] = nodes or -(-gpus // per_node)
    return assumed


def _sharding(values: dict[str, Any], known: Mapping[str, Any], taken: Mapping[str, Any]) -> list[str]:
    """What is sharded over all replicas here, where programs shard over some and copy the rest."""
    shards, copies = taken["shards"], taken["copies"] or 1
    if values.get("sharding") == UNLESS_PIPELINE:
        values["sharding"] = "zero-2" if known.get("parallel.pipeline", 1) != 1 else "zero-3"
    if shards == 1:
        values["sharding"] = "none"
    if copies == 1 or shards == 1 or values.get("sharding", "none") == "none":
        return []
    return [f"sharding: {values['sharding']}: over all replicas, where the job has {copies} groups that each shard"]


def _ranks(known: Mapping[str, Any]) -> int:
    """The GPUs of a replica."""
    return math.prod(known.get(axis, 1) for axis in _AXES)


def _of_batch(known: Mapping[str, Any], taken: Mapping[str, Any]) -> int | None:
    """The replicas of a global batch whose share per replica is stated too."""
    each = (known.get("schedule.microbatch_size") or 0) * (taken["accumulation"] or 0)
    return known["batch"] // each if each and known.get("batch", 0) % each == 0 and "batch" in known else None


def _stages(
    values: dict[str, Any], known: Mapping[str, Any], taken: Mapping[str, Any], layers: int | None
) -> list[str]:
    """The cut into stages, and how many of them a rank has."""
    pipeline = known.get("parallel.pipeline", 1)
    if pipeline == 1:
        for path in ("schedule.kind", "schedule.chunks", "parallel.stages"):
            values.pop(path, None)
        return []
    less = (taken["less_first"] or 0, taken["less_last"] or 0)
    assumed = []
    if less in ((0, 0), (1, 1)):
        values.setdefault("parallel.stages", "ends-1" if less[0] else "even")
    else:
        values["parallel.stages"] = UNKNOWN
        assumed.append(f"parallel.stages: UNKNOWN: the ends have {less[0]} and {less[1]} layers less")
    if taken["layers_per_stage"] and layers is not None:
        values["schedule.chunks"] = max(1, round(-(-(layers + sum(less)) // taken["layers_per_stage"]) / pipeline))
    return assumed
