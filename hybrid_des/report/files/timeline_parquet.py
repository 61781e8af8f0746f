"""`timeline.parquet`: the typed timeline, if pyarrow is installed."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.analysis.findings import Findings
from hybrid_des.report.files import output


@output("timeline.parquet", needs="pyarrow")
def timeline_parquet(findings: Findings, folder: Path) -> None:
    """Write the table with nullable integers."""
    findings.timeline.to_parquet(folder / "timeline.parquet", index=False, engine="pyarrow")
