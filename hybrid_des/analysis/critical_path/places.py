"""Where the points of processes and messages stand in a graph of causes: causes before effects.

Points stand in the order in which they and the rows of messages were recorded. The points of a row follow each other:
A and S of `messages` and, of a message's last row, D. So no point has to be sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hybrid_des.planning.program_table import NONE, Column


@dataclass(frozen=True, eq=False)
class Places:
    """The numbers of points.

    Attributes:
        process: of each point of a process.
        asked: message × link: of the point A; −1 where the route is shorter. S follows it.
        delivered: of each message, of the point D.
        end: of the last point.
    """

    process: Column
    asked: Column
    delivered: Column
    end: int

    @classmethod
    def of(cls, row: Column, rows: Column, hops: Column, count: int) -> Places:
        """Find the places of all points.

        Args:
            row: for each point of a process, the number of rows that were recorded before it; in order.
            rows: message × link: its rows.
            hops: the number of links at which each message has points.
            count: number of all rows.
        """
        sizes, last = np.zeros(count + 1, dtype="int32"), rows[np.arange(len(rows)), hops - 1]
        there = np.arange(max(int(hops.max(initial=0)), 1)) < hops[:, None]
        mine = rows[:, : there.shape[1]]
        sizes[mine[there]] = 2
        sizes[last] = 3
        before = np.cumsum(sizes, dtype="int32")
        before -= sizes
        end, process = len(row) + int(sizes.sum()), np.arange(len(row), dtype="int32") + before[row]
        before += np.cumsum(np.bincount(row, minlength=count + 1), dtype="int32")  # and processes
        asked = np.where(there, before[mine], NONE).astype("int32")
        return cls(process, asked, (before[last] + 2).astype("int32"), end)

    def column(self, processes: Column, asked: Column, start: Column, arrival: Column, end: int) -> Column:
        """A column of all points.

        Args:
            processes: its values at the points of processes.
            asked: message × link, or of all links of a message: its values at A.
            start: the same at S.
            arrival: its values at D.
            end: its value at the end.
        """
        column = np.empty(self.end + 1, dtype=processes.dtype)
        column[self.process] = processes
        for more, values in ((0, asked), (1, start)):
            for hop, mine in self.each:
                column[self.asked[mine, hop] + more] = values[mine, hop] if values.ndim > 1 else values[mine]
        column[self.delivered] = arrival
        column[self.end] = end
        return column

    @property
    def each(self) -> Iterator[tuple[int, Column]]:
        """Each link of routes, and the messages that have points there."""
        return ((hop, np.flatnonzero(self.asked[:, hop] != NONE)) for hop in range(self.asked.shape[1]))
