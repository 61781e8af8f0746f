"""`summary.json`: the summary as one JSON object."""

from __future__ import annotations

import json
from pathlib import Path

from hybrid_des.analysis.findings import Findings
from hybrid_des.report.files import output


@output("summary.json", rows=False)
def summary_json(findings: Findings, folder: Path) -> None:
    """Write the keys in their public order."""
    text = json.dumps(dict(findings.summary), indent=2, allow_nan=False, ensure_ascii=False)
    (folder / "summary.json").write_text(text + "\n", encoding="utf-8")
