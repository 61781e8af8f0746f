"""Costs of pipeline ranks, and of the stages that the plan places on them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hybrid_des.folding.times import CollectiveTimes
from hybrid_des.pipeline.plan import Action, Kind, Path, Place, Plan
from hybrid_des.scenario import Workload
from hybrid_des.units import PICOSECONDS_PER_SECOND, split_evenly, to_picoseconds
from hybrid_des.workload.costs import MOMENTS, WEIGHTS, CostBasis, Costs, RankCosts, Sharding, StageCosts, split
from hybrid_des.workload.durations import Durations, Shares, Usual, read_durations
from hybrid_des.workload.modelled import model_costs
from hybrid_des.workload.overhead import NO_OVERHEAD, Overhead

# Costs of stages: those of a pipeline rank, split over the stages that the plan places on it.


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
    parameters = tuple(stage.parameters for stage in stages) if trained is None else tuple(trained)
    on: list[dict[int, int]] = [{} for _ in range(plan.pipeline)]  # pipeline rank → chunk → stage
    for (rank, chunk), stage in plan.stage_of.items():
        on[rank][chunk] = stage
    resident, optimizer, transient = [], [], []
    for rank, chunks in enumerate(on):
        mine = {chunk: held[rank, chunk] for chunk in chunks}
        more = _transient(plan.programs[rank], mine) + sum(one.reserved for one in mine.values())
        if ranks.gathered:
            more += _gathered(list(mine.values()), plan.pipeline)
        state = round(ranks.per_parameter[rank] * sum(parameters[stage] for stage in chunks.values()))
        resident.append(state + sum(one.resident for one in mine.values()) + more)
        optimizer.append(ranks.optimizer[rank] + sum(one.optimizer for one in mine.values()))
        transient.append(more)
    experts = tuple(stage.experts for stage in stages)
    tensors = tuple(stage.tensors for stage in stages) if trained is None else ()
    between = ranks.overhead.between
    return Costs(held, parameters, tuple(resident), tuple(optimizer), experts, tuple(transient), tensors, between)


def model_stages(ranks: RankCosts, plan: Plan) -> Sequence[StageCosts]:
    """The costs of a model's stages; in one that splits any backward, weight gradients overlap no collective."""
    assert ranks.stages is not None
    stages, later = ranks.stages(plan.stages, plan.ends_meet), {stage for stage, _ in plan.split}
    return [split(stage) if number in later else stage for number, stage in enumerate(stages)]


def _gathered(stages: Sequence[StageCosts], pipeline: int) -> int:
    """Bytes of gathered weights: those of two layers and what they share, or of all in a pipeline."""
    layers = [one for stage in stages for one in stage.layers or (stage,)]
    sizes = sorted(one.parameters + one.experts + min(one.later, 0) for one in layers)
    shared = sum(max(one.later, 0) for one in layers)
    return WEIGHTS * (shared + sum(sizes if pipeline > 1 else sizes[-2:]))


def _along(path: Path, ranks: RankCosts, pipeline: int) -> dict[Place, StageCosts]:
    """The costs of the stages of one copy of the model."""
    found = {}
    for rank in range(pipeline):
        places = [place for place in path if place[0] == rank]
        whole = (ranks.forward, ranks.backward, ranks.weight, ranks.kept, ranks.parameters)
        cuts = (split_evenly(amounts[rank], len(places)) for amounts in whole)
        for place, forward, backward, weight, kept, parameters in zip(places, *cuts, strict=True):
            message, share = ranks.message[rank], ranks.weight_share[rank]
            inputs, again = (min(kept, message), kept) if ranks.repeated else (kept, 0)
            found[place] = StageCosts(
                forward,
                backward,
                weight,
                message,
                inputs,
                parameters,
                share,
                transient=again,
                transients=(again, again),
            )
    return (
        found
        if ranks.overhead == NO_OVERHEAD
        else {place: _with_host(one, ranks.overhead) for place, one in found.items()}
    )


def _with_host(stage: StageCosts, overhead: Overhead) -> StageCosts:
    """A stage whose ops take the host's time too."""
    return replace(
        stage,
        forward=stage.forward + overhead.forward,
        backward=stage.backward + overhead.backward,
        weight=stage.weight + overhead.weight,
        apart=overhead.weight,
    )


def _transient(program: Sequence[Action], mine: Mapping[int, StageCosts]) -> int:
    """Bytes by which the transients of backwards raise a rank's peak above that of its activations.

    A split backward needs less for each part, and has freed some activations when its weight part runs.
    """
    if not any(cost.transient for cost in mine.values()):
        return 0
    if not any(op.kind == "W" for action in program for op in action):
        return max(cost.transient for cost in mine.values())
    known: dict[tuple[Any, ...], tuple[int, int, int]] = {}
    held = most = peak = 0
    for action in program:
        alike = tuple([(op.kind, op.chunk) for op in action])
        if alike not in known:
            known[alike] = _bytes([(mine[chunk], kind) for kind, chunk in alike])
        kept, needed, freed = known[alike]
        held += kept
        most = max(most, held)
        peak = max(peak, held + needed)
        held -= freed
    return peak - most


def _bytes(each: Sequence[tuple[StageCosts, Kind]]) -> tuple[int, int, int]:
    """Bytes that an action keeps, needs while it runs, and frees at its end."""
    return (
        sum(cost.kept for cost, kind in each if kind == "F"),
        sum(cost.needed(kind) for cost, kind in each),
        sum(cost.freed(kind, cost.kept) for cost, kind in each),
    )


# Costs of pipeline ranks: from the times and sizes of a workload, from a model, or from durations of every op.


PerRank = Fraction | tuple[Fraction, ...]
DIGITS = 6  # of shares of an activation, which are counted in millionths of a chunk
WHOLE = Sharding()


def costs_per_rank(basis: CostBasis, times: CollectiveTimes, durations: Durations | None = None) -> RankCosts:
    """Costs from a workload or model; of durations op by op (given, or in the workload's file), the means.

    Raises:
        UsageError: the file of durations cannot be read, or does not fit the scenario.
    """
    workload, schedule, ranks = basis.workload, basis.ordering, basis.parallel.pipeline
    if workload is None or schedule is None:
        return model_costs(basis, times)
    if durations is None and workload.durations is not None:
        chunks = None if schedule.file is not None or schedule.chunks == 1 else schedule.chunks
        own = workload.timing != "recorded"
        layout = basis.parallel.layout
        durations = read_durations(workload.durations, layout, chunks, schedule.microbatches, own_sizes=own)
    if durations is not None:  # of a rank's forward, backward and weight part, for planning
        means = {kind: _planned(durations, kind, workload, ranks, schedule.chunks) for kind in "FBW"}
        names = {"forward": "F", "backward": "B", "weight": "W"}
        workload = workload.model_copy(update={name: tuple(means[kind]) for name, kind in names.items()})
    sharding = Sharding.of(basis.sharding, basis.parallel.data, pipelined=ranks > 1)
    costs = rank_costs(workload, ranks, sharding, repeated=basis.recompute == "full")
    return costs if durations is None else replace(costs, durations=durations)


def _planned(durations: Durations, kind: str, workload: Workload, ranks: int, chunks: int) -> list[Fraction]:
    """Seconds of a kind of op on each pipeline rank, without the host's: as recorded there, or shares of them."""
    overhead = Overhead.of(workload)
    if workload.timing == "recorded":
        host = Fraction(overhead.held(kind, split=durations.split), PICOSECONDS_PER_SECOND)
        return [chunks * max(Fraction(0), durations.mean(kind, rank) - host) for rank in range(ranks)]
    shares = Shares.of(durations, kind, Usual.of(workload.timing, overhead))
    return [shares.of_rank(rank, ranks) / PICOSECONDS_PER_SECOND for rank in range(ranks)]


def rank_costs(workload: Workload, ranks: int, sharding: Sharding = WHOLE, *, repeated: bool = False) -> RankCosts:
    """Split the workload over `ranks` pipeline ranks, in whole picoseconds and bytes.

    Args:
        workload: times and sizes.
        ranks: pipeline ranks.
        sharding: how replicas divide the memory for parameters and the optimizer step.
        repeated: whether the backward repeats the whole forward, whose inputs alone are kept.
    """
    forward = _times(workload, workload.forward, ranks)
    backward = _times(workload, workload.backward, ranks)
    halves = tuple(time // 2 for time in backward)
    weight = halves if workload.weight is None else _times(workload, workload.weight, ranks)
    optimizer = _times(workload, workload.optimizer, ranks)
    per_parameter = _each(workload.memory.per_parameter, ranks)
    if sharding != WHOLE:
        per_parameter = tuple(sharding.per_parameter(size - WEIGHTS - MOMENTS) for size in per_parameter)
        optimizer = tuple(round(Fraction(time, sharding.optimizer)) for time in optimizer)
    ends = workload.ends
    forward, backward = _with_ends(forward, ends.forward), _with_ends(backward, ends.backward)
    shares = (Fraction(1),) * ranks if repeated else _each(workload.recompute, ranks)
    recomputed = [round(share * time) for share, time in zip(shares, forward, strict=True)]
    return RankCosts(
        forward=forward,
        backward=tuple(time + again for time, again in zip(backward, recomputed, strict=True)),
        weight=weight,
        optimizer=optimizer,
        message=tuple(round(size) for size in _each(workload.activation, ranks)),
        parameters=_amounts(workload, workload.parameters, ranks),
        per_parameter=per_parameter,
        kept=_amounts(workload, workload.memory.activation, ranks),
        weight_share=tuple(round(share, DIGITS) for share in _each(workload.memory.weight_share, ranks)),
        repeated=repeated,
        gathered=sharding.weights > 1,
        overhead=Overhead.of(workload),
    )


def _with_ends(times: tuple[int, ...], extra: Fraction) -> tuple[int, ...]:
    """Add the extra time of the first and the last pipeline rank; a single rank has both."""
    if not extra:
        return times
    more = [0] * len(times)
    more[0] += to_picoseconds(extra)
    more[-1] += to_picoseconds(extra)
    return tuple(time + added for time, added in zip(times, more, strict=True))


def _each(value: PerRank, ranks: int) -> tuple[Fraction, ...]:
    """One entry per pipeline rank, from a list or from one number for all."""
    return value if isinstance(value, tuple) else (value,) * ranks


def _times(workload: Workload, value: PerRank, ranks: int) -> tuple[int, ...]:
    if workload.per == "model" and not isinstance(value, tuple):
        return tuple(split_evenly(to_picoseconds(value), ranks))
    return tuple(to_picoseconds(time) for time in _each(value, ranks))


def _amounts(workload: Workload, value: PerRank, ranks: int) -> tuple[int, ...]:
    if workload.per == "model" and not isinstance(value, tuple):
        return tuple(split_evenly(round(value), ranks))
    return tuple(round(amount) for amount in _each(value, ranks))
