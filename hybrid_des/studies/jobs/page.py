"""The page of several jobs: who slows whom in a sentence, slowdowns, use of links, all timelines, tables."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.report.page.answer import verdict
from hybrid_des.report.page.document import PageRun
from hybrid_des.report.page.study_page import (
    Cell,
    Span,
    folded_text,
    runs_page,
    said,
    sorted_table,
    spans_bars,
    strip,
    strip_lanes,
    swatches,
)
from hybrid_des.simulation.outcome import Run
from hybrid_des.studies.jobs.fabric_use import bins_of, colours_of, drawn_links, use_of
from hybrid_des.studies.jobs.neighbours import JobRun, Neighbours
from hybrid_des.studies.jobs.report import alarms_of, ranges, remedy_lines, render
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes, format_seconds, format_share

MOST_WAITS = 500  # rows of the table
LEAST = 0.0005  # of a step: a smaller slowdown is none
EXTRA = "#D55E00"
_TIMES = frozenset({"asked", "start", "end", "begin", "sent", "reduced", "free", "time"})


def fabric_page(neighbours: Neighbours) -> str:
    """The page of all jobs, in one file; that of each job is in its folder."""
    alarms = "".join(f'<p class="alarm">{html.escape(alarm)}</p>' for alarm in alarms_of(neighbours))
    helps = remedy_lines(neighbours.remedies)
    parts = [
        f"<p>{html.escape(neighbours.jobs.description)}</p>" if neighbours.jobs.description else "",
        alarms, verdict(_verdict(neighbours)), said(helps) if helps else "",
        "<h2>The step of each job: alone, and what the others add (hatched)</h2>", _slowdowns(neighbours),
        _links_over_time(neighbours),
    ]  # fmt: skip
    runs = [PageRun(RunAnalysis(_at_its_start(one)), name=one.job.name) for one in neighbours.runs]
    lanes = "All jobs on one time axis"
    return runs_page(neighbours.jobs.name, "".join(parts), lanes, runs, "".join(_tables(neighbours)))


def _verdict(neighbours: Neighbours) -> str:
    """Who slows whom, where, and how much that is in the mean."""
    worst = max(neighbours.runs, key=lambda run: run.slowdown)
    if worst.slowdown < 1 + LEAST:
        return "The jobs do not slow each other down."
    alone, together = (format_seconds(facts["step_time_s"]) for facts in worst.facts)
    name, mean = worst.job.name, f"On average over GPUs, steps take {neighbours.slowdown:.3f} times as long as alone."
    slowed = f"{name} is slowed down the most, to {worst.slowdown:.3f} times its step ({alone} alone, {together} here)"
    return f"{slowed}{_by_whom(neighbours, worst)}. {mean}"


def _by_whom(neighbours: Neighbours, worst: JobRun) -> str:
    """The job that the worst one waits for the most, and the link where it does."""
    waits = neighbours.waits[neighbours.waits["job"] == worst.job.name]
    if not len(waits):
        return ""
    behind = waits.groupby("behind")["waited_s"].sum().idxmax()
    link = waits[waits["behind"] == behind].groupby("link")["waited_s"].sum().idxmax()
    return f", mostly by {behind} on {link}"


def _slowdowns(neighbours: Neighbours) -> str:
    """A bar for each job: its step alone, and what is added, on one scale of slowdowns."""
    most, colours, rows = max(one.slowdown for one in neighbours.runs), colours_of(neighbours), []
    for job_run in neighbours.runs:
        alone, together = (format_seconds(facts["step_time_s"]) for facts in job_run.facts)
        colour = colours.get(job_run.job.name, EXTRA)
        more = max(job_run.slowdown - 1, 0.0)
        spans = [Span(0.0, 1 / most, colour), Span(1 / most, more / most, colour, hatched=True)]
        rows.append((job_run.job.name, spans, f"{alone} → {together} ({job_run.slowdown:.3f}×)"))
    return spans_bars(rows)


def _links_over_time(neighbours: Neighbours) -> str:
    """The share of the time for which each job's messages occupy the busiest links."""
    colours, edges, rows = colours_of(neighbours), bins_of(neighbours), []
    for link in drawn_links(neighbours):
        bands = [(colours[name], base, top) for name, base, top in use_of(neighbours, link, edges)]
        rows.append((link, strip(bands)))
    if not rows:
        return ""
    end = format_seconds(neighbours.rows.end / PICOSECONDS_PER_SECOND)
    title = "<h2>Use of the busiest links, those first that several jobs share</h2>"
    return f"{title}{swatches(colours)}{strip_lanes(rows, '0', end)}"


def _tables(neighbours: Neighbours) -> Iterator[str]:
    yield f"<h2>Jobs</h2>{_jobs_table(neighbours)}"
    waits = neighbours.waits.sort_values("waited_s", ascending=False, kind="stable")
    if len(waits):
        rows = [
            [row["job"], row["behind"], row["link"], Cell(format_seconds(row["waited_s"]), row["waited_s"]),
             Cell(format_seconds(row["waited_s"] / row["messages"]), row["waited_s"] / row["messages"]),
             Cell(f"{row['messages']:.3g}", row["messages"])]
            for row in waits.head(MOST_WAITS).to_dict("records")
        ]  # fmt: skip
        heads = ["who waits", "for", "on link", "all messages of a step", "each message", "messages per step"]
        more = f" (the longest {MOST_WAITS} of {len(waits)}; waits.csv has all)" if len(waits) > MOST_WAITS else ""
        yield f"<h2>Who waits for whom{more}</h2>{sorted_table(heads, rows)}"
    yield f"<h2>Links</h2>{_links_table(neighbours)}"
    yield folded_text(render(neighbours))


def _jobs_table(neighbours: Neighbours) -> str:
    heads = [
        "job",
        "GPUs",
        "nodes",
        "start",
        "steps",
        "alone",
        "together",
        "slowdown",
        "GPUs compute",
        "shares links with",
    ]
    rows: list[Sequence[Cell | str]] = []
    for job_run in neighbours.runs:
        facts: Mapping[str, Any] = neighbours.summary["jobs"][job_run.job.name]
        seconds = (Cell(format_seconds(facts[key]), facts[key]) for key in ("alone_step_time_s", "step_time_s"))
        rows.append(
            [job_run.job.name, Cell(str(facts["gpus"]), facts["gpus"]), ranges(facts["nodes"]),
             Cell(format_seconds(facts["start_s"]), facts["start_s"]), Cell(str(facts["steps"]), facts["steps"]),
             *seconds, Cell(f"{job_run.slowdown:.3f}×", job_run.slowdown),
             Cell(format_share(facts['gpu_utilisation']), facts["gpu_utilisation"]),
             ", ".join(facts["shares_links_with"]) or "nobody"]
        )  # fmt: skip
    pages = (
        f'<a href="{html.escape(one.job.name)}/report.html">{html.escape(one.job.name)}</a>' for one in neighbours.runs
    )
    return f"{sorted_table(heads, rows)}<p>Their own pages: {', '.join(pages)}</p>"


def _links_table(neighbours: Neighbours) -> str:
    rows = [
        [row["link"], row["job"], Cell(format_share(row['busy_ratio']), row["busy_ratio"]),
         Cell(format_bytes(row["bytes"]), row["bytes"])]
        for row in neighbours.links.sort_values("busy_ratio", ascending=False, kind="stable").head(MOST_WAITS)
        .to_dict("records")
    ]  # fmt: skip
    return sorted_table(["link", "job", "busy", "bytes"], rows)


def _at_its_start(job_run: JobRun) -> Run:
    """The run of a job at times of the fabric."""
    if not job_run.job.start:
        return job_run.together
    timeline, by = job_run.together.timeline, job_run.job.start
    moved: dict[str, Any] = {}
    for name in ("ops", "messages", "steps", "reductions", "memory", "gathers", "waits", "exchanges"):
        table = getattr(timeline, name)
        if table is not None:
            moved[name] = {key: column + by if key in _TIMES else column for key, column in table.items()}
    return replace(job_run.together, timeline=replace(timeline, **moved))
