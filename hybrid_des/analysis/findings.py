"""A run with its derived tables, each computed on first use; the input of reports and files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis import metrics
from hybrid_des.simulation.run import Run

if TYPE_CHECKING:
    import pandas as pd


class Findings:
    """A run and its derived tables.

    Attributes:
        run: the rows and totals of the simulation.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The summary, by its public keys; seconds and bytes."""
        return metrics.summary(self.run)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per op, and one per message and link it passes, in seconds."""
        from hybrid_des.analysis.table import empty_table, table

        return empty_table() if self.run.scenario.record == "none" else table(self.run.timeline)
