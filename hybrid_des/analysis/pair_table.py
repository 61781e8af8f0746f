"""The table of pairs of measured runs that differ in one setting: the ratio of their steps, predicted and measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from functools import cache
from math import log
from pathlib import Path
from typing import NamedTuple

PAIRS = Path(__file__).with_name("pairs.csv")


class Pair(NamedTuple):
    """Two measured runs of one corpus that differ in one kind of setting.

    Attributes:
        corpus: the name of the corpus.
        move: the kind of setting, of `analysis.moves`.
        predicted, measured: the step of the second over that of the first.
        date, commit: of the prediction.
    """

    corpus: str
    move: str
    predicted: float
    measured: float
    date: str
    commit: str

    @property
    def error(self) -> float:
        """How far the predicted ratio is off, as a logarithm."""
        return abs(log(self.predicted / self.measured))

    @property
    def agrees(self) -> bool:
        """Whether the quicker of the two is the predicted one."""
        return (self.predicted > 1) == (self.measured > 1)


@cache
def known_pairs() -> tuple[Pair, ...]:
    """The pairs of the package's table."""
    return read(PAIRS.read_text(encoding="utf-8")) if PAIRS.exists() else ()


def read(text: str) -> tuple[Pair, ...]:
    """The pairs of a table."""
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        Pair(row["corpus"], row["move"], float(row["predicted"]), float(row["measured"]), row["date"], row["commit"])
        for row in rows
    )


def written(pairs: Iterable[Pair]) -> str:
    """A table of pairs."""
    file = io.StringIO()
    file.write(
        "# ratios of step times of published runs that differ in one setting; made by hybrid-des validate --record, "
        "never by hand\n"
    )
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(Pair._fields)
    for pair in sorted(pairs):
        writer.writerow([*pair[:2], f"{pair.predicted:.4f}", f"{pair.measured:.4f}", *pair[4:]])
    return file.getvalue()
