"""The page itself: the template filled with one run, or with two to compare."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.reasons import Reasons, reasons_of
from hybrid_des.errors import one_line
from hybrid_des.planning.program_table import Column
from hybrid_des.report import palette
from hybrid_des.report.content import content_of
from hybrid_des.report.fact import Fact
from hybrid_des.report.page.drawn import TIMES, Tables, tables_of
from hybrid_des.report.page.packed_chart import packed_chart
from hybrid_des.report.step_rows import Share
from hybrid_des.report.terminal import render

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parent


SHARED = {"STYLE": "page.css", "CHART": "chart.html", "TIMELINE": "timeline.js"}  # in every page, by placeholder


WIDTH = 110  # characters of the report


LEVEL = 9  # of zlib


SHOWN = 0.0005  # a share of the step that is named beside its bar


DISTANCES = ("asked", "end")  # from `start`, in entries of the table of times


class PageRun(NamedTuple):
    """One run of a page: its findings, its reasons if known, its name if several are compared.

    `said` is HTML above the verdict, `more` below it.
    """

    findings: RunAnalysis
    reasons: Reasons | None = None
    name: str = ""
    said: str = ""
    more: str = ""


def page_of(runs: Sequence[PageRun], title: str = "", lead: str = "") -> str:
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


def run_data(run: PageRun, level: int = LEVEL) -> tuple[dict[str, Any], str]:
    """What timeline.js draws of a run: its lanes, kinds and figures, and its columns as text.

    Args:
        run: the run.
        level: of zlib's compression, 1 (fast) to 9 (small).
    """
    timeline = run.findings.run.timeline
    reasons = run.reasons or reasons_of(timeline)
    tables = tables_of(timeline, reasons, run.findings.inside)
    heads, text = pack({"bars": tables.bars, "idle": tables.idle, "memory": tables.memory}, level)
    return _about(run, reasons, tables, heads), text


def _about(run: PageRun, reasons: Reasons, tables: Tables, heads: dict[str, Any]) -> dict[str, Any]:
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


def _key(run: PageRun, reasons: Reasons, tables: Tables) -> list[list[tuple[str, list[str]]]]:
    """The legend of what is drawn: labels and colours, of kinds, of shades and of idle time."""
    used = [tables.kinds[number] for number in np.unique(tables.bars["kind"]).tolist()]
    kinds = dict.fromkeys((kind["label"], kind["colours"][0]) for kind in used)
    two_way = palette.is_two_way(run.findings.run.plan)
    causes = [reasons.causes[number] for number in np.unique(tables.idle["cause"]).tolist()]
    idle = {palette.idle_label(cause): [palette.cause_colour(cause)] for cause in causes}
    entries = palette.key(list(kinds), tables.chunks, two_way)
    return [entries[: len(kinds)], entries[len(kinds) :], list(idle.items())]


def _section(run: PageRun, reasons: Reasons, several: bool) -> str:
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
        f'<div class="cards">{cards}</div>{_shares(content.shares)}{run.said}<div class="why">{verdict}{run.more}</div>'
        f"{packed_chart(run.findings.run.scenario)}{tables}"
        f"<details><summary>report</summary><pre>{report}</pre></details></section>"
    )


def _shares(shares: Sequence[Share]) -> str:
    """What the mean GPU does in a step: a bar whose parts sum to it, and their names."""
    bars = (
        f'<i style="width:{100 * one.fraction:.3f}%;background:{one.colour}" title="{html.escape(one.label)}"></i>'
        for one in shares
    )
    names = (
        f'<span><i style="background:{one.colour}"></i>{html.escape(one.label)} {one.fraction:.1%}</span>'
        for one in shares
        if one.fraction >= SHOWN
    )
    return f'<div class="shares">{"".join(bars)}</div><div class="causes">{"".join(names)}</div>'


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
