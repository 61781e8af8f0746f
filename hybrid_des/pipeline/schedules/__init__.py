"""Pipeline schedules, one per file: a registered function from `PlanRequest` to `Plan`."""

from hybrid_des.pipeline.schedules.registration import (
    Formula,
    Peak,
    Scheduler,
    UniformSizes,
    find,
    make_plan,
    names,
    planned,
    schedule,
    title_of,
)

__all__ = [
    "Formula", "Peak", "Scheduler", "UniformSizes", "find", "make_plan", "names", "planned", "schedule", "title_of",
]  # fmt: skip
