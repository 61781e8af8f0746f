"""Curves over time, over an axis of a sweep, and over the message sizes of a collective."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.link_use import link_rates
from hybrid_des.network.purpose import PURPOSES
from hybrid_des.report.plots.style import (
    LINES,
    MARKERS,
    axes,
    legend,
    legend_above,
    new_figure,
    plain,
    scale_of,
    verbatim,
)
from hybrid_des.scenario.machine import GpuKind
from hybrid_des.simulation.memory import gpus_of
from hybrid_des.simulation.run import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANES = 16
LABELLED = 12  # if there are more lines, only the first and last are labelled
NEAR = 2.5  # a GPU's memory is drawn if its peak is above 1/NEAR of it
DASHES = ("--", ":", "-.")

Heights = NDArray[np.float64]


def link_use(run: Run, ax: Axes | None = None, links: Sequence[str] | None = None) -> Axes:
    """Draw link use over time, one lane per link, stacked by the purpose of messages.

    Rates are averaged over 200 windows; the height of every lane is the largest rate of all.

    Args:
        run: a run with recorded messages.
        ax: axes to draw on; default: a new pyplot figure.
        links: links from the top; default: the up to 16 busiest, by name.
    """
    ax = axes(ax, (10.0, 4.0))
    scale, unit = scale_of(run.timeline.duration / PICOSECONDS_PER_SECOND)
    sent = {channel.purpose for channel in run.timeline.channels}
    labels = {purpose.label: purpose.colour for purpose in PURPOSES if purpose.usual or purpose in sent}
    uses = [link_rates(run.timeline, purposes=[p for p in PURPOSES if p.label == label]) for label in labels]
    known = [use for use in uses if use is not None]
    if known:
        tops = np.cumsum([use.rate for use in known], axis=0)
        place = {name: i for i, name in enumerate(known[0].links)}
        busiest = sorted(place, key=lambda name: (-tops[-1, place[name]].sum(), name))[:LANES]
        shown = list(links) if links is not None else sorted(busiest, key=_natural)
        full = max((float(tops[-1, place[name]].max()) for name in shown), default=0.0) or 1.0
        edges = known[0].edges / PICOSECONDS_PER_SECOND / scale
        for base, name in enumerate(reversed(shown)):
            _draw_lane(ax, edges, base, 0.9 * tops[:, place[name]] / full, labels.values())
        ax.set_yticks([len(shown) - 1 - lane + 0.45 for lane in range(len(shown))], map(verbatim, shown), fontsize=8)
        ax.set_ylim(-0.1, len(shown))
        ax.set_xlim(0, float(edges[-1]))
        ax.set_title(f"links: a full lane is {full / 1e9:.4g} GB/s", loc="left", fontsize=10)
        legend_above(ax, labels)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"time ({unit})")
    return plain(ax)


def _draw_lane(ax: Axes, edges: Heights, base: int, tops: Heights, colours: Iterable[str]) -> None:
    """Fill one lane with stacked areas, one per colour."""
    ax.axhline(base, color="0.85", linewidth=0.6)
    under = np.full(len(edges) - 1, float(base))
    for top, colour in zip(tops, colours, strict=True):
        ax.stairs(base + top, edges, baseline=under, fill=True, color=colour)
        under = base + top


def memory_curve(run: Run, ax: Axes | None = None, replica: int = 0) -> Axes:
    """Draw the memory use of each GPU of a replica over time; dashed lines are GPU memory sizes close to it."""
    ax = axes(ax, (10.0, 4.0))
    timeline = run.timeline
    scale, unit = scale_of(timeline.duration / PICOSECONDS_PER_SECOND)
    pipeline = timeline.plan.pipeline
    highest: dict[GpuKind, float] = {}
    for place in range(pipeline):
        rank = timeline.layout.rank(data=replica, pipeline=place)
        mine = timeline.memory["rank"] == rank
        time = timeline.memory["time"][mine] / PICOSECONDS_PER_SECOND / scale
        held = timeline.memory["bytes"][mine] / 1e9
        (gpu,) = gpus_of(run.scenario.cluster, [rank])
        highest[gpu] = max(highest.get(gpu, 0.0), float(held.max(initial=0.0)))
        label = f"pipeline rank {place}" if pipeline <= LABELLED or place in (0, pipeline - 1) else None
        ax.step(time, held, where="post", color=_along(place, pipeline), label=label, linewidth=1.3)
    for style, (gpu, most) in zip(cycle(DASHES), highest.items(), strict=False):
        if gpu.memory / 1e9 < NEAR * most:
            ax.axhline(
                gpu.memory / 1e9, color="black", linestyle=style, linewidth=1, label=verbatim(f"memory of {gpu.name}")
            )
    ax.set_xlim(0, timeline.duration / PICOSECONDS_PER_SECOND / scale or 1)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"time ({unit})")
    ax.set_ylabel("memory held (GB)")
    legend(ax)
    return plain(ax)


def lines(table: pd.DataFrame, x: str, y: str, hue: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw one column of a sweep against another, one line per value of a third.

    Cases at the same point are averaged; failed cases without `y` are left out.
    """
    ax = axes(ax, (7.0, 4.5))
    table = table.dropna(subset=[y])
    groups: list[tuple[Any, Any]] = [(None, table)] if hue is None else list(table.groupby(hue, sort=False))
    drawn: list[dict[Any, float]] = []
    for i, (value, rows) in enumerate(groups):
        points = rows.groupby(x, sort=True)[y].mean().astype(float)
        style: dict[str, Any] = {
            "color": LINES[i % len(LINES)],
            "marker": MARKERS[(i + i // len(LINES)) % len(MARKERS)],
            "markersize": 6,
        }
        if points.to_dict() in drawn:  # keep the equal line below visible
            style |= {"linestyle": "--", "markersize": 3}
        drawn.append(points.to_dict())
        ax.plot(points.index, points.to_numpy(), label=None if hue is None else verbatim(str(value)), **style)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis="y", color="0.9")
    if hue is not None and groups:
        legend(ax, title=hue)
    return plain(ax)


def times_and_bandwidths(title: str, rows: Sequence[tuple[int, int, float]]) -> Figure:
    """Draw a collective over message sizes; rows are (bytes, picoseconds, bus bandwidth in GB/s)."""
    figure = new_figure((9.0, 4.0))
    left, right = figure.subplots(1, 2)
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xlabel("bytes")
        plain(ax)
    sizes = [size for size, _, _ in rows]
    left.plot(sizes, [time / 1e6 for _, time, _ in rows], color=LINES[0], marker="o", markersize=4)
    if all(time for _, time, _ in rows):
        left.set_yscale("log")
    left.set_ylabel("time (µs)")
    right.plot(sizes, [bus for _, _, bus in rows], color=LINES[1], marker="s", markersize=4)
    right.set_ylim(bottom=0)
    right.set_ylabel("bus bandwidth (GB/s)")
    figure.suptitle(verbatim(title), fontsize=10)
    return figure


def _along(place: int, pipeline: int) -> Any:
    """Distinct colours for few lines, a colour map for many."""
    if pipeline <= len(LINES) - 1:
        return LINES[place]
    import matplotlib as mpl

    return mpl.colormaps["cividis"](place / (pipeline - 1))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort gpu10 after gpu9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
