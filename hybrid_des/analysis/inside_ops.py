"""What the ops of a run do besides computing: wait for collectives inside them, by axis, and for the host.

    op   │ computing ·············· │ tensor │ expert │ host │

An op's time is known as a whole: of layers that are replayed, the collectives are those of its costs, on idle links; of
collectives by messages, and of those on a stream beside computation, they are what was recorded. Where in the op they
are is told by neither the costs nor a picture, which draws them at its end. An op that varies (`jitter`, `slow`) spends
no more on them than it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import numpy as np

from hybrid_des.analysis.idle import HOST, first_from
from hybrid_des.cluster.purposes import OF_LAYERS, PARAMETERS, PURPOSES
from hybrid_des.cost_model.rank_costs import Costs, StageCosts
from hybrid_des.engine.recorder import INSIDE, OPTIMIZER
from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.program_table import Column
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import Timeline

AXES = tuple(OF_LAYERS)
OF_UPDATE = PARAMETERS.name  # collectives of the optimizer step, which bring matrices together
INSIDE_OPS = (*AXES, OF_UPDATE, HOST)  # what an op does besides computing, in the order in which it is drawn


def inside_ops(run: Run) -> Mapping[str, Column]:
    """For each op row, picoseconds that it spends on each of `INSIDE_OPS`; all rows are 0 for what never occurs."""
    columns = dict(zip(INSIDE_OPS, _by_costs(run), strict=True))
    columns |= {axis: _recorded(run.timeline, axis) for axis in run.traffic.recorded}
    return dict(zip(INSIDE_OPS, _fitting(columns.values(), own_time(run.timeline)), strict=True))


def collectives_of(inside: Mapping[str, Column], but: Collection[str] = ()) -> Column:
    """For each op row, picoseconds of all collectives inside it, but for those along some axes."""
    whole: Column = np.sum([took for axis, took in inside.items() if axis in AXES and axis not in but], axis=0)
    return whole


def drawn_inside(timeline: Timeline, inside: Mapping[str, Column]) -> Iterator[tuple[str, Column, Column, Column]]:
    """By axis, the last first: the op rows with collectives inside, and from when to when these are drawn, in ps.

    They are at the end of their op, one axis before the other.
    """
    until = timeline.ops["end"]
    for axis in reversed([axis for axis in AXES if axis in inside]):
        rows, since = np.flatnonzero(inside[axis] > 0), until - inside[axis]
        if len(rows):
            yield axis, rows, since[rows], until[rows]
        until = since


def replayed_inside(run: Run) -> Column:
    """For each op row, picoseconds of the collectives inside it that take no messages, so that they pass as its own."""
    every = run.traffic.recorded
    return collectives_of(inside_ops(run), every) if len(every) < len(AXES) else 0 * run.timeline.ops["rank"]


def own_time(timeline: Timeline) -> Column:
    """How long each op row takes without the waits for parameters inside it."""
    ops, waits = timeline.ops, timeline.waits
    took: Column = ops["end"] - ops["start"]
    inside = np.flatnonzero(waits["place"] == INSIDE)
    row = first_from((ops["rank"], ops["end"]), (waits["rank"][inside], waits["end"][inside]))
    np.subtract.at(took, row, (waits["end"] - waits["start"])[inside])
    return took


def _fitting(columns: Iterable[Column], room: Column) -> list[Column]:
    """The parts of ops, the first ones first, as far as there is room."""
    fitting, left = [], room.copy()
    for column in columns:
        fitting.append(np.minimum(column, left))
        left = left - fitting[-1]
    return fitting


def _recorded(timeline: Timeline, axis: str) -> Column:
    """For each op row, how long it waits for the exchanges along an axis that were recorded inside it."""
    ops, rows = timeline.ops, timeline.exchanges
    mine = np.flatnonzero(rows["purpose"] == PURPOSES.index(OF_LAYERS[axis]))
    row = first_from((ops["rank"], ops["end"]), (rows["rank"][mine], rows["end"][mine]))
    waited = np.zeros(len(ops["rank"]), dtype=np.int64)
    np.add.at(waited, row, (rows["end"] - rows["free"])[mine])
    return waited


def _by_costs(run: Run) -> Column:
    """`INSIDE_OPS` × op rows, by the costs of what each op does; of programs without costs, 0."""
    ops, timeline = run.timeline.ops, run.timeline
    spent = np.zeros((len(INSIDE_OPS), len(ops["rank"])), dtype=np.int64)
    every, programs = run.costs_of_steps, run.plan.programs
    updates = np.flatnonzero(ops["index"] == OPTIMIZER)
    if programs and every[0].exchanged:
        exchanged = np.array(every[0].exchanged, dtype=np.int64)
        spent[INSIDE_OPS.index(OF_UPDATE), updates] = exchanged[timeline.pipeline_rank[ops["rank"][updates]]]
    stages = (stage for costs in every for stage in costs.stages.values())
    if not programs or not any(stage.traffic or any(stage.host_times) for stage in stages):
        return spent
    lanes = every[0].lanes
    lane = np.zeros(len(timeline.pipeline), dtype=np.int64)
    if lanes is not None:
        ranks = np.unique(ops["rank"])
        lane[ranks] = [timeline.layout.lane(int(rank)) for rank in ranks]
    steps = len(every) if lanes is None else lanes.steps
    step, of_lane, stage_rank = ops["step"] % steps, lane[ops["rank"]], timeline.pipeline_rank[ops["rank"]]
    keys = np.stack([step, of_lane, stage_rank])
    for key in np.unique(keys, axis=1).T.tolist():
        mine = np.flatnonzero((keys == np.array(key)[:, None]).all(axis=0) & (ops["index"] != OPTIMIZER))
        table = _table(run, *key)
        spent[:, mine] = table[:, ops["index"][mine]]
    return spent


def _table(run: Run, step: int, lane: int, stage_rank: int) -> Column:
    """`INSIDE_OPS` × actions of a pipeline rank, in a step and on a lane."""
    cost_of = _costs_at(run, step, lane, stage_rank)
    known: dict[tuple[tuple[str, int], ...], list[int]] = {}
    rows = []
    for action in run.plan.programs[stage_rank]:
        costs = [(op.kind, cost_of(op)) for op in action]
        key = tuple((kind, id(cost)) for kind, cost in costs)
        if key not in known:
            fused = run.plan.fused_time if len(action) > 1 else 1
            known[key] = [round(fused * sum(_spent(cost, kind, name) for kind, cost in costs)) for name in INSIDE_OPS]
        rows.append(known[key])
    return np.array(rows, dtype=np.int64).reshape(-1, len(INSIDE_OPS)).T


def _costs_at(run: Run, step: int, lane: int, stage_rank: int) -> Callable[[Op], StageCosts]:
    """The costs of each op of a pipeline rank, in a step and on a lane."""
    first = run.costs_of_steps[0]
    if (lanes := first.lanes) is not None:
        return lambda op: lanes.cost(step, lane, op.microbatch, run.plan.stage_of[stage_rank, op.chunk])
    costs: Costs = run.costs_of_steps[step]
    return lambda op: costs.stages[stage_rank, op.chunk]


def _spent(cost: StageCosts, kind: str, name: str) -> int:
    """Picoseconds that an op of a kind spends on one of `INSIDE_OPS`, at the speed for which it is costed."""
    if name == HOST:
        return cost.host(kind)  # type: ignore[arg-type]
    return sum(one.exposed_in(kind) for one in cost.traffic if one.axis == name)
