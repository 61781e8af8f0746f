"""Costs of pipeline ranks: from the times and sizes of a workload, from a model, or from durations of every op."""

from dataclasses import replace
from fractions import Fraction

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.modelled import model_costs
from hybrid_des.cost_model.rank_costs import MOMENTS, WEIGHTS, RankCosts, Sharding
from hybrid_des.interchange.profiles.durations import Durations, Shares, Usual, read_durations
from hybrid_des.scenario.overhead import Overhead
from hybrid_des.scenario.sections.training import Workload
from hybrid_des.units import PICOSECONDS_PER_SECOND, split_evenly, to_picoseconds

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
    sharding = Sharding.of(basis.sharding, basis.together, once=basis.accumulation.once)
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
        tensors=workload.tensors or (),
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
