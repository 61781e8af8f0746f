"""Costs of pipeline ranks: from a workload, from a model, or from durations of every op."""

from dataclasses import replace
from fractions import Fraction

from hybrid_des.folding.times import CollectiveTimes
from hybrid_des.scenario import Scenario
from hybrid_des.workload.costs import RankCosts, Sharding
from hybrid_des.workload.durations import Durations, read_durations
from hybrid_des.workload.given import rank_costs
from hybrid_des.workload.modelled import model_costs


def costs_per_rank(scenario: Scenario, times: CollectiveTimes, durations: Durations | None = None) -> RankCosts:
    """Costs from the scenario's workload or model; of durations op by op (given, or in its file), the means.

    Raises:
        UsageError: the file of durations cannot be read, or does not fit the scenario.
    """
    if scenario.workload is None:
        return model_costs(scenario, times)
    workload, ranks = scenario.workload, scenario.parallel.pipeline
    if durations is None and workload.durations is not None:
        schedule = scenario.schedule
        chunks = None if schedule.file is not None or schedule.chunks == 1 else schedule.chunks
        durations = read_durations(workload.durations, scenario.parallel.layout, chunks, schedule.microbatches)
    if durations is not None:
        workload = workload.model_copy(update=_means(durations, scenario))
    sharding = Sharding.of(scenario.sharding, scenario.parallel.data, pipelined=ranks > 1)
    costs = rank_costs(workload, ranks, sharding, repeated=scenario.recompute == "full")
    return costs if durations is None else replace(costs, durations=durations)


def _means(durations: Durations, scenario: Scenario) -> dict[str, tuple[Fraction, ...]]:
    """Mean times of a rank's forward, backward and weight part, for planning."""
    ranks, chunks = range(scenario.parallel.pipeline), scenario.schedule.chunks
    names = {"forward": "F", "backward": "B", "weight": "W"}
    return {name: tuple(chunks * durations.mean(kind, rank) for rank in ranks) for name, kind in names.items()}
