"""What each op costs: from the scenario's workload to picoseconds and bytes per pipeline rank, chunk and stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hybrid_des.pipeline.plan import Kind, Plan
from hybrid_des.scenario import Scenario, Workload
from hybrid_des.units import split_evenly, to_picoseconds


@dataclass(frozen=True)
class RankCosts:
    """What one micro-batch costs each pipeline rank for its whole share of the model, before it is cut into chunks.

    Attributes:
        forward, backward, weight, optimizer: picoseconds, one entry a pipeline rank; `backward` is the whole of it,
            with the forwards that are recomputed before it, and `weight` its weight-gradient part.
        message: bytes of the activation that the rank sends on (its gradient comes back in the same size).
        parameters: how many parameters the rank holds of one copy of the model.
        per_parameter: bytes held for each of them.
        activations: bytes kept per micro-batch.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    message: tuple[int, ...]
    parameters: tuple[int, ...]
    per_parameter: tuple[Fraction, ...]
    activations: tuple[int, ...]

    @property
    def input(self) -> tuple[int, ...]:
        """The input-gradient part of each rank's backward."""
        return tuple(whole - weight for whole, weight in zip(self.backward, self.weight, strict=True))


@dataclass(frozen=True)
class Costs:
    """What each op of a plan costs.

    Attributes:
        time: (kind, pipeline rank, chunk) → picoseconds.
        activation: (pipeline rank, chunk) → bytes kept from the start of a forward to the end of its backward.
        parameters: one entry a stage.
        resident: bytes that each pipeline rank holds throughout, for parameters, gradients and optimizer.
        ranks: the costs before they were cut into chunks.
    """

    time: Mapping[tuple[Kind, int, int], int]
    activation: Mapping[tuple[int, int], int]
    parameters: tuple[int, ...]
    resident: tuple[int, ...]
    ranks: RankCosts


def rank_costs(scenario: Scenario) -> RankCosts:
    """Give every pipeline rank its share of the workload, in whole picoseconds and bytes."""
    workload, p = scenario.workload, scenario.parallel.pipeline
    forward = _times(workload, workload.forward, p)
    backward = _times(workload, workload.backward, p)
    halves = tuple(time // 2 for time in backward)
    weight = halves if workload.weight is None else _times(workload, workload.weight, p)
    ends = workload.ends
    forward, backward = _with_ends(forward, ends.forward), _with_ends(backward, ends.backward)
    recomputed = [round(share * time) for share, time in zip(each(workload.recompute, p), forward, strict=True)]
    return RankCosts(
        forward=forward,
        backward=tuple(time + again for time, again in zip(backward, recomputed, strict=True)),
        weight=weight,
        optimizer=_times(workload, workload.optimizer, p),
        message=tuple(round(size) for size in each(workload.activation, p)),
        parameters=_shares(workload, workload.parameters, p),
        per_parameter=each(workload.memory.per_parameter, p),
        activations=_shares(workload, workload.memory.activation, p),
    )


def costs_of(ranks: RankCosts, plan: Plan, trained: Sequence[int] | None = None) -> Costs:
    """Cut every rank's costs into the ops of a plan; the parts of a rank add up to its whole.

    Args:
        ranks: the costs of each pipeline rank.
        plan: the ops.
        trained: parameters of each stage of the model that is really trained, for a workload that names none.
    """
    time: dict[tuple[Kind, int, int], int] = {}
    activation: dict[tuple[int, int], int] = {}
    parameters = [0] * plan.stages
    for path in plan.paths:
        for rank in range(plan.pipeline):
            stages = [stage for stage, place in enumerate(path) if place[0] == rank]
            parts = len(stages)
            cuts = (
                split_evenly(amount[rank], parts)
                for amount in (ranks.forward, ranks.backward, ranks.weight, ranks.activations, ranks.parameters)
            )
            for stage, forward, backward, weight, kept, held in zip(stages, *cuts, strict=True):
                chunk = path[stage][1]
                time["F", rank, chunk] = forward
                time["B", rank, chunk] = backward
                time["I", rank, chunk] = max(0, backward - weight)  # rounding may leave a picosecond less than none
                time["W", rank, chunk] = weight
                activation[rank, chunk] = kept
                if path is plan.paths[0]:  # parameters are given for one copy of the model
                    parameters[stage] = held
    if trained is not None:
        parameters = list(trained)
    resident = [
        round(ranks.per_parameter[rank] * sum(parameters[plan.stage_of[rank, c]] for c in plan.chunks_of(rank)))
        for rank in range(plan.pipeline)
    ]
    return Costs(time, activation, tuple(parameters), tuple(resident), ranks)


def _with_ends(times: tuple[int, ...], extra: Fraction) -> tuple[int, ...]:
    """Add what the first and the last pipeline rank do besides; a single rank does both."""
    more = [0] * len(times)
    more[0] += to_picoseconds(extra)
    more[-1] += to_picoseconds(extra)
    return tuple(time + added for time, added in zip(times, more, strict=True))


def each(value: Fraction | tuple[Fraction, ...], ranks: int) -> tuple[Fraction, ...]:
    """One entry a pipeline rank, from a list or from one number for all."""
    return value if isinstance(value, tuple) else (value,) * ranks


def _times(workload: Workload, value: Fraction | tuple[Fraction, ...], ranks: int) -> tuple[int, ...]:
    if workload.per == "model" and not isinstance(value, tuple):
        return tuple(split_evenly(to_picoseconds(value), ranks))
    return tuple(to_picoseconds(time) for time in each(value, ranks))


def _shares(workload: Workload, value: Fraction | tuple[Fraction, ...], ranks: int) -> tuple[int, ...]:
    if workload.per == "model" and not isinstance(value, tuple):
        return tuple(split_evenly(round(value), ranks))
    return tuple(round(amount) for amount in each(value, ranks))
