"""Which case of a sweep is best: by one column, per sample where cases differ in the samples of a step.

Some cases may be as good as the best, as far as differences of measured runs were predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_des.analysis.difference import LEAST, difference
from hybrid_des.scenario.loading import scenario_of
from hybrid_des.studies.sweep.axes import Sweep
from hybrid_des.studies.sweep.rows import Row, columns
from hybrid_des.studies.sweep.runner import with_case

LARGER_IS_BETTER = (
    "efficiency", "speedup", "mfu", "hfu", "accuracy", "goodput", "ettr", "useful_s", "mtbf_s", "spares_availability",
)  # fmt: skip


OF_WEEKS = ("horizon_s", "useful_s", "lost_s", "mtbf_s", "checkpoint_interval_s", "best_interval_s")


STEP = "step_time_s"


UNITS = {"sample": "samples_per_s", "micro-batch": "microbatches_per_s"}  # a workload does not say its samples


DIGITS = 6  # in which figures are a tie: beyond them they differ by the rounding of picoseconds


PER_STEP = ("loss", "accuracy")  # lists with one entry per step; others have one per pipeline rank


@dataclass(frozen=True)
class Ranking:
    """How the cases of a sweep are compared.

    Attributes:
        y: the column that is compared.
        unit: "sample" or "micro-batch" if cases differ in their number per step, else empty.
    """

    y: str
    unit: str = ""

    @classmethod
    def of(cls, rows: Sequence[Row], y: str) -> Ranking:
        """The comparison of these rows; failed ones have no figures."""
        good = [row for row in rows if "error" not in row]
        unit = next((unit for unit, rate in UNITS.items() if all(rate in row for row in good)), "")
        return cls(y, unit if len({_count(row, unit) for row in good}) > 1 else "")

    def key(self, row: Row) -> tuple[bool, bool, float, float]:
        """The place of a case: failed ones last, before them those that do not fit, then by `y`, ties by the step."""
        if "error" in row:
            return True, True, 0.0, 0.0
        value = self.share(row, self.y)
        signed = -value if larger_is_better(self.y) else value
        return False, bool(row.get("out_of_memory")), float(f"{signed:.{DIGITS}g}"), self.share(row, STEP)

    def share(self, row: Row, column: str) -> float:
        """A figure of a case, per sample if that is how cases compare and it grows with the samples of a step."""
        value = number(column, columns(row)[column])
        return value / (_count(row, self.unit) or 1) if self.unit and _grows(column) else value


def larger_is_better(column: str) -> bool:
    """Whether the best case has the largest value of a column."""
    return column in LARGER_IS_BETTER or column.endswith(("_per_s", "_per_gpu_s"))


def number(column: str, cell: Any) -> float:
    """A cell as one number: of a list the maximum, of one entry per step the last."""
    if isinstance(cell, list):
        return float(cell[-1] if column in PER_STEP else max(cell))
    return float(cell)


def _count(row: Row, unit: str) -> int:
    """The samples or micro-batches of a step, of all replicas."""
    return round(row[UNITS[unit]] * row[STEP]) if unit else 1


def _grows(column: str) -> bool:
    """Whether a figure grows with the samples of a step: its seconds, bytes, messages and FLOP."""
    section = column.partition(".")[0]
    if larger_is_better(column) or section in (*OF_WEEKS, "wall_s"):
        return False
    return section.endswith(("_s", "flop_per_step")) or section.startswith("bytes_") or section == "messages"


def ties_text(ranked: Sequence[Row], ranking: Ranking, sweep: Sweep) -> str:
    """A sentence on the cases that differ from the best by less than 2 %, and not for certain; empty if there are none.

    Args:
        ranked: the rows of the cases, the best first.
        ranking: how they are compared.
        sweep: the scenario of the cases.
    """
    step = ranking.share(ranked[0], STEP)
    fitting = [row for row in ranked if "error" not in row and not row.get("out_of_memory")]
    close = [row for row in fitting[1:] if ranking.share(row, STEP) < step * (1 + LEAST)]
    if not close or not step:
        return ""
    cases = [{path: row.get(path) for path in sweep.paths} for row in (ranked[0], *close)]
    best, *others = [scenario_of(with_case(sweep.document, case)) for case in cases]
    changes = [ranking.share(row, STEP) / step - 1 for row in close]
    known = [(change, difference(best, other)) for change, other in zip(changes, others, strict=True)]
    tied = [change for change, sure in known if sure is not None and sure.is_tie(change)]
    if not tied:
        return ""
    count = "1 other case" if len(tied) == 1 else f"{len(tied)} other cases"
    return f"a tie with {count}, up to {max(tied):.1%} apart: less than 9 of 10 such differences were off"
