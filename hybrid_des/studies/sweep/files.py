"""The files of a sweep: its table, its page, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybrid_des.analysis.safe_csv import write_csv
from hybrid_des.report.files.staging import Written, write_whole
from hybrid_des.studies.sweep.axes import Sweep
from hybrid_des.studies.sweep.page import sweep_page
from hybrid_des.studies.sweep.results import draw
from hybrid_des.studies.sweep.rows import Row, table


def write(rows: Sequence[Row], sweep: Sweep, folder: str | Path) -> Written:
    """Write `sweep.csv`, `sweep.html`, and, if the sweep has a plot, `sweep.png`; of failed cases only the table.

    Raises:
        UsageError: the folder cannot be written, or a plotted column does not exist.
    """
    from hybrid_des.report.plots.style import new_figure

    def fill(staging: Path) -> None:
        write_csv(table(rows), staging / "sweep.csv")
        if all("error" in row for row in rows):
            return
        if sweep.picture is not None:
            figure = new_figure((8, 5))
            draw(rows, sweep.picture, figure.subplots())
            figure.savefig(staging / "sweep.png", dpi=120, metadata={"Software": None})
        (staging / "sweep.html").write_text(sweep_page(rows, sweep), encoding="utf-8")

    return write_whole(folder, fill, replaces=["sweep.html"])
