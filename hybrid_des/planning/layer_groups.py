"""Process groups of ranks that share layers, for all collectives inside their ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybrid_des import collectives
from hybrid_des.cluster.purposes import OF_LAYERS
from hybrid_des.cluster.rings import orders
from hybrid_des.collectives.buffer import Channels
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.cost_model.collective_times import ELEMENT, elements_of
from hybrid_des.planning.planner import Parts


def layer_group(parts: Parts, axis: str, ranks: Sequence[int]) -> ProcessGroup:
    """The group of some ranks along an axis: with all that NCCL knows about it, if its layers run NCCL's collectives.

    The switches of its nodes serve it only if NCCL's tuner takes them for one of its all-reduces.
    """
    flows, pipeline_rank = parts.traffic.flows, parts.times.layout.coordinate(ranks[0], "pipeline")
    done = {(one.algorithm, one.size) for one in parts.costs.collectives_of(pipeline_rank) if one.axis == axis}
    if not any(collectives.find(name).facts["tuned"] for name, _ in done):
        rings = () if flows and axis in flows.pairs else orders(parts.fabric, ranks)
        return ProcessGroup(axis, 0, ranks, (), purpose=OF_LAYERS[axis], channels=rings)
    whole = parts.times.process_group("nccl", ranks, Channels())
    choices = [whole.tuned.choice("all-reduce", elements_of(size) * ELEMENT) for name, size in done if name == "nccl"]
    if not any(choice.algorithm.startswith("nvls") for choice in choices):
        whole = replace(whole, ranks=ranks, servers=0)
    return replace(whole, kind=axis, purpose=OF_LAYERS[axis])
