"""Pipeline schedules as data: operations, plans and their check, and the schedules that make them.

The names that a user-defined schedule needs:

    from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
    from hybrid_des.pipeline.schedules import schedule
"""

from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop, two_way, wave

__all__ = ["Op", "Plan", "PlanRequest", "loop", "two_way", "wave"]
