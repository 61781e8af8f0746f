"""`timeline.parquet`: the timeline with its types, where pyarrow is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_des.report.files import output

if TYPE_CHECKING:
    from hybrid_des.result import Result


@output("timeline.parquet", needs="pyarrow")
def timeline_parquet(result: Result, folder: Path) -> None:
    """Integers stay integers, with nulls where a value is missing."""
    result.timeline.to_parquet(folder / "timeline.parquet", index=False, engine="pyarrow")
