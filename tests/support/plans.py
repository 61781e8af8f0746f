"""Plans of registered schedules, their times by the oracle, and the rows of the reference tables."""

import csv

from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import Plan, PlanRequest
from support import oracle
from support.paths import GOLDEN

UNIT = 10**9  # the tables' unit is taken as a millisecond


def plan_of(
    kind: str, p: int, m: int, chunks: int = 1, costs=(1, 1, 1), delay: int = 0, *, weight_share=(), **options
) -> Plan:
    """The kind's plan with the registered defaults; costs F, B (input part), W: a number or one a rank."""
    entry = schedules.find(kind)
    forward, backward, weight = (tuple(c) if isinstance(c, list) else (c,) * p for c in costs)
    request = PlanRequest(p, m, entry.facts["chunks"] or chunks, forward, backward, weight, delay, weight_share)
    plan = schedules.make_plan(kind, request, options)
    plan.check()
    return plan


def timing_of(plan: Plan, costs=(1, 1, 1), delay: int = 0) -> oracle.Timing:
    p = plan.pipeline
    forward, backward, weight = (c if isinstance(c, list) else [c] * p for c in costs)
    whole = [b + w for b, w in zip(backward, weight, strict=True)]
    return oracle.solve(plan, oracle.shares(plan, forward, whole, weight), delay)


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(file))


def options_of(text: str) -> dict[str, object]:
    if not text:
        return {}
    key, value = text.split(": ")
    return {key: False if value == "false" else value}
