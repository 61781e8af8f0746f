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


class Span(NamedTuple):
    """A part of a line, in shares of it."""

    begin: float
    length: float
    colour: str
    hatched: bool = False


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


def runs_page(title: str, body: str, lanes: str, runs: Sequence[PageRun], below: str) -> str:
    """A page with the timelines of runs on one time axis: `body` above them, under the head `lanes`, `below` after."""
    parts = {"TITLE": html.escape(title), "BODY": body, "LANES": html.escape(lanes), "BELOW": below}
    return fill(WITH_RUNS, [run_data(run) for run in runs], more={"charts": {}}, **parts, **_shared())


def _shared() -> dict[str, str]:
    files = {"STUDIES": "study.css", "TABLES": "study.js"}
    return {name: (FOLDER / file).read_text(encoding="utf-8") for name, file in files.items()}


def said(rows: Mapping[str, str]) -> str:
    """A few lines, each with its label."""
    lines = (f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>" for label, text in rows.items())
    return f'<dl class="said">{"".join(lines)}</dl>'


def folded_text(text: str) -> str:
    """A text report, closed."""
    return f"<details><summary>report</summary><pre>{html.escape(text)}</pre></details>"


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
    for line, row in enumerate(rows):
        own = f' data-row="{numbers[line]}"' if numbers else ""
        lines.append(f"<tr{own}>{''.join(map(_cell, row))}</tr>")
    return (
        f'<div class="scroll"><table class="sorted"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


SMALLEST, LARGEST = 3.5, 6.0  # pixels of half a point


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
        x: `label`, `kind` (seconds, bytes, share, number), `zero`, `log`; `names` where it has no numbers, `texts` of
            its numbers where these are few.
        y: the same, but names.
        series: `name`, `colour`, `points` (x, y, what is said of it, its row, whether it is hollow), `line`.
        more: `marks` (`at`, `name`), `low` if their names are at the bottom, `height`.
    """
    return {"x": dict(x), "y": dict(y), "series": [dict(one) for one in series], **more}


def look(number: int) -> dict[str, Any]:
    """Colour, shape, size and dashes of a series: each tells it from others, and what covers a point is smaller."""
    size = max(SMALLEST, LARGEST - number / 2)
    return {
        "colour": LINES[number % len(LINES)],
        "mark": number,
        "dash": DASHES[number // 2 % len(DASHES)],
        "size": size,
    }


def shares_bar(parts: Sequence[Part]) -> str:
    """A bar whose parts sum to it, and their names."""
    bars = (
        f'<i style="width:{100 * one.share:.3f}%;background:{one.colour}" '
        f'title="{html.escape(f"{one.name}: {one.said}")}"></i>'
        for one in parts
    )
    return (
        f'<div class="shares">{"".join(bars)}</div>{swatches({f"{one.name} {one.said}": one.colour for one in parts})}'
    )


def changes_bars(changes: Sequence[Change], whole: Change) -> str:
    """Changes that sum to a whole, each a bar that begins where the last one ends; the whole is the last bar."""
    sums = list(accumulate((one.size for one in changes), initial=0.0))
    low, span = min(sums), (max(sums) - min(sums)) or 1.0
    ends = [*pairwise(sums), (0.0, whole.size)]
    rows = [
        (one.name, [Span((min(pair) - low) / span, abs(pair[1] - pair[0]) / span, one.colour, one.size < 0)], one.said)
        for one, pair in zip((*changes, whole), ends, strict=True)
    ]
    return spans_bars(rows, last_is_whole=True)


def spans_bars(rows: Sequence[tuple[str, Sequence[Span], str]], *, last_is_whole: bool = False) -> str:
    """Rows of a name, spans on one scale, and what is said of them."""
    lines = []
    for row, (name, spans, text) in enumerate(rows):
        label = html.escape(name)
        label = f"<b>{label}</b>" if last_is_whole and row == len(rows) - 1 else label
        bars = "".join(map(_bar, spans))
        lines.append(f'<span>{label}</span><div class="track">{bars}</div><span>{html.escape(text)}</span>')
    return f'<div class="changes">{"".join(lines)}</div>'


def _bar(span: Span) -> str:
    hatched = ' class="hatched"' if span.hatched else ""
    where = f"left:{100 * span.begin:.3f}%;width:{100 * span.length:.3f}%"
    return f'<i{hatched} style="{where};background-color:{span.colour}"></i>'


def strip(bands: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> str:
    """A picture over time, as wide as there is room: in each bin a band from one share of the height to another."""
    width = len(bands[0][1]) if bands else 1
    paths = []
    for colour, base, top in bands:
        upper = " ".join(f"{place},{1 - share:.3f} {place + 1},{1 - share:.3f}" for place, share in enumerate(top))
        lower = " ".join(
            f"{place + 1},{1 - share:.3f} {place},{1 - share:.3f}" for place, share in reversed([*enumerate(base)])
        )
        paths.append(f'<polygon points="{upper} {lower}" fill="{colour}"/>')
    return f'<svg class="strip" viewBox="0 0 {width} 1" preserveAspectRatio="none">{"".join(paths)}</svg>'


def spans_strip(spans: Iterable[Span]) -> str:
    """The same of spans as high as the picture."""
    bars = "".join(
        f'<rect x="{1000 * one.begin:.3f}" width="{1000 * one.length:.3f}" height="1" fill="{one.colour}"/>'
        for one in spans
    )
    return f'<svg class="strip" viewBox="0 0 1000 1" preserveAspectRatio="none">{bars}</svg>'


def strip_lanes(rows: Sequence[tuple[str, str]], begin: str, end: str) -> str:
    """Pictures below each other, each with its name, on one time axis."""
    lanes = "".join(f"<span>{html.escape(name)}</span>{picture}" for name, picture in rows)
    ends = f'<span></span><div class="ends"><span>{html.escape(begin)}</span><span>{html.escape(end)}</span></div>'
    return f'<div class="lanes">{lanes}{ends}</div>'


def swatches(colours: Mapping[str, str]) -> str:
    """What colours stand for."""
    names = (f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for name, colour in colours.items())
    return f'<div class="swatches">{"".join(names)}</div>'
