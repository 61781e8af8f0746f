"""The page itself: the template filled with one run, or with two to compare."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybrid_des.analysis.compare import Comparison
from hybrid_des.analysis.counterfactual.ladder import Curve, curves
from hybrid_des.analysis.critical_path.graph import Graph, graph_of
from hybrid_des.analysis.critical_path.paths import critical_path, idle_pieces, released_by
from hybrid_des.analysis.explanation import Explanation
from hybrid_des.analysis.idle import REASONS, Reasons, reasons_of
from hybrid_des.analysis.metrics import Findings
from hybrid_des.errors import one_line
from hybrid_des.report import palette
from hybrid_des.report.content import Fact, content_of
from hybrid_des.report.explained import render_comparison, render_explanation
from hybrid_des.report.page.drawn import TIMES, Tables, tables_of
from hybrid_des.report.plots.style import LINES
from hybrid_des.report.terminal import render
from hybrid_des.timeline import NONE, Column
from hybrid_des.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd


FOLDER = Path(__file__).parent
SHARED = {"STYLE": "page.css", "CHART": "chart.html", "TIMELINE": "timeline.js"}  # in every page, by placeholder
WIDTH = 110  # characters of the report
LEVEL = 9  # of zlib
DISTANCES = ("asked", "end")  # from `start`, in entries of the table of times


class Shown(NamedTuple):
    """One run of a page: its findings, its reasons if known, its name if several are compared.

    `more` is HTML below the verdict.
    """

    findings: Findings
    reasons: Reasons | None = None
    name: str = ""
    more: str = ""


def page_of(runs: Sequence[Shown], title: str = "", lead: str = "") -> str:
    """The page of one run, or of several on one time axis, as HTML.

    Args:
        runs: the runs to show; by default, with the reasons that follow from the timeline alone.
        title: of the page; by default, the names of the runs.
        lead: text of all runs, before them.
    """
    known = [run.reasons or reasons_of(run.findings.run.timeline) for run in runs]
    drawn = [run_data(run._replace(reasons=reasons)) for run, reasons in zip(runs, known, strict=True)]
    title = title or " against ".join(about["name"] for about, _ in drawn)
    body = f"<pre>{html.escape(lead)}</pre>" * bool(lead) + "\n".join(
        _section(run, reasons, len(runs) > 1) for run, reasons in zip(runs, known, strict=True)
    )
    return fill(FOLDER / "page.html", drawn, TITLE=html.escape(title), BODY=body)


def fill(template: Path, drawn: Sequence[tuple[dict[str, Any], str]], /, *, more: Any = None, **fills: str) -> str:
    """A page from a template: text for its placeholders such as {{TITLE}}, and what all pages share.

    Args:
        template: the file.
        drawn: runs to draw, as `run_data` gives them.
        more: further data for the script of the page, as `about.more`.
        fills: HTML by placeholder.
    """
    about = json.dumps({"runs": [run for run, _ in drawn], "more": more}, ensure_ascii=False, separators=(",", ":"))
    shared = {name: (FOLDER / file).read_text(encoding="utf-8") for name, file in SHARED.items()}
    data = {"ABOUT": about.replace("<", "\\u003c"), "DATA": " ".join(text for _, text in drawn)}
    known = {**shared, **data, **fills}
    text = template.read_text(encoding="utf-8").replace("{{HEAD}}", (FOLDER / "head.html").read_text(encoding="utf-8"))
    return re.sub("{{([A-Z]+)}}", lambda name: known[name[1]], text)


def run_data(run: Shown, level: int = LEVEL) -> tuple[dict[str, Any], str]:
    """What timeline.js draws of a run: its lanes, kinds and figures, and its columns as text.

    Args:
        run: the run.
        level: of zlib's compression, 1 (fast) to 9 (small).
    """
    timeline = run.findings.run.timeline
    reasons = run.reasons or reasons_of(timeline)
    tables = tables_of(timeline, reasons)
    heads, text = pack({"bars": tables.bars, "idle": tables.idle, "memory": tables.memory}, level)
    return _about(run, reasons, tables, heads), text


def _about(run: Shown, reasons: Reasons, tables: Tables, heads: dict[str, Any]) -> dict[str, Any]:
    """The data that the script needs besides the columns."""
    timeline = run.findings.run.timeline
    gpus = run.findings.run.scenario.cluster.kinds
    return {
        "name": run.name or one_line(run.findings.run.scenario.name),
        "duration": timeline.duration,
        "lanes": tables.lanes,
        "kinds": tables.kinds,
        "causes": [
            {"name": palette.cause_name(cause), "colour": palette.cause_colour(cause)} for cause in reasons.causes
        ],
        "key": _key(run, reasons, tables),
        "gpuMemory": max(kind.gpu.memory for kind in gpus),
        "left_out": tables.left_out,
        "tables": heads,
    }


def _key(run: Shown, reasons: Reasons, tables: Tables) -> list[list[tuple[str, list[str]]]]:
    """The legend of what is drawn: labels and colours, of kinds, of shades and of idle time."""
    used = [tables.kinds[number] for number in np.unique(tables.bars["kind"]).tolist()]
    kinds = dict.fromkeys((kind["label"], kind["colours"][0]) for kind in used)
    two_way = palette.is_two_way(run.findings.run.plan)
    causes = [reasons.causes[number] for number in np.unique(tables.idle["cause"]).tolist()]
    idle = {palette.idle_label(cause): [palette.cause_colour(cause)] for cause in causes}
    entries = palette.key(list(kinds), tables.chunks, two_way)
    return [entries[: len(kinds)], entries[len(kinds) :], list(idle.items())]


def _section(run: Shown, reasons: Reasons, several: bool) -> str:
    """Headline, verdict, tables and report of one run."""
    content = content_of(run.findings)
    about = content.description or (content.name if content.name != run.name else "")
    title = html.escape(": ".join(filter(None, (run.name, about))) if several else content.description)
    heading, cards = "h2" if several else "p", "".join(_card(fact) for fact in content.headline)
    alarm = f'<p class="alarm">{html.escape(content.alarm)}</p>' if content.alarm else ""
    verdict = f"<pre>{html.escape(chr(10).join(reasons.verdict))}</pre>" if reasons.verdict else ""
    tables = "".join(_table(name, frame) for name, frame in reasons.tables)
    report = html.escape(render(run.findings, width=WIDTH))
    return (
        f'<section class="run"><{heading}>{title}</{heading}>{alarm}'
        f'<p class="setup">{html.escape(content.setup[0])}</p>'
        f'<div class="cards">{cards}</div><div class="why">{verdict}{run.more}</div>{tables}'
        f"<details><summary>report</summary><pre>{report}</pre></details></section>"
    )


def _card(fact: Fact) -> str:
    label, value, note = (html.escape(part) for part in (fact.label, fact.value, fact.note))
    return f"<div><b>{value}</b> {label}<small>{note}</small></div>"


def _table(name: str, frame: pd.DataFrame) -> str:
    return f"<h2>{html.escape(name)}</h2>{frame.to_html(index=False, border=0, float_format='{:.4g}'.format)}"


def pack(tables: Mapping[str, Mapping[str, Column]], level: int = LEVEL) -> tuple[dict[str, Any], str]:
    """Pack the tables of one run, of int64 columns: split into byte planes, compressed by zlib, in base64.

    Times are few and repeat, so columns of times hold indices into a table of all times: `start` the index itself,
    `asked` and `end` their distances before and after it. These distances are stored as they are, any other column as
    zigzag-coded differences between neighbours (2d for d ≥ 0, −2d−1 for d < 0). The lowest bytes of a column are stored
    first, then the second bytes, and so on: planes that are mostly runs of equal bytes. `unpack` of timeline.js reads
    it; numbers beyond 2⁵³ are rounded there. 100,000 bars whose times are all different take less than a megabyte.

    Returns:
        `rows` and `columns` of each table, the table of times first, each column a name and a number of planes; and the
        text.
    """
    named = [table[name] for table in tables.values() for name in TIMES if name in table]
    times = np.unique(np.concatenate(named))
    whole = {"times": {"time": times}} | {title: _placed(table, times) for title, table in tables.items()}
    heads: dict[str, Any] = {}
    planes: list[bytes] = []
    for title, table in whole.items():
        packed = {name: _planes(values, name not in DISTANCES) for name, values in table.items()}
        columns = [[name, len(found)] for name, found in packed.items()]
        heads[title] = {"rows": len(next(iter(table.values()))), "columns": columns}
        planes += [plane for found in packed.values() for plane in found]
    return heads, base64.b64encode(zlib.compress(b"".join(planes), level)).decode("ascii")


def _placed(table: Mapping[str, Column], times: Column) -> dict[str, Column]:
    """A table with its times as indices into the table of times, and distances between them."""
    placed = {name: np.searchsorted(times, column) if name in TIMES else column for name, column in table.items()}
    for name, sign in (("asked", -1), ("end", 1)):
        if name in placed:
            placed[name] = sign * (placed[name] - placed["start"])
    return placed


def _planes(values: Column, differences: bool) -> list[bytes]:
    numbers = np.asarray(values, dtype=np.int64)
    if differences:
        numbers = np.diff(numbers, prepend=0)
        numbers = (numbers << 1) ^ (numbers >> 63)
    unsigned = numbers.astype(np.uint64)
    count = (int(unsigned.max(initial=0)).bit_length() + 7) // 8
    return [((unsigned >> np.uint64(8 * place)) & np.uint64(255)).astype(np.uint8).tobytes() for place in range(count)]


# Pages of runs whose causes were traced: with the critical path, what released everything, and idle time by reason.


COLUMNS, HEIGHT, LEFT, BELOW, NAMES = 520, 220, 70, 34, 150  # pixels
LINE = 13  # pixels between names


def explanation_page(found: Explanation) -> str:
    """The page of `explain`: its text, curves and changes above the run."""
    lines = render_explanation(found, COLUMNS).splitlines()
    drawn = curves_svg(curves(found.run, found.gains), found.seconds(1))
    more = f"<div>{drawn}{what_if_table(found)}</div>"
    return page_of([Shown(Findings(found.run), traced_reasons(found.graph, lines), more=more)])


def comparison_page(found: Comparison) -> str | None:
    """The page of `compare`, both runs on one time axis; None if one was read from a folder."""
    if found.a.run is None or found.b.run is None:
        return None
    text = render_comparison(found).splitlines()
    names = ("A: " + found.a.name, "B: " + found.b.name)
    reasons = (traced_reasons(graph_of(run), said) for run, said in ((found.a.run, text), (found.b.run, [])))
    runs = (Findings(found.a.run), Findings(found.b.run))
    return page_of([Shown(*shown) for shown in zip(runs, reasons, names, strict=True)])


def traced_reasons(graph: Graph, verdict: Sequence[str] = ()) -> Reasons:
    """The reasons that a graph of causes gives for the rows of its timeline."""
    rows_of = graph.messages.rows
    known = reasons_of(graph.timeline)
    ops = len(graph.timeline.ops["rank"])
    released = released_by(graph)
    first = np.concatenate([np.arange(ops), ops + rows_of[:, 0], [NONE]])  # the row that shows each activity
    by = np.full(len(known.released_by), NONE, dtype=np.int64)
    by[:ops] = first[released[:ops]]
    for hop in range(rows_of.shape[1]):
        there = np.flatnonzero(rows_of[:, hop] >= 0)
        before = first[released[ops:][there]] if hop == 0 else ops + rows_of[there, hop - 1]
        by[ops + rows_of[there, hop]] = before
    queued = known.released_by[ops:] != NONE  # behind another message on the link
    by[ops:][queued] = known.released_by[ops:][queued]
    idle = idle_pieces(graph)
    places = {reason: place for place, reason in enumerate(REASONS)}
    rows = [(one.rank, one.start, one.end, places[one.reason]) for one in idle]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    columns = dict(zip(("rank", "start", "end", "cause"), table.T, strict=True))
    return Reasons(by, columns, REASONS, _path(graph, ops), verdict)


def _path(graph: Graph, ops: int) -> Column:
    """The rows on the critical path: ops, and messages on all of their links."""
    rows: list[int] = []
    for piece in critical_path(graph):
        if 0 <= piece.activity < ops:
            rows.append(piece.activity)
        elif piece.activity >= ops:
            hops = graph.messages.rows[piece.activity - ops]
            rows += (ops + hops[hops >= 0]).tolist()
    return np.array(rows, dtype=np.int64)


def curves_svg(curves: Sequence[Curve], seconds: float) -> str:
    """The curves as an SVG element; empty without curves.

    Args:
        curves: ends of the run in picoseconds.
        seconds: seconds of a step per picosecond of the run.
    """
    if not curves:
        return ""
    ends = [end for curve in curves for _, end in curve.points]
    last = max(share for curve in curves for share, _ in curve.points)
    most, least = max(ends), min(ends)
    low = least - 0.08 * (most - least or most or 1)
    high = most + 0.04 * (most - least or most or 1)

    def x(share: float) -> float:
        return LEFT + share / last * (COLUMNS - LEFT - NAMES)

    def y(end: float) -> float:
        return 8 + (high - end) / (high - low) * (HEIGHT - BELOW - 8)

    pieces = [*_axes(x(last), [(y(end), format_seconds(end * seconds)) for end in (most, (most + least) / 2, least)])]
    pieces += [f'<text x="{x(share):.0f}" y="{HEIGHT - 18}" text-anchor="middle">{share:.0%}</text>'
               for share in (0, 0.25, 0.5, 0.75) if share <= last]  # fmt: skip
    pieces.append(f'<text x="{x(last / 2):.0f}" y="{HEIGHT - 3}" text-anchor="middle">less time in the class</text>')
    places = _spread([y(curve.points[-1][1]) for curve in curves])
    for curve, place, colour in zip(curves, places, (*LINES, *LINES), strict=False):
        line = " ".join(f"{x(share):.1f},{y(end):.1f}" for share, end in curve.points)
        pieces.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        pieces += [f'<circle cx="{x(share):.1f}" cy="{y(end):.1f}" r="2.5" fill="{colour}"/>'
                   for share, end in curve.points]  # fmt: skip
        end = x(curve.points[-1][0])
        pieces.append(f'<path d="M{end + 3:.1f} {y(curve.points[-1][1]):.1f}L{x(last) + 14:.1f} {place:.1f}" '
                      f'stroke="{colour}" stroke-width="0.7"/>')  # fmt: skip
        pieces.append(f'<text x="{x(last) + 17:.0f}" y="{place + 4:.0f}">{html.escape(curve.name)}</text>')
    return (
        "<h2>What if one class were quicker: the step, simulated</h2>"
        f'<svg id="curves" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" fill="currentColor" font-size="11">{"".join(pieces)}</svg>'
    )


def _axes(right: float, ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
    for place, text in ticks:
        yield f'<path d="M{LEFT} {place:.1f}H{right:.0f}" stroke="var(--line)"/>'
        yield f'<text x="{LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{text}</text>'


def _spread(places: Sequence[float]) -> list[float]:
    """Heights of names, near the given ones, so that names do not overlap."""
    order = sorted(range(len(places)), key=places.__getitem__)
    found, last = [0.0] * len(places), -float(LINE)
    for number in order:
        last = found[number] = max(places[number], last + LINE)
    over = max(0.0, last - (HEIGHT - BELOW)) if places else 0.0
    for number in reversed(order):
        if over <= 0:
            break
        found[number] -= over
    return found


def what_if_table(found: Explanation) -> str:
    """Every change that was simulated, the most helpful first, as an HTML table."""
    steps, before = found.run.scenario.steps, found.run.scenario.schedule.microbatches
    rows = [(one.change, one.first_order, one.duration, one.steps, one.microbatches) for one in found.what_if]
    rows += [(f"{gain.part.name} {gain.change}", None, gain.duration, steps, before) for gain in found.gains]
    rows += [(one.change, None, one.duration, one.steps, one.microbatches) for one in found.proposals]
    unique = {row[0]: row for row in rows[::-1]}.values()
    base = max(found.duration, 1) / steps / before
    cells = []
    for name, first, end, count, microbatches in sorted(unique, key=lambda row: row[2] / row[3] / row[4]):
        order = "" if first is None else f"{first / max(found.duration, 1) - 1:+.1%}"
        step = format_seconds(end * 1e-12 / count)
        gain = f"{end / count / microbatches / base - 1:+.1%}"
        cells.append(f"<tr><td>{html.escape(name)}<td>{order}<td>{step}<td>{gain}</tr>")
    head = "<tr><th>change<th>first order<th>step, simulated<th>per micro-batch</tr>"
    return f"<details><summary>{len(cells)} changes, simulated</summary><table>{head}{''.join(cells)}</table></details>"
