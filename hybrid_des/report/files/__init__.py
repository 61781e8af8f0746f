"""Output formats: functions that write files into a folder and register their names.

    @output("summary.json")
    def summary_json(findings: Findings, folder: Path) -> None: ...

`write` runs all formats in a temporary folder inside the target and moves the files when all are complete, so that an
error, Ctrl-C or SIGTERM while they are written leaves nothing behind. Each move is atomic, the moves together are not:
a run that is killed between them leaves a mixture of its own files and those of the run before it. Output files of an
earlier run that are not rewritten are removed.
"""

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybrid_des.analysis.metrics import Findings
from hybrid_des.analysis.table import arrow_tables, frames, write_csv
from hybrid_des.errors import installing
from hybrid_des.pipeline.order_csv import crossed_messages, write_order
from hybrid_des.registry import Registry
from hybrid_des.report.files.staging import Written, write_content, write_files, write_whole
from hybrid_des.report.plots import style

__all__ = ["Written", "find", "names", "output", "write", "write_files", "write_unfinished", "write_whole"]

UNFINISHED = "unfinished.json"

Format = Callable[["Findings", Path], list[str] | None]  # returns notes for the user, one line each

_REGISTRY: Registry[Format] = Registry("output", "hybrid_des.report.files")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def output(*files: str, rows: bool = True, needs: str | None = None) -> Callable[[Format], Format]:
    """Register a format under the name of its first file.

    Args:
        files: names of its files.
        rows: whether it needs recorded rows, so that `record: none` skips it.
        needs: an optional module that it needs.
    """
    return _REGISTRY(files[0], files=files, rows=rows, needs=needs)


def write(findings: Findings, folder: str | Path) -> Written:
    """Write every applicable format into `folder`, created if missing; an error while writing changes nothing.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    # a module once imported stays in memory: optional ones are imported last
    formats = sorted((find(name) for name in names()), key=lambda one: one.facts["needs"] is not None)

    def fill(staging: Path) -> list[str]:
        notes: list[str] = []
        for one in formats:
            kept = findings.run.scenario.record != "none" or not one.facts["rows"]
            if kept and (one.facts["needs"] is None or importlib.util.find_spec(one.facts["needs"])):
                notes += one.build(findings, staging) or []
                _give_back()
        return notes

    return write_whole(folder, fill, replaces=[UNFINISHED, *(file for one in formats for file in one.facts["files"])])


def _give_back() -> None:
    """Return freed memory to the system: glibc keeps it once arrays of that size have been freed before."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # other C libraries have none
        trim(0)


def write_unfinished(facts: Mapping[str, Any], folder: str | Path) -> Written:
    """Write what is known of a run that its budget stopped, in place of the files of a run.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    stale = [file for name in names() for file in find(name).facts["files"]]
    return write_files(folder, {UNFINISHED: dict(facts)}, replaces=stale)


# The files of a run, except for the trace: summary, timeline, order and picture, reproducible byte for byte.
#
# The timeline of a long run is written in pieces, and as text only where the Parquet file cannot be written.


ROW_GROUP = 2**15  # rows, at least: a file's directory grows with the number of its groups


@output("summary.json", rows=False)
def summary_json(findings: Findings, folder: Path) -> None:
    """Write the summary as one JSON object, its keys in their public order."""
    write_content(folder / "summary.json", dict(findings.summary))


@output("timeline.csv")
def timeline_csv(findings: Findings, folder: Path) -> list[str]:
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
def timeline_parquet(findings: Findings, folder: Path) -> None:
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
def order_csv(findings: Findings, folder: Path) -> list[str]:
    """Write the schedule in PyTorch's order format; notes name messages whose orders would differ in PyTorch."""
    if not findings.run.plan.programs:
        return []  # programs that came from elsewhere have no plan
    write_content(folder / "order.csv", write_order(findings.run.plan))
    return [f"order.csv: {warning}" for warning in crossed_messages(findings.run.plan)]


@output("gantt.png", "gantt.svg")
def gantt(findings: Findings, folder: Path) -> None:
    """Write the schedule as a picture, as PNG and SVG."""
    write_content(folder / "gantt", style.draw(findings.run, style.gantt))


@output("report.html")
def report_html(findings: Findings, folder: Path) -> None:
    """Write report and timeline as one self-contained page; see `hybrid_des.report.page`."""
    from hybrid_des.report.page.document import Shown, page_of

    write_content(folder / "report.html", page_of([Shown(findings)]))
