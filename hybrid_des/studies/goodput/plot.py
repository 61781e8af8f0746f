"""Plots and files of weeks: one history, and goodput against the interval between checkpoints and against spares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.report.files.staging import Written, write_files
from hybrid_des.report.plots import style
from hybrid_des.report.plots.style import LINES, plain
from hybrid_des.scenario.loading import titled
from hybrid_des.studies.goodput.failures import faults_of
from hybrid_des.studies.goodput.goodput import HERE, Goodput
from hybrid_des.studies.goodput.page import goodput_page
from hybrid_des.studies.goodput.report import LONG
from hybrid_des.studies.pool import Pool
from hybrid_des.units import format_share, to_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOWN = {"detection": LINES[5], "repair": LINES[3], "swap": LINES[4], "restart": LINES[1], "flap": LINES[7]}
STEP, FAILED = LINES[0], "black"


def history(weeks: Goodput, ax: Axes | None = None, replication: int = 0) -> Axes:
    """Draw the step time of one replication over its weeks; marks are failures, shaded areas downtime."""
    ax = style.axes(ax, (10.0, 3.2))
    rows = weeks.history.query("replication == @replication")
    size, unit = next((one for one in LONG if weeks.summary["horizon_s"] >= 2 * one[0]), (1.0, "s"))
    scale, name = style.scale_of(weeks.summary["healthy_step_s"])
    shown = {"step time": STEP}
    for phase, colour in DOWN.items():
        mine = rows[rows.phase == phase]
        if len(mine):
            ax.broken_barh(list(zip(mine.start_s / size, (mine.end_s - mine.start_s) / size, strict=True)), (0, 1),
                           transform=ax.get_xaxis_transform(), color=colour, alpha=0.6, linewidth=0.4)  # fmt: skip
            shown[phase] = colour
    running = rows[rows.phase == "running"]
    ax.hlines(running.step_time_s / scale, running.start_s / size, running.end_s / size, color=STEP, linewidth=2)
    failures = weeks.failures.query("replication == @replication and effect != 'none' and effect != 'idle'")
    ax.plot(failures.time_s / size, [0.97] * len(failures), "|", color=FAILED, markersize=6, clip_on=False,
            transform=ax.get_xaxis_transform())  # fmt: skip
    ax.set_xlim(0, weeks.summary["horizon_s"] / size)
    ax.set_ylim(0, 1.25 * float(running.step_time_s.max()) / scale if len(running) else 1)
    ax.set_xlabel(f"wall time ({unit})")
    ax.set_ylabel(f"step time ({name})")
    facts = f"{len(failures)} failures, goodput {format_share(weeks.replications.goodput[replication])}"
    style.title(ax, titled(weeks.scenario), f", replication {replication}: {facts}")
    style.legend_of_colours(ax, shown)
    return plain(ax)


def over_intervals(weeks: Goodput, table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw goodput against the interval between checkpoints; dashed lines are the scenario's and the best one."""
    ax = style.axes(ax, (5.0, 3.6))
    size, unit = LONG[2]
    _band(ax, table.interval_s / size, table)
    ax.set_xscale("log")
    style.log_ticks(ax.xaxis)
    best = weeks.summary["best_interval_s"]
    every = weeks.job.saving.every
    marks = {
        "scenario": (every and to_seconds(every), FAILED),
        "best": (best and best["exact"], LINES[1]),
    }
    for label, (seconds, colour) in marks.items():
        if seconds:
            ax.axvline(seconds / size, color=colour, linestyle="--", linewidth=1, label=label)
    ax.set_xlabel(f"interval between checkpoints ({unit})")
    ax.legend(frameon=False, fontsize=8)
    return plain(ax)


def over_spares(weeks: Goodput, table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw goodput against the number of spares; the dashed line is the scenario's."""
    ax = style.axes(ax, (5.0, 3.6))
    _band(ax, table.spares, table)
    spares = faults_of(weeks.scenario).spares
    if spares is not None:
        ax.axvline(spares.nodes, color=FAILED, linestyle="--", linewidth=1, label="scenario")
        ax.legend(frameon=False, fontsize=8)
    ax.set_xlabel("spare nodes")
    ax.set_xticks(table.spares)
    return plain(ax)


def _band(ax: Axes, x: Any, table: pd.DataFrame) -> None:
    ax.plot(x, table.goodput, marker="o", color=STEP, markersize=4)
    if table.low.notna().all():
        ax.fill_between(x, table.low.astype(float), table.high.astype(float), color=STEP, alpha=0.2, linewidth=0)
    ax.set_ylabel("goodput")
    ax.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g} %")


def picture(weeks: Goodput, intervals: pd.DataFrame | None, spares: pd.DataFrame | None) -> Figure:
    """The history of the first replication, and below it the available curves."""
    curves = [
        (draw, table) for draw, table in ((over_intervals, intervals), (over_spares, spares)) if table is not None
    ]
    figure = style.new_figure((10.0, 3.4 + 3.4 * bool(curves)))
    grid = figure.add_gridspec(2 if curves else 1, max(len(curves), 1))
    history(weeks, figure.add_subplot(grid[0, :]))
    for column, (draw, table) in enumerate(curves):
        draw(weeks, table, figure.add_subplot(grid[1, column]))
    return figure


def write(weeks: Goodput, folder: str | Path, pool: Pool = HERE) -> Written:
    """Write summary, replications, failures, history, the available curves, the plot and the page; all of them or none.

    Raises:
        UsageError: the folder cannot be written.
    """
    intervals, spares = weeks.over_intervals(pool=pool), weeks.over_spares(pool=pool)
    contents = {
        "goodput.json": json.dumps(weeks.summary, indent=2, allow_nan=False) + "\n",
        "replications.csv": weeks.replications, "failures.csv": weeks.failures, "history.csv": weeks.history,
        "intervals.csv": intervals, "spares.csv": spares, "goodput": picture(weeks, intervals, spares),
        "goodput.html": goodput_page(weeks, intervals, spares),
    }  # fmt: skip
    return write_files(folder, contents)
