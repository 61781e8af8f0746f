"""`timeline.csv`: one row per op, and one per message and link; what is missing is empty."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.report.files import Source, output


@output("timeline.csv")
def timeline_csv(source: Source, folder: Path) -> None:
    """The same bytes for the same scenario; numbers read back exactly."""
    source.timeline.to_csv(folder / "timeline.csv", index=False, lineterminator="\n")
