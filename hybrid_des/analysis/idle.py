"""Breakdown of every rank's time: busy, or idle by cause.

The step of one rank, from left to right, with the cause of each gap:

    begin ·····  F  ··  B  ···· last compute ▒▒▒▒▒▒ reduced  optimizer  end ········ the slowest rank's end
          (dependency,               (gradient_reduction)                 (end_of_step)
           pipeline_message)

With sharded parameters, ops also wait for them before they start or between their layers, or the rank gathers them
after the optimizer (`parameter_gather`); those waits are recorded as rows of their own. The host's pauses between ops,
and the gaps of recorded programs, are `host`.

Members of a ring finish at different times. One that waits at the end of the step until the last member of its groups
would have finished still waits for that collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, partial

import numpy as np

from hybrid_des.analysis.step_times import StepTimes, step_times, total
from hybrid_des.cluster.purposes import ACTIVATION, PARAMETERS, PURPOSES, REDUCTION
from hybrid_des.engine.recorder import BEFORE, INSIDE
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column, Columns, ProgramTable
from hybrid_des.simulation.timeline import Timeline

EXPOSED = tuple(dict.fromkeys(purpose.cause for purpose in PURPOSES))  # idle for communication


DEPENDENCY, END_OF_STEP = "dependency", "end_of_step"


HOST = "host"  # a pause between ops, or in a recorded program a gap that no wait explains


CAUSES = (DEPENDENCY, *EXPOSED, END_OF_STEP, HOST)


USUAL = (DEPENDENCY, *dict.fromkeys(purpose.cause for purpose in PURPOSES if purpose.usual), END_OF_STEP)


# what a rank waits for, as reported
WARM_UP, STEADY, DRAIN, REPLICA, BARRIER = (
    "warm-up", f"pipeline {DEPENDENCY}", "drain", "waiting for a slower replica", "step barrier",
)  # fmt: skip


TRANSFER, LATENCY, QUEUEING = "transfer", "latency", "queueing"


OTHERS = "another job's message"  # on a link that jobs share, or background traffic


REASONS = (WARM_UP, STEADY, DRAIN, REPLICA, BARRIER, TRANSFER, LATENCY, QUEUEING, OTHERS)


PHASES = (WARM_UP, STEADY, DRAIN)  # of a dependency on another rank of the pipeline: the bubble of textbooks


PARTS = (*PHASES, *EXPOSED, END_OF_STEP, HOST)  # causes as drawn, the dependency by its phase


TABLES = OPS, STEPS, WAITS = "ops", "steps", "waits"


NEVER = np.iinfo(np.int64).min


# Table, rows that the waits lead up to, start, end, cause, reason, and when the wait is over that they are a part of
Waits = tuple[str, Column, Column, Column, str | Column, str | Callable[[], Column], Column]


def idle_pieces(timeline: Timeline) -> Columns:
    """Every rank's idle time in pieces, rank by rank in the order of time.

    Returns:
        `rank`, `step`, `start`, `end`, `cause` (of `CAUSES`), `reason` (of `REASONS`: why the rank waits if another one
        computes meanwhile), `table` and `row` (of `TABLES`; the row that the piece leads up to), and `released`: when
        the wait is over that the piece is a part of.
    """
    times = step_times(timeline)
    kinds = [_lasting(timeline, one) for one in _waits(timeline, times)]
    columns = {name: np.concatenate([kind[name] for kind in kinds]) for name in kinds[0]}
    order = np.lexsort((columns["start"], columns["rank"]))
    return {name: column[order] for name, column in columns.items()}


def drawn_pieces(timeline: Timeline, pieces: Columns | None = None) -> Columns:
    """Every rank's idle time in pieces as pictures show it.

    A dependency is shown by its phase. A rank that has finished waits for the end of the step; as long as another rank
    of its pipeline has not, that is the drain of the pipeline too, as in the bubble of textbooks. From then on it waits
    for other pipelines.

    Args:
        timeline: of a run.
        pieces: its `idle_pieces`, if they are known.

    Returns:
        `rank`, `start`, `end`, and `cause` (of `PARTS`).
    """
    pieces, times = pieces or idle_pieces(timeline), step_times(timeline)
    phase = np.array([PARTS.index(reason) if reason in PHASES else NONE for reason in REASONS])
    cause = np.array([PARTS.index(cause) if cause in PARTS else NONE for cause in CAUSES])
    part = np.where(pieces["cause"] == CAUSES.index(DEPENDENCY), phase[pieces["reason"]], cause[pieces["cause"]])
    last = times.done.max(axis=-1)[timeline.pipeline[pieces["rank"]], pieces["step"]]
    drained = np.where(part == PARTS.index(END_OF_STEP), np.clip(last, pieces["start"], pieces["end"]), pieces["start"])
    before, after = drained > pieces["start"], drained < pieces["end"]
    columns = {
        "rank": np.concatenate([pieces["rank"][before], pieces["rank"][after]]),
        "start": np.concatenate([pieces["start"][before], drained[after]]),
        "end": np.concatenate([drained[before], pieces["end"][after]]),
        "cause": np.concatenate([np.full(np.count_nonzero(before), PARTS.index(DRAIN)), part[after]]),
    }
    order = np.lexsort((columns["start"], columns["rank"]))
    return {name: column[order] for name, column in columns.items()}


def _waits(timeline: Timeline, times: StepTimes) -> Iterator[Waits]:
    """All kinds of waits, those that take no time included."""
    yield from _before_ops(timeline, times)
    yield from _after_ops(timeline, times)
    waits = timeline.waits  # that were recorded: before ops, inside them, and after the optimizer
    cause = np.array([CAUSES.index(purpose.cause) for purpose in PURPOSES])[waits["purpose"]]
    yield WAITS, np.arange(len(cause)), waits["start"], waits["end"], cause, REPLICA, waits["end"]


def _before_ops(timeline: Timeline, times: StepTimes) -> Iterator[Waits]:
    """Waits until a rank's own sends are done, then for producers, then for their messages."""
    until = times.start - _waited_before(timeline)[times.row]
    ready = np.clip(_last_producers(timeline.programs, times), times.asked, until)
    previous = np.empty_like(times.end)
    previous[..., 1:] = times.end[..., :-1]
    previous[..., times.first] = times.begin[..., times.rank_of_op[times.first]]
    phase = cache(partial(_phases, timeline, times))
    which, start, end = _without_waits(timeline, timeline.ops["rank"][times.row], previous, times.asked)
    row, asked = times.row.reshape(-1)[which], times.asked.reshape(-1)[which]
    own = HOST if timeline.programs.gaps else ACTIVATION.cause
    yield (OPS, row, start, end, own, lambda: phase().reshape(-1)[which], asked)
    yield (OPS, times.row, times.asked, ready, DEPENDENCY, phase, times.start)
    yield (OPS, times.row, ready, until, ACTIVATION.cause, phase, times.start)


def _after_ops(timeline: Timeline, times: StepTimes) -> Iterator[Waits]:
    """Waits after a rank's last op: for its sends, its reductions, and the other ranks."""
    steps = timeline.steps
    where = timeline.pipeline[steps["rank"]], steps["step"], timeline.pipeline_rank[steps["rank"]]
    row, last = np.arange(len(steps["rank"])), times.last_compute()[where]
    sent, reduced = steps["sent"], steps["reduced"]
    which, start, end = _without_waits(timeline, steps["rank"], last, sent)
    yield (STEPS, which, start, end, HOST if timeline.programs.tail else ACTIVATION.cause, DRAIN, sent[which])
    yield (STEPS, row, sent, reduced, REDUCTION.cause, REPLICA, reduced)
    reducing, gathering, over = waits_at_end(timeline)
    yield (STEPS, row, steps["end"], reducing, REDUCTION.cause, BARRIER, over)
    yield (STEPS, row, reducing, gathering, PARAMETERS.cause, BARRIER, over)
    yield (STEPS, row, gathering, over, END_OF_STEP, BARRIER, over)


def _without_waits(timeline: Timeline, rank: Column, start: Column, end: Column) -> tuple[Column, Column, Column]:
    """Periods of ranks without the recorded waits in them: the number of its period, start and end of each piece."""
    rank, start, end = (column.reshape(-1) for column in (rank, start, end))
    lasting, waits = np.flatnonzero(end > start), timeline.waits
    if not len(lasting):
        return lasting, lasting, lasting
    home = lasting[first_from((rank[lasting], end[lasting]), (waits["rank"], waits["end"]))]
    within = (rank[home] == waits["rank"]) & (start[home] <= waits["start"]) & (waits["end"] <= end[home])
    which = np.append(lasting, home[within])
    begins, stops = np.append(start[lasting], waits["end"][within]), np.append(end[lasting], waits["start"][within])
    order = np.lexsort((begins, which))
    return which[order], begins[order], stops[np.lexsort((stops, which))]


def _lasting(timeline: Timeline, waits: Waits) -> Columns:
    """Those waits that take time, as columns."""
    table, every, start, end, cause, reason, released = waits
    rows, lasting = getattr(timeline, table), end > start
    row = every[lasting]
    return {
        "rank": rows["rank"][row],
        "step": rows["step"][row],
        "start": start[lasting],
        "end": end[lasting],
        "cause": np.full(len(row), CAUSES.index(cause)) if isinstance(cause, str) else cause[lasting],
        "reason": np.full(len(row), REASONS.index(reason)) if isinstance(reason, str) else reason()[lasting],
        "table": np.full(len(row), TABLES.index(table)),
        "row": row,
        "released": released[lasting],
    }


def _last_producers(programs: ProgramTable, times: StepTimes) -> Column:
    """For each op, when its last remote producer finished; `NEVER` if it has none."""
    consumer, producer = programs.messages["consumer"], programs.messages["producer"]
    done = np.full_like(times.end, NEVER)
    ops, starts = np.unique(consumer, return_index=True)
    if len(ops):
        done[..., ops] = np.maximum.reduceat(times.end[..., producer], starts, axis=-1)
    return done


def _phases(timeline: Timeline, times: StepTimes) -> Column:
    """For each op, the reason for waiting for a producer.

    A rank's warm-up ends when its first backward starts, its drain begins when its last forward has ended.
    """
    kind = timeline.programs.ops["kind"]
    forward, backward = (np.isin(kind, [OP_KINDS.index(name) for name in (one, "FB")]) for one in "FB")
    phase = np.full_like(times.end, REASONS.index(STEADY))
    for rank in range(timeline.programs.pipeline):
        mine = times.rank_of_op == rank
        if (mine & forward).any():
            drain = times.end[..., mine & forward].max(axis=-1)[..., None]
            phase[..., mine] = np.where(times.asked[..., mine] >= drain, REASONS.index(DRAIN), phase[..., mine])
        warm = times.start[..., mine & backward].min(axis=-1, initial=-1 - NEVER)[..., None]
        phase[..., mine] = np.where(times.start[..., mine] <= warm, REASONS.index(WARM_UP), phase[..., mine])
    return phase


def _waited_before(timeline: Timeline) -> Column:
    """How long each op row waited for collectives after it was asked for, right before it started."""
    ops, waits = timeline.ops, timeline.waits
    waited = np.zeros(len(ops["rank"]), dtype=np.int64)
    before = np.flatnonzero(waits["place"] == BEFORE)
    row = first_from((ops["rank"], ops["start"]), (waits["rank"][before], waits["end"][before]))
    took = np.where(waits["start"][before] >= ops["asked"][row], (waits["end"] - waits["start"])[before], 0)
    np.add.at(waited, row, took)
    return waited


def first_from(entries: tuple[Column, Column], wanted: tuple[Column, Column]) -> Column:
    """For each rank and time wanted, the first of the entries of that rank from that time on; at the end, the last."""
    count = len(entries[0])
    (ranks, times), which = map(np.concatenate, zip(wanted, entries, strict=True)), len(wanted[0])
    order = np.lexsort((times, ranks))  # what is wanted is before what is there at the same time
    there = np.flatnonzero(order >= which)
    next_one = np.searchsorted(there, np.flatnonzero(order < which))
    first = np.empty(which, dtype=np.int64)
    first[order[order < which]] = order[there[np.minimum(next_one, count - 1)]] - which if count else 0
    return first


def account(timeline: Timeline, times: StepTimes) -> dict[str, int]:
    """Split the time of all ranks into busy and idle by cause, in picoseconds that sum to ranks × total.

    The gap before an op lasts until its last remote producer finishes (`dependency`), then until the message arrives
    (`pipeline_message`). Time blocked by a rank's own sends is `pipeline_message` too.
    """
    idle = dict.fromkeys(CAUSES, 0)
    for _, _, start, end, cause, _, _ in _waits(timeline, times):  # no table is made, which would need all reasons
        took = np.maximum(end - start, 0)
        for number in [CAUSES.index(cause)] if isinstance(cause, str) else np.unique(cause).tolist():
            idle[CAUSES[number]] += total(took if isinstance(cause, str) else took[cause == number])
    return {"busy": _busy(timeline, times), **{cause: time for cause, time in idle.items() if time or cause in USUAL}}


def _busy(timeline: Timeline, times: StepTimes) -> int:
    """Picoseconds, over all ranks and steps, for which GPUs compute."""
    return total(times.end - times.start) + times.optimizer - total(inside_waits(timeline.waits))


def busy_share(timeline: Timeline) -> Fraction:
    """The share of the time of all ranks for which GPUs compute."""
    times = step_times(timeline)
    replicas, _, pipeline = times.begin.shape
    return Fraction(_busy(timeline, times), replicas * pipeline * times.total) if times.total else Fraction(0)


def hidden_reduction(timeline: Timeline, times: StepTimes) -> int:
    """Picoseconds, over all ranks and steps, of gradient reduction overlapped with remaining compute."""
    rows = timeline.reductions
    where = timeline.pipeline[rows["rank"]], rows["step"], timeline.pipeline_rank[rows["rank"]]
    beside = total(np.maximum(np.minimum(rows["end"], times.last_compute()[where]) - rows["start"], 0))
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
    stages = int(rows["stage"].max(initial=0)) + 1
    key = (rows["step"] * stages + rows["stage"]) * timeline.layout.ranks + group_of(timeline, rows)
    group = np.unique(key, return_inverse=True)[1].reshape(-1)
    ends = np.full(len(key), NEVER)
    np.maximum.at(ends, group, rows["end"])
    lasts = []
    for end in (ends[group], rows["end"]):
        latest = np.full(shape, NEVER)
        np.maximum.at(latest, (rows["step"], rows["rank"]), end)
        lasts.append(np.maximum(latest[steps["step"], steps["rank"]], 0))
    return lasts[0], lasts[1]


def group_of(timeline: Timeline, rows: Columns) -> Column:
    """For each reduction or gather, a number that all ranks share, and only they, that may take part in it."""
    return timeline.layout.first(rows["rank"], "context", "data", "pipeline")


def waits_for_slower(timeline: Timeline) -> int:
    """Picoseconds of all ranks' waits for reductions in which another member is not there yet.

    A member that is late since it still reduces another bucket does not count: its group waits for bytes.
    """
    rows, steps = timeline.reductions, timeline.steps
    if not len(rows["rank"]):
        return 0
    keys = np.stack([rows["step"], rows["stage"], rows["bucket"], group_of(timeline, rows)], axis=1)
    places = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    there = np.full(places.max() + 1, NEVER)
    came = _came(rows)
    np.maximum.at(there, places[came], rows["start"][came])
    sent = np.empty((int(steps["step"].max()) + 1, timeline.layout.ranks), dtype=np.int64)
    sent[steps["step"], steps["rank"]] = steps["sent"]
    since = np.maximum(rows["start"], sent[rows["step"], rows["rank"]])
    until = np.maximum(np.minimum(there[places], rows["end"]), since)
    return total(until - since)


def _came(rows: Columns) -> Column:
    """Whether a rank came to a reduction from its ops, rather than from another reduction."""
    order = np.lexsort((rows["end"], rows["start"], rows["rank"]))
    rank, start, end = (rows[name][order] for name in ("rank", "start", "end"))
    flags = np.ones(len(order), dtype=bool)
    flags[order[1:]] = (rank[1:] != rank[:-1]) | (start[1:] > end[:-1])
    return flags


def inside_waits(waits: Columns) -> Column:
    """Durations of the waits within ops."""
    took: Column = (waits["end"] - waits["start"])[waits["place"] == INSIDE]
    return took


def _exposed(rows: Columns, waits: Columns) -> int:
    """How much of the collectives' time their ranks spent waiting."""
    exposed = 0
    for rank in np.unique(waits["rank"]):
        start, end = (np.sort(waits[name][waits["rank"] == rank]) for name in ("start", "end"))
        mine = rows["rank"] == rank
        exposed += total(passed(start, end, rows["end"][mine]) - passed(start, end, rows["start"][mine]))
    return exposed


def passed(start: Column, end: Column, until: Column) -> Column:
    """How much of the disjoint periods from `start` to `end`, in order of time, has passed at each time."""
    if not len(start):
        return np.zeros_like(until)
    begun = np.searchsorted(start, until, side="right")
    unfinished: Column = np.where(begun > 0, np.maximum(end[begun - 1] - until, 0), 0)
    return np.append(0, np.cumsum(end - start))[begun] - unfinished
