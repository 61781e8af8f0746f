"""Curves over time, over an axis of a sweep, and over the message sizes of a collective."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.times import link_rates
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
from hybrid_des.scenario.sections.cluster import GpuKind
from hybrid_des.simulation.run import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANES = 16
MOST_SIZES = 8  # named along an axis
LABELLED = 12  # if there are more lines, only the first and last are labelled
NEAR = 2.5  # a GPU's memory is drawn if its peak is above 1/NEAR of it
NEARLY = 0.015  # of the range of y: lines that are closer hide each other
DASH = 2.5  # line widths
MARKER = 5.5  # points
DASHES = ("--", ":", "-.")

Heights = NDArray[np.float64]


def link_use(run: Run, ax: Axes | None = None, links: Sequence[str] | None = None) -> Axes:
    """Draw link use over time, one lane per link, stacked by the purpose of messages.

    Rates are averaged over 200 windows; the height of a lane is the link's bandwidth or, if that is infinite or
    unknown, the largest rate of all.

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
        shown = list(links) if links is not None else sorted(busiest, key=natural)
        largest = max((float(tops[-1, place[name]].max()) for name in shown), default=0.0) or 1.0
        limits = _bandwidths(run)
        edges = known[0].edges / PICOSECONDS_PER_SECOND / scale
        for base, name in enumerate(reversed(shown)):
            _draw_lane(ax, edges, base, 0.9 * tops[:, place[name]] / limits.get(name, largest), labels.values())
        names = [
            f"{verbatim(name)}  {limits[name] / 1e9:.4g} GB/s" if name in limits else verbatim(name) for name in shown
        ]
        ax.set_yticks([len(shown) - 1 - lane + 0.45 for lane in range(len(shown))], names, fontsize=8)
        ax.set_ylim(-0.1, len(shown))
        ax.set_xlim(0, float(edges[-1]))
        whole = "the link's bandwidth" if set(shown) <= limits.keys() else f"{largest / 1e9:.4g} GB/s, or its bandwidth"
        ax.set_title(f"links: a full lane is {whole}", loc="left", fontsize=10)
        legend_above(ax, labels)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"time ({unit})")
    return plain(ax)


def _bandwidths(run: Run) -> dict[str, float]:
    """Bytes per second of the links whose bandwidth is known and finite."""
    links = run.fabric.links if run.fabric is not None else {}
    return {name: float(link.bandwidth) for name, link in links.items() if link.bandwidth}


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
    pipeline = timeline.programs.pipeline
    highest: dict[GpuKind, float] = {}
    for place in range(pipeline):
        rank = timeline.layout.rank(data=replica, pipeline=place)
        mine = timeline.memory["rank"] == rank
        time = timeline.memory["time"][mine] / PICOSECONDS_PER_SECOND / scale
        held = timeline.memory["bytes"][mine] / 1e9
        (gpu,) = run.scenario.cluster.gpus_of([rank])
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


def lines(
    table: pd.DataFrame, x: str, y: str, hue: str | None = None, ax: Axes | None = None, *, fits: str | None = None
) -> Axes:
    """Draw one column of a sweep against another, one line per value of a third.

    Cases at the same point are averaged; failed cases without `y` are left out. A line on top of others is dashed, so
    that all are seen. With `fits`, a Boolean column, points of cases that do not fit are hollow.
    """
    ax = axes(ax, (7.0, 4.5))
    table = table.dropna(subset=[y])
    groups: list[tuple[Any, Any]] = [(None, table)] if hue is None else list(table.groupby(hue, sort=False))
    misfits = 0
    curves = [rows.groupby(x, sort=True)[y].mean().astype(float) for _, rows in groups]
    for i, ((value, rows), points) in enumerate(zip(groups, curves, strict=True)):
        colour, marker = LINES[i % len(LINES)], MARKERS[(i + i // len(LINES)) % len(MARKERS)]
        below, above = (sum(_alike(points, other, curves) for other in part) for part in (curves[:i], curves[i + 1 :]))
        dashes = (0, (DASH * (above + 1), DASH * below)) if below else "-"
        size = MARKER * 1.3 ** min(above, 3)  # larger below others, so that its rim is seen
        label = None if hue is None else verbatim(str(value))
        holds = rows.groupby(x, sort=True)[fits].all().to_numpy() if fits else np.ones(len(points), dtype=bool)
        ax.plot(points.index, points.to_numpy(), color=colour, linestyle=dashes, marker=marker, markersize=size,
                markevery=np.flatnonzero(holds).tolist(), label=label, linewidth=1.6)  # fmt: skip
        if not holds.all():
            misfits += 1
            outside = points[~holds]
            ax.plot(outside.index, outside.to_numpy(), color=colour, zorder=3, marker=marker, markersize=size,
                    markerfacecolor="white", linestyle="none")  # fmt: skip
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis="y", color="0.9")
    if misfits:
        ax.plot(
            [], [], color="0.3", label="hollow: does not fit", marker="o", markerfacecolor="white", linestyle="none"
        )
    if (hue is not None and groups) or misfits:
        legend(ax, title=hue)
    return plain(ax)


def _alike(points: pd.Series[float], other: pd.Series[float], curves: Sequence[pd.Series[float]]) -> bool:
    """Whether two curves coincide at half of the places that they share, or more."""
    span = max((curve.max() for curve in curves), default=0.0) - min((curve.min() for curve in curves), default=0.0)
    apart = (points - other).abs().dropna()
    return len(apart) > 0 and bool((apart <= NEARLY * span).mean() >= 0.5)


def times_and_bandwidths(
    title: str, curves: Mapping[str, Sequence[tuple[int, int, float]]], limit: float | None = None
) -> Figure:
    """Draw the times and bus bandwidths of collectives over buffer sizes.

    Args:
        title: shown above.
        curves: rows of (bytes, picoseconds, bus bandwidth in GB/s) by name.
        limit: bandwidth of the slowest link in GB/s, drawn as a line.
    """
    figure = new_figure((10.0, 4.2))
    left, right = figure.subplots(1, 2)
    sizes = sorted({size for rows in curves.values() for size, _, _ in rows})
    for ax in (left, right):
        ax.set_xscale("log", base=2)
        ax.set_xlabel("buffer")
        shown = sizes[:: -(-len(sizes) // MOST_SIZES)]
        ax.set_xticks(shown, [_binary(size) for size in shown], fontsize=8, rotation=30)
        ax.minorticks_off()
        plain(ax)
    for i, (name, rows) in enumerate(curves.items()):
        style = {"color": LINES[i % len(LINES)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}
        left.plot([row[0] for row in rows], [row[1] / 1e6 for row in rows], label=verbatim(name), **style)
        right.plot([row[0] for row in rows], [row[2] for row in rows], label=verbatim(name), **style)
    if all(time for rows in curves.values() for _, time, _ in rows):
        left.set_yscale("log")
    left.set_ylabel("time (µs)")
    if limit is not None:
        right.axhline(limit, color="black", linestyle="--", linewidth=1, label=f"slowest link, {limit:.4g} GB/s")
    right.set_ylim(bottom=0)
    right.set_ylabel("bus bandwidth (GB/s)")
    legend(right)
    figure.suptitle(verbatim(title), fontsize=10)
    return figure


def _binary(size: int) -> str:
    """A size for an axis: "64 KiB"."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def _along(place: int, pipeline: int) -> Any:
    """Distinct colours for few lines, a colour map for many."""
    if pipeline <= len(LINES) - 1:
        return LINES[place]
    import matplotlib as mpl

    return mpl.colormaps["cividis"](place / (pipeline - 1))


def natural(name: str) -> list[tuple[int, str]]:
    """Sort gpu10 after gpu9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
