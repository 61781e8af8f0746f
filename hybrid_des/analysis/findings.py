"""A run with what is computed from it, each table when it is first asked for: all that reports and files read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis import metrics
from hybrid_des.simulation.run import Run

if TYPE_CHECKING:
    import pandas as pd


class Findings:
    """What is known of a run.

    Attributes:
        run: the rows and totals that the simulation left behind.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """Step time, bubble, idle time by cause and the rest, by the names of the contract; seconds and bytes."""
        return metrics.summary(self.run)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per op, and one per message and link it passes, in seconds."""
        from hybrid_des.analysis.table import empty_table, table

        return empty_table() if self.run.scenario.record == "none" else table(self.run.timeline)
