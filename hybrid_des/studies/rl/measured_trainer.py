"""Measured optimizer steps of a loop: one time for all, or a table by tokens.

Time passes as measured, whatever the samples are but for their tokens; passes are part of it.
"""

from __future__ import annotations

import csv
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf
from pathlib import Path

from hybrid_des.errors import UsageError
from hybrid_des.files import read_text
from hybrid_des.studies.rl.trainer import UpdateTime
from hybrid_des.units import PICOSECONDS_PER_SECOND, split_evenly


@dataclass
class MeasuredTimes:
    """Measured optimizer steps, passes included.

    Attributes:
        table: tokens and picoseconds of measured steps, by tokens; between two, times are on a line.
        simulated, sampled, error: as in `Trainer`: none.
    """

    table: Sequence[tuple[int, int]]
    simulated: int = 0
    sampled: int = 0
    error: float | None = None
    _outside: int = 0

    def take(self, updates: Sequence[Sequence[int]]) -> tuple[UpdateTime, ...]:
        """The times of optimizer steps, each given by the tokens of its samples."""
        return tuple(UpdateTime(0, self._at(sum(lengths))) for lengths in updates)

    def _at(self, tokens: int) -> int:
        number = bisect([measured for measured, _ in self.table], tokens)
        if number in (0, len(self.table)):
            nearest = self.table[max(0, number - 1)]
            self._outside += nearest[0] != tokens
            return nearest[1]
        (low, begin), (high, end) = self.table[number - 1 : number + 1]
        return begin + (end - begin) * (tokens - low) // (high - low)

    @property
    def notes(self) -> tuple[str, ...]:
        """As in `Trainer`."""
        if not self._outside:
            return ()
        measured = f"those measured ({self.table[0][0]} … {self.table[-1][0]})"
        return (
            f"{self._outside} optimizer steps have fewer or more tokens than {measured}, and take the nearest time",
        )


class ConstantTimes:
    """Optimizer steps of which so many take a measured time together, passes included.

    Args:
        time: picoseconds of a batch.
        updates: optimizer steps of a batch.

    Attributes:
        simulated, sampled, error, notes: as in `Trainer`: none.
    """

    simulated = sampled = 0
    error: float | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, time: int, updates: int) -> None:
        self._each = cycle(split_evenly(time, updates))

    def take(self, updates: Sequence[Sequence[int]]) -> tuple[UpdateTime, ...]:
        """The times of optimizer steps."""
        return tuple(UpdateTime(0, next(self._each)) for _ in updates)


def read_times(path: str | Path) -> MeasuredTimes:
    """Read a CSV file of measured optimizer steps, with the columns tokens and seconds.

    Raises:
        UsageError: it cannot be read, or is no such table; one line with the file and the line in it.
    """
    rows = list(csv.DictReader(read_text(path, "measured steps").splitlines()))
    if not rows or not {"tokens", "seconds"} <= rows[0].keys():
        raise UsageError(f"{path}: expected a table with the columns tokens and seconds")
    table = dict[int, int]()
    for number, row in enumerate(rows, start=2):
        try:
            tokens, seconds = float(row["tokens"]), float(row["seconds"])
            if not (1 <= tokens < 2**60 and 0 < seconds < inf):
                raise ValueError
        except (TypeError, ValueError):
            raise UsageError(f"{path}:{number}: expected tokens, at least 1, and seconds above 0") from None
        if round(tokens) in table:
            raise UsageError(f"{path}:{number}: a second row of {round(tokens)} tokens")
        table[round(tokens)] = round(seconds * PICOSECONDS_PER_SECOND)
    return MeasuredTimes(sorted(table.items()))
