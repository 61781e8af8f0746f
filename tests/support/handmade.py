"""Runs made by hand, without the simulator: oracle times in, a timeline out.

Steps have a barrier, messages travel `delay` on a link of their own, a reduction of `reduction` follows a rank's
last op (one message on one link), then the optimizer.
"""

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.purposes import ACTIVATION, GRADIENT, REDUCTION
from hybrid_des.cost_model.rank_costs import Costs, StageCosts
from hybrid_des.engine.recorder import CHUNK, MESSAGE_COLUMNS, OPTIMIZER, STEP_SHIFT, Recorder, Rows, pipeline_tag
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.layer_traffic import TensorTraffic
from hybrid_des.planning.lowering import Lowering
from hybrid_des.planning.program import ComputeSpeed
from hybrid_des.planning.program_table import table_of
from hybrid_des.scenario.sections.cluster import GpuKind
from hybrid_des.scenario.sections.training import Parallel
from hybrid_des.simulation.timeline import Timeline
from support import oracle


def run(plan: Plan, durations, *, delay=0, data=1, steps=1, reduction=0, optimizer=0, record="all", size=1000):
    """Simulate nothing: write down what the oracle says, replica by replica and step by step."""
    parallel = Parallel(pipeline=plan.pipeline, data=data)
    layout = parallel.layout
    timing = oracle.solve(plan, durations, delay)
    trace = Recorder(Rows(MESSAGE_COLUMNS) if record == "all" else None)
    channels, totals = {}, {"messages": 0}
    now = 0
    for step in range(steps):
        ends = []
        for replica in range(data):
            for r in range(plan.pipeline):
                rank = layout.rank(data=replica, pipeline=r)
                free = now
                times = zip(timing.start[r], timing.end[r], _held(plan, r), strict=True)
                for index, (start, end, held) in enumerate(times):
                    trace.ops.add((step, rank, index, free, now + start, now + end, -1))
                    for time, chunks in zip((now + start, now + end), held, strict=True):
                        trace.memory.add((rank, time, chunks * 10**9, chunks * CHUNK))
                    free = now + end
                    where = (replica, r, index)
                    totals["messages"] += _send(trace, channels, layout, plan, where, step, free, delay, size)
                reduced = free + reduction
                if reduction and trace.messages is not None:
                    number = _channel(
                        trace, channels, Channel(rank, rank, REDUCTION, "ring", 0, 0, f"gpu{rank}/out", 0)
                    )
                    trace.messages.add((number, step << STEP_SHIFT, free, free, reduced, size))
                if optimizer:
                    trace.ops.add((step, rank, OPTIMIZER, reduced, reduced, reduced + optimizer, -1))
                trace.steps.add((step, rank, now, free, reduced, reduced + optimizer))
                ends.append(reduced + optimizer)
        now = max(ends)
    peaks = oracle.peaks(plan, [1] * plan.pipeline)
    costs = Costs({}, (), (0,) * plan.pipeline, (0,) * plan.pipeline, (), ())
    return SimpleNamespace(
        scenario=_scenario(plan, parallel, steps, record), plan=plan, microbatches=plan.microbatches,
        timeline=Timeline.of(trace, programs_of(plan, size), layout), duration=now, numerics=None, weights=None,
        algorithm="ring", channels=1, choices={}, outer=None, slowed=None,
        messages=totals["messages"], bytes_pipeline=totals["messages"] * size, bytes_gradients=0,
        bytes_scales=0, bytes_switched=0, bytes_parameters=0, bytes_tensor=0, bytes_context=0, bytes_expert=0,
        events=1, wall_s=0.5, peak_memory=[0] * parallel.ranks,
        ranks=range(parallel.ranks), fold=None, unfolded="", left_out="", refused=(),
        costs=costs, costs_of_steps=[costs], traffic=TensorTraffic(), fabric=None,
        peak_activations=[peaks[layout.coordinate(rank, "pipeline")] for rank in range(parallel.ranks)],
    )  # fmt: skip


def programs_of(plan, size=1000):
    """The table of a plan's programs, all of whose messages have one size."""
    stages = {place: StageCosts(1, 2, 1, size, 0, Fraction(0)) for place in plan.stage_of}
    costs = Costs(stages, (), (), (0,) * plan.pipeline, (), ())
    lowering = Lowering(plan, costs, {}, overlap=False, blocking=False)
    return table_of([lowering.lower(rank, ComputeSpeed()) for rank in range(plan.pipeline)])


def add_messages(run, channel, rows):
    """Put message rows of a new channel behind those of a run; rows are (tag, asked, start, end, bytes)."""
    timeline = run.timeline
    table = np.array([(len(timeline.channels), *row) for row in rows])
    messages = {
        name: np.append(column, new) for (name, column), new in zip(timeline.messages.items(), table.T, strict=True)
    }
    run.timeline = replace(timeline, channels=[*timeline.channels, channel], messages=messages)


def _scenario(plan, parallel, steps, record):
    gpu = GpuKind(name="a100-80gb", memory=80 * 10**9)
    node = SimpleNamespace(gpu=gpu, speed=1, count=1, gpus_per_node=2**20)
    gpus = {"nodes_of": lambda ranks: [node for _ in ranks], "gpus_of": lambda ranks: [gpu for _ in ranks]}
    cluster = SimpleNamespace(gpu=gpu, sharing="fifo", kinds=(node,), **gpus)
    return SimpleNamespace(
        version=1, name="handmade", description="", model=None, rl=None,
        workload=None, parallel=parallel, steps=steps, barrier=True, record=record,
        cluster=cluster, gradients=SimpleNamespace(algorithm="ring", overlap=False),
        schedule=SimpleNamespace(kind="1f1b", microbatches=plan.microbatches, p2p="async"),
        on_oom="warn", sharding="none", fsdp=False, efficiency=None, slow=(), jitter=(), train=None, data=None,
        price=None, power=None, traced=False, recompute="none",
        offload=SimpleNamespace(activations=0, optimizer=0, parameters=0),
    )  # fmt: skip


def _send(trace, channels, layout, plan, where, step, now, delay, size):
    """One row for each op of another rank that needs an op of this step."""
    replica, r, index = where
    count = 0
    for op in plan.programs[r][index]:
        forward = op.kind == "F"
        place = None if op.kind == "W" else plan.neighbour(r, op, 1 if forward else -1)
        if place is None or place[0] == r:
            continue
        count += 1
        if trace.messages is not None:
            sender, receiver = layout.rank(data=replica, pipeline=r), layout.rank(data=replica, pipeline=place[0])
            purpose = ACTIVATION if forward else GRADIENT
            link = f"gpu{sender}/to/gpu{receiver}"
            number = _channel(trace, channels, Channel(sender, receiver, purpose, purpose.name, -1, -1, link, 0))
            tag = pipeline_tag(step, plan.stage_of[r, op.chunk], op.microbatch)
            trace.messages.add((number, tag, now, now, now + delay, size))
    return count


def _channel(trace, channels, channel):
    if channel not in channels:
        channels[channel] = trace.channel(channel)
    return channels[channel]


def _held(plan, r):
    """The chunks in flight during and after each action: up at F's start, down at the end of the last backward part."""
    last = "W" if plan.split else "B"
    held = 0
    for action in plan.programs[r]:
        during = held + sum(op.kind == "F" for op in action)
        held = during - sum(op.kind == last for op in action)
        yield during, held


def uniform(forward: int, backward: int, weight: int = 0):
    """The same times on every rank and chunk; a split backward is `backward − weight` and `weight`."""
    times = {"F": forward, "B": backward, "I": backward - weight, "W": weight}
    return lambda kind, rank, chunk: times[kind]
