"""What is noted of a corpus: how far each prediction was off, and each ratio of two that differ in one setting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from hybrid_des.analysis.experience_table import Likeness, Recorded
from hybrid_des.analysis.moves import moves
from hybrid_des.analysis.pair_table import Pair
from hybrid_des.scenario.definition import Scenario


class MeasuredRun(NamedTuple):
    """A measured run and its prediction.

    Attributes:
        scenario: its settings.
        stack: the software, a value of `model.written`.
        release: of the software, or the day of the measurement; "" if it is not known.
        predicted, measured: the step in seconds.
    """

    scenario: Scenario
    stack: str
    release: str
    predicted: float
    measured: float


class Corpus(NamedTuple):
    """A corpus as it is noted: its name, how many numbers were fitted to it, and when by what it was predicted."""

    name: str
    fitted: int
    date: str
    commit: str


def runs_of(corpus: Corpus, rows: Sequence[MeasuredRun]) -> list[Recorded]:
    """The errors of all rows."""
    return [
        Recorded(corpus.name, Likeness.of(row.scenario, row.stack), corpus.fitted, row.predicted / row.measured,
                 corpus.date, corpus.commit)
        for row in rows
    ]  # fmt: skip


def pairs_of(corpus: Corpus, rows: Sequence[MeasuredRun]) -> list[Pair]:
    """The ratios of all pairs of rows of one software and release that differ in one kind of setting."""
    pairs = []
    for first, second in combinations(rows, 2):
        alike = (first.stack, first.release) == (second.stack, second.release)
        kinds = moves(first.scenario, second.scenario) if alike else None
        if kinds and len(kinds) == 1:
            predicted, measured = second.predicted / first.predicted, second.measured / first.measured
            pairs.append(Pair(corpus.name, kinds[0], predicted, measured, corpus.date, corpus.commit))
    return pairs
