"""The files of a run, except for the trace: summary, timeline, order and picture, reproducible byte for byte.

The timeline of a long run is written in pieces, and as text only where the Parquet file cannot be written.
"""

import contextlib
import importlib.util
from pathlib import Path

from hybrid_des.analysis.arrow import arrow_tables
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.safe_csv import write_csv
from hybrid_des.analysis.table import frames
from hybrid_des.errors import installing
from hybrid_des.pipeline.order_csv import crossed_messages, write_order
from hybrid_des.report.files.registration import output
from hybrid_des.report.files.staging import write_content
from hybrid_des.report.plots import gantt as chart

ROW_GROUP = 2**15  # rows, at least: a file's directory grows with the number of its groups


@output("summary.json", rows=False)
def summary_json(findings: RunAnalysis, folder: Path) -> None:
    """Write the summary as one JSON object, its keys in their public order."""
    write_content(folder / "summary.json", dict(findings.summary))


@output("timeline.csv")
def timeline_csv(findings: RunAnalysis, folder: Path) -> list[str]:
    """Write the timeline, missing values as empty cells; numbers read back exactly."""
    long = findings.run.timeline.stream
    if long is not None and importlib.util.find_spec("pyarrow"):
        return []
    with (folder / "timeline.csv").open("w", encoding="utf-8", newline="") as file:
        for number, piece in enumerate(frames(findings.run.timeline)):
            write_csv(piece, file, header=not number)
    if long is None:
        return []
    return [f"timeline.csv has {len(long):,} rows; {installing('parquet')} writes a smaller timeline.parquet"]


@output("timeline.parquet", needs="pyarrow")
def timeline_parquet(findings: RunAnalysis, folder: Path) -> None:
    """Write the timeline with nullable integers, and times also as whole picoseconds."""
    from pyarrow import concat_tables, parquet

    with contextlib.ExitStack() as files:
        writer, waiting = None, []
        for rows in arrow_tables(findings.run.timeline):
            writer = writer or files.enter_context(parquet.ParquetWriter(folder / "timeline.parquet", rows.schema))
            waiting.append(rows)
            if sum(map(len, waiting)) >= ROW_GROUP:
                writer.write_table(concat_tables(waiting))
                waiting = []
        if writer and waiting:
            writer.write_table(concat_tables(waiting))


@output("order.csv", rows=False)
def order_csv(findings: RunAnalysis, folder: Path) -> list[str]:
    """Write the schedule in PyTorch's order format; notes name messages whose orders would differ in PyTorch."""
    if not findings.run.plan.programs:
        return []  # programs that came from elsewhere have no plan
    write_content(folder / "order.csv", write_order(findings.run.plan))
    return [f"order.csv: {warning}" for warning in crossed_messages(findings.run.plan)]


@output("gantt.png", "gantt.svg")
def gantt(findings: RunAnalysis, folder: Path) -> None:
    """Write the schedule as a picture, as PNG and SVG."""
    write_content(folder / "gantt", chart.draw(findings.run, chart.gantt))


@output("report.html")
def report_html(findings: RunAnalysis, folder: Path) -> None:
    """Write report and timeline as one self-contained page; see `hybrid_des.report.page`."""
    from hybrid_des.report.page.document import PageRun, page_of

    write_content(folder / "report.html", page_of([PageRun(findings)]))
