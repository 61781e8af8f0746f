"""Breakdown of every rank's time: busy, or idle by cause.

The step of one rank, from left to right, with the cause of each gap:

    begin ·····  F  ··  B  ···· last compute ▒▒▒▒▒▒ reduced  optimizer  end ········ the slowest rank's end
          (dependency,               (gradient_reduction)                 (end_of_step)
           pipeline_message)

With sharded parameters, ops also wait for them before they start or between their layers, or the rank gathers them
after the optimizer (`parameter_gather`); those waits are recorded as rows of their own.

Members of a ring finish at different times. One that waits at the end of the step until the last member of its groups
would have finished still waits for that collective.
"""

import numpy as np

from hybrid_des.analysis.step_times import StepTimes, step_times, total
from hybrid_des.engine.recorder import BEFORE, INSIDE
from hybrid_des.network.purpose import ACTIVATION, PARAMETERS, PURPOSES, REDUCTION
from hybrid_des.pipeline.plan import Plan
from hybrid_des.timeline import Column, Columns, Timeline

EXPOSED = tuple(dict.fromkeys(purpose.cause for purpose in PURPOSES))  # idle for communication
CAUSES = ("dependency", *dict.fromkeys(purpose.cause for purpose in PURPOSES if purpose.usual), "end_of_step")
NEVER = np.iinfo(np.int64).min


def account(timeline: Timeline, times: StepTimes) -> dict[str, int]:
    """Split the time of all ranks into busy and idle by cause, in picoseconds that sum to ranks × total.

    The gap before an op lasts until its last remote producer finishes (`dependency`), then until the message arrives
    (`pipeline_message`). Time blocked by a rank's own sends is `pipeline_message` too.
    """
    plan, (replicas, _, pipeline) = timeline.plan, times.begin.shape
    before, inside, reducing, gathering = _waited(timeline.waits)
    reduced, gathered, _ = waits_at_end(timeline)
    previous = np.empty_like(times.end)
    previous[..., 1:] = times.end[..., :-1]
    holders = times.rank_of_op[times.first]
    previous[..., times.first] = times.begin[..., holders]
    gap = times.start - times.asked
    consumer, producer = plan.edges.remote
    done = np.full_like(times.end, NEVER)  # for each op, when its last remote producer finished
    ops, starts = np.unique(consumer, return_index=True)
    if len(ops):
        done[..., ops] = np.maximum.reduceat(times.end[..., producer], starts, axis=-1)
    dependency = np.clip(done, times.asked, times.start) - times.asked
    blocked = total(times.asked - previous) + total(times.sent - times.last_compute())
    parts = {
        "busy": total(times.end - times.start) + times.optimizer - inside,
        "dependency": total(dependency),
        ACTIVATION.cause: total(gap - dependency) + blocked - before,
        REDUCTION.cause: total(times.reduced - times.sent) + reducing + total(reduced - timeline.steps["end"]),
    }
    if gathering:
        parts[PARAMETERS.cause] = gathering + total(gathered - reduced)
    parts["end_of_step"] = replicas * pipeline * times.total - sum(parts.values())
    return parts


def hidden_messages(plan: Plan, times: StepTimes, flight: Column) -> int:
    """Picoseconds, over all ranks and steps, for which pipeline messages travel while their receiver computes.

    Args:
        plan: the plan.
        times: the times of its ops.
        flight: for each message of `plan.edges.remote`, how long it takes on idle links; those that share links take
            longer, which counts only where the receiver waits.
    """
    consumer, producer = plan.edges.remote
    return total(np.clip(times.asked[..., consumer] - times.end[..., producer], 0, flight))


def hidden_reduction(timeline: Timeline, times: StepTimes) -> int:
    """Picoseconds, over all ranks and steps, of gradient reduction overlapped with remaining compute."""
    rows = timeline.reductions
    place = timeline.pipeline[rows["rank"]], rows["step"], timeline.pipeline_rank[rows["rank"]]
    beside = total(np.maximum(np.minimum(rows["end"], times.last_compute()[place]) - rows["start"], 0))
    return beside - _exposed(rows, timeline.waits)


def hidden_gathers(timeline: Timeline) -> int:
    """Picoseconds, over all ranks and steps, of parameter gathers for which no op waited."""
    rows = timeline.gathers
    return total(rows["end"] - rows["start"]) - _exposed(rows, timeline.waits)


def waits_at_end(timeline: Timeline) -> tuple[Column, Column, Column]:
    """For each row of `timeline.steps`, until when the rank waits for reductions, for gathers, and for all other ranks.

    Each wait begins where the one before ends, the first at the rank's end of the step. The waits for collectives are
    as much longer as the last member of the rank's groups was later than the rank itself.
    """
    steps = timeline.steps
    order = np.lexsort((steps["step"], steps["rank"]))
    over = np.full(len(order), timeline.duration)
    again = np.flatnonzero(np.diff(steps["rank"][order]) == 0)
    over[order[again]] = steps["begin"][order[again + 1]]
    reduced = _last_of_groups(timeline, timeline.reductions)[0] - steps["reduced"]
    last, own = _last_of_groups(timeline, timeline.gathers)
    late = np.clip(np.where(own > steps["reduced"], last - own, reduced), 0, over - steps["end"])
    return steps["end"] + np.clip(reduced, 0, late), steps["end"] + late, over


def _last_of_groups(timeline: Timeline, rows: Columns) -> tuple[Column, Column]:
    """For each row of `timeline.steps`, the end of the last collective of the rank's groups, and of its own last."""
    steps, shape = timeline.steps, (int(timeline.steps["step"].max()) + 1, timeline.layout.ranks)
    key = (rows["step"] * timeline.plan.stages + rows["stage"]) * timeline.layout.ranks + group_of(timeline, rows)
    place = np.unique(key, return_inverse=True)[1].reshape(-1)
    ends = np.full(len(key), NEVER)
    np.maximum.at(ends, place, rows["end"])
    found = []
    for end in (ends[place], rows["end"]):
        latest = np.full(shape, NEVER)
        np.maximum.at(latest, (rows["step"], rows["rank"]), end)
        found.append(np.maximum(latest[steps["step"], steps["rank"]], 0))
    return found[0], found[1]


def group_of(timeline: Timeline, rows: Columns) -> Column:
    """For each reduction or gather, the first of the ranks that hold its stage."""
    layout = timeline.layout
    first = np.array([min(places)[0] for places in zip(*timeline.plan.paths, strict=True)])
    group: Column = first[rows["stage"]] * layout.strides["pipeline"]
    return group + layout.first(rows["rank"], "context", "data", "pipeline")


def slower_replica_share(timeline: Timeline) -> float:
    """The share of ranks' waits for reductions in which another member is not there yet.

    A member that is late since it still reduces another bucket does not count: its group waits for bytes.
    """
    rows, steps = timeline.reductions, timeline.steps
    waited = account(timeline, step_times(timeline))[REDUCTION.cause]
    if not len(rows["rank"]) or not waited:
        return 0.0
    keys = np.stack([rows["step"], rows["stage"], rows["bucket"], group_of(timeline, rows)], axis=1)
    places = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    there = np.full(places.max() + 1, NEVER)
    came = _came(rows)
    np.maximum.at(there, places[came], rows["start"][came])
    sent = np.empty((int(steps["step"].max()) + 1, timeline.layout.ranks), dtype=np.int64)
    sent[steps["step"], steps["rank"]] = steps["sent"]
    since = np.maximum(rows["start"], sent[rows["step"], rows["rank"]])
    until = np.maximum(np.minimum(there[places], rows["end"]), since)
    return total(until - since) / waited


def _came(rows: Columns) -> Column:
    """Whether a rank came to a reduction from its ops, rather than from another reduction."""
    order = np.lexsort((rows["end"], rows["start"], rows["rank"]))
    rank, start, end = (rows[name][order] for name in ("rank", "start", "end"))
    found = np.ones(len(order), dtype=bool)
    found[order[1:]] = (rank[1:] != rank[:-1]) | (start[1:] > end[:-1])
    return found


def inside_waits(waits: Columns) -> Column:
    """Durations of the waits within ops."""
    took: Column = (waits["end"] - waits["start"])[waits["place"] == INSIDE]
    return took


def _waited(waits: Columns) -> tuple[int, int, int, int]:
    """Picoseconds waited before and inside ops, and in total for reductions and for gathers."""
    took, place, purpose = waits["end"] - waits["start"], waits["place"], waits["purpose"]
    wanted = (place == BEFORE, place == INSIDE, *(purpose == PURPOSES.index(one) for one in (REDUCTION, PARAMETERS)))
    before, inside, reducing, gathering = (total(took[chosen]) for chosen in wanted)
    return before, inside, reducing, gathering


def _exposed(rows: Columns, waits: Columns) -> int:
    """How much of the collectives' time their ranks spent waiting."""
    exposed = 0
    for rank in np.unique(waits["rank"]):
        start, end = (np.sort(waits[name][waits["rank"] == rank]) for name in ("start", "end"))
        mine = rows["rank"] == rank
        exposed += total(_within(start, end, rows["end"][mine]) - _within(start, end, rows["start"][mine]))
    return exposed


def _within(start: Column, end: Column, until: Column) -> Column:
    """How much of the disjoint periods from `start` to `end` has passed at each time."""
    begun = np.searchsorted(start, until, side="right")
    passed = np.append(0, np.cumsum(end - start))[begun]
    unfinished: Column = np.where(begun > 0, np.maximum(end[begun - 1] - until, 0), 0)
    return passed - unfinished
