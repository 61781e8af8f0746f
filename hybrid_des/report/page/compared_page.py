"""The page of `compare`: what changed, by how much and why; both timelines on one axis; the change by kind of time.

A run that was read from a folder has no timeline here: then the page has all but that.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

from hybrid_des.analysis.compare import Comparison
from hybrid_des.analysis.critical_path.traced import Traced
from hybrid_des.analysis.idle import DEPENDENCY, END_OF_STEP, HOST
from hybrid_des.analysis.inside_ops import AXES
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.step_breakdown import BETWEEN_OPS, BUBBLE, COMPUTING, RECOMPUTING, SLOWER
from hybrid_des.analysis.verdict import SHARE_NAMES
from hybrid_des.report.compared import OTHER_OPS, changed_settings, render_comparison, signed, time_changes
from hybrid_des.report.content import ALARM, CANNOT_RUN
from hybrid_des.report.page.document import WIDTH, PageRun
from hybrid_des.report.page.study_page import (
    Cell,
    Change,
    changes_bars,
    folded_text,
    runs_page,
    said,
    sorted_table,
    study_page,
    table,
)
from hybrid_des.report.page.traced_pages import traced_reasons
from hybrid_des.report.palette import ACTIVITIES, CAUSES
from hybrid_des.units import format_bytes, format_seconds, format_share

ROUNDING, LEAST_SHARE = 1e-9, 0.0005  # of a time: a smaller change is none; a smaller share has no figures
MOST_CHANGED, MOST_REASONS = 8, 3  # settings that differ; kinds of time in the sentence of the page
COLOURS = {
    COMPUTING: ACTIVITIES["F"].colour, RECOMPUTING: "#7FB8D8",
    **{axis: CAUSES[f"{axis}_collective"].colour for axis in AXES},
    **{name: CAUSES[cause].colour for name, cause in BETWEEN_OPS.items()},
    BUBBLE: CAUSES[DEPENDENCY].colour, SLOWER: CAUSES[END_OF_STEP].colour, HOST: CAUSES[HOST].colour,
}  # fmt: skip
WHOLE = "#999999"
DIGITS = 10  # decimal places of seconds: means of whole picoseconds


def comparison_page(comparison: Comparison) -> str:
    """The page of two runs, in one file."""
    a, b = comparison.a, comparison.b
    title = f"{a.name} against {b.name}" if a.name != b.name else a.name
    misfits = (html.escape(f"{ALARM}: {one.name}: {CANNOT_RUN}") for one in (a, b) if one.summary.get("out_of_memory"))
    body = "".join((*(f'<p class="alarm">{text}</p>' for text in misfits), said(three_lines(comparison))))
    below = "".join(_below(comparison))
    if a.run is None or b.run is None:
        return study_page(title, body + below)
    shown = [Traced(side.run).shown for side in (a, b) if side.run is not None]
    runs = [
        PageRun(RunAnalysis(side.run), traced_reasons(side.slack.graph), name)
        for side, name in zip(shown, (f"A: {a.name} (before)", f"B: {b.name} (after)"), strict=True)
    ]
    return runs_page(title, body, "Before and after, on one time axis", runs, below)


def three_lines(comparison: Comparison) -> dict[str, str]:
    """What changed, by how much, and why."""
    settings = changed_settings(comparison.settings())
    more = f"; and {len(settings) - MOST_CHANGED} more" if len(settings) > MOST_CHANGED else ""
    changed = "; ".join(settings[:MOST_CHANGED]) + more
    if comparison.settings() is None:
        changed = "not known: a folder of results does not say from which values it was made"
    before, after = (format_seconds(side.summary["step_time_s"]) for side in (comparison.a, comparison.b))
    if not comparison.change:
        return {"What changed": changed or "nothing", "By how much": f"not at all: both steps take {before}", "Why": ""}
    direction = "longer" if comparison.change > 0 else "shorter"
    change = f"{format_seconds(abs(comparison.change))} ({format_share(abs(comparison.regression))})"
    by = f"{before} → {after}: the step is {change} {direction}"
    sure = comparison.difference.text(comparison.regression) if comparison.difference is not None else ""
    return {
        "What changed": changed or "nothing that a file says",
        "By how much": f"{by}\n{sure}" if sure else by,
        "Why": _why(comparison),
    }


def _why(comparison: Comparison) -> str:
    """The largest parts of the change, in a sentence."""
    parts = time_changes(comparison)
    if not parts:
        return "not known: a summary has no shares of the step"
    rest = len(parts) - MOST_REASONS
    more = f", and {rest} smaller change{'s' if rest > 1 else ''}" if rest > 0 else ""
    return f"Per GPU: {', '.join(parts[:MOST_REASONS])}{more}."


def _below(comparison: Comparison) -> Iterator[str]:
    if bars := time_bars(comparison):
        yield f"<h2>The difference, by what the mean GPU does: all parts sum to it (hatched: less)</h2>{bars}"
    if comparison.effects:
        rows = [
            (row["name"], _signed_cell(row["in_a_s"]), _signed_cell(row["in_b_s"]))
            for row in comparison.to_mapping()["effects"]
        ]
        heads = ["change", "in A", "in B"]
        yield f"<h2>What each change does by itself, simulated</h2>{sorted_table(heads, rows)}"
        if len(rows) > 1:
            yield f"<p>Interaction of the changes: {html.escape(signed(comparison.interaction or 0.0))}.</p>"
    yield f"<h2>Figures</h2>{table(['', 'A', 'B'], _figures(comparison))}"
    yield _ops(comparison)
    yield folded_text(render_comparison(comparison, WIDTH))


def time_bars(comparison: Comparison) -> str:
    """The difference of the steps by kinds of time that sum to it; empty if a summary has none."""
    changes = [
        Change(SHARE_NAMES[row["time"]], row["change_s"], COLOURS[row["time"]][:7],
               _of_step(comparison, row["change_s"]))
        for row in sorted(comparison.times(), key=lambda row: row["change_s"])
        if abs(row["change_s"]) > abs(comparison.change) * ROUNDING
    ]  # fmt: skip
    whole = Change("the step", comparison.change, WHOLE, _of_step(comparison, comparison.change))
    return changes_bars(changes, whole) if changes else ""


def _of_step(comparison: Comparison, change: float) -> str:
    """A change in seconds and, if it is large enough, as a share of A's step."""
    share = change / comparison.a.summary["step_time_s"]
    return f"{signed(change)} ({100 * share:+.1f} %)" if abs(share) >= LEAST_SHARE else signed(change)


def _figures(comparison: Comparison) -> Iterator[tuple[Cell | str, ...]]:
    """Figures of both sides, one per line."""
    for label, key, write in FIGURES:
        values = [side.summary.get(key) for side in (comparison.a, comparison.b)]
        numbers = [max(value) if isinstance(value, Sequence) else value for value in values if value is not None]
        if len(numbers) == len(values):
            yield label, *(Cell(write(value), value) for value in numbers)


FIGURES: Sequence[tuple[str, str, Any]] = (
    ("step", "step_time_s", format_seconds),
    ("efficiency", "efficiency", format_share),
    ("MFU", "mfu", format_share),
    ("tokens per second", "tokens_per_s", lambda value: f"{value:,.0f}"),
    ("exposed communication", "exposed_communication_ratio", format_share),
    ("fullest GPU", "peak_memory_bytes", lambda value: format_bytes(round(value))),
    ("messages", "messages", lambda value: f"{value:,.0f}"),
)


def _signed_cell(seconds: float) -> Cell:
    seconds = round(seconds, DIGITS)
    return Cell(signed(seconds), seconds)


def _ops(comparison: Comparison) -> str:
    """Ops that take longer or shorter, one by one or by what they do; and so links."""
    if not comparison.same_ops:
        cells: list[Sequence[Cell | str]] = [
            (row["class"], *(Cell(format_seconds(row[key]), row[key]) for key in ("a_s", "b_s")),
             _signed_cell(row["change_s"]))
            for row in comparison.classes() if max(row["a_s"], row["b_s"])
        ]  # fmt: skip
        text = f"<p>{OTHER_OPS[0].upper()}{html.escape(OTHER_OPS[1:])}; mean per GPU.</p>"
        return f"<h2>Ops</h2>{text}{sorted_table(['ops', 'in A', 'in B', 'change'], cells)}"
    whole, parts = comparison.to_mapping(), []
    for name, column in (("ops", "rank"), ("links", "lane")):
        if rows := whole[name]:
            kinds = ["kind"] if name == "ops" else []
            lines: list[Sequence[Cell | str]] = [
                (*(str(row[key]) for key in (column, *kinds)), _signed_cell(row["change_s"]), str(row["rows"]))
                for row in rows
            ]
            what = "Ops" if name == "ops" else "Links"
            heads = ["rank" if name == "ops" else "link", *kinds, "change", name if name == "ops" else "messages"]
            summary = f"{what} that take longer or shorter: {len(rows)}"
            parts.append(f"<details><summary>{summary}</summary>{sorted_table(heads, lines)}</details>")
    return "".join(parts)
