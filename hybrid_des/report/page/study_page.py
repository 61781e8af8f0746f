"""Parts of the pages of studies (compare, sweeps, search, jobs, goodput): verdict, tables to sort, charts, bars.

study.html is a page without a timeline, study_runs.html one with the timelines of runs, GPUs first. study.js sorts
tables, draws charts as wide as the page and opens the plan of a point; study.css is what they need beside page.css.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from hybrid_des.report.page.document import FOLDER, PageRun, fill, run_data
from hybrid_des.report.plots.style import LINES

PLAIN, WITH_RUNS = FOLDER / "study.html", FOLDER / "study_runs.html"
DASHES = ("", "6 3", "2 2", "8 3 2 3")  # of lines, so that they are told apart without colours


class Cell(NamedTuple):
    """A cell of a table: what is shown, and what it is sorted by, if that is another value."""

    text: str
    value: float | str | None = None


class Part(NamedTuple):
    """A part of a bar: its name, its share of the bar, its colour, and what is said of it."""

    name: str
    share: float
    colour: str
    said: str


class Change(NamedTuple):
    """A signed change beside others that sum to a whole: its name, size, colour, and what is said of it."""

    name: str
    size: float
    colour: str
    said: str


def study_page(title: str, body: str, charts: Mapping[str, Any] | None = None, **more: Any) -> str:
    """A page without a timeline.

    Args:
        title: of the page.
        body: its HTML.
        charts: by the names that `chart` has in the body, as `chart_of` gives them.
        more: what else study.js reads: `plans`, HTML by the number of a row, and `first`, the one that is open.
    """
    return fill(PLAIN, [], more={"charts": charts or {}, **more}, TITLE=html.escape(title), BODY=body, **_shared())


def runs_page(
    title: str, body: str, lanes: str, runs: Sequence[PageRun], below: str, charts: Mapping[str, Any] | None = None
) -> str:
    """A page with the timelines of runs on one time axis: `body` above them, under the head `lanes`, `below` after."""
    parts = {"TITLE": html.escape(title), "BODY": body, "LANES": html.escape(lanes), "BELOW": below}
    return fill(WITH_RUNS, [run_data(run) for run in runs], more={"charts": charts or {}}, **parts, **_shared())


def _shared() -> dict[str, str]:
    files = {"STUDIES": "study.css", "TABLES": "study.js"}
    return {name: (FOLDER / file).read_text(encoding="utf-8") for name, file in files.items()}


def verdict(text: str) -> str:
    """The sentence that a page begins with."""
    return f'<p class="verdict">{html.escape(text)}</p>'


def said(rows: Mapping[str, str]) -> str:
    """A few lines, each with its label."""
    lines = (f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>" for label, text in rows.items())
    return f'<dl class="said">{"".join(lines)}</dl>'


def folded_text(summary: str, text: str) -> str:
    """A text report, closed."""
    return f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(text)}</pre></details>"


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> str:
    """A table whose order is what it says."""
    head = f"<tr>{''.join(f'<th>{html.escape(name)}</th>' for name in heads)}</tr>"
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="facts"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def sorted_table(heads: Sequence[str], rows: Iterable[Sequence[Cell | str]], numbers: Sequence[int] = ()) -> str:
    """A table that is sorted by a click on a head; `numbers` are those of the rows, if points open them."""
    head = "".join(f"<th><button>{html.escape(name)}</button></th>" for name in heads)
    lines = []
    for place, row in enumerate(rows):
        own = f' data-row="{numbers[place]}"' if numbers else ""
        lines.append(f"<tr{own}>{''.join(map(_cell, row))}</tr>")
    return (
        f'<div class="scroll"><table class="sorted"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


LONG_CELL = 60  # letters from which a cell is wrapped


def _cell(cell: Cell | str) -> str:
    cell = Cell(cell) if isinstance(cell, str) else cell
    value = "" if cell.value is None else f' data-value="{html.escape(str(cell.value))}"'
    wide = ' class="wide"' if len(cell.text) > LONG_CELL else ""
    return f"<td{value}{wide}>{html.escape(cell.text)}</td>"


def chart(name: str) -> str:
    """The place of a chart."""
    return f'<div data-chart="{name}"></div>'


def legend(*names: str) -> str:
    """The legend that charts share."""
    return f'<div data-legend="{" ".join(names)}"></div>'


def chart_of(
    x: Mapping[str, Any], y: Mapping[str, Any], series: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """A chart as study.js draws it.

    Args:
        x: `label`, `kind` (seconds, bytes, share, number), `zero`, `log`; `names` where it has no numbers.
        y: the same, but names.
        series: `name`, `colour`, `points` (x, y, what is said of it, its row, whether it is hollow), `line`.
        more: `marks` (`at`, `name`), `height`.
    """
    return {"x": dict(x), "y": dict(y), "series": [dict(one) for one in series], **more}


def look(number: int) -> dict[str, Any]:
    """Colour, shape and dashes of the points and lines of a series: each is told apart without the others."""
    return {"colour": LINES[number % len(LINES)], "mark": number, "dash": DASHES[number // 2 % len(DASHES)]}


def shares_bar(parts: Sequence[Part]) -> str:
    """A bar whose parts sum to it, and their names."""
    bars = (
        f'<i style="width:{100 * one.share:.3f}%;background:{one.colour}" '
        f'title="{html.escape(f"{one.name}: {one.said}")}"></i>'
        for one in parts
    )
    names = (
        f'<span><i style="background:{one.colour}"></i>{html.escape(f"{one.name} {one.said}")}</span>' for one in parts
    )
    return f'<div class="shares">{"".join(bars)}</div><div class="swatches">{"".join(names)}</div>'


def changes_bars(changes: Sequence[Change], whole: Change) -> str:
    """Changes that sum to a whole, each a bar that begins where the last one ends; the whole is the last bar."""
    sums = list(accumulate((one.size for one in changes), initial=0.0))
    low, high = min(sums), max(sums)
    scale = 100 / ((high - low) or 1.0)
    spans = [*pairwise(sums), (0.0, whole.size)]
    rows = []
    for one, (begin, end) in zip((*changes, whole), spans, strict=True):
        name = f"<b>{html.escape(one.name)}</b>" if one is whole else html.escape(one.name)
        place = f"left:{(min(begin, end) - low) * scale:.3f}%;width:{abs(end - begin) * scale:.3f}%"
        shade = ' class="track less"' if one.size < 0 else ' class="track"'
        bar = f'<i style="{place};background-color:{one.colour}"></i>'
        rows.append(f"<span>{name}</span><div{shade}>{bar}</div><span>{html.escape(one.said)}</span>")
    return f'<div class="changes">{"".join(rows)}</div>'
