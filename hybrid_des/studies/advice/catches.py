"""What a plan costs beside time: catches, which put it below plans without, and remarks, which do not."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.neighbours.framework import Framework, lacking
from hybrid_des.units import format_bytes

TIGHT = 0.92  # share of the memory above which a plan may not fit for what is not modelled, such as fragmentation


def catches(
    before: Scenario, after: Scenario, framework: Framework | None, held: int, memory: int, now: int
) -> tuple[str, ...]:
    """Why one may not want a plan that is quicker.

    Args:
        before: the scenario as it is.
        after: the plan.
        framework: what starts both.
        held: bytes of the GPU closest to its memory.
        memory: bytes that it has.
        now: bytes held in the scenario as it is.
    """
    reasons = [*_of_settings(before, after)]
    if TIGHT * memory < held <= memory and (held > now or now > memory):
        reasons.insert(0, f"tight: {format_bytes(memory - held)} left")
    if framework is not None:
        launch, name = framework.launch(after), framework.name
        reasons += [
            f"refused by {name} ({line})" if line in launch.refused else f"no {name} flag ({line})"
            for line in lacking(framework.launch(before), launch)
        ]
    return tuple(reasons)


def _of_settings(before: Scenario, after: Scenario) -> Iterator[str]:
    if before.gradients.codec != after.gradients.codec:
        yield "changes rounding"
    if after.offload != before.offload:
        yield "needs host memory"
    if after.cuda_graphs != before.cuda_graphs:
        yield "graphs need fixed shapes, and memory that is not modelled"


def remarks(before: Scenario, after: Scenario) -> tuple[str, ...]:
    """What a plan costs otherwise."""
    axes = ("tensor", "pipeline", "expert", "of_expert")
    cut = any(getattr(before.parallel, axis) != getattr(after.parallel, axis) for axis in axes)
    moved = after.parallel.pipeline > 1 and before.schedule.chunks != after.schedule.chunks
    return ("checkpoints change their layout",) if cut or moved else ()
