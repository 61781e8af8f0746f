"""Small sweeps, one of them over a user-defined schedule, and rows that compare."""

BASE = "schedule: {kind: 1f1b, microbatches: 4}\nworkload: {per: rank, forward: 10 ms, backward: 20 ms}\n"
AXES = """sweep:
  - {parallel.pipeline: [1, 2, 4], schedule.microbatches: [2, 4, 3]}
  - {schedule.kind: [gpipe, dualpipe]}
plot: {x: parallel.pipeline, y: bubble_ratio, hue: schedule.kind}
"""
OWN = """
from hybrid_des.pipeline import Op, Plan, PlanRequest, loop
from hybrid_des.pipeline.schedules import schedule


@schedule("one-by-one", summary="one micro-batch at a time", time="mpT", memory="1", source="mine")
def one_by_one(request: PlanRequest) -> Plan:
    program = [Op(kind, i) for i in range(request.microbatches) for kind in "FB"]
    return Plan.of([program] * request.pipeline, [loop(request.pipeline, 1)], [0] * request.microbatches)
"""
OWN_AXES = "sweep:\n  - {parallel.pipeline: [1, 2, 3]}\n  - {schedule.kind: [one-by-one, 1f1b]}\n"


def without_wall(rows):
    """Rows without the one column that differs from run to run."""
    return [{key: value for key, value in row.items() if key != "wall_s"} for row in rows]
