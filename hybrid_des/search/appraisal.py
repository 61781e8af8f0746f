"""Evaluation of one plan in four steps of increasing cost and accuracy: screen, price, weigh, simulate.

    screen     is it a valid scenario?  a first bound on time and memory from its costs, those of collectives left out
    price      the same with the collectives of its layers
    weigh      the order of its ops: its peak memory, a lower bound on its time, a hash shared by equivalent plans
    simulate   the summary

Any step may rule the plan out, with an error of the scenario's validation or of its parts as the reason. Steps run in
any process; costs and wirings that plans share are computed once per process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import HybridDesError
from hybrid_des.network.fabric import Fabric
from hybrid_des.planning.planner import build_plan, parts_of
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.registry import import_file
from hybrid_des.renewal.states import Steps
from hybrid_des.renewal.summary import goodput_columns
from hybrid_des.scenario import Scenario, scenario_of
from hybrid_des.search.bound import least_step
from hybrid_des.search.screening import check_stages, first_bound
from hybrid_des.search.terms import Settings
from hybrid_des.search.twins import twin_of
from hybrid_des.simulation.remedies import planned_peaks
from hybrid_des.simulation.run import few_collections, run
from hybrid_des.sweep.axes import Case
from hybrid_des.sweep.dispatch import Row
from hybrid_des.sweep.runner import with_case
from hybrid_des.units import format_bytes, to_seconds
from hybrid_des.workload.costs import RankCosts
from hybrid_des.workload.modelled import model_costs
from hybrid_des.workload.ranks import costs_per_rank
from hybrid_des.workload.stages import costs_of

_WIRING = ("cluster.", "efficiency.")  # prefixes of the keys that the wiring depends on
# keys that neither costs nor wiring depend on, except for the counts in `_keyed`
_ORDERS = ("schedule.kind", "schedule.chunks", "schedule.microbatches", "gradients.bucket", "gradients.overlap")


@dataclass(frozen=True)
class Finding:
    """The result of one step for a plan.

    Attributes:
        reason: why the plan is ruled out; empty if it is not.
        misfit: whether it is ruled out because of its memory.
        least: a lower bound on its cost, or its cost once it is simulated.
        held: bytes held by its fullest GPU; a lower bound before it is weighed.
        excess: bytes beyond the usable memory; negative if it fits.
        twin: a hash that equivalent plans share.
        row: the summary.
    """

    reason: str = ""
    misfit: bool = False
    least: float = 0.0
    held: int = 0
    excess: int = 0
    twin: str = ""
    row: Row = field(default_factory=dict)


def screen(settings: Settings, cases: Sequence[Case]) -> list[Finding]:
    """The first findings about some plans."""
    _import(settings)
    return [_safely(_screen, settings, case) for case in cases]


def price(settings: Settings, case: Case) -> Finding:
    """A bound on the time of a plan, with the collectives of its layers."""
    _import(settings)
    return _safely(_price, settings, case)


def weigh(settings: Settings, case: Case) -> Finding:
    """The memory of a plan and a bound on its time."""
    _import(settings)
    return _safely(_weigh, settings, case)


def simulate(settings: Settings, case: Case) -> Finding:
    """The summary of a plan."""
    _import(settings)
    return _safely(_simulate, settings, case)


def scenario_in(settings: Settings, case: Case) -> Scenario:
    """The scenario of a plan.

    Raises:
        ScenarioError: it is not a valid one.
    """
    return scenario_of(with_case(settings.document, case, "search"))


def _import(settings: Settings) -> None:
    for path in settings.imports:
        import_file(path)


def _safely(step: Any, settings: Settings, case: Case) -> Finding:
    try:
        with few_collections():  # orders are made of many small objects, none of which form cycles
            found: Finding = step(settings, case)
        return found
    except HybridDesError as error:
        return Finding(reason=str(error).splitlines()[0])
    except MemoryError:
        raise
    except Exception as error:  # a bug in one plan must not affect the others
        return Finding(reason=f"{type(error).__name__}: {error}")


def _screen(settings: Settings, case: Case) -> Finding:
    scenario = scenario_in(settings, case)
    check_stages(scenario)
    if scenario.model is None or scenario.parallel.stages == "balanced":  # stages depend on collectives
        return _price(settings, case)
    bound = first_bound(scenario, _without_collectives(_keyed(settings, case, scenario)))
    return _finding(settings, scenario, bound.time, bound.held, "at least ")


def _price(settings: Settings, case: Case) -> Finding:
    scenario = scenario_in(settings, case)
    _, ranks = _shared(settings, case, scenario)
    bound = first_bound(scenario, ranks)
    return _finding(settings, scenario, bound.time, bound.held, "at least ")


def _weigh(settings: Settings, case: Case) -> Finding:
    scenario = scenario_in(settings, case)
    fabric, ranks = _shared(settings, case, scenario)
    plan = build_plan(scenario, ranks, fabric)
    found = _finding(settings, scenario, 0, planned_peaks(plan, costs_of(ranks, plan)), "")
    if found.reason:
        return found
    parts = parts_of(scenario, plan, fabric, ranks=ranks)
    cost = settings.objective.cost(scenario, to_seconds(least_step(scenario, parts)))
    return Finding(least=cost, held=found.held, excess=found.excess, twin=twin_of(scenario, parts))


def _simulate(settings: Settings, case: Case) -> Finding:
    scenario = scenario_in(settings, case)
    fabric, _ = _shared(settings, case, scenario)
    # a row needs no messages, memory is checked here, and failures over weeks are not part of a step
    changed = {"record": "compute", "on_oom": "warn", "faults": None}
    row = dict(summary(run(scenario.model_copy(update=changed), fabric=fabric)))
    found = _finding(settings, scenario, 0, row["peak_memory_bytes"], "")
    row["out_of_memory"] = found.misfit
    seconds = row["step_time_s"]
    if settings.objective.weeks and not found.reason:
        seconds = _of_weeks(scenario, row)
        if not seconds:
            return Finding(reason="no step is kept: failures undo all work")
    cost = settings.objective.cost(scenario, seconds)
    return Finding(found.reason, found.misfit, cost, found.held, found.excess, row=row)


def _of_weeks(scenario: Scenario, row: Row) -> float:
    """Seconds of wall time per useful step, 0 if there is none; adds the summary of the weeks to the row.

    A useful step takes at least the time of a step with all replicas at full speed, so a bound on a step bounds it too.
    """
    steps = Steps(scenario)
    row |= goodput_columns(steps)
    return to_seconds(steps.healthy.useful) / row["goodput"] if row["goodput"] else 0.0


def _finding(settings: Settings, scenario: Scenario, time: int, held: Sequence[int], least: str) -> Finding:
    """A bound, and whether the memory of each pipeline rank suffices."""
    cost = settings.objective.cost(scenario, to_seconds(time))
    if not held:
        return Finding(least=cost)
    tightest = _allowed(settings, scenario)
    place = max(range(len(tightest)), key=lambda one: held[one] - tightest[one])
    excess = held[place] - tightest[place]
    reason = ""
    if excess > 0:
        reason = f"pipeline rank {place} holds {least}{format_bytes(held[place])}; {format_bytes(tightest[place])} fit"
    return Finding(reason, excess > 0, cost, max(held), excess)


def _allowed(settings: Settings, scenario: Scenario) -> Sequence[int]:
    """Bytes that a plan may use on the smallest GPU of each pipeline rank."""
    layout, kinds = scenario.parallel.layout, [kind.gpu for kind in scenario.cluster.kinds]
    if len({kind.memory for kind in kinds}) == 1:
        return [settings.allowed(kinds[0])] * scenario.parallel.pipeline
    allowed = {kind.memory: settings.allowed(kind) for kind in kinds}
    tightest = [max(allowed.values())] * scenario.parallel.pipeline
    ranks = zip(layout.along("pipeline").tolist(), scenario.cluster.gpus_of(range(layout.ranks)), strict=True)
    for place, kind in ranks:
        tightest[place] = min(tightest[place], allowed[kind.memory])
    return tightest


@dataclass(frozen=True)
class _Shared:
    """A scenario, identified by everything its wiring or costs depend on: plans with equal keys share them."""

    key: tuple[str, ...]
    scenario: Scenario = field(compare=False)


def shared_values(case: Case) -> list[str]:
    """The values of a plan that its costs or wiring depend on, as text."""
    return [f"{path}={value!r}" for path, value in sorted(case.items()) if path not in _ORDERS]


def _shared(settings: Settings, case: Case, scenario: Scenario) -> tuple[Fabric, RankCosts]:
    """The wiring and the costs of a plan."""
    wiring = (value for value in shared_values(case) if value.startswith(_WIRING))
    fabric = _fabric(_Shared((settings.digest, *wiring), scenario))
    return fabric, _ranks(_keyed(settings, case, scenario), _Same(fabric))


def _keyed(settings: Settings, case: Case, scenario: Scenario) -> _Shared:
    schedule = scenario.schedule
    counts = (schedule.chunks == 1, schedule.microbatches > 1, scenario.parallel.pipeline)
    return _Shared((settings.digest, *shared_values(case), repr(counts)), scenario)


@dataclass(frozen=True)
class _Same:
    """A wiring, not compared, since the key next to it identifies it."""

    fabric: Fabric = field(compare=False)


@lru_cache(maxsize=8)
def _fabric(shared: _Shared) -> Fabric:
    return fabric_of(shared.scenario)


@lru_cache(maxsize=32)
def _without_collectives(shared: _Shared) -> RankCosts:
    return model_costs(shared.scenario, None)


@lru_cache(maxsize=32)
def _ranks(shared: _Shared, same: _Same) -> RankCosts:
    return costs_per_rank(shared.scenario, times_of(shared.scenario, same.fabric))
