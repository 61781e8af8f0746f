"""`report.html`: report and timeline as one self-contained page; see `hybrid_des.report.page`."""

from pathlib import Path

from hybrid_des.analysis.metrics import Findings
from hybrid_des.report.files import output


@output("report.html")
def report_html(findings: Findings, folder: Path) -> None:
    """Write the page."""
    from hybrid_des.report.page.document import Shown, page_of

    (folder / "report.html").write_text(page_of([Shown(findings)]), encoding="utf-8")
