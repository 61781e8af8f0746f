"""Measured decode steps of an engine: a table that replaces the formula of `hybrid_des.cost_model.decode`.

    sequences,tokens,seconds   running sequences and cached tokens of a replica, and the time of one decode step
    8,8192,0.0112
    8,65536,0.0131
    64,65536,0.0174
    64,524288,0.0302

A step is linear in the cached tokens between two that were measured, goes on with the last slope beyond them (never
downwards), and is that of the fewest below them. Between two measured numbers of sequences it is interpolated linearly,
beyond the last it is extrapolated from the last two, and below the first it is that of the first. Values and slopes are
rounded to whole picoseconds once, for a number of sequences, so that sums over steps are exact.
"""

import csv
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hybrid_des.errors import UsageError
from hybrid_des.files import read_text
from hybrid_des.units import PICOSECONDS_PER_SECOND

COLUMNS = ("sequences", "tokens", "seconds")
MOST = 2**53  # sequences or tokens
LONGEST_S = 10**6


class Piece(NamedTuple):
    """Where a step is linear in the cached tokens.

    Attributes:
        start: cached tokens from which it holds.
        value: picoseconds of a step with so many.
        slope: picoseconds that each further token adds.
    """

    start: int
    value: int
    slope: int


class Curve(NamedTuple):
    """Steps that were measured with one number of sequences: cached tokens, ascending, and seconds."""

    sequences: int
    held: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, held: int) -> float:
        """Seconds of a step with so many cached tokens."""
        inside = float(np.interp(held, self.held, self.seconds))
        if held <= self.held[-1] or len(self.held) == 1:
            return inside
        rise, run = self.seconds[-1] - self.seconds[-2], self.held[-1] - self.held[-2]
        return inside + max(0.0, rise / run) * (held - self.held[-1])


@dataclass(frozen=True, eq=False)
class DecodeTable:
    """Measured decode steps.

    Attributes:
        curves: one per number of sequences, ascending.
        source: the file.
    """

    curves: tuple[Curve, ...]
    source: str = ""

    def pieces(self, sequences: int) -> tuple[Piece, ...]:
        """A step with so many sequences, piece by piece, from no cached tokens on."""
        return _pieces(self, sequences)

    def slower(self, share: float) -> "DecodeTable":
        """The table of an engine that reaches this share of the speed."""
        curves = (one._replace(seconds=tuple(time / share for time in one.seconds)) for one in self.curves)
        return DecodeTable(tuple(curves), self.source)


@lru_cache(maxsize=1 << 12)
def _pieces(table: DecodeTable, sequences: int) -> tuple[Piece, ...]:
    curves = table.curves
    above = next((number for number, one in enumerate(curves) if one.sequences >= sequences), len(curves) - 1)
    low, high = curves[max(0, above - 1)], curves[above]
    share = 0.0
    if low.sequences < high.sequences and sequences > low.sequences:
        share = (sequences - low.sequences) / (high.sequences - low.sequences)
    knots = sorted({0, *low.held, *high.held})
    beyond = 2 * knots[-1] + 1  # the last slope is that towards here
    times = [low.at(held) + share * (high.at(held) - low.at(held)) for held in (*knots, beyond)]
    values = [max(1, round(time * PICOSECONDS_PER_SECOND)) for time in times]
    slopes = [
        round((values[number + 1] - values[number]) / (after - before))
        for number, (before, after) in enumerate(pairwise((*knots, beyond)))
    ]
    return tuple(Piece(*three) for three in zip(knots, values[:-1], slopes, strict=True))


def read_decode_table(path: str | Path) -> DecodeTable:
    """Read such a table.

    Raises:
        UsageError: the file cannot be read, lacks a column, has no row, or a row has no sound values; with its line.
    """
    lines = read_text(path).splitlines()
    columns = [name.strip() for name in lines[0].split(",")] if lines else []
    if not {*COLUMNS} <= {*columns}:
        raise UsageError(f"{path}:1: not a table of decode steps; expected the columns {', '.join(COLUMNS)}")
    known: dict[int, dict[int, float]] = {}
    rows = csv.DictReader(lines[1:], fieldnames=columns)
    for row in rows:
        sequences, held, seconds = _values(f"{path}:{rows.line_num + 1}", row)
        if held in known.setdefault(sequences, {}):
            raise UsageError(f"{path}:{rows.line_num + 1}: {sequences} sequences with {held} tokens have two times")
        known[sequences][held] = seconds
    if not known:
        raise UsageError(f"{path}:2: no row; expected {', '.join(COLUMNS)}")
    curves = (Curve(sequences, *zip(*sorted(times.items()), strict=True)) for sequences, times in sorted(known.items()))
    return DecodeTable(tuple(curves), str(path))


def _values(where: str, row: dict[str, str]) -> tuple[int, int, float]:
    try:
        sequences, held, seconds = int(row["sequences"]), int(row["tokens"]), float(row["seconds"])
    except (TypeError, ValueError):
        raise UsageError(f"{where}: expected whole numbers of sequences and cached tokens, and seconds") from None
    if not (1 <= sequences <= MOST and 0 <= held <= MOST and 0 < seconds < LONGEST_S):
        raise UsageError(f"{where}: expected at least 1 sequence, 0 or more cached tokens, and seconds above 0")
    return sequences, held, seconds
