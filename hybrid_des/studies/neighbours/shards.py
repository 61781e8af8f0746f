"""Groups of ranks that shard: the move to those of a node, and what of them a move leaves that changes the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.shards import LAYERED, Shards, misfits_of_shards
from hybrid_des.studies.neighbours.position import Position

Settings = dict[str, object]
WHOLE: Settings = {"shards.ranks": None, "shards.outside": None}


def shards_moves(at: Position) -> Iterator[tuple[str, Settings]]:
    """Groups within nodes where sharding spans several of them, and one group of all ranks."""
    scenario, parallel = at.scenario, at.scenario.parallel
    if not scenario.fsdp:
        return
    if scenario.shards.ranks is not None:
        yield "shards", {**WHOLE}
    ranks = max(1, min(kind.gpus_per_node for kind in scenario.cluster.kinds) // parallel.tensor)  # of a node
    if ranks not in (1, scenario.shards.ranks, parallel.data * parallel.context) and _fits(
        scenario, Shards(ranks=ranks, reshard=scenario.shards.reshard), {}
    ):
        yield "shards", {"shards.ranks": ranks}


def fitting(scenario: Scenario, settings: Mapping[str, object]) -> Settings:
    """What a move must leave out of groups, and of the layout of matrices, so that it is not refused.

    Args:
        scenario: the plan from which it is made.
        settings: those of the move.
    """
    shards, left = scenario.shards, Settings()
    if "sharding" in settings and scenario.optimizer.muon is not None and scenario.optimizer.muon.layout is not None:
        left["optimizer.muon.layout"] = None
    for keys in ({}, WHOLE, {"shards.reshard": None}, {**WHOLE, "shards.reshard": None}):
        names = {key.rpartition(".")[2] for key in keys}
        kept = shards.model_copy(
            update={name: field.default for name, field in Shards.model_fields.items() if name in names}
        )
        if _fits(scenario, kept, settings):
            stated = {key for key in keys if getattr(shards, key.rpartition(".")[2]) not in (None, "none")}
            return left | dict.fromkeys(sorted(stated))
    return left


def _fits(scenario: Scenario, shards: Shards, settings: Mapping[str, object]) -> bool:
    """Whether groups are not refused after a move."""
    axes = {key.removeprefix("parallel."): value for key, value in settings.items() if key.startswith("parallel.")}
    parallel = scenario.parallel.model_copy(update=axes)
    sharding = str(settings.get("sharding") or scenario.sharding)
    layered = sharding in LAYERED and shards.layered(sharding, parallel)
    return not any(misfits_of_shards(shards, parallel, sharding, layered=layered))
