"""Pipeline schedules, one file each: a function from `PlanRequest` to `Plan` that registers itself.

    from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
    from hybrid_des.pipeline.schedules import schedule

    @schedule("mine", summary="…", time="(m+p−1)T", memory="m", source="me")
    def mine(request: PlanRequest) -> Plan: ...

Files that register nothing hold what several schedules share.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from hybrid_des.pipeline.plan import Plan, PlanRequest
from hybrid_des.registry import Registry


class Schedule(Protocol):
    """What a schedule file holds."""

    def __call__(self, request: PlanRequest) -> Plan:
        """Make the plan, or raise `Refusal` where the schedule does not exist for these sizes."""


Peak = Callable[[PlanRequest, int], Fraction | int]  # request, pipeline rank → whole-rank micro-batches

_REGISTRY: Registry[Schedule] = Registry("schedule", "hybrid_des.pipeline.schedules")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def schedule(
    name: str,
    *,
    summary: str,
    time: str,
    memory: str,
    source: str,
    chunks: int | None = None,
    many_chunks: bool = False,
    options: tuple[str, ...] = (),
    backward_order: str | None = None,
    peak: Peak | None = None,
) -> Callable[[Schedule], Schedule]:
    """Register a schedule with what the table of `hybrid-des schedules` says about it.

    Args:
        name: what a scenario's `schedule.kind` says.
        summary: one line for people.
        time: the cost formula at free sends; T = F+B+W, B being the input part of the backward and W the weight part.
        memory: peak activations in whole-rank micro-batches.
        source: the paper or code it follows.
        chunks: the number of chunks a rank that the schedule fixes; None where `schedule.chunks` may say it.
        many_chunks: whether `schedule.chunks` may be more than 1 (where `chunks` is None).
        options: keys of a scenario's `schedule:` that this kind reads besides the common ones.
        backward_order: the default of the option of that name.
        peak: the bound behind `memory`: the most micro-batches that a rank may hold, in whole-rank units, each from
            the start of its F to the end of its backward (of its W, where the backward is split). Tests hold it.
    """
    return _REGISTRY(
        name,
        summary=summary,
        time=time,
        memory=memory,
        source=source,
        chunks=chunks,
        many_chunks=many_chunks,
        options=options,
        backward_order=backward_order,
        peak=peak,
    )
