"""`timeline.csv`: one row per op, and one per message and link; missing values are empty."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.analysis.findings import Findings
from hybrid_des.report.files import output


@output("timeline.csv")
def timeline_csv(findings: Findings, folder: Path) -> None:
    """Write the table, reproducible byte for byte; numbers read back exactly."""
    findings.timeline.to_csv(folder / "timeline.csv", index=False, lineterminator="\n")
