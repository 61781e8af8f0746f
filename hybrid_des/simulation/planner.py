"""From a scenario to its parts: the wiring of the cluster, and the plan of its schedule or order file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hybrid_des.errors import UsageError
from hybrid_des.network import topologies
from hybrid_des.network.fabric import Fabric, Route, service_time
from hybrid_des.options import options_of
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import OrderFile, read_order
from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.scenario import Scenario
from hybrid_des.workload.costs import RankCosts


def fabric_of(scenario: Scenario) -> Fabric:
    """Wire up the scenario's cluster.

    Raises:
        Refusal: the topology does not exist for it.
        UsageError: a user-defined topology has a link that never ends.
    """
    cluster = scenario.cluster
    entry = topologies.find(cluster.topology)
    fabric = entry.build(cluster.spec, *options_of(entry, cluster.options))
    for link in fabric.links.values():
        if link.bandwidth is not None and link.bandwidth <= 0:
            message = f'link "{link.name}" has a bandwidth of {link.bandwidth}; expected more than 0, or None if free'
            raise UsageError(f"topology {cluster.topology}: {message}")
    return replace(fabric, route=_checked(fabric, cluster.topology))


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
    )
    assert schedule.kind is not None  # the scenario has one or the other
    return schedules.make_plan(schedule.kind, request, schedule.options)


def _checked(fabric: Fabric, topology: str) -> Callable[[int, int], Route]:
    """A topology's routes, compared with its links: a user-defined one may have forgotten something."""

    def route(sender: int, receiver: int) -> Route:
        about = f"topology {topology}: the route from gpu{sender} to gpu{receiver}"
        try:
            found: Route | None = fabric.route(sender, receiver)
        except LookupError:
            found = None
        if found is None:
            raise UsageError(f"{about} is missing")
        unknown = next((name for name in found.links if name not in fabric.links), None)
        if unknown is not None:
            raise UsageError(f'{about} takes a link "{unknown}", which is not there')
        if not found.links or len(found.links) != len(found.latencies):
            counts = f"{len(found.links)} links and {len(found.latencies)} latencies"
            raise UsageError(f"{about} has {counts}; expected one latency a link, and at least one link")
        if any(not isinstance(latency, int) or latency < 0 for latency in found.latencies):
            raise UsageError(f"{about} has latencies {found.latencies}; expected whole picoseconds of at least 0")
        return found

    return route


def _plan_in_file(file: Path, scenario: Scenario) -> Plan:
    schedule = scenario.schedule
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    options = schedule.options if isinstance(schedule.options, OrderFile) else OrderFile()
    plan = read_order(text, str(file), scenario.parallel.pipeline, options.fused_time)
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
    return route.latency + max(service_time(ranks.message[rank], fabric.links[name].bandwidth) for name in route.links)
