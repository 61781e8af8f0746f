"""Consistency checks of the costs of `workload`: lists per rank, and a weight gradient within the backward."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from operator import attrgetter

from hybrid_des.scenario.sections import Workload
from hybrid_des.scenario.sharded import Misfit

PER_RANK = (
    "forward", "backward", "weight", "recompute", "activation", "parameters", "optimizer",
    "memory.per_parameter", "memory.activation",
)  # fmt: skip


def misfits_of_workload(workload: Workload | None, ranks: int) -> Iterator[Misfit]:
    """Lists whose length differs from the pipeline's, and weight gradients longer than the whole backward."""
    if workload is not None:
        yield from _misfits_of_lists(workload, ranks)
        yield from _misfits_of_weight(workload)


def _misfits_of_lists(workload: Workload, ranks: int) -> Iterator[Misfit]:
    for name in PER_RANK:
        value, path = attrgetter(name)(workload), f"workload.{name}"
        if not isinstance(value, tuple):
            continue
        if workload.per == "model":
            yield "found a list; `per: model` takes one number for the whole model", path, "workload.per"
        elif len(value) != ranks:
            message = f"found a list of {len(value)}; expected {ranks}, one per pipeline rank"
            yield message, path, "parallel.pipeline", "workload.per"


def _misfits_of_weight(workload: Workload) -> Iterator[Misfit]:
    if workload.weight is None:
        return
    both = [_listed(value) for value in (workload.weight, workload.backward)]
    ranks = max(map(len, both))
    for rank in range(ranks):
        weight, backward = (values[min(rank, len(values) - 1)] for values in both)
        if weight > backward:
            where = f" on pipeline rank {rank}" if ranks > 1 else ""
            message = (
                f"the weight gradient takes {float(weight):g} s{where}, more than the whole backward "
                f"({float(backward):g} s)"
            )
            yield message, "workload.weight", "workload.backward"
            return


def _listed(value: Fraction | tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    return (value if isinstance(value, tuple) else (value,)) or (Fraction(0),)
