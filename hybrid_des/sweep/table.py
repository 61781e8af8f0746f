"""What a sweep hands back: a table, a picture, files, and a few lines for the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import UsageError
from hybrid_des.registry import unknown
from hybrid_des.sweep.axes import Picture, Sweep
from hybrid_des.sweep.runner import Row
from hybrid_des.units import Dimension, format_seconds, parse_quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from hybrid_des.outputs import Written

SHOWN: Mapping[str, Callable[[Row], str]] = {
    "step time": lambda row: format_seconds(row["step_time_s"]),
    "bubble": lambda row: f"{row['bubble_ratio']:.1%}",
    "exposed": lambda row: f"{row['exposed_communication_ratio']:.1%}",
    "efficiency": lambda row: f"{row['efficiency']:.1%}",
    "peak memory": lambda row: f"{max(row['peak_memory_bytes']) / 1e9:.4g} GB",
}
MOST_ROWS = 40
_DIMENSIONS: tuple[Dimension, ...] = ("number", "time", "size", "bandwidth", "compute")


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table: mappings become columns such as `idle_s.dependency`, lists become JSON texts."""
    import pandas as pd

    flat = []
    for row in rows:
        columns: Row = {}
        for key, value in row.items():
            if isinstance(value, Mapping):
                columns.update({f"{key}.{inner}": number for inner, number in value.items()})
            else:
                columns[key] = json.dumps(value) if isinstance(value, list) else value
        flat.append(columns)
    frame = pd.DataFrame(flat)
    return frame[sorted(frame, key=lambda name: bool(name == "error"))]


def draw(rows: Sequence[Row], picture: Picture, ax: Axes | None = None) -> Axes:
    """Draw what the sweep's `plot` asks for; texts such as "4 ms" or "2p" are put in the order of their quantities.

    Raises:
        UsageError: the table has no such column.
    """
    from hybrid_des import plots

    frame = table(rows)
    for name in (picture.x, picture.y, *picture.hue, *picture.where):
        if name not in frame:
            raise UsageError(f"plot: {unknown(name, map(str, frame))}")
    for name, value in picture.where.items():
        frame = frame[[_quantity(cell) == _quantity(value) for cell in frame[name]]]
    hue = None
    if picture.hue:
        hue = ", ".join(name.rpartition(".")[2] for name in picture.hue)
        frame[hue] = [" · ".join(map(str, cells)) for cells in frame[list(picture.hue)].itertuples(index=False)]
    values = {cell: _quantity(cell) for cell in frame[picture.x]}
    if all(isinstance(number, float) for number in values.values()):
        frame[picture.x] = [values[cell] for cell in frame[picture.x]]
    ax = plots.lines(frame, picture.x, picture.y, hue, ax)
    ticks = {number: str(cell) for cell, number in values.items() if isinstance(cell, str)}
    if ticks and all(isinstance(number, float) for number in ticks):
        ax.set_xticks(list(ticks), list(ticks.values()))
    if picture.where:
        ax.set_title(", ".join(f"{name} = {value}" for name, value in picture.where.items()), fontsize="medium")
    return ax


def write(rows: Sequence[Row], sweep: Sweep, folder: str | Path) -> Written:
    """Write `sweep.csv` and, where the sweep asks for a picture, `sweep.png`: all of them or none.

    Raises:
        UsageError: the folder cannot be written, or the picture names a column that is not there.
    """
    from hybrid_des.outputs import write_whole

    def fill(workshop: Path) -> list[str]:
        table(rows).to_csv(workshop / "sweep.csv", index=False, lineterminator="\n")
        if sweep.picture is not None and any("error" not in row for row in rows):
            from matplotlib.figure import Figure

            figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
            draw(rows, sweep.picture, figure.subplots())
            figure.savefig(workshop / "sweep.png", metadata={"Software": None})
        return []

    return write_whole(folder, fill)


def render(rows: Sequence[Row], sweep: Sweep) -> str:
    """Give the cases as lines for a terminal: what varied, the main figures, or why a case failed."""
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
    more = f"; the first {MOST_ROWS} are shown, --out DIR or --json gives all" if len(rows) > MOST_ROWS else ""
    return "\n".join([*(text.rstrip() for text in texts), "", f"{len(rows)} cases, {failed} of them failed{more}"])


def _quantity(cell: Any) -> Any:
    """A number, or a text that is a quantity or a multiple of p, as a float; anything else as it is."""
    if isinstance(cell, int | float | Fraction) and not isinstance(cell, bool):
        return float(cell)
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if text.endswith(("p", "%")):
        text = text[:-1] or "1"
    for dimension in _DIMENSIONS:
        try:
            return float(parse_quantity(text, dimension))
        except ValueError:
            continue
    return cell
