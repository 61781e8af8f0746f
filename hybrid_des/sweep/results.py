"""Results of a sweep: a table, files, and lines for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.report.files import Written, write_whole
from hybrid_des.sweep.axes import Sweep
from hybrid_des.sweep.picture import draw
from hybrid_des.sweep.runner import Row, columns
from hybrid_des.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd

SHOWN: Mapping[str, Callable[[Row], str]] = {
    "step time": lambda row: format_seconds(row["step_time_s"]),
    "bubble": lambda row: f"{row['bubble_ratio']:.1%}",
    "exposed": lambda row: f"{row['exposed_communication_ratio']:.1%}",
    "efficiency": lambda row: f"{row['efficiency']:.1%}",
    "peak memory": lambda row: f"{max(row['peak_memory_bytes']) / 1e9:.4g} GB",
}
MOST_ROWS = 40
_WITH_GAPS: Mapping[type, str] = {int: "Int64", bool: "boolean"}


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table: mappings become columns such as `idle_s.dependency`, lists become JSON."""
    import pandas as pd

    flat = [columns(row) for row in rows]
    frame = pd.DataFrame(
        {name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()} for row in flat
    )
    kinds = {name: {type(row[name]) for row in flat if name in row} for name in frame if frame[name].isna().any()}
    # failed cases must not turn integer columns into floats
    whole: Any = {name: dtype for name, found in kinds.items() for kind, dtype in _WITH_GAPS.items() if found == {kind}}
    frame = frame.astype(whole)
    return frame[sorted(frame, key=lambda name: bool(name == "error"))]


def write(rows: Sequence[Row], sweep: Sweep, folder: str | Path) -> Written:
    """Write `sweep.csv` and, if the sweep has a plot, `sweep.png`: all files or none.

    Raises:
        UsageError: the folder cannot be written, or a plotted column does not exist.
    """
    from hybrid_des.report.plots.style import new_figure

    def fill(workshop: Path) -> None:
        table(rows).to_csv(workshop / "sweep.csv", index=False, lineterminator="\n")
        if sweep.picture is not None and any("error" not in row for row in rows):
            figure = new_figure((8, 5))
            draw(rows, sweep.picture, figure.subplots())
            figure.savefig(workshop / "sweep.png", dpi=120, metadata={"Software": None})

    return write_whole(folder, fill)


def render(rows: Sequence[Row], sweep: Sweep) -> str:
    """The table for the terminal: one line per case with its values and main figures, or its error."""
    paths = sweep.paths
    lines = [[*paths, *SHOWN]]
    for row in rows[:MOST_ROWS]:
        figures = [] if "error" in row else [show(row) for show in SHOWN.values()]
        lines.append([*(str(row.get(path, "")) for path in paths), *figures])
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(lines[0]))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)) for line in lines]
    for number, row in enumerate(rows[:MOST_ROWS], start=1):
        if "error" in row:
            texts[number] += f"  failed: {row['error']}"
    failed = sum("error" in row for row in rows)
    more = f"; the first {MOST_ROWS} are shown; --out DIR or --json outputs all" if len(rows) > MOST_ROWS else ""
    return "\n".join([*(text.rstrip() for text in texts), "", f"{len(rows)} cases, {failed} failed{more}"])
