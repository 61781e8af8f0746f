"""Rows of a sweep whose cases are loops of engines, queue and trainer (`rl`), and their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from hybrid_des.errors import one_line
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.studies.sweep.rows import Row, columns
from hybrid_des.units import format_number, format_seconds, format_share

CYCLE = "rl.cycle_s"
LISTED = ("cycles_s", "notes", "samples")  # of the summary: lists, and numbers of samples by age
SHOWN: Mapping[str, tuple[str, Callable[[float], str]]] = {  # column and text by head
    "cycle": (CYCLE, format_seconds),
    "trainer waits": ("rl.trainer.wait_s", format_seconds),
    "engines busy": ("rl.rollout.busy_ratio", format_share),
    "mean age": ("rl.staleness.mean", "{:.2f}".format),
    "samples/s": ("rl.samples_per_s", format_number),
    "tokens/s per GPU": ("rl.tokens_per_gpu_s", format_number),
}


def row_of_loop(document: Document) -> Row:
    """The figures of a case with `rl`; columns such as rl.cycle_s."""
    from hybrid_des.studies.rl.result import result_of

    return dict(_without_lists(result_of(document).summary))


def _without_lists(facts: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in facts.items() if name not in LISTED}
    return {name: _without_lists(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def of_loops(rows: Sequence[Row]) -> bool:
    """Whether cases are loops."""
    return any("rl" in row for row in rows)


def cycle_of(row: Row) -> float:
    """The cycle of a case; failed ones are last."""
    return float(row["rl"]["cycle_s"]) if "rl" in row else inf


def table_of_loops(
    rows: Sequence[Row], paths: Sequence[str], value: Callable[[Row, str], str], width: int | None
) -> str:
    """A line per case with its values and main figures, or its error."""
    lines = []
    for row in rows:
        failed = "error" in row
        flat = {} if failed else columns(row)
        figures = [f"failed: {one_line(row['error'])}"] if failed else [text(flat[key]) for key, text in SHOWN.values()]
        lines.append([*(value(row, path) for path in paths), *figures])
    return text_table([*map(one_line, paths), *SHOWN], lines, width=width)


def shortest_cycle(rows: Sequence[Row], paths: Sequence[str], value: Callable[[Row, str], str]) -> str:
    """The case with the shortest cycle, by its values."""
    best = min(rows, key=cycle_of)
    values = ", ".join(f"{one_line(path)} {value(best, path)}" for path in paths)
    return f"shortest cycle: {values}: {format_seconds(cycle_of(best))}"
