"""Why things started when they did: what released each row, and each rank's idle time piece by piece.

`reasons_of` derives this from a timeline alone. The critical path and finer causes need a search through all
dependencies, as in `analysis.critical_path`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.idle import PARTS, drawn_pieces
from hybrid_des.analysis.step_times import step_times
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.simulation.timeline import Timeline


class Reasons(NamedTuple):
    """What is known about the rows of a timeline beyond their times.

    Ops are numbered first, in the order of `Timeline.ops`, then messages, in that of `Timeline.messages`.

    Attributes:
        released_by: for each row the row whose end released it; `NONE` if unknown.
        idle: `rank`, `start`, `end` and `cause` (of `causes`) of each piece of idle time, in picoseconds.
        causes: the names that `idle["cause"]` indexes.
        path: rows on the critical path, in order; empty if it was not computed.
    """

    released_by: Column
    idle: Columns
    causes: Sequence[str] = PARTS
    path: Column = np.empty(0, dtype=np.int64)


def reasons_of(timeline: Timeline) -> Reasons:
    """Derive reasons from the rows of a timeline alone.

    An op that starts when it asks is released by the op before it on its rank; one that waits for messages, by the op
    that sent the last one to arrive. A message that queues is released by the one before it on its link.
    """
    by = [_releases_of_ops(timeline)]
    if timeline.messages is not None:
        by.append(_releases_of_messages(timeline))
    return Reasons(np.concatenate(by), drawn_pieces(timeline))


def _releases_of_ops(timeline: Timeline) -> Column:
    """For each op row the row of the op that released it."""
    ops, programs, row_of = timeline.ops, timeline.programs, step_times(timeline).row
    at, pipeline_rank = (timeline.pipeline[ops["rank"]], ops["step"]), timeline.pipeline_rank[ops["rank"]]
    index = np.where(ops["index"] == OPTIMIZER, programs.sizes[pipeline_rank], ops["index"])
    number = programs.first[pipeline_rank] + index
    before = np.where(index > 0, row_of[(*at, number - 1)], NONE)
    before[ops["end"][before] != ops["start"]] = NONE
    sent = programs.messages
    producers = np.full((row_of.shape[-1] + 1, int(sent["place"].max(initial=0)) + 1), NONE)
    producers[sent["consumer"], sent["place"]] = sent["producer"]
    return np.where(ops["released"] >= 0, row_of[(*at, producers[number, np.maximum(ops["released"], 0)])], before)


def _releases_of_messages(timeline: Timeline) -> Column:
    """For each message row that queued, the row of the message served before it on its link, numbered after ops."""
    rows = timeline.messages
    assert rows is not None
    by = np.full(len(rows["start"]), NONE, dtype=np.int64)
    link = timeline.of_channel["link"][rows["channel"]]
    order = np.lexsort((rows["start"], link))
    same = link[order][1:] == link[order][:-1]
    queued = rows["start"][order][1:] > rows["asked"][order][1:]
    served = rows["end"][order][:-1] == rows["start"][order][1:]
    hit = np.flatnonzero(same & queued & served)
    by[order[hit + 1]] = order[hit] + len(timeline.ops["rank"])
    return by
