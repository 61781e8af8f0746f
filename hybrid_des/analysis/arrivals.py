"""When messages arrive, known from their rows: of a run in memory at once, of a long one piece by piece."""

from __future__ import annotations

import numpy as np

from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.simulation.timeline import Timeline


class Arrivals:
    """The arrivals of a run's messages.

    The n-th message of a flow is the n-th on each of its links; rows of messages that are still on their way are kept.

    Args:
        timeline: the run.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        flow = timeline.of_channel["flow"]
        self._links = np.bincount(flow, minlength=len(flow))[flow] if len(flow) else flow  # of its route, by channel
        self._kept: Columns = {}

    def of(self, messages: Columns) -> Column:
        """For each row, on its last link, when the message arrives; `NONE` on links before, and if latencies vary.

        Args:
            messages: the next rows, by start or as they were recorded.
        """
        if self._timeline.latencies_vary or not len(messages["channel"]):
            return np.full(len(messages["channel"]), NONE, dtype=np.int64)
        kept = self._kept or {name: column[:0] for name, column in messages.items()}
        rows = {name: np.concatenate([kept[name], column]) for name, column in messages.items()}
        table = self._timeline.routed(rows)
        reached = (table != NONE).sum(axis=1)
        there = reached == self._links[rows["channel"][table[:, 0]]]
        arrived, ended = np.full(len(rows["channel"]), NONE, dtype=np.int64), table[there]
        last = ended[np.arange(len(ended)), reached[there] - 1]
        arrived[last] = self._timeline.arrival(rows, ended)
        waiting = np.sort(table[~there], axis=None)
        self._kept = {name: column[waiting[waiting != NONE]] for name, column in rows.items()}
        return arrived[len(kept["channel"]) :]
