"""What a notebook shows of a result: lines, and some of its tables."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 10  # of a table


def as_html(line: str, tables: Mapping[str, pd.DataFrame]) -> str:
    """A result as HTML: lines of text, then the first rows of each table below its title; empty ones are left out."""
    parts = [f"<p>{html.escape(one)}</p>" for one in line.splitlines()]
    for title, table in tables.items():
        if len(table):
            more = f" ({len(table)} rows)" if len(table) > MOST_ROWS else ""
            shown = table.head(MOST_ROWS).to_html(
                index=False, border=0, escape=True, na_rep="", float_format="{:.4g}".format
            )
            parts.append(f"<h4>{html.escape(title)}{more}</h4>{shown}")
    return "\n".join(parts)
