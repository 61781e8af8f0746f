"""The moves that advice tries from a plan: by sort, each the settings of one.

A move never changes the model, the batch, the machine, or (but for gradients in 16 bits) the rounding. Without a model,
there are only moves that keep the work of each op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hybrid_des import collectives
from hybrid_des.pipeline.schedules.one_f_one_b import InPairs
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.keys import SHARDING
from hybrid_des.scenario.stacks import LAYERED, splitting_rule
from hybrid_des.studies.neighbours.layouts import PLAIN, VIRTUAL, layouts, plain_schedule
from hybrid_des.studies.neighbours.position import Position
from hybrid_des.studies.neighbours.shards import fitting, shards_moves
from hybrid_des.workload.models.layer import OPS
from hybrid_des.workload.models.stages import RULES

FEW_CHUNKS = 4  # the most of a workload, whose ops are not divided layer by layer
BUCKET = "25 MB"  # about PyTorch's default
SPLIT = ("zb-h1", "zb-v", "dualpipe-v")  # schedules with split backwards
GRAPHS = ("none", "layers", "full")

Settings = dict[str, object]
Sort = Callable[[Position], Iterator[tuple[str, Settings]]]


class Move(NamedTuple):
    """A move from a plan.

    Attributes:
        sort: of the table; no plan makes two moves of one.
        kind: what tells it apart from others that are shown: the sort, of a layout with the axis that takes ranks.
        settings: what it sets.
    """

    sort: str
    kind: str
    settings: Settings


def moves_from(at: Position, *, fits: bool = True) -> Iterator[Move]:
    """Every move from a plan, of the sorts that led to it none; after another, the host's only if it does not fit."""
    if at.scenario.traced:
        return
    made = {kind.partition(":")[0] for kind in at.kinds}
    if made and fits:
        made.add("host")
    for sort, moves in SORTS.items():
        if sort not in made:
            for kind, settings in moves(at):
                if settings:
                    yield Move(sort, kind, {**fitting(at.scenario, settings), **settings})


def _recompute(at: Position) -> Iterator[tuple[str, Settings]]:
    """Each other level; the attention core alone only where its scores are kept, else a list that the stack has."""
    scenario = at.scenario
    if scenario.model is None:
        levels: list[object] = ["none", "full"]
    else:
        plain = getattr(scenario.model.options, "attention", "flash") == "plain"
        levels = ["none", *(["selective"] if plain else [[OPS]] if at.by_torchtitan else []), "full"]
    for level in levels:
        whole = at.without("recompute_layers")
        if level != _plain_level(scenario) or whole:
            yield "recompute", {"recompute": level, **whole}


def _plain_level(scenario: Scenario) -> object:
    return [*scenario.recompute] if isinstance(scenario.recompute, tuple) else scenario.recompute


def _microbatches(at: Position) -> Iterator[tuple[str, Settings]]:
    """Larger and smaller ones; the batch stays."""
    size = at.scenario.schedule.microbatch_size
    if at.scenario.model is None or at.scenario.schedule.file is not None:
        return
    for other in dict.fromkeys((2 * size, 4 * size, size // 2, size // 4, 1)):
        if other not in (0, size) and at.batch % (at.scenario.parallel.data * other) == 0:
            divided = at.divided(at.scenario.parallel.data, other)
            if divided is not None:
                yield "micro-batch", divided


def _sharding(at: Position) -> Iterator[tuple[str, Settings]]:
    """Each other level that the pipeline allows."""
    scenario = at.scenario
    if scenario.parallel.data // scenario.outer_groups * scenario.parallel.context == 1:
        return
    whole = scenario.optimizer.kind != "muon"  # with shards of matrices, a layout of them would be a choice of its own
    layered = whole and (scenario.parallel.pipeline == 1 or at.by_torchtitan)
    for level in SHARDING if layered else SHARDING[:2]:
        if level != scenario.sharding:
            yield "sharding", {"sharding": level, **_sharded(at, level)}


def _sharded(at: Position, level: str) -> Settings:
    """What depends on the level: what gradients are reduced in, and whether parameters are gathered early."""
    scenario, gradients = at.scenario, at.scenario.gradients
    fsdp = level in LAYERED and scenario.parallel.pipeline == 1
    settings = {} if fsdp else at.without("gradients.scattered")
    if level == "none":
        settings |= at.without("overlap.parameters")
    if level != "zero-1":
        settings |= at.without("gradients.pad")
    if level == "zero-3" and at.states("overlap.parameters") and not scenario.overlap.parameters:
        settings["overlap.parameters"] = True
    if fsdp and gradients.bucket is not None:
        settings["gradients.bucket"] = "none"
    if level == "zero-1" and at.by_megatron:
        settings["gradients.pad"] = True
        if scenario.sharding in LAYERED:
            settings |= {"gradients.overlap": True, "gradients.bucket_rule": "megatron", "overlap.parameters": True}
            settings |= at.without("gradients.bucket")
    return {key: value for key, value in settings.items() if value is None or _current(scenario, key) != value}


def _current(scenario: Scenario, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(scenario, section), name)


def _schedules(at: Position) -> Iterator[tuple[str, Settings]]:
    """Other orders, and messages that nobody waits for."""
    schedule = at.scenario.schedule
    if at.scenario.parallel.pipeline == 1 or schedule.kind is None:
        return
    if schedule.kind != PLAIN:
        yield "schedule", plain_schedule(at, at.scenario.parallel.pipeline)
    for chunks in _chunks(at):
        settings: Settings = {"schedule.chunks": chunks}
        if schedule.kind != VIRTUAL:
            settings = {"schedule.kind": VIRTUAL, **settings}
        if schedule.p2p == "blocking":
            settings["schedule.p2p"] = "async"
        yield "schedule", settings
    for kind in SPLIT:
        if kind != schedule.kind:
            yield "schedule", {"schedule.kind": kind, **at.without("schedule.chunks")}
    if schedule.p2p == "blocking":
        yield "schedule", {"schedule.p2p": "async"}


def _chunks(at: Position) -> Iterator[int]:
    """Numbers of virtual stages per rank: two, twice and half as many, and one layer each."""
    schedule, ranks = at.scenario.schedule, at.scenario.parallel.pipeline
    now = schedule.chunks if schedule.virtual else 1
    each = at.blocks // ranks
    for chunks in dict.fromkeys((2, 2 * now, now // 2, each)):
        if chunks < 2 or (chunks == now and schedule.kind == VIRTUAL):
            continue
        if (each % chunks == 0 and each * ranks == at.blocks) if at.blocks else chunks <= FEW_CHUNKS:
            yield chunks


def _stages(at: Position) -> Iterator[tuple[str, Settings]]:
    """Other rules that cut layers into stages, unless the file lists them."""
    rule = at.scenario.parallel.stages
    if at.scenario.model is not None and at.scenario.parallel.pipeline > 1 and isinstance(rule, str):
        for other in (one for one in RULES if one != rule):
            yield "stages", {"parallel.stages": other}


def _network(at: Position) -> Iterator[tuple[str, Settings]]:
    """What is communicated, and beside which work."""
    scenario, parallel = at.scenario, at.scenario.parallel
    if parallel.tensor > 1 and not parallel.sequence:
        yield "network", {"parallel.sequence": True}
    if parallel.data * parallel.context == 1:
        return
    gradients, layered = scenario.gradients, scenario.sharding in LAYERED and parallel.pipeline == 1
    gathers = {"overlap.parameters": True} if scenario.sharding != "none" and not scenario.overlap.parameters else {}
    if not gradients.overlap and not (scenario.sharding == "zero-3" and layered):
        yield "network", {"gradients.overlap": True, **({} if layered else _buckets(at)), **gathers}
    elif gathers:
        yield "network", {**gathers}
    if gradients.overlap and not layered and gradients.bucket is None:
        yield "network", _buckets(at)
    if gradients.codec == "fp32":
        yield "network", {"gradients.codec": "bf16"}
    if gradients.algorithm not in (collectives.AUTO, "nccl") and not layered:
        yield "network", {"gradients.algorithm": collectives.AUTO}
    if parallel.pipeline > 1 and parallel.data > 1:
        places = {"data": "pipeline", "pipeline": "data"}
        yield "network", {"parallel.order": [places.get(axis, axis) for axis in parallel.order]}


def _buckets(at: Position) -> Settings:
    """Buckets that are ready before a rank's last op ends, as the framework has them."""
    scenario = at.scenario
    rule = splitting_rule(scenario.model, scenario.sharding)
    settings: Settings = {"gradients.bucket_rule": rule}
    if at.states("gradients.bucket") and scenario.gradients.bucket is None:
        settings["gradients.bucket"] = BUCKET
    if rule == "megatron" and scenario.sharding == "zero-1" and not scenario.gradients.pad:
        settings["gradients.pad"] = True
    return {key: value for key, value in settings.items() if _current(scenario, key) != value}


def _experts(at: Position) -> Iterator[tuple[str, Settings]]:
    """Over how many ranks experts are divided, and how tokens travel to them."""
    scenario, parallel = at.scenario, at.scenario.parallel
    experts = None if scenario.model is None else getattr(scenario.model.options, "experts", None)
    if experts is None:
        return
    for each in dict.fromkeys((parallel.expert_tensor, 1) if parallel.of_expert > 1 else (parallel.expert_tensor,)):
        undivided = {} if each == parallel.expert_tensor else {"parallel.expert_tensor": each}
        holders = parallel.data * parallel.context * (parallel.tensor // each if each else 1)
        now = parallel.expert
        for ranks in dict.fromkeys(
            (now, 2 * now, now // 2, 1, *([now * parallel.tensor] if each else []), experts.count)
        ):
            if ranks and experts.count % ranks == 0 == holders % ranks:
                settings = undivided | ({} if ranks == now else {"parallel.expert": ranks})
                if settings:
                    yield "experts", settings
    if parallel.expert > 1:
        others = {"per-node": "all-to-all", "all-to-all": "per-node"}
        yield "experts", {"experts.dispatcher": others[scenario.experts.dispatcher]}
        options = scenario.schedule.options
        if isinstance(options, InPairs) and not (scenario.experts.streams and options.pairs):
            beside = {"experts.streams": True, "schedule.pairs": True, **at.without("overlap.experts")}
            yield "experts", beside


def _host(at: Position) -> Iterator[tuple[str, Settings]]:
    """What the host holds, and what it launches."""
    scenario = at.scenario
    if scenario.model is None:
        return
    for more in GRAPHS[GRAPHS.index(scenario.cuda_graphs) + 1 :]:
        yield "host", {"cuda_graphs": more}
    if not scenario.offload.optimizer:
        yield "host", {"offload.optimizer": 1}
    if not scenario.offload.activations:
        yield "host", {"offload.activations": 1}


SORTS: Mapping[str, Sort] = {
    "recompute": _recompute,
    "layout": layouts,
    "micro-batch": _microbatches,
    "sharding": _sharding,
    "shards": shards_moves,
    "schedule": _schedules,
    "stages": _stages,
    "network": _network,
    "experts": _experts,
    "host": _host,
}
