"""`timeline.parquet`: the timeline with its types, where pyarrow is installed."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.analysis.findings import Findings
from hybrid_des.report.files import output


@output("timeline.parquet", needs="pyarrow")
def timeline_parquet(findings: Findings, folder: Path) -> None:
    """Integers stay integers, with nulls where a value is missing."""
    findings.timeline.to_parquet(folder / "timeline.parquet", index=False, engine="pyarrow")
