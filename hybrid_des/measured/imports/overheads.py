"""Host time and latency of a recorded pipeline: what its ops take besides work that a cut of the model divides.

    rank 0   F0 ├─┤ F1 ├─┤ F2          between: a rank pauses from the end of an op to the start of the next one
              ╲ latency
    rank 1     F0                      and an op starts no earlier than `latency` after the op that it needs

An op starts at the later of both. Which of the two it waited for follows from the pauses found so far; both are then
the means of those that waited for them, and so on until nothing changes. A pause of half a forward or more is no pause:
it is a wait for something that was not recorded.

Host time of single ops shows where a rank's work is cut into other numbers of chunks: its total of forwards per
micro-batch is work + chunks × host time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.interchange.profiles.durations import MISSING, Shares, Usual, durations_of
from hybrid_des.measured.imports.common_clock import LONGEST
from hybrid_des.pipeline.plan import Op
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

    from hybrid_des.measured.replay.measured import MeasuredRun

ROUNDS = 20  # after which ops that waited for both in turn do not matter
DIGITS = 9  # of seconds: nanoseconds
NEVER = -np.inf


class Overheads(NamedTuple):
    """Seconds of the host and of messages; None: the recordings do not tell.

    Attributes:
        forward, backward, weight, between: as in `workload.overhead`.
        latency: from the end of an op to the start of one on another rank that needs it.
    """

    forward: float | None = None
    backward: float | None = None
    weight: float | None = None
    between: float | None = None
    latency: float | None = None

    @property
    def workload(self) -> dict[str, float]:
        """The section `workload.overhead` of a scenario, without zeros."""
        return {name: value for name, value in self._asdict().items() if value and name != "latency"}


NO_PAUSES = Overheads()


class Recording(NamedTuple):
    """A measured run, and the table it was read from."""

    run: MeasuredRun
    table: pd.DataFrame


Ends = NDArray[np.float64]


def overheads_of(recordings: Sequence[Recording], *, one_clock: bool) -> Overheads:
    """Those that recordings of the same model on the same ranks show together.

    Args:
        recordings: the runs; several numbers of chunks tell the host time of ops.
        one_clock: whether times of different ranks can be compared.
    """
    timed = [one for one in recordings if "start_s" in one.table]
    between, latency = _pauses(timed) if timed else (None, None)
    per_op = {name: _per_op(recordings, kind) for name, kind in zip(Overheads._fields, "FBW", strict=False)}
    return Overheads(**per_op, between=between, latency=latency if one_clock else None)


def _pauses(recordings: Sequence[Recording]) -> tuple[float, float | None]:
    """Seconds between ops of a rank, and from an op to one on another rank that needs it."""
    start, before, needed = (np.concatenate(each) for each in zip(*map(_ends, recordings), strict=True))
    forwards = np.concatenate([one.table[one.table.kind == "F"].seconds.to_numpy() for one in recordings])
    longest = LONGEST * float(np.median(forwards))
    between, latency, crossing = 0.0, 0.0, np.isfinite(needed)
    for _ in range(ROUNDS):
        own = before + between >= needed + latency
        fitted = _mean((start - before)[own], longest), _mean((start - needed)[~own], longest)
        if fitted == (between, latency):
            break
        between, latency = fitted
    return between, latency if crossing.any() else None


def _mean(pauses: Ends, longest: float) -> float:
    known = pauses[pauses < longest]
    return round(max(0.0, float(known.mean())), DIGITS) if len(known) else 0.0


def _ends(recording: Recording) -> tuple[Ends, Ends, Ends]:
    """Start of every action that follows another, end of the one before it, and of the last one it needs elsewhere."""
    run, plan = recording.run, recording.run.plan
    zero = recording.table.groupby("step").start_s.transform("min")
    starts = durations_of(recording.table.assign(seconds=recording.table.start_s - zero), run.sizes, "").times
    actions = [(rank, action) for rank, program in enumerate(plan.programs) for action in program]

    def bounds(rank: int, op: Op) -> tuple[Ends, Ends]:
        at = slice(None), slice(None), rank, op.chunk, op.microbatch
        first, took = starts[op.kind][at], run.durations.times[op.kind][at]
        known = (first != MISSING) & (took != MISSING)
        begin = np.where(known, first / PICOSECONDS_PER_SECOND, np.nan)
        return begin, begin + took / PICOSECONDS_PER_SECOND

    begin = [bounds(rank, action[0])[0] for rank, action in actions]
    end = [bounds(rank, action[-1])[1] for rank, action in actions]
    number = {(rank, op): at for at, (rank, action) in enumerate(actions) for op in action}
    before = [end[at - 1] if at and actions[at - 1][0] == actions[at][0] else end[at] * 0 + NEVER
              for at in range(len(actions))]  # fmt: skip
    needed = [one * 0 + NEVER for one in end]
    for at, (rank, action) in enumerate(actions):
        for of, op in plan.needs(rank, action[0]):
            if of != rank:
                needed[at] = np.maximum(needed[at], end[number[of, op]])
    columns = [np.concatenate([each.ravel() for each in column]) for column in (begin, before, needed)]
    follows = np.isfinite(columns[0]) & ((columns[1] > NEVER) | (columns[2] > NEVER))
    return columns[0][follows], columns[1][follows], columns[2][follows]


def _per_op(recordings: Sequence[Recording], kind: str) -> float | None:
    """Host seconds of an op of a kind: by how much a rank's total grows per chunk; None if all have as many chunks.

    Ranks with the first or the last stage are left out where there are others: chunks do not divide the output layer,
    nor that the first stage has no gradient of an input to compute.
    """
    runs = [one.run for one in recordings if not (one.run.durations.split and kind == "B")]
    runs = [run for run in runs if kind != "W" or run.durations.split]
    ends = {path[at][0] for run in runs for path in run.plan.paths for at in (0, -1)}
    chunks, totals = [], []
    for run in runs:
        shares = Shares.of(run.durations, kind, Usual("mean"))
        of_rank = [float(body) for body in shares.body]
        of_rank[0] += float(shares.first)
        of_rank[-1] += float(shares.last)
        counted = [total for rank, total in enumerate(of_rank) if rank not in ends] or of_rank
        chunks.append(run.sizes.chunk)
        totals.append(sum(counted) / len(counted) / PICOSECONDS_PER_SECOND)
    if len(set(chunks)) < 2:
        return None
    return round(max(0.0, float(np.polyfit(chunks, totals, 1)[0])), DIGITS)
