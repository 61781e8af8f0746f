"""The page itself: the template filled with one run, or with two to compare."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.reasons import Reasons, reasons_of
from hybrid_des.analysis.verdict import verdict as verdict_of
from hybrid_des.errors import one_line
from hybrid_des.layout import Layout
from hybrid_des.planning.program_table import Column
from hybrid_des.report import palette
from hybrid_des.report.content import content_of
from hybrid_des.report.fact import Fact
from hybrid_des.report.page.answer import bar, parts_of, section, sure_of, tabs, verdict, wide
from hybrid_des.report.page.drawn import TIMES, Tables, tables_of
from hybrid_des.report.page.packed_chart import packed_chart
from hybrid_des.report.terminal import render
from hybrid_des.units import format_seconds

FOLDER = Path(__file__).parent


SHARED = {
    "STYLE": "page.css",
    "CHART": "chart.html",
    "TIMELINE": "timeline.js",
    "PAGE": "page.js",
}  # in every page, by placeholder


WIDTH = 110  # characters of the report


LEVEL = 9  # of zlib


COMMENTS = r"^ *//.*\n|(?<=\S) +// .*$|^ +"  # of a script, and its indentation; no string in one has two slashes


IN_PARTS = (  # figures that the verdict, the bar or the interval tell
    "step time", "bubble", "exposed communication", "hidden communication", "host-bound", "stack",
)  # fmt: skip


HOW_TO_ADVISE = section(
    "What to change",
    "<p>This page has the run alone. <code>hybrid-des explain SCENARIO --out FOLDER</code> also simulates changes of "
    "its settings, and writes this page with those that make the step shorter and their flags.</p>",
)


DISTANCES = ("asked", "end")  # from `start`, in entries of the table of times


class PageRun(NamedTuple):
    """One run of a page.

    Attributes:
        findings: the run.
        reasons: why ops and messages waited; by default, what follows from the timeline alone.
        name: of the run, if several are compared.
        verdict: what the step is lost to, in sentences; by default, what its shares tell.
        advice_html: what to change.
        panels: further tabs, as titles and HTML.
    """

    findings: RunAnalysis
    reasons: Reasons | None = None
    name: str = ""
    verdict: str = ""
    advice_html: str = ""
    panels: Sequence[tuple[str, str]] = ()


def page_of(runs: Sequence[PageRun]) -> str:
    """The page of one run, or of several on one time axis, as HTML; by default, with the reasons in the timeline."""
    drawn = [run_data(run) for run in runs]
    title = " against ".join(about["name"] for about, _ in drawn)
    several = len(runs) > 1
    body = "\n".join(_answer(run, several) for run in runs)
    panels = [("Timeline and memory", shipped(SHARED["CHART"]))]
    for run in runs:
        of_run = f"{run.name}: " if several else ""
        panels += [(of_run + name, panel) for name, panel in _panels(run)]
    return fill(FOLDER / "page.html", drawn, TITLE=html.escape(title), BODY=body, PANELS=tabs(panels))


def fill(template: Path, drawn: Sequence[tuple[dict[str, Any], str]], /, *, more: Any = None, **fills: str) -> str:
    """A page from a template: text for its placeholders such as {{TITLE}}, and what all pages share.

    Args:
        template: the file.
        drawn: runs to draw, as `run_data` gives them.
        more: further data for the script of the page, as `about.more`.
        fills: HTML by placeholder.
    """
    about = json.dumps({"runs": [run for run, _ in drawn], "more": more}, ensure_ascii=False, separators=(",", ":"))
    shared = {name: shipped(file) for name, file in SHARED.items()}
    data = {
        "ABOUT": about.replace("<", "\\u003c"),  # as JSON, or compressed
        "PACKED": _zipped(about.encode(), LEVEL),
        "DATA": " ".join(text for _, text in drawn),
    }
    known = {**shared, **data, **fills}
    text = template.read_text(encoding="utf-8").replace("{{HEAD}}", shipped("head.html"))
    return re.sub("{{([A-Z]+)}}", lambda name: known[name[1]], text)


@lru_cache(maxsize=16)
def shipped(file: str) -> str:
    """A file of this folder as pages have it: scripts without comments and indentation."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    return re.sub(COMMENTS, "", text, flags=re.MULTILINE) if file.endswith(".js") else text


def run_data(run: PageRun, level: int = LEVEL) -> tuple[dict[str, Any], str]:
    """What timeline.js draws of a run: its lanes, kinds and figures, and its columns as text.

    Args:
        run: the run.
        level: of zlib's compression, 1 (fast) to 9 (small).
    """
    timeline = run.findings.run.timeline
    reasons = run.reasons or reasons_of(timeline)
    simulated = run.findings.run
    replayed = simulated.traffic.replayed
    told = run.findings.summary.get("communication_s", {})
    hidden = [axis for axis in replayed if axis in told and told[axis]["hidden"]]
    tables = tables_of(timeline, reasons, run.findings.inside, simulated.fabric, replayed, hidden)
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
        "bands": tables.bands,
        "axes": _axes(timeline.layout),
        "kinds": tables.kinds,
        "causes": [
            {"name": palette.cause_name(cause), "colour": palette.cause_colour(cause), "hatch": palette.hatch(cause)}
            for cause in reasons.causes
        ],
        "key": _key(run, reasons, tables),
        "gpuMemory": max(kind.gpu.memory for kind in gpus),
        "left_out": tables.left_out,
        "tables": heads,
    }


def _axes(layout: Layout) -> list[tuple[str, int, int]]:
    """Short name, size and stride of each axis along which there are several ranks: the place of a rank follows."""
    axes = {"tp": "tensor", "cp": "context", "pp": "pipeline", "dp": "data"}
    known = ((short, layout.sizes.get(axis, 1), layout.strides.get(axis, 0)) for short, axis in axes.items())
    return [one for one in known if one[1] > 1]


def _key(run: PageRun, reasons: Reasons, tables: Tables) -> list[list[tuple[Any, ...]]]:
    """The legend of what is drawn: labels and colours, of kinds, of shades and, with hatches, of idle time."""
    used = [tables.kinds[number] for number in np.unique(tables.bars["kind"]).tolist()]
    kinds = dict.fromkeys((kind["label"], kind["colours"][0]) for kind in used)
    two_way = palette.is_two_way(run.findings.run.plan)
    causes = [reasons.causes[number] for number in np.unique(tables.idle["cause"]).tolist()]
    idle = {palette.idle_label(cause): ([palette.cause_colour(cause)], palette.hatch(cause)) for cause in causes}
    entries = palette.key(list(kinds), tables.chunks, two_way)
    return [entries[: len(kinds)], entries[len(kinds) :], [(label, *look) for label, look in idle.items()]]


def _answer(run: PageRun, several: bool) -> str:
    """What a page says of a run before its timeline."""
    content, findings = content_of(run.findings), run.findings
    about = content.description or (content.name if content.name != run.name else "")
    title = html.escape(": ".join(filter(None, (run.name, about))) if several else content.description)
    heading = "h2" if several else "p"
    step = findings.summary["step_time_s"]
    figure = f"{format_seconds(step)} per step{', if it fitted into memory' if content.alarm else ''}."
    said = run.verdict or verdict_of(findings.run.scenario, findings.breakdown.shares)
    alarm = f'<p class="alarm">{html.escape(content.alarm)}</p>' if content.alarm else ""
    setup = "".join(f'<p class="setup">{html.escape(line)}</p>' for line in content.setup[:2])
    advice = run.advice_html if several else run.advice_html or HOW_TO_ADVISE
    return (
        f"<{heading}>{title}</{heading}>{setup}{alarm}"
        f"{verdict(said, figure)}{_figures(content.headline, content.resources)}{advice}"
        f"{section('What the step is made of', bar(parts_of(findings), step), 'of the mean GPU; sums to the step')}"
        f"{section('How sure the prediction is', sure_of(findings.summary))}"
    )


def _figures(headline: Sequence[Fact], resources: Sequence[Fact]) -> str:
    """The figures that are asked for first, in one line: throughput, utilisation, what training costs, memory."""
    shown = [fact for fact in headline if fact.label not in IN_PARTS]
    texts = [
        f'<span title="{html.escape(fact.note)}"><b>{html.escape(fact.value)}</b> {html.escape(fact.label)}</span>'
        for fact in shown
    ]
    texts += [
        f"memory: {html.escape(fact.note)}" for fact in resources if (fact.label, fact.value) == ("memory", "fits")
    ]
    return f'<p class="figures">{" · ".join(texts)}</p>' if texts else ""


def _panels(run: PageRun) -> Iterator[tuple[str, str]]:
    """The tabs of a run: title and HTML."""
    yield from run.panels
    if packed := packed_chart(run.findings.run.scenario):
        yield "Documents", wide(packed)
    yield "Text report", f"<pre>{html.escape(render(run.findings, width=WIDTH))}</pre>"


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
    return heads, _zipped(b"".join(planes), level)


def _zipped(content: bytes, level: int) -> str:
    """Bytes compressed by zlib, in base64; `inflate` of timeline.js reads them."""
    return base64.b64encode(zlib.compress(content, level)).decode("ascii")


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
