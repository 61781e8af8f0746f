"""Evaluation of one plan in four steps of increasing cost and accuracy, and the log of all evaluations.

    screen     is it a valid scenario?  a first bound on time and memory from its costs, those of collectives left out
    price      its peak memory, from the order of its ops; the bound on time with the collectives of its layers
    weigh      a lower bound on the time of its order of ops, a hash shared by equivalent plans
    simulate   the summary

Of a loop (`rl`), screening also asks whether engines hold the model and a sample, its bound is that of `rl.bounds`, and
simulation is that of the loop.

Any step may rule the plan out, with an error of the scenario's validation or of its parts as the reason. Steps run in
any process; costs and wirings that plans share are computed once per process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from hybrid_des.analysis.metrics import summary
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.cheapest_times import Inside, inside_ops
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.modelled import model_costs
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.cost_model.rank_costs import RankCosts
from hybrid_des.errors import HybridDesError, NoRoomError
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.planning.lowering import planned_peaks
from hybrid_des.planning.planner import build_plan, costs_in, parts_of
from hybrid_des.planning.wiring import times_on, wired
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.scenario.sections.cluster import Cluster
from hybrid_des.scenario.sections.training import Parallel
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.run import reduced_gc
from hybrid_des.studies.goodput.states import Steps
from hybrid_des.studies.goodput.summary import goodput_columns
from hybrid_des.studies.plan_search.bound import bound_of, walks_of
from hybrid_des.studies.plan_search.equivalence import fingerprint
from hybrid_des.studies.plan_search.least_times import FirstBound, check_stages, first_bound
from hybrid_des.studies.plan_search.splits import is_measured
from hybrid_des.studies.plan_search.terms import Settings
from hybrid_des.studies.rl.bounds import sides_of
from hybrid_des.studies.rl.figures import figures_of
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.sweep.axes import Case
from hybrid_des.studies.sweep.rows import Row
from hybrid_des.studies.sweep.runner import with_case
from hybrid_des.units import format_bytes, to_seconds

MOST_VALIDATED = 2048  # scenarios of 20 kB


@dataclass(frozen=True)
class Evaluation:
    """The result of one step for a plan.

    Attributes:
        reason: why the plan is ruled out; empty if it is not.
        misfit: whether it is ruled out because of its memory.
        least: a lower bound on its cost, or its cost once it is simulated.
        held: bytes held by its fullest GPU; a lower bound before its order is known.
        excess: bytes beyond the usable memory of the GPU that is closest to it; negative if it fits.
        allowed: the usable memory of that GPU.
        fingerprint: a hash that equivalent plans share.
        against: of an objective that has it, a lower bound on what it is weighed against, or this once simulated.
        row: the summary.
    """

    reason: str = ""
    misfit: bool = False
    least: float = 0.0
    held: int = 0
    excess: int = 0
    allowed: int = 0
    fingerprint: str = ""
    against: float = 0.0
    row: Row = field(default_factory=dict)


class Validated:
    """The scenarios of plans that passed their last step in this process, so that no step validates one again."""

    def __init__(self) -> None:
        self._scenarios: dict[tuple[str, str], Scenario] = {}

    def take(self, settings: Settings, case: Case) -> Scenario:
        """The scenario of a plan, which is not kept any longer.

        Raises:
            ScenarioError: it is not a valid one.
        """
        known = self._scenarios.pop((settings.digest, repr(case)), None)
        return scenario_in(settings, case) if known is None else known

    def keep(self, settings: Settings, case: Case, scenario: Scenario) -> None:
        """Keep the scenario of a plan that has steps left; the first of too many goes."""
        self._scenarios[settings.digest, repr(case)] = scenario
        if len(self._scenarios) > MOST_VALIDATED:
            del self._scenarios[next(iter(self._scenarios))]


_VALIDATED = Validated()


def evaluate(settings: Settings, step: str, case: Case) -> Evaluation:
    """The result of one of `STEPS` for a plan."""
    try:
        with reduced_gc():  # orders are made of many small objects, none of which form cycles
            scenario = _VALIDATED.take(settings, case)
            evaluation = STEPS[step](settings, scenario)
            if not evaluation.reason and step != LAST:
                _VALIDATED.keep(settings, case, scenario)
            return evaluation
    except HybridDesError as error:
        return Evaluation(reason=str(error).splitlines()[0])
    except MemoryError:
        raise
    except Exception as error:  # a bug in one plan must not affect the others
        return Evaluation(reason=f"{type(error).__name__}: {error}")


def scenario_in(settings: Settings, case: Case) -> Scenario:
    """The scenario of a plan.

    Raises:
        ScenarioError: it is not a valid one.
    """
    return scenario_of(with_case(settings.document, case, "search"), settings.known)


def _screen(settings: Settings, scenario: Scenario) -> Evaluation:
    if scenario.rl is not None and (refused := _without_engines(scenario)):
        return refused
    if is_measured(scenario):
        return _bounded(settings, scenario, ())
    check_stages(scenario)
    if scenario.model is None or scenario.parallel.stages == "balanced":  # stages depend on collectives
        return _bound_costs(settings, scenario)
    return _bounded_first(settings, scenario, first_bound(scenario, _without_collectives(CostBasis.of(scenario))))


def _bound_costs(settings: Settings, scenario: Scenario) -> Evaluation:
    return _bounded_first(settings, scenario, first_bound(scenario, _shared(scenario)[1], _inside(*_wiring(scenario))))


def _bounded_first(settings: Settings, scenario: Scenario, bound: FirstBound) -> Evaluation:
    bounded = _bounded(settings, scenario, bound.held, "at least ")
    return bounded if bounded.reason else _costing(settings, scenario, to_seconds(bound.time), bounded)


def _price(settings: Settings, scenario: Scenario) -> Evaluation:
    if is_measured(scenario):
        return _bounded(settings, scenario, ())
    bounded = _bound_costs(settings, scenario)
    if bounded.reason:
        return bounded
    ordered = _bound_memory(settings, scenario, *_ordered(scenario))
    return replace(ordered, least=bounded.least, against=bounded.against)


def _bound_memory(settings: Settings, scenario: Scenario, ranks: RankCosts, plan: Plan) -> Evaluation:
    return _bounded(settings, scenario, planned_peaks(plan, costs_in(ranks, plan)))


def _bound_order(settings: Settings, scenario: Scenario) -> Evaluation:
    if scenario.rl is not None:  # whose steps differ in their documents
        return replace(_price(settings, scenario), fingerprint=repr(scenario))
    (times, ranks), plan = _shared(scenario), _ordered(scenario)[1]
    bounded = _bound_memory(settings, scenario, ranks, plan)
    parts = parts_of(scenario, plan, times.fabric, ranks=ranks, times=times)
    walks = walks_of(scenario, parts)
    shared = fingerprint(scenario, parts, walks[0].programs)
    if settings.objective.against is not None:  # the same run may cost more elsewhere
        shared = f"{shared} {scenario.price!r} {scenario.train!r}"
    return _costing(settings, scenario, to_seconds(bound_of(scenario, walks)), replace(bounded, fingerprint=shared))


def _simulate(settings: Settings, scenario: Scenario) -> Evaluation:
    if scenario.rl is not None:
        return _simulated_loop(scenario, _price(settings, scenario))
    times, ranks = _shared(scenario)
    # a row needs no messages, memory is checked here, and failures over weeks are not part of a step
    quiet = scenario.model_copy(update={"record": "compute", "on_oom": "warn", "faults": None})
    known = None
    if scenario.gradients.every == 1 and scenario.numerics is None:  # else a run makes parts of its own
        known = parts_of(quiet, fabric=times.fabric, ranks=ranks, times=times)
    row = dict(summary(run(quiet, fabric=times.fabric, parts=known)))
    bounded = _bounded(settings, scenario, row["peak_memory_bytes"])
    row["out_of_memory"] = bounded.misfit
    seconds = row["outer"]["mean_step_s"] if "outer" in row else row["step_time_s"]
    if settings.objective.weeks and scenario.faults is not None and not bounded.reason:
        steps = Steps(scenario)
        row |= goodput_columns(steps)
        if not row["goodput"]:
            return Evaluation(reason="no step is kept: failures undo all work")
        # at least that of a step with all replicas at full speed, so that a bound on a step bounds it too
        seconds = to_seconds(steps.healthy.useful) / row["goodput"]
    return _costing(settings, scenario, seconds, replace(bounded, row=row))


def _without_engines(scenario: Scenario) -> Evaluation | None:
    """What rules out a loop whose engines have no room for the model and a sample; None if they have."""
    try:
        sides_of(scenario)
    except NoRoomError as refusal:
        memory = max(kind.gpu.memory for kind in scenario.cluster.kinds)
        return Evaluation(reason=str(refusal), misfit=True, excess=memory, allowed=memory)
    return None


def _simulated_loop(scenario: Scenario, bounded: Evaluation) -> Evaluation:
    """A loop that has been simulated: its cycle and mean age, the cost and what it is weighed against."""
    if bounded.reason:
        return bounded
    figures = figures_of(scenario, run_loop(scenario))
    row = {
        "cycle_s": figures.cycle,
        "samples_per_s": figures.samples_per_s,
        "tokens_per_gpu_s": figures.tokens_per_gpu_s,
        "mean_age": figures.ages.mean,
        "p95_age": figures.ages.p95,
        "trainer_gpus": figures.record.trainer_gpus,
        "rollout_gpus": figures.rollout_gpus,
        "trainer_wait_s": figures.wait,
        "trainer_busy_ratio": figures.trainer_busy,
        "rollout_busy_ratio": figures.rollout_busy,
    }
    return replace(bounded, least=figures.cycle, against=figures.ages.mean, row=row)


STEPS: Mapping[str, Callable[[Settings, Scenario], Evaluation]] = {
    "screen": _screen,
    "price": _price,
    "weigh": _bound_order,
    "simulate": _simulate,
}
LAST = list(STEPS)[-1]


def _bounded(settings: Settings, scenario: Scenario, held: Sequence[int], least: str = "") -> Evaluation:
    """Whether the memory of each pipeline rank suffices, and the cost of a step that takes no time."""
    if not held:
        return _costing(settings, scenario, 0, Evaluation())
    tightest = _allowed(settings, scenario)
    worst = max(range(len(tightest)), key=lambda rank: held[rank] - tightest[rank])
    excess = held[worst] - tightest[worst]
    reason, fits = "", excess <= 0
    if not fits and not settings.bounding:
        reason = f"pipeline rank {worst} holds {least}{format_bytes(held[worst])}; {format_bytes(tightest[worst])} fit"
    evaluation = Evaluation(reason=reason, misfit=not fits, held=max(held), excess=excess, allowed=tightest[worst])
    return _costing(settings, scenario, 0, evaluation)


def _costing(settings: Settings, scenario: Scenario, seconds: float, evaluation: Evaluation) -> Evaluation:
    """An evaluation with the cost of a step that takes so many seconds, and what it is weighed against."""
    objective = settings.objective
    against = 0.0 if objective.against is None else objective.against.least(scenario, seconds)
    engines = () if scenario.rl is None else scenario.rl.rollout
    shares = (int(kind.gpu.memory * engine.memory) for kind in scenario.cluster.kinds for engine in engines)
    held = max([evaluation.held, *shares])
    return replace(evaluation, least=objective.cost(scenario, seconds), against=against, held=held)


def _allowed(settings: Settings, scenario: Scenario) -> Sequence[int]:
    """Bytes that a plan may use on the smallest GPU of each pipeline rank."""
    layout, kinds = scenario.parallel.layout, [kind.gpu for kind in scenario.cluster.kinds]
    if len({kind.memory for kind in kinds}) == 1:
        return [settings.allowed(kinds[0])] * scenario.parallel.pipeline
    allowed = {kind.memory: settings.allowed(kind) for kind in kinds}
    tightest = [max(allowed.values())] * scenario.parallel.pipeline
    ranks = zip(layout.along("pipeline").tolist(), scenario.cluster.gpus_of(range(layout.ranks)), strict=True)
    for rank, kind in ranks:
        tightest[rank] = min(tightest[rank], allowed[kind.memory])
    return tightest


def _shared(scenario: Scenario) -> tuple[CollectiveTimes, RankCosts]:
    """The wiring with its times, and the costs of a plan, which it shares with plans that have the same sections."""
    wiring = _wiring(scenario)
    return _times(*wiring), _ranks(CostBasis.of(scenario), *wiring)


def _wiring(scenario: Scenario) -> tuple[Any, ...]:
    """The sections that determine the wiring of a plan and the groups of its ranks."""
    return scenario.fold != "off", scenario.parallel, scenario.cluster, scenario.link_shares, scenario.slow


def _ordered(scenario: Scenario) -> tuple[RankCosts, Plan]:
    """The costs of a plan and the order of its ops."""
    times, ranks = _shared(scenario)
    return ranks, build_plan(scenario.schedule, scenario.parallel.layout, ranks, times.fabric, _planned)


def _planned(kind: str, request: PlanRequest, arguments: tuple[Any, ...]) -> Plan:
    """The plan of a schedule, which plans share whose gradients or optimizer alone differ."""
    return _made(schedules.find(kind).build, kind, request, arguments)


@lru_cache(maxsize=1)  # of up to a million ops
def _made(build: object, kind: str, request: PlanRequest, arguments: tuple[Any, ...]) -> Plan:
    return schedules.planned(kind, request, arguments)  # `build` tells a schedule from one of the same name before it


_fabric = lru_cache(maxsize=8)(wired)


@lru_cache(maxsize=32)
def _times(folded: bool, parallel: Parallel, cluster: Cluster, *rest: Any) -> CollectiveTimes:
    return times_on(_fabric(cluster, *rest), cluster.alone, parallel, folded=folded)


@lru_cache(maxsize=32)
def _ranks(basis: CostBasis, *wiring: Any) -> RankCosts:
    return costs_per_rank(basis, _times(*wiring))


@lru_cache(maxsize=32)
def _inside(folded: bool, parallel: Parallel, cluster: Cluster, *rest: Any) -> Inside:
    return inside_ops(_fabric(cluster, *rest), cluster.sharing, parallel.layout.shared)


@lru_cache(maxsize=32)
def _without_collectives(basis: CostBasis) -> RankCosts:
    return model_costs(basis, None)


def neighbours(case: Case) -> list[str]:
    """The values of a plan that its costs depend on, as text: plans that agree on them share costs."""
    read = {
        *CostBasis._fields,
        *(f"schedule.{name}" for name in CostBasis._fields),
        "gradients.codec",
        "gradients.every",
    }
    return [f"{path}={value!r}" for path, value in sorted(case.items()) if {path, path.partition(".")[0]} & read]
