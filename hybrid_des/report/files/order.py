"""`order.csv`: the schedule in PyTorch's pipeline order format."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.analysis.findings import Findings
from hybrid_des.pipeline.order_csv import crossed_messages, write_order
from hybrid_des.report.files import output


@output("order.csv", rows=False)
def order_csv(findings: Findings, folder: Path) -> list[str]:
    """Write one line per pipeline rank; notes name sends and receives whose orders would differ in PyTorch."""
    (folder / "order.csv").write_text(write_order(findings.run.plan), encoding="utf-8")
    return [f"order.csv: {warning}" for warning in crossed_messages(findings.run.plan)]
