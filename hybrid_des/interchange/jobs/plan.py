"""Replicas, batch, schedule and stages from the quantities that programs state instead of them.

    gpus           of all nodes
    shards, copies ranks that share a weight, and groups of these (fully_shard: `shard` and `replicate` degrees)
    accumulation   micro-batches per replica and step
    per_gpu        samples per GPU of a forward, also of GPUs that share a sample
    local_batch    samples per replica of a pass through the pipeline, or of one forward
    group          ranks that shard among themselves, of all that hold the same parameters; `node`: those of a node
    secondary      ranks that shard weights, where the state of the optimizer is sharded over all (hpZ)
    adapter_rank, tuned_rank, adapter_on, adapter_mlp
                   of adapters beside frozen weights (`adapters`)
    layers_per_stage, less_first, less_last
                   layers of a stage, and how many fewer the first and the last one have

Values by path become those of a scenario; `sharding: unless-pipeline` is zero-3, and zero-2 in a pipeline, each of
whose micro-batches would gather weights again; `again` is zero-3 that gathers them again there, too. The number of GPUs
is that of nodes, or of ranks, or follows from a global batch; where nothing says it, replicas and nodes are unknown.
"""

import math
from collections.abc import Mapping
from typing import Any

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN
from hybrid_des.interchange.jobs import adapters

PER_NODE = 8
UNLESS_PIPELINE, AGAIN = "unless-pipeline", "again"
QUANTITIES = (
    "per_gpu", "gpus", "shards", "copies", "accumulation", "local_batch", "layers_per_stage", "less_first", "less_last",
    "group", "secondary", *adapters.QUANTITIES,
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
    assumed += [*_optimizer(values), *_offload(values, known)]
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
    """What is sharded, and among which ranks."""
    pipeline, stated = known.get("parallel.pipeline", 1) != 1, values.get("sharding")
    if stated == UNLESS_PIPELINE:
        values["sharding"] = "zero-2" if pipeline else "zero-3"
    elif stated == AGAIN:
        values["sharding"] = "zero-3"
        if pipeline:
            values["shards.reshard"] = True
    if taken["shards"] == 1:
        values["sharding"] = "none"
    group = _group(values, known, taken)
    sharding = values.get("sharding", "none")
    if group is None or sharding == "none":
        return []
    if sharding == "zero-1":
        return [f"sharding: {sharding}: over all replicas, where ranks of the job shard in groups of {group}"]
    values |= {"shards.ranks": group} | ({"shards.outside": "zero-1"} if taken["secondary"] else {})
    return []


def _offload(values: dict[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Weights and gradients stay on GPUs where layers are not gathered for each use."""
    again = known.get("parallel.pipeline", 1) == 1 or values.get("shards.reshard")
    if (values.get("sharding") == "zero-3" and again) or not values.pop("offload.parameters", None):
        return []
    return ["offload.parameters: 0: weights on hosts are described with zero-3 that gathers layers for each use only"]


def _optimizer(values: dict[str, Any]) -> list[str]:
    """Where Muon's matrices are whole if shards of weights divide them."""
    if values.get("optimizer.kind") != "muon" or values.get("sharding") != "zero-3":
        return []
    layout = values["optimizer.muon.layout"] = "layer-sharded"
    return [f"optimizer.muon.layout: {layout}: each matrix is taken to have one home rank, which no setting says"]


def _group(values: Mapping[str, Any], known: Mapping[str, Any], taken: Mapping[str, Any]) -> int | str | None:
    """The ranks that shard among themselves; None: all that hold the same parameters."""
    data, context = values.get("parallel.data", known.get("parallel.data")), known.get("parallel.context", 1)
    holders = None if data in (None, UNKNOWN) else data * context
    group: int | None = taken["secondary"] or taken["group"]
    if taken["group"] == "node":
        per_node = values.get("cluster.gpus_per_node", known.get("cluster.gpus_per_node")) or PER_NODE
        group = max(1, per_node // known.get("parallel.tensor", 1))
    elif (copies := taken["copies"] or 1) > 1 and taken["shards"] != 1:
        group = None if holders is None else holders // copies
        if group is None:
            return UNKNOWN
    return None if group is None or group == 1 or group == holders else group


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
