"""The files of a sweep: a table, a picture, and a page with the best case in a sentence, pictures, and a table to sort.

All pictures have the same axis: that of the sweep's `plot`, or else the key with the most values. Lines are those of
the plot, or else the other keys as far as they are few; what varies besides is as in the best case.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.analysis.safe_csv import write_csv
from hybrid_des.errors import one_line
from hybrid_des.report.billed import bill_columns
from hybrid_des.report.files.staging import Written, write_whole
from hybrid_des.report.page.answer import verdict
from hybrid_des.report.page.study_page import Cell, chart, chart_of, legend, look, sorted_table, study_page
from hybrid_des.studies.sweep.axes import Sweep
from hybrid_des.studies.sweep.loops import SHOWN as LOOPS
from hybrid_des.studies.sweep.loops import cycle_of, of_loops, shortest_cycle
from hybrid_des.studies.sweep.results import (
    STEP,
    Ranking,
    best_lines,
    counts,
    draw,
    label,
    least_slowdown,
    number,
    quantity,
    value_shown,
    value_text,
)
from hybrid_des.studies.sweep.rows import Row, columns, table
from hybrid_des.units import format_bytes, format_seconds, format_share

MOST_ROWS, MOST_LINES, MOST_CHARTS = 2000, 8, 6


class Figure(NamedTuple):
    """A figure of every case: its head, how it is drawn, its value, and its text."""

    head: str
    kind: str
    value: Callable[[Row], float]
    text: Callable[[float], str]


class Axes(NamedTuple):
    """What the pictures show: the column along the axis, those of the lines, and what cases are drawn."""

    x: str
    hue: Sequence[str]
    where: dict[str, Any]


def write(rows: Sequence[Row], sweep: Sweep, folder: str | Path) -> Written:
    """Write `sweep.csv`, `sweep.html`, and, if the sweep has a plot, `sweep.png`; of failed cases only the table.

    Raises:
        UsageError: the folder cannot be written, or a plotted column does not exist.
    """
    from hybrid_des.report.plots.style import new_figure

    def fill(staging: Path) -> None:
        write_csv(table(rows), staging / "sweep.csv")
        if all("error" in row for row in rows):
            return
        if sweep.picture is not None:
            figure = new_figure((8, 5))
            draw(rows, sweep.picture, figure.subplots())
            figure.savefig(staging / "sweep.png", dpi=120, metadata={"Software": None})
        (staging / "sweep.html").write_text(sweep_page(rows, sweep), encoding="utf-8")

    return write_whole(folder, fill, replaces=["sweep.html"])


def sweep_page(rows: Sequence[Row], sweep: Sweep) -> str:
    """The page of a sweep of which at least one case was simulated, in one file."""
    title = str(sweep.document.value.get("name", "sweep"))
    ordered, lines, figures = _told(rows, sweep)
    axes = _axes(ordered, sweep)
    charts = _charts(rows, figures, axes)
    pictures = "".join(f"<div><h3>{html.escape(figures[int(name)].head)}</h3>{chart(name)}</div>" for name in charts)
    body = [
        verdict(". ".join(line[0].upper() + line[1:] for line in lines) + "."),
        f"<h2>{html.escape(_caption(axes))}</h2>{legend(*charts)}" if charts else "",
        f'<div class="multiples">{pictures}</div>',
        f"<h2>Cases, the best first</h2><p>{html.escape(_said_of_rows(rows))}</p>",
        _table(ordered[:MOST_ROWS], rows, figures, sweep),
    ]
    return study_page(title, "".join(body), charts)


def _told(rows: Sequence[Row], sweep: Sweep) -> tuple[list[Row], list[str], list[Figure]]:
    """Cases, the best first, what is said of the best one, and the figures of all."""
    if any("jobs" in row for row in rows):
        return sorted(rows, key=_slowdown), [least_slowdown(rows, sweep.labels)], _of_jobs(rows)
    if of_loops(rows):
        return sorted(rows, key=cycle_of), [shortest_cycle(rows, sweep.labels, value_shown)], _of_loops()
    ranking = Ranking.of(rows, sweep.picture.y if sweep.picture is not None else STEP)
    ordered = sorted(rows, key=ranking.key)
    return ordered, best_lines(ordered, ranking, sweep), _figures(rows, ranking)


def _of_loops() -> list[Figure]:
    """Of cases that are loops: their cycle, waits, shares, ages and rates."""
    kinds = {format_seconds: "seconds", format_share: "share"}

    def value_of(column: str) -> Callable[[Row], float]:
        return lambda row: float(columns(row)[column])

    return [Figure(head, kinds.get(text, "number"), value_of(key), text) for head, (key, text) in LOOPS.items()]


def _said_of_rows(rows: Sequence[Row]) -> str:
    more = f"; the best {MOST_ROWS:,} of them are here, all are in sweep.csv" if len(rows) > MOST_ROWS else ""
    return counts(rows).partition(";")[0] + more


def _figures(rows: Sequence[Row], ranking: Ranking) -> list[Figure]:
    """The figures that cases have: of the step, of its parts, memory, weeks; that of the plot first."""
    known: list[Figure] = [Figure("step time", "seconds", lambda row: float(row[STEP]), format_seconds)]
    if ranking.unit:
        head = f"step time per {ranking.unit}"
        known.append(Figure(head, "seconds", lambda row: ranking.share(row, STEP), format_seconds))
    known += [_share("pipeline bubble", "step_shares.bubble"), _share("exposed communication", EXPOSED)]
    known += [_share("MFU", "mfu"), _share("efficiency", "efficiency")]
    known.append(Figure("peak memory", "bytes", lambda row: float(max(row["peak_memory_bytes"])), _bytes))
    known += [_share("goodput", "goodput"), _share("ETTR", "ettr")]
    if ranking.y not in SHOWN and not ranking.y.startswith("bill."):
        kind = "seconds" if ranking.y.endswith("_s") and not ranking.y.endswith("per_s") else "number"
        text: Callable[[float], str] = format_seconds if kind == "seconds" else "{:.4g}".format
        if ranking.y.endswith("_ratio"):
            kind, text = "share", format_share
        y = Figure(label(ranking.y), kind, lambda row: number(ranking.y, columns(row)[ranking.y]), text)
        known.insert(0, y)
    good = [row for row in rows if "error" not in row]
    return [one for one in known if all(_has(one, row) for row in good) and any(one.value(row) for row in good)]


EXPOSED = "exposed_communication_ratio"
SHOWN = (STEP, "step_shares.bubble", EXPOSED, "efficiency", "mfu", "peak_memory_bytes", "goodput", "ettr")


def _share(head: str, column: str) -> Figure:
    return Figure(head, "share", lambda row: float(columns(row)[column]), format_share)


def _bytes(value: float) -> str:
    return format_bytes(round(value))


def _has(figure: Figure, row: Row) -> bool:
    try:
        figure.value(row)
    except (KeyError, TypeError, ValueError):
        return False
    return True


def _slowdown(row: Row) -> float:
    """The mean slowdown of a case with several jobs; failed ones are last."""
    return float(row.get("slowdown", inf))


def _of_jobs(rows: Sequence[Row]) -> list[Figure]:
    """Of cases with several jobs: the mean slowdown, and that and the step of each."""
    names = [*next(row for row in rows if "error" not in row)["jobs"]]
    figures = [Figure("mean slowdown", "number", lambda row: float(row["slowdown"]), "{:.3f}×".format)]
    for name in names:
        figures += [
            Figure(f"slowdown of {name}", "number", _of_job(name, "slowdown"), "{:.3f}×".format),
            Figure(f"step of {name}", "seconds", _of_job(name, "step_time_s"), format_seconds),
        ]
    return figures


def _of_job(name: str, key: str) -> Callable[[Row], float]:
    return lambda row: float(row["jobs"][name][key])


def _axes(ordered: Sequence[Row], sweep: Sweep) -> Axes:
    """The axes of the plot; else the key with the most values, and the others as lines as long as these are few."""
    if sweep.picture is not None:
        return Axes(sweep.picture.x, sweep.picture.hue, dict(sweep.picture.where))
    values = {path: {value_text(row.get(path)) for row in ordered} for path in sweep.labels}
    several = [path for path, found in values.items() if len(found) > 1] or sweep.labels[:1]
    if not several:
        return Axes("", (), {})
    numeric = [path for path in several if all(isinstance(quantity(row.get(path)), float) for row in ordered)]
    x = max(numeric or several[:1], key=lambda path: len(values[path]))
    hue: list[str] = []
    for path in several:
        lines = {tuple(value_text(row.get(one)) for one in (*hue, path)) for row in ordered}
        if path != x and len(lines) <= MOST_LINES:
            hue.append(path)
    return Axes(x, hue, {path: ordered[0].get(path) for path in several if path not in (x, *hue)})


def _caption(axes: Axes) -> str:
    """What the pictures have in common."""
    lines = f"; a line per {' and '.join(map(one_line, axes.hue))}" if axes.hue else ""
    fixed = ", ".join(f"{one_line(path)} {value_text(value)}" for path, value in axes.where.items())
    return f"Against {one_line(axes.x)}{lines}{f'; with {fixed}' if fixed else ''}"


def _charts(rows: Sequence[Row], figures: Sequence[Figure], axes: Axes) -> dict[str, Any]:
    """A chart for each figure that differs between cases, by the number of the figure."""
    flat = [(place, row, columns(row)) for place, row in enumerate(rows) if "error" not in row]
    drawn = [
        (place, row, cells)
        for place, row, cells in flat
        if axes.x in cells and all(_key(cells.get(path)) == _key(value) for path, value in axes.where.items())
    ]
    numeric = all(isinstance(quantity(cells[axes.x]), float) for _, _, cells in drawn)
    names = [*dict.fromkeys(value_text(cells[axes.x]) for _, _, cells in drawn)]
    texts = sorted({(quantity(cells[axes.x]), value_text(cells[axes.x])) for _, _, cells in drawn} if numeric else ())
    charts: dict[str, Any] = {}
    for chart_number, figure in enumerate(figures):
        lines: dict[str, list[list[Any]]] = {}
        for case, row, cells in drawn:
            at = quantity(cells[axes.x]) if numeric else names.index(value_text(cells[axes.x]))
            name, value = ", ".join(value_text(cells.get(path)) for path in axes.hue), figure.value(row)
            said = f"{label(axes.x)} {value_text(cells[axes.x])}{', ' if name else ''}{name}: {figure.text(value)}"
            lines.setdefault(name, []).append([at, value, said, case, bool(row.get("out_of_memory"))])
        if len({point[1] for points in lines.values() for point in points}) > 1 and len(charts) < MOST_CHARTS:
            series = [
                {"name": name, "line": True, "points": sorted(points, key=lambda point: point[0]), **look(line)}
                for line, (name, points) in enumerate(lines.items())
            ]
            ends = sorted({point[0] for points in lines.values() for point in points})
            log = numeric and len(ends) > 2 and ends[0] > 0 and ends[-1] > 4 * ends[0]
            x = {"label": label(axes.x), "log": log} | ({"texts": texts} if numeric else {"names": names})
            charts[str(chart_number)] = chart_of(x, {"label": figure.head, "kind": figure.kind, "zero": True}, series)
    return charts


def _key(value: Any) -> Any:
    amount = quantity(value)
    return amount if isinstance(amount, float) else value_text(value)


def _table(ordered: Sequence[Row], rows: Sequence[Row], figures: Sequence[Figure], sweep: Sweep) -> str:
    places = {id(row): place for place, row in enumerate(rows)}
    bills = bill_columns([row.get("bill") for row in ordered])
    failed = any("error" in row for row in ordered)
    lines: list[Sequence[Cell | str]] = []
    for line, row in enumerate(ordered):
        values = [_swept(row, path) for path in sweep.labels]
        good = "error" not in row
        cells = [Cell(one.text(one.value(row)), one.value(row)) for one in figures] if good else [""] * len(figures)
        fits = ["no" if row.get("out_of_memory") else "yes" if good else ""]
        error = [one_line(str(row.get("error", "")))] if failed else []
        lines.append([*values, *cells, *fits, *(texts[line] for texts in bills.values()), *error])
    heads = [
        *map(one_line, sweep.labels),
        *(one.head for one in figures),
        "fits",
        *bills,
        *(["failed"] if failed else []),
    ]
    return sorted_table(heads, lines, [places[id(row)] for row in ordered])


def _swept(row: Row, path: str) -> Cell:
    amount = quantity(row.get(path))
    return Cell(value_shown(row, path), amount if isinstance(amount, float) else None)
