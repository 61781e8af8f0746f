"""The picture of a loop: running sequences, queue and trainer over time on one axis; ages and lengths below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.report.plots import style
from hybrid_des.report.plots.style import LINES, plain
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import titled
from hybrid_des.studies.rl.figures import LoopFigures
from hybrid_des.studies.rl.report import SHOWN
from hybrid_des.studies.rl.timeline import (
    BINS,
    COLOURS,
    QUEUED,
    RUNNING,
    SYNC,
    WIDE,
    lanes_of,
    length_histograms,
    replicas_drawn,
    shown_states,
    trainer_spans,
)
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds, format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 0.8  # of a lane


def timeline(scenario: Scenario, figures: LoopFigures, ax: Axes | None = None) -> Axes:
    """Draw running sequences of each replica, the queue, the trainer and weight syncs over time."""
    lanes = lanes_of(figures)
    ax = style.axes(ax, (10.0, 1.5 + 0.3 * len(lanes)))
    seconds = figures.record.end / PICOSECONDS_PER_SECOND
    scale, unit = style.scale_of(seconds)
    edges = np.linspace(0, seconds / scale, BINS + 1)
    names = [*(lane.name for lane in lanes), "trainer"]
    for row, lane in enumerate(lanes):
        base, colour = len(names) - 1 - row, QUEUED if row == len(lanes) - 1 else RUNNING
        ax.stairs(base + HEIGHT * lane.values / lane.most, edges, baseline=base, fill=True, color=colour, linewidth=0)
    for begin, length, state in trainer_spans(figures):
        where = begin * seconds / scale, length * seconds / scale
        ax.broken_barh([where], (0, HEIGHT), color=COLOURS[state], linewidth=0)
    for sync in figures.record.syncs:
        ax.axvline(sync.end / PICOSECONDS_PER_SECOND / scale, color=SYNC, linewidth=0.8)
    ax.set_yticks([len(names) - 1 - row + HEIGHT / 2 for row in range(len(names))], names, fontsize=8)
    ax.set_xlim(0, seconds / scale)
    ax.set_ylim(-0.1, len(names))
    ax.set_xlabel(f"time ({unit})")
    waits = f"trainer waits {format_seconds(figures.wait)} of {format_seconds(figures.cycle)} per cycle"
    style.title(ax, titled(scenario), f": {waits}{replicas_drawn(figures)}")
    shown = {"sequences": RUNNING, "queue": QUEUED, **shown_states(figures)}
    style.legend_of_colours(ax, shown, "right")
    return plain(ax)


def ages(figures: LoopFigures, ax: Axes | None = None) -> Axes:
    """Draw how old trained samples are."""
    ax = style.axes(ax, (4.5, 2.8))
    counts = figures.ages.counts
    whole = sum(counts.values()) or 1
    ax.bar([*map(str, counts)], [count / whole for count in counts.values()], color=LINES[1], width=0.7)
    ax.set_xlabel("age of trained samples (syncs)")
    return _shares(ax, f"ages: mean {figures.ages.mean:.2f}, largest {figures.ages.largest}")


def lengths(figures: LoopFigures, ax: Axes | None = None) -> Axes:
    """Draw how long responses are: as drawn, and as trained."""
    ax = style.axes(ax, (4.5, 2.8))
    edges, shares = length_histograms(figures)
    for number, (name, values) in enumerate(shares.items()):
        ax.stairs(values, edges, color=LINES[number], linewidth=1.4, linestyle="--" if number else "-", label=name)
    ax.set_xlabel("tokens of a response")
    if edges[-1] > WIDE * edges[0]:
        ax.set_xscale("log")
        style.log_ticks(ax.xaxis)
    ax.set_xlim(edges[0], edges[-1])
    if shares:
        ax.legend(frameon=False, fontsize=8)
    drawn = figures.drawn
    cut = f", {format_share(drawn.at_cap)} at the cap" if drawn.at_cap > SHOWN else ""
    return _shares(ax, f"lengths: mean {drawn.mean:,.0f}{cut}")


def _shares(ax: Axes, title: str) -> Axes:
    def percent(value: float, _: Any) -> str:
        return f"{round(100 * value, 6):g} %"

    ax.yaxis.set_major_formatter(percent)
    ax.set_ylabel("share of the samples")
    ax.set_title(title, loc="left", fontsize=10)
    return plain(ax)


def picture(scenario: Scenario, figures: LoopFigures) -> Figure:
    """The timeline, and below it ages and lengths."""
    high = 1.5 + 0.3 * len(lanes_of(figures))
    figure = style.new_figure((10.0, high + 3.0))
    grid = figure.add_gridspec(2, 2, height_ratios=(high, 2.8))
    timeline(scenario, figures, figure.add_subplot(grid[0, :]))
    ages(figures, figure.add_subplot(grid[1, 0]))
    lengths(figures, figure.add_subplot(grid[1, 1]))
    return figure
