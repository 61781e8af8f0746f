"""`gantt.png` and `gantt.svg`: the schedule as a picture."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.analysis.findings import Findings
from hybrid_des.report.files import output


@output("gantt.png", "gantt.svg")
def gantt(findings: Findings, folder: Path) -> None:
    """Write both pictures, reproducible byte for byte."""
    from hybrid_des.report import plots
    from hybrid_des.report.plots.style import save

    save(plots.draw(findings.run, plots.gantt), folder, "gantt")
