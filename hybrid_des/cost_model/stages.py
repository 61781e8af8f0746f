"""The costs of a plan: those of pipeline ranks or of a model, cut into the stages that the plan places on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import zip_longest
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.cost_model.rank_costs import WEIGHTS, Costs, ModelStates, RankCosts, StageCosts, Visit, split
from hybrid_des.cost_model.update import NO_UPDATE
from hybrid_des.pipeline.plan import Action, Kind, Path, Place, Plan
from hybrid_des.units import split_evenly

if TYPE_CHECKING:
    from hybrid_des.cost_model.documents import Load


def costs_of(ranks: RankCosts, plan: Plan, trained: Sequence[int] | None = None) -> Costs:
    """The costs of a plan: those of a model's stages, or those of every rank, split evenly over its stages.

    Args:
        ranks: the costs of each pipeline rank.
        plan: the stages and their ranks.
        trained: parameters per stage of the model that is actually trained, for workloads that give none.
    """
    held: dict[Place, StageCosts] = {}
    if ranks.stages is not None:
        stages = model_stages(ranks, plan)
        held = {place: stages[stage] for place, stage in plan.stage_of.items()}
    else:
        for path in plan.paths:
            held |= _along(path, ranks, plan.pipeline)
        stages = [held[place] for place in plan.paths[0]]  # parameters are given for one copy of the model
    parameters = tuple(stage.states.parameters for stage in stages) if trained is None else tuple(trained)
    on: list[dict[int, int]] = [{} for _ in range(plan.pipeline)]  # pipeline rank → chunk → stage
    for (rank, chunk), stage in plan.stage_of.items():
        on[rank][chunk] = stage
    resident, optimizer, transient, exchanged = [], [], [], []
    for rank, chunks in enumerate(on):
        mine = {chunk: held[rank, chunk] for chunk in chunks}
        more = beside_activations(plan, rank, {chunk: (cost,) for chunk, cost in mine.items()})
        layers = [one for stage in mine.values() for one in stage.layers or (stage,)]
        if ranks.gathered:
            more += _gathered(layers, whole=ranks.whole)
        if ranks.scattered:
            more += _scattered(layers, ranks.scattered)
        state = round(ranks.per_parameter[rank] * sum(parameters[stage] for stage in chunks.values()))
        update = NO_UPDATE
        if ranks.orthogonalised is not None:
            update = ranks.orthogonalised(matrix for stage in mine.values() for matrix in stage.states.matrices)
        resident.append(state + update.more + sum(one.states.resident for one in mine.values()) + more)
        optimizer.append(ranks.optimizer[rank] + update.taken + sum(one.states.optimizer for one in mine.values()))
        exchanged.append(update.exchanged)
        transient.append(more)
    experts = tuple(stage.states.experts for stage in stages)
    tensors = tuple(stage.states.tensors for stage in stages) if trained is None else ()
    return Costs(
        held,
        parameters,
        tuple(resident),
        tuple(optimizer),
        experts,
        tuple(transient),
        tensors,
        ranks.overhead.between,
        routing=ranks.routing,
        exchanged=tuple(exchanged) if any(exchanged) else (),
    )


def visits(plan: Plan, costs: Costs) -> Iterator[Visit]:
    """The forwards of one lane in a step; where documents differ, those of all lanes in all steps, one by one."""
    if costs.lanes is not None:
        yield from costs.lanes.visits()
        return
    micro_batches = Counter(plan.path_of)
    for path, places in enumerate(plan.paths):
        yield from (Visit(position, costs.stages[position], 0, micro_batches[path]) for position in places)


def model_stages(ranks: RankCosts, plan: Plan) -> Sequence[StageCosts]:
    """The costs of a model's stages; in one that splits any backward, weight gradients overlap no collective."""
    assert ranks.stages is not None
    return _split(ranks.stages(plan.stages, plan.ends_meet), plan)


def loaded_stages(ranks: RankCosts, plan: Plan, loads: Sequence[Load]) -> list[Sequence[StageCosts]]:
    """The same for micro-batches that hold other documents, of each."""
    assert ranks.loaded is not None
    return [_split(stages, plan) for stages in ranks.loaded(loads, plan.stages, plan.ends_meet)]


def _split(stages: Sequence[StageCosts], plan: Plan) -> Sequence[StageCosts]:
    later = {stage for stage, _ in plan.split}
    return [split(stage) if number in later else stage for number, stage in enumerate(stages)] if later else stages


def _gathered(layers: Sequence[StageCosts], *, whole: bool) -> int:
    """Bytes of gathered weights: of two blocks, of both ends, which PyTorch keeps gathered; or of all.

    The ends belong to the outermost module, which does not reshard after its forward
    (torch/distributed/fsdp/_fully_shard/_fsdp_state.py).
    """
    sizes = sorted(sum(one.states.gathered) for one in layers if not one.end)
    ends = sum(sum(one.states.gathered) for one in layers if one.end)
    return WEIGHTS * (ends + sum(sizes if whole else sizes[-2:]))


def _scattered(layers: Sequence[StageCosts], gradient: Fraction) -> int:
    """Bytes of whole gradients: a block's while it is scattered, and the logits', which go with the embedding's."""
    sizes = [one.states.parameters + one.states.experts for one in layers if not one.end]
    waiting = sum(one.states.parameters for one in layers[1:] if one.end)
    return ceil(gradient * max(sizes, default=0)) + WEIGHTS * waiting


def _along(path: Path, ranks: RankCosts, pipeline: int) -> dict[Place, StageCosts]:
    """The costs of the stages of one copy of the model."""
    costs = {}
    for rank in range(pipeline):
        places = [place for place in path if place[0] == rank]
        whole = (ranks.forward, ranks.backward, ranks.weight, ranks.kept, ranks.parameters)
        cuts = [split_evenly(amounts[rank], len(places)) for amounts in whole]
        tensors = _cut(ranks.tensors[rank], len(places)) if ranks.tensors else [()] * len(places)
        if ranks.tensors:
            cuts[-1] = [sum(sizes) for sizes in tensors]
        for position, forward, backward, weight, kept, parameters, sizes in zip(places, *cuts, tensors, strict=True):
            message, share, host = ranks.message[rank], ranks.weight_share[rank], ranks.overhead
            inputs, again = (min(kept, message), kept) if ranks.repeated else (kept, 0)
            costs[position] = StageCosts(
                forward + host.forward,
                backward + host.backward,
                weight + host.weight,
                message,
                inputs,
                share,
                ModelStates(parameters, tensors=tuple((size, 0) for size in sizes)),
                transient=again,
                transients=(again, again),
                host_times=host._replace(between=0),
            )
    return costs


def _cut(tensors: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Whole tensors in order, cut into stages of about equal sizes: each goes where its middle lies."""
    total, before = sum(tensors), 0
    stages: list[list[int]] = [[] for _ in range(count)]
    for size in tensors:
        stages[(2 * before + size) * count // (2 * total)].append(size)
        before += size
    return [tuple(sizes) for sizes in stages]


def beside_activations(plan: Plan, rank: int, mine: Mapping[int, Sequence[StageCosts]]) -> int:
    """Bytes by which what a rank holds for a while raises its peak above that of its activations and parameters.

    Those of logits during another layer's backward, and transients of backwards: a split backward needs less for each
    part, and has freed some activations when its weight part runs. Or else those that no logits exist beside.

    Args:
        plan: the ops.
        rank: of the pipeline.
        mine: chunk → its costs for each micro-batch, or only one if they are the same for all.
    """
    reserved = sum(max(cost.reserved for cost in costs) for costs in mine.values())
    alone = max((cost.attention_backward for costs in mine.values() for cost in costs), default=0)
    return max(reserved + _transient(plan, rank, mine), alone)


def _transient(plan: Plan, rank: int, mine: Mapping[int, Sequence[StageCosts]]) -> int:
    """Bytes by which the transients of backwards raise a rank's peak above that of its activations."""
    most_of_one = max((cost.transient for costs in mine.values() for cost in costs), default=0)
    if not most_of_one or not any(kind == "W" for form in plan.forms[rank][1] for kind, _ in form):
        return most_of_one
    held, most, peak = 0, 0, 0
    for more, needed, freed in bytes_of(plan, rank, mine):
        held += more
        most = max(most, held)
        peak = max(peak, held + needed)
        held -= freed
    return peak - most


class ActionMemory(NamedTuple):
    """Bytes of an action.

    Attributes:
        held: of activations, the most that it holds in addition to those before it.
        needed: that exist only while it runs.
        freed: of activations, those of `held` and before that it no longer holds at its end.
    """

    held: int
    needed: int
    freed: int


def bytes_of(plan: Plan, rank: int, mine: Mapping[int, Sequence[StageCosts]]) -> Iterator[ActionMemory]:
    """The bytes of each action of a rank, added up once for those with ops of equal kinds and costs.

    Args:
        plan: the ops.
        rank: of the pipeline.
        mine: chunk → its costs for each micro-batch, or only one if they are the same for all.
    """
    if all(len(costs) == 1 for costs in mine.values()):
        numbers, forms = plan.forms[rank]
        each = [memory_of([(mine[chunk][0], kind) for kind, chunk in form]) for form in forms]
        return map(each.__getitem__, numbers)
    return _bytes_of_documents(plan.programs[rank], mine)


def _bytes_of_documents(program: Sequence[Action], mine: Mapping[int, Sequence[StageCosts]]) -> Iterator[ActionMemory]:
    known: dict[tuple[tuple[Kind, int], ...], ActionMemory] = {}
    for action in program:
        each = [(mine[op.chunk][op.microbatch % len(mine[op.chunk])], op.kind) for op in action]
        alike = tuple([(kind, id(cost)) for cost, kind in each])
        yield known.get(alike) or known.setdefault(alike, memory_of(each))


def memory_of(each: Sequence[tuple[StageCosts, Kind]]) -> ActionMemory:
    """The bytes of an action, given the costs and the kind of each of its ops."""
    kept = sum([cost.kept for cost, kind in each if kind == "F"])
    freed = sum([cost.freed(kind, cost.kept) for cost, kind in each])
    held = kept if len(each) == 1 else max(_held_by_layers(each), kept - freed)
    return ActionMemory(held, sum([cost.needed(kind) for cost, kind in each]), held - kept + freed)


def _held_by_layers(each: Sequence[tuple[StageCosts, Kind]]) -> int:
    """The most bytes that a forward keeps beyond those that the backward beside it has freed.

    Layer by layer, as Megatron-LM runs them (TransformerModelChunkSchedulePlan in
    megatron/core/models/common/model_chunk_schedule_plan.py): first the embedding of the one and the logits of the
    other, then the i-th layer of the forward beside the i-th last of the backward, whose activations autograd then
    frees.
    """
    keeps = [layer for cost, kind in each if kind == "F" for layer in cost.layers or (cost,)]
    frees = [(layer, kind) for cost, kind in each if kind != "F" for layer in (cost.layers or (cost,))[::-1]]
    ahead = _ends(keeps) - _ends([layer for layer, _ in frees])
    now = most = 0
    for keep, free in zip_longest(
        [0] * -ahead + [layer.kept for layer in keeps],
        [0] * ahead + [layer.freed(kind, layer.kept) for layer, kind in frees],
        fillvalue=0,
    ):
        now += keep
        most = max(most, now)
        now -= free
    return most


def _ends(layers: Sequence[StageCosts]) -> int:
    """Number of layers before the first that stages are cut from."""
    return next((number for number, layer in enumerate(layers) if not layer.end), len(layers))
