"""From a scenario to its plan: what the schedule makes of it, or what an order file says."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.errors import UsageError
from hybrid_des.network.fabric import Fabric
from hybrid_des.network.rate import rate_of
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import read_order
from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.scenario import Scenario
from hybrid_des.workload.costs import RankCosts


def plan_of(scenario: Scenario, ranks: RankCosts, fabric: Fabric) -> Plan:
    """Ask the scenario's schedule for its plan.

    Raises:
        Refusal: the schedule does not exist for these sizes.
        PlanError: the order file cannot be carried out.
        UsageError: the order file cannot be read, or is for other sizes.
    """
    schedule, p = scenario.schedule, scenario.parallel.pipeline
    if schedule.file is not None:
        return _plan_in_file(schedule.file, scenario)
    request = PlanRequest(
        pipeline=p,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        forward=ranks.forward,
        input=ranks.input,
        weight=ranks.weight,
        delay=max((_delay(scenario, ranks, fabric, rank) for rank in range(p - 1)), default=0),
        backward_order=schedule.backward_order,
        fused=schedule.fused,
        fused_time=schedule.fused_time,
        max_activations=schedule.max_activations,
    )
    assert schedule.kind is not None  # the scenario has one or the other
    return schedules.find(schedule.kind).build(request)


def _plan_in_file(file: Path, scenario: Scenario) -> Plan:
    schedule = scenario.schedule
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    plan = read_order(text, str(file), scenario.parallel.pipeline, schedule.fused_time)
    if plan.microbatches != schedule.microbatches:
        raise UsageError(
            f"{file}: an order of {plan.microbatches} micro-batches; schedule.microbatches says {schedule.microbatches}"
        )
    chunks = max(plan.visits)
    if "chunks" in schedule.model_fields_set and schedule.chunks != chunks:
        raise UsageError(f"{file}: an order of {chunks} chunks a rank; schedule.chunks says {schedule.chunks}")
    return plan


def _delay(scenario: Scenario, ranks: RankCosts, fabric: Fabric, rank: int) -> int:
    """What an activation takes from one pipeline rank to the next on idle links."""
    sender, receiver = (scenario.parallel.layout.rank(pipeline=r) for r in (rank, rank + 1))
    route = fabric.route(sender, receiver)
    return route.latency + max(rate_of(fabric.links[name].bandwidth)[ranks.message[rank]] for name in route.links)
