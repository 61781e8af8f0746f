"""Requirements of sharding and recomputation on the other sections of a scenario."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid_des import collectives
from hybrid_des.scenario.recipe import Overlap
from hybrid_des.scenario.sections import Gradients, Parallel, Workload

LEAST = 14  # bytes per parameter: a 16-bit weight, and 12 of the optimizer's state

Misfit = tuple[str, ...]  # a message, and the paths that do not fit together


def misfits_of_sharding(
    sharding: str, overlap: Overlap, gradients: Gradients, workload: Workload | None
) -> Iterator[Misfit]:
    """Values that contradict `sharding`."""
    if sharding == "none":
        if overlap.parameters:
            yield "is read where parameters are sharded only", "overlap.parameters", "sharding"
        return
    within = sharding != "zero-1"
    able = ["ring"] if within else [*collectives.all_reduces(halves=True), collectives.AUTO]
    if gradients.algorithm not in able:
        what = "the collectives of single layers run around rings" if within else "gradients are reduce-scattered"
        yield f"with {sharding}, {what}; expected {' or '.join(able)}", "gradients.algorithm", "sharding"
    if sharding == "zero-3" and gradients.overlap and not overlap.parameters:
        yield "is what `overlap.parameters` says where weights are sharded", "gradients.overlap", "overlap.parameters"
    if workload is not None:
        held = workload.memory.per_parameter
        if any(size < LEAST for size in (held if isinstance(held, tuple) else (held,))):
            message = f"{sharding} divides weights and the state of the optimizer; expected at least {LEAST} bytes"
            yield message, "workload.memory.per_parameter", "sharding"


def divided(parallel: Parallel, sharding: str) -> dict[str, str]:
    """Options that would divide the small trained model, which cannot be divided, with the values to expect."""
    axes = [axis for axis in ("tensor", "context", "expert") if getattr(parallel, axis) > 1]
    return {f"parallel.{axis}": "1" for axis in axes} | ({"sharding": "none"} if sharding != "none" else {})


def misfits_of_recompute(recompute: str, workload: Workload | None) -> Iterator[Misfit]:
    """Values that contradict `recompute`; without a model there are only whole forwards to repeat."""
    if workload is None or recompute == "none":
        return
    if recompute == "selective":
        yield "selective: repeats the attention core of a `model`; expected none or full", "recompute", "workload"
    elif workload.recompute != 0:
        yield "full: repeats all of `forward`; give only one of the two", "recompute", "workload.recompute"
