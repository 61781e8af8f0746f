"""Remedies for out of memory: peaks of changed scenarios, from their plans alone, without simulation.

    recompute: selective, full ─► sharding: the next ones ─► one group of all ranks ─► half the micro-batch

A rank allocates and releases activations in the order of its program, so its peak does not depend on times. Every
change is loaded as a scenario of its own, as it is when a user follows the advice; one that is refused is not
advised.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.modelled import model_costs
from hybrid_des.errors import HybridDesError, ScenarioError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.lowering import planned_peaks
from hybrid_des.planning.planner import build_plan, costs_in, parts_of, plan_of
from hybrid_des.planning.wiring import times_of
from hybrid_des.scenario.composition import OMITTED, put
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.keys import SHARDING
from hybrid_des.scenario.loading import scenario_from, scenario_of
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.simulation.memory import MemoryPeak, worst_peak
from hybrid_des.simulation.outcome import Run, fullest
from hybrid_des.units import format_bytes

RECOMPUTE = ("none", "selective", "full")


LAYERED = SHARDING[2:]  # without a pipeline, gradients are scattered layer by layer instead of in buckets


class Remedy(NamedTuple):
    """A change of a scenario, the scenario with it, and the GPU that is then closest to its memory."""

    changes: Mapping[str, Any]
    scenario: Scenario
    peak: MemoryPeak

    @property
    def change(self) -> str:
        """The keys that change, with their new values."""
        return ", ".join(f"{path}: {value}" for path, value in self.changes.items())


def fits(run: Run) -> bool:
    """Whether no GPU of a run exceeds its memory."""
    return fullest(run).fits


def remedies(scenario: Scenario, plan: Plan, fabric: Fabric) -> Iterator[Remedy]:
    """The changes to a scenario with a model that might make it fit and are accepted, each with its peak."""
    for changes in _changes(scenario):
        try:
            variant = _changed(scenario, changes)
            peak = _peak_of(variant, plan if variant.schedule == scenario.schedule else None, fabric)
        except HybridDesError:
            continue  # such as a schedule that does not support this many micro-batches
        yield Remedy(changes, variant, peak)


def _peak_of(scenario: Scenario, plan: Plan | None, fabric: Fabric) -> MemoryPeak:
    """The peak of a scenario with a model, by its plan or a given one."""
    times = times_of(scenario, fabric) if scenario.parallel.stages == "balanced" else None
    ranks = model_costs(CostBasis.of(scenario), times)
    plan = plan or build_plan(scenario.schedule, scenario.parallel.layout, ranks, fabric)
    return _worst(scenario, planned_peaks(plan, costs_in(ranks, plan)))


def _worst(scenario: Scenario, held: Sequence[int]) -> MemoryPeak:
    """The GPU closest to its memory, given the peak of each pipeline rank."""
    layout = scenario.parallel.layout
    everyone = range(layout.ranks)
    of_ranks = [held[place] for place in layout.along("pipeline").tolist()]
    return worst_peak(everyone, of_ranks, scenario.cluster.gpus_of(everyone))


def _changes(scenario: Scenario) -> Iterator[dict[str, Any]]:
    by_module = isinstance(scenario.recompute, tuple)
    for level in RECOMPUTE[-1:] if by_module else RECOMPUTE[RECOMPUTE.index(scenario.recompute) + 1 :]:
        yield {"recompute": level}
    if scenario.parallel.data // scenario.outer_groups * scenario.parallel.context > 1:
        for level in SHARDING[SHARDING.index(scenario.sharding) + 1 :]:
            fsdp = level in LAYERED and scenario.parallel.pipeline == 1
            whole = {"gradients.bucket": "none"} if fsdp and scenario.gradients.bucket is not None else {}
            yield {"sharding": level, **whole}
    if scenario.shards.ranks is not None:
        yield {"shards.ranks": scenario.parallel.data * scenario.parallel.context}
    size, count = scenario.schedule.microbatch_size, scenario.schedule.microbatches
    if size % 2 == 0 and scenario.schedule.file is None:
        yield {"schedule.microbatch_size": size // 2, "schedule.microbatches": 2 * count}


def _changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """A scenario with some changes, as if its file stated them.

    Raises:
        ScenarioError: it is not valid.
    """
    values = to_mapping(scenario)
    if "parameters" not in scenario.overlap.model_fields_set:
        put(values, ("overlap", "parameters"), OMITTED, scenario.name)  # its default depends on `sharding`
    chosen = copy.deepcopy(values)
    put(chosen, ("gradients", "algorithm"), OMITTED, scenario.name)  # its default depends on `sharding` too
    with suppress(ScenarioError):
        values = chosen if scenario_from(chosen) == scenario else values
    for path, value in changes.items():
        put(values, path.split("."), value, path)
    return scenario_of(Document(values, scenario.name))


def what_would_fit(scenario: Scenario, plan: Plan, fabric: Fabric | None) -> str:
    """The first change that fits, with its peak, or a note that none does; empty if there is none to try."""
    if scenario.model is None or fabric is None:
        return ""
    given = None if plan == plan_of(scenario, fabric) else plan
    tried: list[Remedy] = []
    for remedy in sorted(remedies(scenario, plan, fabric), key=lambda remedy: max(0, remedy.peak.excess)):
        if remedy.peak.fits or not tried or remedy.peak.excess < min(one.peak.excess for one in tried):
            tried += _planned(remedy, given if remedy.scenario.schedule == scenario.schedule else None, fabric)
        if tried and tried[-1].peak.fits:
            return f"{tried[-1].change}, with {format_bytes(tried[-1].peak.held)}"
    if not tried:
        return ""
    best = min(tried, key=lambda remedy: remedy.peak.excess)
    if best.peak.excess >= _peak_of(scenario, plan, fabric).excess:
        return "no single change; of those tried, none needs less memory"
    return f"no single change; the best is {best.change}, with {format_bytes(best.peak.held)}"


def _planned(remedy: Remedy, plan: Plan | None, fabric: Fabric) -> Iterator[Remedy]:
    """A remedy with the peak of the plan that a run has, which may depend on all times; none if it is refused."""
    with suppress(HybridDesError):
        parts = parts_of(remedy.scenario, plan, fabric)
        held = planned_peaks(parts.plan, parts.costs)
        yield remedy._replace(peak=_worst(remedy.scenario, held))
