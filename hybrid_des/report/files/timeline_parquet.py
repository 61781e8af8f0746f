"""`timeline.parquet`: the timeline with its types, where pyarrow is installed."""

from __future__ import annotations

from pathlib import Path

from hybrid_des.report.files import Source, output


@output("timeline.parquet", needs="pyarrow")
def timeline_parquet(source: Source, folder: Path) -> None:
    """Whole numbers stay whole numbers, with nulls where a value is missing."""
    source.timeline.to_parquet(folder / "timeline.parquet", index=False, engine="pyarrow")
