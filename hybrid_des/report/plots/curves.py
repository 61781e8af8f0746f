"""Curves over time, over an axis of a sweep, and over the message sizes of a collective."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import ceil
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.counterfactual.ladder import curves
from hybrid_des.analysis.explanation import Explanation
from hybrid_des.analysis.link_use import LinkUse, link_rates
from hybrid_des.cluster.purposes import PURPOSES
from hybrid_des.errors import UsageError, unknown
from hybrid_des.report.plots.figure import LegendPlace, Look, Shown, Style, View, chosen, narrow, points, seconds_of
from hybrid_des.report.plots.style import (
    LINES,
    MARKERS,
    legend,
    legend_of_colours,
    new_figure,
    place_legend,
    plain,
    scale_of,
    verbatim,
)
from hybrid_des.scenario.sections.cluster import GpuKind
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_binary_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANES = 16
WINDOWS = 200  # of the shown time, over which rates are averaged
FINEST = 20_000  # windows of a whole run
MOST_SIZES = 8  # named along an axis
LABELLED = 12  # if there are more lines, only the first and last are labelled
NEAR = 2.5  # a GPU's memory is drawn if its peak is above 1/NEAR of it
NEARLY = 0.015  # of the range of y: lines that are closer hide each other
DASH = 2.5  # line widths
MARKER = 5.5  # points
DASHES = ("--", ":", "-.")

Heights = NDArray[np.float64]


def link_use(
    run: Run,
    ax: Axes | None = None,
    links: Sequence[str] | None = None,
    **shown: Unpack[Shown],
) -> Axes:
    """Draw link use over time, one lane per link, stacked by the purpose of messages.

    Rates are averaged over 200 windows; the height of a lane is the link's bandwidth or, if that is infinite or
    unknown, the largest rate of all.

    Args:
        run: a run with recorded messages.
        ax: axes to draw on; default: a new pyplot figure.
        links: links from the top; default: the up to 16 busiest, by name.
        steps: those to draw, one or several.
        ranks: only links that messages of these ranks pass.
        window: begin and end of the time to draw, such as ("100 ms", "400 ms") or in seconds.
        colours: by the names of the legend, such as {"pipeline": "black"}.
        labels: texts by those usually drawn, such as {"title": ""}.
        size: of a new figure: `column`, `page`, `notebook`, its width in inches or as "8.5 cm", or width and height.
        legend: `above`, `right`, `below` or `none`.

    Raises:
        UsageError: there is no such rank, step, link, colour or text, or the window or size is wrong.
    """
    view = View(**shown)
    begin, end = _between(run, view)
    passed = _passed(run, view.ranks)
    sent = {channel.purpose for channel in run.timeline.channels}
    named = {purpose.label: purpose.colour for purpose in PURPOSES if purpose.usual or purpose in sent}
    named = {label: view.colour(label, colour) for label, colour in named.items()}
    fine = ceil(WINDOWS * run.timeline.duration / PICOSECONDS_PER_SECOND / (end - begin)) if end > begin else WINDOWS
    uses = [link_rates(run.timeline, min(fine, FINEST), [p for p in PURPOSES if p.label == label]) for label in named]
    known = [_within(use, begin, end) for use in uses if use is not None]
    with view.canvas(ax, lambda width: 4.0 * max(width / 10, 0.6)) as ax:
        if known:
            _draw_lanes(ax, run, known, _lanes(known, links, passed), (begin, end), named.values())
            legend_of_colours(ax, named, view.legend)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(f"time ({scale_of(end - begin)[1]})")
        return view.dress(plain(ax))


def _between(run: Run, view: View) -> tuple[float, float]:
    """The begin and end of what is drawn, in seconds: a window, the steps, or the whole run."""
    rows = run.timeline.steps
    wanted = chosen("steps", view.steps, rows["step"].tolist())
    if (between := seconds_of(view.window)) is not None:
        return between
    if wanted is None:
        return 0.0, run.timeline.duration / PICOSECONDS_PER_SECOND
    mine = np.isin(rows["step"], wanted)
    return rows["begin"][mine].min() / PICOSECONDS_PER_SECOND, rows["end"][mine].max() / PICOSECONDS_PER_SECOND


def _passed(run: Run, ranks: Iterable[int] | None) -> set[str] | None:
    """The links that messages of some ranks pass; None if all count."""
    wanted = chosen("ranks", ranks, run.timeline.steps["rank"].tolist())
    if wanted is None:
        return None
    mine = set(wanted)
    return {channel.link for channel in run.timeline.channels if mine & {channel.sender, channel.receiver}}


def _within(use: LinkUse, begin: float, end: float) -> LinkUse:
    """The windows between two times in seconds."""
    edges = use.edges / PICOSECONDS_PER_SECOND
    seen = np.flatnonzero((edges[1:] > begin) & (edges[:-1] < end))
    first, last = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
    return LinkUse(use.links, use.edges[first : last + 1], use.rate[:, first:last])


def _lanes(uses: Sequence[LinkUse], links: Sequence[str] | None, passed: set[str] | None) -> list[str]:
    """The given links, or the busiest of those that count."""
    known = set(uses[0].links) if passed is None else passed & set(uses[0].links)
    for name in links or ():
        if name not in known:
            raise UsageError(f"links: {unknown(name, known)}")
    if links is not None:
        return list(links)
    carried = dict(zip(uses[0].links, np.sum([use.rate for use in uses], axis=(0, 2)), strict=True))
    return sorted(sorted(known, key=lambda name: (-carried[name], name))[:LANES], key=natural)


def _draw_lanes(
    ax: Axes,
    run: Run,
    uses: Sequence[LinkUse],
    shown: Sequence[str],
    between: tuple[float, float],
    colours: Iterable[str],
) -> None:
    """Draw the lanes of some links from the top, and name them."""
    tops, index_of = np.cumsum([use.rate for use in uses], axis=0), {name: i for i, name in enumerate(uses[0].links)}
    scale = scale_of(between[1] - between[0])[0]
    edges = uses[0].edges / PICOSECONDS_PER_SECOND / scale
    largest = max((float(tops[-1, index_of[name]].max()) for name in shown), default=0.0) or 1.0
    wiring, colours = run.fabric.links if run.fabric is not None else {}, list(colours)
    limits = {name: float(link.bandwidth) for name, link in wiring.items() if link.bandwidth}  # known and finite
    for base, name in enumerate(reversed(shown)):
        _draw_lane(ax, edges, base, 0.9 * tops[:, index_of[name]] / limits.get(name, largest), colours)
    names = [f"{verbatim(name)}  {limits[name] / 1e9:.4g} GB/s" if name in limits else verbatim(name) for name in shown]
    ax.set_yticks([len(shown) - 1 - lane + 0.45 for lane in range(len(shown))], names, fontsize=points(0.8))
    ax.set_ylim(-0.1, len(shown))
    ax.set_xlim(between[0] / scale, between[1] / scale)
    whole = "the link's bandwidth" if set(shown) <= limits.keys() else f"{largest / 1e9:.4g} GB/s, or its bandwidth"
    ax.set_title(f"links: a full lane is {whole}", loc="left", fontsize=points(1))


def _draw_lane(ax: Axes, edges: Heights, base: int, tops: Heights, colours: Iterable[str]) -> None:
    """Fill one lane with stacked areas, one per colour; unlike `stairs`, without finding limits, which are known."""
    from matplotlib.patches import StepPatch

    ax.axhline(base, color="0.85", linewidth=0.6)
    under = np.full(len(edges) - 1, float(base))
    for top, colour in zip(tops, colours, strict=True):
        patch = StepPatch(base + top, edges, baseline=under, fill=True, linewidth=0, color=colour)  # type: ignore[arg-type]
        ax.add_artist(patch)
        under = base + top


def memory_curve(
    run: Run,
    ax: Axes | None = None,
    replica: int = 0,
    **shown: Unpack[Shown],
) -> Axes:
    """Draw the memory use of each GPU of a replica over time; dashed lines are GPU memory sizes close to it.

    Args:
        run: a run.
        ax: axes to draw on; default: a new pyplot figure.
        replica: whose GPUs are drawn.
        steps: those to draw, one or several.
        ranks: GPUs to draw instead of those of a replica.
        window: begin and end of the time to draw, such as ("100 ms", "400 ms") or in seconds.
        colours: by the names of the legend, such as {"pipeline rank 0": "black"}.
        labels: texts by those usually drawn, such as {"pipeline rank 0": "first stage"}.
        size: of a new figure: `column`, `page`, `notebook`, its width in inches or as "8.5 cm", or width and height.
        legend: `above`, `right`, `below` or `none`.

    Raises:
        UsageError: there is no such rank, step, colour or text, or the window or size is wrong.
    """
    view = View(**shown)
    begin, end = _between(run, view)
    layout, stages = run.timeline.layout, range(run.timeline.programs.pipeline)
    wanted = chosen("ranks", view.ranks, run.timeline.steps["rank"].tolist())
    many = len(stages) if wanted is None else len(wanted)
    drawn = {
        layout.rank(data=replica, pipeline=place): f"pipeline rank {place}" for place in stages
    } if wanted is None else {rank: f"rank {rank}" for rank in wanted}  # fmt: skip
    with view.canvas(ax, lambda width: max(0.4 * width, 2.0)) as ax:
        scale, unit = scale_of(end - begin)
        highest: dict[GpuKind, float] = {}
        for number, (rank, name) in enumerate(drawn.items()):
            mine = run.timeline.memory["rank"] == rank
            time = run.timeline.memory["time"][mine] / PICOSECONDS_PER_SECOND / scale
            held = run.timeline.memory["bytes"][mine] / 1e9
            (gpu,) = run.scenario.cluster.gpus_of([rank])
            highest[gpu] = max(highest.get(gpu, 0.0), float(held.max(initial=0.0)))
            label = name if many <= LABELLED or number in (0, many - 1) else None
            colour = view.colour(name, _along(number, many))
            ax.step(time, held, where="post", color=colour, label=label, linewidth=1.3)
        _draw_limits(ax, highest)
        ax.set_xlim(begin / scale, end / scale or 1)
        ax.set_ylim(bottom=0)
        ax.set_xlabel(f"time ({unit})")
        ax.set_ylabel("memory held (GB)")
        _legend_beside(ax, view.legend)
        return view.dress(plain(ax))


def _draw_limits(ax: Axes, highest: Mapping[GpuKind, float]) -> None:
    """Draw the memory of each kind of GPU that holds a good part of it, by the most that one holds in GB."""
    for style, (gpu, most) in zip(cycle(DASHES), highest.items(), strict=False):
        if gpu.memory / 1e9 < NEAR * most:
            name = verbatim(f"memory of {gpu.name}")
            ax.axhline(gpu.memory / 1e9, color="black", linestyle=style, linewidth=1, label=name)


def _legend_beside(ax: Axes, side: LegendPlace | None, title: str | None = None) -> None:
    """Place the legend to the right of the data, or below a narrow figure, which has no room beside them."""
    side, names = side or ("below" if narrow(ax) else "right"), ax.get_legend_handles_labels()[1]
    small: dict[str, Any] = {"title_fontsize": points(0.8)} if narrow(ax) else {}
    columns = {"ncols": 2, "columnspacing": 1.0} if side == "below" and narrow(ax) else {}
    place_legend(ax, side, names, title=title, **small, **columns)


def lines(
    table: pd.DataFrame,
    x: str,
    y: str,
    hue: str | None = None,
    ax: Axes | None = None,
    *,
    fits: str | None = None,
    **style: Unpack[Style],
) -> Axes:
    """Draw one column of a sweep against another, one line per value of a third.

    Cases at the same point are averaged; failed cases without `y` are left out. A line on top of others is dashed, so
    that all are seen. With `fits`, a Boolean column, points of cases that do not fit are hollow.

    Args:
        table: one row per case.
        x: a column.
        y: a column.
        hue: the column whose values are the lines.
        ax: axes to draw on; default: a new pyplot figure.
        fits: the Boolean column.
        colours: by the values of `hue`.
        labels: texts by those usually drawn, such as {"x": "micro-batches"}.
        size: of a new figure: `column`, `page`, `notebook`, its width in inches or as "8.5 cm", or width and height.
        legend: `above`, `right`, `below` or `none`.

    Raises:
        UsageError: there is no such line or text, or the size is wrong.
    """
    look = Look(**style)
    with look.canvas(ax, lambda width: 0.64 * width) as ax:
        _draw_curves(ax, table.dropna(subset=[y]), (x, y, hue), fits, look)
        return look.dress(plain(ax))


def _draw_curves(
    ax: Axes, table: pd.DataFrame, names: tuple[str, str, str | None], fits: str | None, look: Look
) -> None:
    """Draw the lines, their points, axes and legend."""
    x, y, hue = names
    groups: list[tuple[Any, Any]] = [(None, table)] if hue is None else list(table.groupby(hue, sort=False))
    misfits, marker_size = 0, MARKER * (0.7 if narrow(ax) else 1)
    curves = [rows.groupby(x, sort=True)[y].mean().astype(float) for _, rows in groups]
    for i, ((value, rows), curve) in enumerate(zip(groups, curves, strict=True)):
        marker = MARKERS[(i + i // len(LINES)) % len(MARKERS)]
        colour = look.colour(str(value), LINES[i % len(LINES)])
        below, above = (sum(_alike(curve, other, curves) for other in part) for part in (curves[:i], curves[i + 1 :]))
        dashes = (0, (DASH * (above + 1), DASH * below)) if below else "-"
        size = marker_size * 1.3 ** min(above, 3)  # larger below others, so that its rim is seen
        label = None if hue is None else verbatim(str(value))
        holds = rows.groupby(x, sort=True)[fits].all().to_numpy() if fits else np.ones(len(curve), dtype=bool)
        ax.plot(curve.index, curve.to_numpy(), color=colour, linestyle=dashes, marker=marker, markersize=size,
                markevery=np.flatnonzero(holds).tolist(), label=label, linewidth=1.6)  # fmt: skip
        if not holds.all():
            misfits += 1
            outside = curve[~holds]
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
        _legend_beside(ax, look.legend, hue)


def _alike(curve: pd.Series[float], other: pd.Series[float], curves: Sequence[pd.Series[float]]) -> bool:
    """Whether two curves coincide at half of the places that they share, or more."""
    span = max((curve.max() for curve in curves), default=0.0) - min((curve.min() for curve in curves), default=0.0)
    apart = (curve - other).abs().dropna()
    return len(apart) > 0 and bool((apart <= NEARLY * span).mean() >= 0.5)


def what_if_curves(explanation: Explanation, ax: Axes | None = None, **style: Unpack[Style]) -> Axes:
    """Draw the step, simulated, with less time in one class of ops or links, one line per class that helps the most.

    Args:
        explanation: what `explain` found.
        ax: axes to draw on; default: a new pyplot figure.
        colours: by the names of the legend, such as {"F ops": "black"}.
        labels: texts by those usually drawn, such as {"F ops": "forwards"}.
        size: of a new figure: `column`, `page`, `notebook`, its width in inches or as "8.5 cm", or width and height.
        legend: `above`, `right`, `below` or `none`.

    Raises:
        UsageError: there is no such line or text, or the size is wrong.
    """
    look = Look(**style)
    with look.canvas(ax, lambda width: 0.64 * width) as ax:
        scale, unit = scale_of(explanation.seconds(explanation.duration))
        for i, curve in enumerate(curves(explanation.run, explanation.gains, explanation.at_once)):
            saved, ends = zip(*curve.points, strict=True)
            name, steps = verbatim(curve.name), [explanation.seconds(end) / scale for end in ends]
            line = {"color": look.colour(name, LINES[i % len(LINES)]), "marker": MARKERS[i % len(MARKERS)]}
            ax.plot([100 * share for share in saved], steps, label=name, **line)
        ax.set_xlabel("less time in the class (%)")
        ax.set_ylabel(f"step ({unit})")
        ax.grid(axis="y", color="0.9")
        if ax.lines:
            _legend_beside(ax, look.legend)
        return look.dress(plain(ax))


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
        ax.set_xticks(shown, [format_binary_bytes(size) for size in shown], fontsize=points(0.8), rotation=30)
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
    figure.suptitle(verbatim(title), fontsize=points(1))
    return figure


def _along(pipeline_rank: int, pipeline: int) -> Any:
    """Distinct colours for few lines, a colour map for many."""
    if pipeline <= len(LINES) - 1:
        return LINES[pipeline_rank]
    import matplotlib as mpl

    return mpl.colormaps["cividis"](pipeline_rank / (pipeline - 1))


def natural(name: str) -> list[tuple[int, str]]:
    """Sort gpu10 after gpu9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
