"""Files of a goodput study: summary, tables and pictures, all of them or none."""

from __future__ import annotations

import json
from pathlib import Path

from hybrid_des.analysis.spreadsheets import write_csv
from hybrid_des.longrun.study import Crew, Goodput
from hybrid_des.longrun.tradeoffs import over_intervals, over_spares
from hybrid_des.longrun.weeks_pictures import picture
from hybrid_des.report.files import Written, write_whole
from hybrid_des.report.plots.style import save

SUMMARY = "goodput.json"
CURVES = ("intervals.csv", "spares.csv")


def write_weeks(weeks: Goodput, folder: str | Path, crew: Crew | None = None) -> Written:
    """Write summary, replications, failures, history, the available curves, and the plot.

    Raises:
        UsageError: the folder cannot be written.
    """

    def fill(workshop: Path) -> None:
        text = json.dumps(weeks.summary, indent=2, allow_nan=False)
        (workshop / SUMMARY).write_text(text + "\n", encoding="utf-8")
        curves = over_intervals(weeks, crew=crew), over_spares(weeks, crew=crew)
        tables = {
            "replications.csv": weeks.replications, "failures.csv": weeks.failures, "history.csv": weeks.history,
            **dict(zip(CURVES, curves, strict=True)),
        }  # fmt: skip
        for name, table in tables.items():
            if table is not None:
                write_csv(table, workshop / name)
        save(picture(weeks, *curves), workshop, "goodput")

    return write_whole(folder, fill, replaces=CURVES)
