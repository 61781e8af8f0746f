"""What kernels of mixers and of residual streams ask of parallelism and of the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.errors import unknown
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.scenario.sections.efficiency import SCANS, STREAMS
from hybrid_des.workload.models.layer import Model
from hybrid_des.workload.models.operations import Elementwise, Scan, SelectiveAttention

if TYPE_CHECKING:
    from hybrid_des.scenario.sections.efficiency import Efficiency
    from hybrid_des.scenario.sections.training import Parallel


def rates_of(network: Model) -> set[str | Fraction]:
    """The rates of kernels of a model that have one of their own: scans, and passes over residual streams."""
    every = {one for layer in set(network.unnamed) for one in layer.operations}
    return {one.rate for one in every if isinstance(one, Scan | Elementwise)} - {""}


def share_of(rate: str | Fraction, efficiency: Efficiency, gpu: str) -> float | None:
    """The share of the 16-bit peak, or of the bandwidth, that a kernel reaches; None if that is not known."""
    if not isinstance(rate, str):
        return float(rate)
    given = getattr(efficiency, rate)
    known = catalogue.part(gpu).scans if gpu in catalogue.names() else {}
    return known.get(rate) if given is None else float(given)


def misfits_of_scans(network: Model, parallel: Parallel, efficiency: Efficiency | None, gpu: str) -> Iterator[Problem]:
    """Ranks that cannot share the scans of a model, and rates of theirs that are not known on a GPU."""
    operations = {one for layer in set(network.unnamed) for one in layer.operations}
    scans = [one for one in operations if isinstance(one, Scan)]
    for rate in sorted(rate for rate in rates_of(network) if isinstance(rate, str)):
        if rate not in (*SCANS, *STREAMS):
            yield misfit(f"a scan has {unknown(rate, SCANS, 'rate')}, or a share of the peak", "model")
        elif efficiency is not None and share_of(rate, efficiency, gpu) is None:
            message = "is required: what its kernel reaches on this GPU is not known; expected a share"
            yield misfit(message, f"efficiency.{rate}", "cluster.gpu", "model")
    if scans and parallel.tensor > 1 and not parallel.sequence:
        name = min(one.name for one in scans)
        message = f"{name} over tensor ranks needs sequence parallelism, as in Megatron-LM; expected true"
        yield misfit(message, "parallel.sequence", "parallel.tensor", "model")
    if parallel.context == 1 or parallel.context_method == "per-document":
        return
    selective = any(isinstance(one, SelectiveAttention) for one in operations)
    if selective and parallel.context_method != "all-gather":
        message = f"{parallel.context_method}: ranks gather selected or compressed keys; expected all-gather"
        yield misfit(message, "parallel.context_method", "model")
    if not scans or selective:
        return
    if parallel.context_method != "all-to-all":
        message = f"{parallel.context_method}: the scan of a sample needs all of its tokens; expected all-to-all"
        yield misfit(message, "parallel.context_method", "model")
    for heads in sorted({one.heads for one in scans}):
        if heads % (parallel.tensor * parallel.context):
            message = f"{heads} heads of a scan cannot be divided over {parallel.tensor} × {parallel.context} ranks"
            yield misfit(message, "parallel.context", "parallel.tensor", "model")
