"""Remedies for out of memory: peaks of changed scenarios, from their plans alone, without simulation.

    recompute: selective, full ─► sharding: the next ones ─► half the micro-batch, twice as many of them

A rank allocates and releases activations in the order of its program, so its peak does not depend on times.
"""

from collections.abc import Iterator
from typing import NamedTuple

from hybrid_des.errors import HybridDesError
from hybrid_des.network.fabric import Fabric
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.lowering import Lowering
from hybrid_des.planning.pace import Pace
from hybrid_des.planning.planner import build_plan
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.memory import MemoryPeak, worst_peak
from hybrid_des.units import format_bytes
from hybrid_des.workload.costs import Costs
from hybrid_des.workload.modelled import model_costs
from hybrid_des.workload.stages import costs_of

RECOMPUTE = ("none", "selective", "full")
SHARDING = ("none", "zero-1", "zero-2", "zero-3")


class Remedy(NamedTuple):
    """A change of a scenario, and the GPU that is then closest to its memory."""

    change: str
    peak: MemoryPeak


def planned_peaks(plan: Plan, costs: Costs) -> list[int]:
    """Peak bytes of each pipeline rank."""
    lowering = Lowering(plan, costs, {}, overlap=False, blocking=False)
    peaks = []
    for rank in range(plan.pipeline):
        now = most = costs.resident[rank]
        for call in lowering.lower(rank, Pace()).ops.values():
            holds, frees = call.block.held
            now += holds
            most = max(most, now)
            now -= frees
        peaks.append(most)
    return peaks


def remedies(scenario: Scenario, plan: Plan, fabric: Fabric) -> Iterator[Remedy]:
    """The changes to a scenario with a model that might make it fit, each with its peak."""
    layout = scenario.parallel.layout
    everyone = range(layout.ranks)
    gpus = scenario.cluster.gpus_of(everyone)
    for change, variant in _variants(scenario):
        try:
            ranks = model_costs(variant, fabric if scenario.parallel.stages == "balanced" else None)
            same = variant.schedule is scenario.schedule
            planned = plan if same else build_plan(variant, ranks, fabric)
            held = planned_peaks(planned, costs_of(ranks, planned))
        except HybridDesError:
            continue  # the schedule does not support this many micro-batches
        yield Remedy(change, worst_peak(everyone, [held[place] for place in layout.along("pipeline").tolist()], gpus))


def _variants(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    for level in RECOMPUTE[RECOMPUTE.index(scenario.recompute) + 1 :]:
        yield f"recompute: {level}", scenario.model_copy(update={"recompute": level})
    if scenario.parallel.data * scenario.parallel.context > 1:
        for level in SHARDING[SHARDING.index(scenario.sharding) + 1 :]:
            yield f"sharding: {level}", scenario.model_copy(update={"sharding": level})
    size, count = scenario.schedule.microbatch_size, scenario.schedule.microbatches
    if size % 2 == 0 and scenario.schedule.file is None:
        sizes = {"microbatch_size": size // 2, "microbatches": 2 * count}
        schedule = scenario.schedule.model_copy(update=sizes)
        yield f"schedule.microbatch_size: {size // 2}", scenario.model_copy(update={"schedule": schedule})


def what_would_fit(scenario: Scenario, plan: Plan, fabric: Fabric | None) -> str:
    """The first change that fits, with its peak, or a note that none does; empty if there is none to try."""
    if scenario.model is None or fabric is None:
        return ""
    tried = []
    for remedy in remedies(scenario, plan, fabric):
        if remedy.peak.fits:
            return f"{remedy.change}, with {format_bytes(remedy.peak.held)}"
        tried.append(remedy)
    if not tried:
        return ""
    best = min(tried, key=lambda remedy: remedy.peak.held - remedy.peak.gpu.memory)
    return f"no single change; the best is {best.change}, with {format_bytes(best.peak.held)}"
