"""The files of a run, except for the trace: summary, timeline, order and picture, reproducible byte for byte."""

import json
from pathlib import Path

from hybrid_des.analysis.metrics import Findings
from hybrid_des.analysis.table import table
from hybrid_des.pipeline.order_csv import crossed_messages, write_order
from hybrid_des.report.files import output


@output("summary.json", rows=False)
def summary_json(findings: Findings, folder: Path) -> None:
    """Write the summary as one JSON object, its keys in their public order."""
    text = json.dumps(dict(findings.summary), indent=2, allow_nan=False, ensure_ascii=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")


@output("timeline.csv")
def timeline_csv(findings: Findings, folder: Path) -> None:
    """Write the timeline, missing values as empty cells; numbers read back exactly."""
    findings.timeline.to_csv(folder / "timeline.csv", index=False, lineterminator="\n")


@output("timeline.parquet", needs="pyarrow")
def timeline_parquet(findings: Findings, folder: Path) -> None:
    """Write the timeline with nullable integers, and times also as whole picoseconds."""
    table(findings.run.timeline, exact=True).to_parquet(folder / "timeline.parquet", index=False, engine="pyarrow")


@output("order.csv", rows=False)
def order_csv(findings: Findings, folder: Path) -> list[str]:
    """Write the schedule in PyTorch's order format; notes name messages whose orders would differ in PyTorch."""
    (folder / "order.csv").write_text(write_order(findings.run.plan), encoding="utf-8")
    return [f"order.csv: {warning}" for warning in crossed_messages(findings.run.plan)]


@output("gantt.png", "gantt.svg")
def gantt(findings: Findings, folder: Path) -> None:
    """Write the schedule as a picture, in both formats."""
    from hybrid_des.report import plots

    plots.save(plots.draw(findings.run, plots.gantt), folder, "gantt")
