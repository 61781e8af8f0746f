"""Results to write out: by hand, each with something odd about it, and simulated."""

from fractions import Fraction

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.purposes import REDUCTION
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import Op, Plan, PlanRequest, loop
from hybrid_des.result import Result, simulate
from support import handmade
from support.handmade import uniform
from support.scenarios import shared_nics

US = 10**6
ODD = 1_234_567  # picoseconds that are no whole nanoseconds


def result_of(kind="1f1b", pipeline=3, microbatches=4, forward=5 * US + 499, backward=7 * US + 501, **options):
    plan = schedules.make_plan(kind, PlanRequest(pipeline, microbatches))
    options = {"delay": ODD, "data": 2, "steps": 2, "reduction": 3 * ODD, "optimizer": ODD, **options}
    return Result(handmade.run(plan, uniform(forward, backward), **options))


def fused():
    first = [Op("F", 0), (Op("F", 1), Op("B", 0)), Op("B", 1)]
    last = [Op("F", 0), Op("B", 0), Op("F", 1), Op("B", 1)]
    plan = Plan.of([first, last], [loop(2, 1)], [0, 0], fused_time=Fraction(3, 4))
    return Result(handmade.run(plan, uniform(10 * US, 20 * US), delay=US))


def shared_link():
    """Two ring messages at once on one link, as where links are shared fairly."""
    result = result_of()
    times = ((0, 5 * US), (2 * US, 9 * US), (4 * US, 4 * US), (9 * US, 9 * US))
    rows = [(7, start, start, end, 50) for start, end in times]
    handmade.add_messages(result.run, Channel(0, 1, REDUCTION, "ring", 0, 0, "spine", 0), rows)
    return result


def simulated(**changes):
    """A real run in which pipeline and ring meet on shared NICs."""
    return simulate(shared_nics(cluster=changes, gradients={"overlap": True}))


RESULTS = {
    "simulated": simulated,
    "simulated, shared fairly": lambda: simulated(sharing="fair"),
    "1f1b": result_of,
    "without time": lambda: result_of(forward=0, backward=0, delay=0, reduction=0, optimizer=0),
    "free forwards": lambda: result_of(forward=0, backward=3, delay=0),
    "fused pairs": fused,
    "a shared link": shared_link,
    "compute only": lambda: result_of(record="compute"),
}


def pipeline_messages(result):
    scenario = result.run.scenario
    remote = sum(need[0] != rank for rank, op in result.plan.ops() for need in result.plan.needs(rank, op))
    return remote * scenario.parallel.data * scenario.steps
