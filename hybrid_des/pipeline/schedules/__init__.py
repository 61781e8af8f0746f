"""Pipeline schedules, one file each: a function from `PlanRequest` to `Plan` that registers itself.

    from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
    from hybrid_des.pipeline.schedules import schedule

    @schedule("mine", summary="…", time="(m+p−1)T", memory="m", source="me")
    def mine(request: PlanRequest) -> Plan: ...

A schedule with options of its own (`hybrid_des.options`) names their class, `options=Mine`, and gets them as its last
argument.

Files that register nothing hold what several schedules share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from hybrid_des.options import Options, options_of
from hybrid_des.pipeline import Plan, PlanRequest
from hybrid_des.registry import Registry

Scheduler = Callable[..., Plan]  # request and, where there are any, its options → plan; raises `Refusal`
Peak = Callable[..., Fraction | int]  # request, pipeline rank and any options → whole-rank micro-batches

_REGISTRY: Registry[Scheduler] = Registry("schedule", "hybrid_des.pipeline.schedules")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def make_plan(name: str, request: PlanRequest, options: Options | Mapping[str, Any] | None = None) -> Plan:
    """The plan of a schedule; options are an instance of its class, or values by name.

    Raises:
        Refusal: the schedule does not exist for these sizes.
        UsageError: there is no such schedule, or an option is wrong.
    """
    entry = find(name)
    return entry.build(request, *options_of(entry, options))


def schedule(
    name: str,
    *,
    summary: str,
    time: str,
    memory: str,
    source: str,
    chunks: int | None = None,
    many_chunks: bool = False,
    options: type[Options] | None = None,
    peak: Peak | None = None,
) -> Callable[[Scheduler], Scheduler]:
    """Register a schedule with what the table of `hybrid-des schedules` says about it.

    Args:
        name: what a scenario's `schedule.kind` says.
        summary: one line for people.
        time: the cost formula at free sends; T = F+B+W, B being the input part of the backward and W the weight part.
        memory: peak activations in whole-rank micro-batches.
        source: the paper or code it follows.
        chunks: the number of chunks a rank that the schedule fixes; None where `schedule.chunks` may say it.
        many_chunks: whether `schedule.chunks` may be more than 1 (where `chunks` is None).
        options: the class of what it reads besides the common keys of a scenario's `schedule:`.
        peak: the bound behind `memory`: the most micro-batches that a rank may hold, in whole-rank units, each from
            the start of its F to the end of its backward (of its W, where the backward is split). Tests hold it.
    """
    return _REGISTRY(
        name,
        options,
        summary=summary,
        time=time,
        memory=memory,
        source=source,
        chunks=chunks,
        many_chunks=many_chunks,
        peak=peak,
    )
