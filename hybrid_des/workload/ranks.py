"""Costs of pipeline ranks: from a workload, from a model, or from durations of every op."""

from fractions import Fraction

from hybrid_des.network.fabric import Fabric
from hybrid_des.scenario import Scenario
from hybrid_des.workload.costs import RankCosts, Sharding
from hybrid_des.workload.durations import Durations, read_durations
from hybrid_des.workload.given import rank_costs
from hybrid_des.workload.modelled import model_costs


def costs_per_rank(scenario: Scenario, fabric: Fabric, durations: Durations | None = None) -> RankCosts:
    """Costs from the scenario's workload or model; of durations op by op (given, or in its file), the means."""
    if scenario.workload is not None:
        workload, ranks = scenario.workload, scenario.parallel.pipeline
        durations = durations or durations_in(scenario)
        if durations is not None:
            workload = workload.model_copy(update=_means(durations, scenario))
        sharding = Sharding.of(scenario.sharding, scenario.parallel.data, pipelined=ranks > 1)
        return rank_costs(workload, ranks, sharding, repeated=scenario.recompute == "full")
    return model_costs(scenario, fabric)


def durations_in(scenario: Scenario) -> Durations | None:
    """The durations in the file that the scenario's workload names, if it names one.

    Raises:
        UsageError: the file cannot be read, or does not fit the scenario.
    """
    if scenario.workload is None or scenario.workload.durations is None:
        return None
    schedule, layout = scenario.schedule, scenario.parallel.layout
    chunks = None if schedule.file is not None or schedule.chunks == 1 else schedule.chunks
    return read_durations(scenario.workload.durations, layout, chunks, schedule.microbatches)


def _means(durations: Durations, scenario: Scenario) -> dict[str, tuple[Fraction, ...]]:
    """Mean times of a rank's forward, backward and weight part, for planning."""
    ranks, chunks = range(scenario.parallel.pipeline), scenario.schedule.chunks
    names = {"forward": "F", "backward": "B", **({"weight": "W"} if "W" in durations.whole else {})}
    return {name: tuple(chunks * durations.mean(kind, rank) for rank in ranks) for name, kind in names.items()}
