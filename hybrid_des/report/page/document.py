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

from hybrid_des.analysis.metrics import Findings
from hybrid_des.analysis.reasons import Reasons, reasons_of
from hybrid_des.errors import one_line
from hybrid_des.network.purpose import ACTIVATION, PURPOSES
from hybrid_des.report.content import Fact, cause_name, content_of
from hybrid_des.report.page.drawn import TIMES, Tables, tables_of
from hybrid_des.report.terminal import render
from hybrid_des.timeline import Column

if TYPE_CHECKING:
    import pandas as pd

TEMPLATE = Path(__file__).with_name("page.html")
WIDTH = 110  # characters of the report
LEVEL = 9  # of zlib
DISTANCES = ("asked", "end")  # from `start`, in entries of the table of times
IDLE = {**{purpose.cause: purpose.colour for purpose in PURPOSES}, "dependency": "#8A8A8A", "end_of_step": "#F0E442",
        "warm-up": "#B8B8B8", "pipeline dependency": "#8A8A8A", "drain": "#6E6E6E",
        "waiting for a slower replica": "#AA4499", "step barrier": "#F0E442", "transfer": ACTIVATION.colour,
        "latency": "#44AA99", "queueing": "#D55E00"}  # fmt: skip


class Shown(NamedTuple):
    """One run of a page: its findings, its reasons if known, its name if several are compared.

    `more` is HTML below the verdict.
    """

    findings: Findings
    reasons: Reasons | None = None
    name: str = ""
    more: str = ""


def page_of(runs: Sequence[Shown]) -> str:
    """The page of one run, or of several on one time axis, as HTML.

    Args:
        runs: the runs to show; by default, with the reasons that follow from the timeline alone.
    """
    known = [run.reasons or reasons_of(run.findings.run.timeline) for run in runs]
    tables = [tables_of(run.findings.run.timeline, reasons) for run, reasons in zip(runs, known, strict=True)]
    packed = [pack({"bars": one.bars, "idle": one.idle, "memory": one.memory}) for one in tables]
    heads = [head for head, _ in packed]
    about = [_about(*parts) for parts in zip(runs, known, tables, heads, strict=True)]
    title = " against ".join(run["name"] for run in about)
    fills = {
        "TITLE": html.escape(title),
        "BODY": "\n".join(_section(run, reasons, len(runs) > 1) for run, reasons in zip(runs, known, strict=True)),
        "ABOUT": json.dumps({"runs": about}, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "DATA": " ".join(text for _, text in packed),
    }
    return re.sub("{{(.*?)}}", lambda name: fills[name[1]], TEMPLATE.read_text(encoding="utf-8"))


def _about(run: Shown, reasons: Reasons, tables: Tables, heads: dict[str, Any]) -> dict[str, Any]:
    """The data that the script needs besides the columns."""
    timeline = run.findings.run.timeline
    gpus = run.findings.run.scenario.cluster.kinds
    return {
        "name": run.name or one_line(run.findings.run.scenario.name),
        "duration": timeline.duration,
        "lanes": tables.lanes,
        "kinds": tables.kinds,
        "causes": [{"name": cause_name(cause), "colour": IDLE[cause]} for cause in reasons.causes],
        "gpuMemory": max(kind.gpu.memory for kind in gpus),
        "left_out": tables.left_out,
        "tables": heads,
    }


def _section(run: Shown, reasons: Reasons, several: bool) -> str:
    """Headline, verdict, tables and report of one run."""
    content = content_of(run.findings)
    title = html.escape(f"{run.name}: {content.description or content.name}" if several else content.description)
    cards = "".join(_card(fact) for fact in content.headline)
    alarm = f'<p class="alarm">{html.escape(content.alarm)}</p>' if content.alarm else ""
    verdict = f"<pre>{html.escape(chr(10).join(reasons.verdict))}</pre>" if reasons.verdict else ""
    tables = "".join(_table(name, frame) for name, frame in reasons.tables)
    report = html.escape(render(run.findings, width=WIDTH))
    return (
        f'<section class="run"><p>{title}</p>{alarm}<p class="setup">{html.escape(content.setup[0])}</p>'
        f'<div class="cards">{cards}</div><div class="why">{verdict}{run.more}</div>{tables}'
        f"<details><summary>report</summary><pre>{report}</pre></details></section>"
    )


def _card(fact: Fact) -> str:
    label, value, note = (html.escape(part) for part in (fact.label, fact.value, fact.note))
    return f"<div><b>{value}</b> {label}<small>{note}</small></div>"


def _table(name: str, frame: pd.DataFrame) -> str:
    return f"<h2>{html.escape(name)}</h2>{frame.to_html(index=False, border=0, float_format='{:.4g}'.format)}"


def pack(tables: Mapping[str, Mapping[str, Column]]) -> tuple[dict[str, Any], str]:
    """Pack the tables of one run, of int64 columns: split into byte planes, compressed by zlib, in base64.

    Times are few and repeat, so columns of times hold indices into a table of all times: `start` the index itself,
    `asked` and `end` their distances before and after it. These distances are stored as they are, any other column as
    zigzag-coded differences between neighbours (2d for d ≥ 0, −2d−1 for d < 0). The lowest bytes of a column are stored
    first, then the second bytes, and so on: planes that are mostly runs of equal bytes. `unpack` of page.html reverses
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
    return heads, base64.b64encode(zlib.compress(b"".join(planes), LEVEL)).decode("ascii")


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
