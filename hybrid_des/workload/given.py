"""Costs from explicit times and sizes: the `workload` section of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hybrid_des.pipeline.op import Path, Place
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario import Workload
from hybrid_des.units import split_evenly, to_picoseconds
from hybrid_des.workload.costs import Costs, StageCosts

PerRank = Fraction | tuple[Fraction, ...]


@dataclass(frozen=True)
class RankCosts:
    """Costs of one micro-batch per pipeline rank, before they are split into stages.

    Attributes:
        forward, backward, weight, optimizer: picoseconds, one entry per pipeline rank; as in `StageCosts`.
        message: bytes of the activation sent to the next stage.
        parameters: number of parameters per rank of one copy of the model.
        per_parameter: bytes per parameter.
        kept: bytes of activations kept per micro-batch.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    message: tuple[int, ...]
    parameters: tuple[int, ...]
    per_parameter: tuple[Fraction, ...]
    kept: tuple[int, ...]

    @property
    def input(self) -> tuple[int, ...]:
        """The input-gradient part of each rank's backward."""
        return tuple(whole - weight for whole, weight in zip(self.backward, self.weight, strict=True))


def rank_costs(workload: Workload, ranks: int) -> RankCosts:
    """Split the workload over `ranks` pipeline ranks, in whole picoseconds and bytes."""
    forward = _times(workload, workload.forward, ranks)
    backward = _times(workload, workload.backward, ranks)
    halves = tuple(time // 2 for time in backward)
    weight = halves if workload.weight is None else _times(workload, workload.weight, ranks)
    ends = workload.ends
    forward, backward = _with_ends(forward, ends.forward), _with_ends(backward, ends.backward)
    recomputed = [round(share * time) for share, time in zip(_each(workload.recompute, ranks), forward, strict=True)]
    return RankCosts(
        forward=forward,
        backward=tuple(time + again for time, again in zip(backward, recomputed, strict=True)),
        weight=weight,
        optimizer=_times(workload, workload.optimizer, ranks),
        message=tuple(round(size) for size in _each(workload.activation, ranks)),
        parameters=_amounts(workload, workload.parameters, ranks),
        per_parameter=_each(workload.memory.per_parameter, ranks),
        kept=_amounts(workload, workload.memory.activation, ranks),
    )


def costs_of(ranks: RankCosts, plan: Plan, trained: Sequence[int] | None = None) -> Costs:
    """Split the costs of every rank evenly over its stages.

    Args:
        ranks: the costs of each pipeline rank.
        plan: the stages and their ranks.
        trained: parameters per stage of the model that is really trained, for workloads that give none.
    """
    stages: dict[Place, StageCosts] = {}
    for path in plan.paths:
        stages |= _along(path, ranks, plan.pipeline)
    given = [stages[place].parameters for place in plan.paths[0]]  # parameters are given for one copy of the model
    parameters = tuple(given if trained is None else trained)
    held = [0] * plan.pipeline
    for (rank, _), stage in plan.stage_of.items():
        held[rank] += parameters[stage]
    resident = tuple(round(size * count) for size, count in zip(ranks.per_parameter, held, strict=True))
    return Costs(stages, parameters, resident, ranks.optimizer)


def _along(path: Path, ranks: RankCosts, pipeline: int) -> dict[Place, StageCosts]:
    """The costs of the stages of one copy of the model."""
    found = {}
    for rank in range(pipeline):
        places = [place for place in path if place[0] == rank]
        whole = (ranks.forward, ranks.backward, ranks.weight, ranks.kept, ranks.parameters)
        cuts = (split_evenly(amounts[rank], len(places)) for amounts in whole)
        for place, forward, backward, weight, kept, parameters in zip(places, *cuts, strict=True):
            found[place] = StageCosts(forward, backward, weight, ranks.message[rank], kept, parameters)
    return found


def _with_ends(times: tuple[int, ...], extra: Fraction) -> tuple[int, ...]:
    """Add the extra time of the first and the last pipeline rank; a single rank has both."""
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
