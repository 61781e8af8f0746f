"""The Gantt chart: one line per rank, by replica; drawn as collections, so that many ranks stay fast.

Of steps too short to be seen only the first are drawn. If ops would be narrower than that even in one step, bands
show what share of the time each kind takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.inside_ops import collectives_of, inside_ops
from hybrid_des.analysis.metrics import summary
from hybrid_des.planning.program_table import OP_KINDS
from hybrid_des.report import palette
from hybrid_des.report.bars import Bars, bars_of
from hybrid_des.report.palette import ACTIVITIES, BUBBLE, ink, shades
from hybrid_des.report.plots.figure import (
    TIMES,
    Look,
    Shown,
    View,
    chosen,
    points,
    seconds_of,
)
from hybrid_des.scenario.loading import titled
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from hybrid_des.report.plots.style import (
    WIDTH_OF_LETTER,
    legend_of_colours,
    new_figure,
    points_across,
    scale_of,
    title,
    verbatim,
)

WIDEST = 12.0  # inches


LOWEST = 0.45  # share of the height that a narrow chart keeps at least


MANY_BARS = 20_000  # above this, an SVG contains the bars as an image


MOST_LINES = 512  # of a whole run: a picture has hardly more rows of pixels


NUMBER_SIZES = (0.65, 0.55, 0.5)  # of the size of texts; the largest that fits


WIDTH_OF_DIGIT = 0.62  # of its size


BESIDE = 1.0  # points of a bar that its number leaves free


NUMBER: dict[str, Any] = {
    "ha": "center", "va": "center_baseline", "clip_on": True, "in_layout": False,
}  # fmt: skip


NARROWEST, PIXELS = 1.0, 2.5  # points and pixels of a typical op of any kind; narrower bars are no more than texture


READABLE = 2.5  # points, from which on another step is drawn


MOST_EDGE, EDGE = 0.4, 0.15  # points of the white edge of a bar, and its share of a typical bar


PERIODS = 2  # forwards and backwards that a band averages over


TALL = {"optimizer": 0.45, "reduction": 0.22}  # heights of bars; others fill the line


FULL = 0.86


def draw(run: Run, picture: Callable[[Run, Axes], Axes]) -> Figure:
    """Make a picture of a run on a new figure, outside pyplot's state."""
    figure = new_figure(size_of(len(_lines_of(run).lines) if picture is gantt else run.scenario.parallel.ranks))
    picture(run, figure.add_subplot())
    return figure


def _lines_of(run: Run) -> Bars:
    """The bars of a run's chart, of identical pipelines once."""
    return bars_of(run.timeline, replicas_apart(run), collectives_of(inside_ops(run))).merged()


def size_of(ranks: int, width: float = WIDEST) -> tuple[float, float]:
    """Size in inches of a chart with one line per rank."""
    return width, max(width / WIDEST, LOWEST) * min(1.5 + 0.32 * ranks, 4.5 + 0.075 * ranks, 18.0)


def gantt(
    source: Run | pd.DataFrame,
    ax: Axes | None = None,
    **shown: Unpack[Shown],
) -> Axes:
    """Draw the ops of each rank over time; numbers are micro-batches, two of a fused pair, lighter shades later chunks.

    Identical pipelines are drawn once: "rank 0 ×2" stands for two ranks. For a run with too many ranks for a picture,
    only some replicas are drawn, evenly spaced; of too many steps, the first ones. Of too many ops in one step, bands
    show shares of the time. The label of the time axis says so. Of a two-way pipeline, as DualPipe's, the lighter shade
    is the direction from the last rank to the first.

    Args:
        source: a run, or its timeline table, whole or filtered.
        ax: axes to draw on; default: a new pyplot figure.
        steps: those to draw, one or several.
        ranks: those to draw, each on a line of its own.
        window: begin and end of the time to draw, such as ("100 ms", "400 ms") or in seconds.
        colours: by the names of the legend, such as {"forward": "black"}; {"bubble": "lightgrey"} also fills the idle
            time between the begin and the last op of what is drawn, which is white otherwise.
        labels: texts by those usually drawn, such as {"rank 0": "GPU 0", "title": ""}.
        size: of a new figure: `column`, `page`, `notebook`, its width in inches or as "8.5 cm", or width and height.
        legend: `above`, `right`, `below` or `none`; by default above.

    Raises:
        UsageError: there is no such rank, step, colour or text, or the window or size is wrong.
    """
    run, view = None if hasattr(source, "columns") else source, View(**shown)
    every = 1 if run is None or view.ranks is not None else replicas_apart(run)
    if run is None:
        bars = bars_of(cast("pd.DataFrame", source), every)
    else:
        bars = bars_of(run.timeline, every, collectives_of(inside_ops(run)))
    between = seconds_of(view.window)
    steps = chosen("steps", view.steps, bars.ops.step.tolist())
    ranks = chosen("ranks", view.ranks, bars.lines.rank.tolist())
    bars = bars if ranks is None else bars.of_ranks(ranks)
    bars = bars if steps is None else bars.of_steps(steps)
    bars = bars.within(*between) if between is not None else bars
    bars = bars.merged() if ranks is None else bars
    whole = between is None and steps is None
    with view.canvas(ax, lambda width: size_of(len(bars.lines), width)[1]) as ax:
        note: list[str] = []
        if whole:
            bars, note = _visible_steps(bars, points_across(ax))
        if every > 1:
            note = [*note, f"one replica in {every:,}"]
        two_way = run is not None and palette.is_two_way(run.plan)
        _draw(ax, bars, between or (0.0 if whole else bars.first, bars.last), note, view, two_way)
        if run is not None:
            title(ax, *title_of(run), points(1), pad=20)  # above the legend
        return view.dress(ax)


def _draw(ax: Axes, bars: Bars, shown: tuple[float, float], note: Sequence[str], look: Look, two_way: bool) -> None:
    """Draw bars, or bands where bars would be too narrow, between two times in seconds."""
    begin, end = shown
    narrowest = max(NARROWEST, PIXELS * 72 / float(ax.figure.dpi))
    banded = min(bars.typical.values(), default=0.0) * points_across(ax) < narrowest * (end - begin)
    scale, unit = scale_of(end - begin)
    ax.set_xlim(begin / scale, end / scale or 1)
    ax.set_ylim(len(bars.lines) - 0.4, -0.6)
    colours = {kind: look.colour(one.label, one.colour) for kind, one in ACTIVITIES.items()}
    entries = _legend(bars, colours, two_way and not banded, 1 if banded else bars.chunks)
    if (bubble := look.colour(BUBBLE, None)) is not None:
        _draw_bubble(ax, bars, scale, begin, bubble)
        entries[BUBBLE] = [bubble]
    if banded:
        _draw_bands(ax, bars, scale, shown, colours)
        note = [*note, "height: share of the time"]
    _draw_bars(ax, bars, scale, ("optimizer",) if banded else OP_KINDS, colours)
    if not banded:
        _draw_numbers(ax, bars, scale, colours)
    _name_lines(ax, bars)
    legend_of_colours(ax, entries, look.legend)
    ax.set_xlabel(";  ".join([f"time ({unit})", *note]))


def _draw_bubble(ax: Axes, bars: Bars, scale: float, begin: float, colour: str) -> None:
    """Fill every line from the begin to the last op of what is drawn, below the bars."""
    end = bars.ops.end[bars.ops.kind != OP_KINDS.index("optimizer")].max(initial=begin)
    lines = np.arange(len(bars.lines))
    whole = np.ones(len(lines))
    _rectangles(ax, lines, begin / scale * whole, end / scale * whole, FULL * whole, np.repeat([colour], len(lines)))


def _visible_steps(bars: Bars, width: float) -> tuple[Bars, list[str]]:
    """The bars of as many steps as show typical ops wide enough, at least one, and a note on those left out."""
    shortest, steps = min(bars.typical.values(), default=0.0), np.unique(bars.ops.step)
    if len(steps) <= 1 or shortest * width >= READABLE * bars.last:
        return bars, []
    ends = np.array([bars.ops.end[bars.ops.step == step].max() for step in steps])
    shown = max(1, int(np.count_nonzero(np.maximum.accumulate(ends) * READABLE <= shortest * width)))
    which = "first step" if shown == 1 else f"first {shown} steps"
    return bars.of_steps(np.unique(bars.ops.step)[:shown].tolist()), [f"the {which} of {len(steps):,}"]


def replicas_apart(run: Run) -> int:
    """The stride of the replicas that are drawn: one in this many."""
    replicas = len({run.timeline.layout.coordinate(rank, "data") for rank in run.ranks})
    return max(1, min(-(-len(run.ranks) // MOST_LINES), replicas))


def title_of(run: Run) -> tuple[str, str]:
    """The name with overrides; and schedule, sizes and the main figures."""
    facts, parallel, schedule = summary(run), run.scenario.parallel, run.scenario.schedule
    sizes = f"p {parallel.pipeline}, d {parallel.data}, m {run.microbatches}"
    figures = f"step {format_seconds(facts['step_time_s'])},  bubble {format_share(facts['step_shares']['bubble'])}"
    kind = verbatim(str(schedule.kind or ("order from a file" if schedule.file else "as traced")))
    return titled(run.scenario), f":  {kind}, {sizes};  {figures}"


def _legend(bars: Bars, colours: Mapping[str, str], two_way: bool, chunks: int) -> dict[str, list[str]]:
    """The colours of each kind of bar, and the shades of chunks or directions."""
    kinds = [kind for i, kind in enumerate(OP_KINDS) if (bars.ops.kind == i).any()]
    kinds += ["reduction"] * bool(len(bars.waits)) + ["exchange"] * bool(bars.ops.inside.any())
    return dict(palette.key([(ACTIVITIES[kind].label, colours[kind]) for kind in kinds], chunks, two_way))


def _draw_bars(ax: Axes, bars: Bars, scale: float, kinds: Sequence[str], colours: Mapping[str, str]) -> None:
    """Draw ops of some kinds, and periods of gradient reduction along the lower edge of their line."""
    mine = np.isin(bars.ops.kind, [OP_KINDS.index(kind) for kind in kinds])
    shade_of = np.array([shades(colours[kind], bars.chunks) for kind in OP_KINDS])
    tall = np.array([TALL.get(kind, FULL) for kind in OP_KINDS])
    kind, start, end = bars.ops.kind[mine], bars.ops.start[mine] / scale, bars.ops.end[mine] / scale
    across = _across(ax)
    edge = min(MOST_EDGE, EDGE * min(bars.typical.values(), default=0.0) / scale * across)
    shade = shade_of[kind, np.maximum(bars.ops.chunk[mine], 0)]
    _rectangles(ax, bars.ops.line[mine], start, end, tall[kind], shade, edge=edge)
    within = np.flatnonzero(mine & (bars.ops.inside > 0))
    if len(within):
        begin, colour = (bars.ops.end - bars.ops.inside)[within] / scale, np.repeat([colours["exchange"]], len(within))
        _rectangles(ax, bars.ops.line[within], begin, bars.ops.end[within] / scale, tall[bars.ops.kind[within]], colour)
    waits, count = bars.waits, len(bars.waits)
    edge = min(MOST_EDGE, EDGE * float(np.median(waits.end - waits.start)) / scale * across) if count else 0.0
    low = waits.line + (FULL - TALL["reduction"]) / 2  # along the lower edge, below the numbers
    colour = np.repeat([colours["reduction"]], count)
    _rectangles(ax, low, waits.start / scale, waits.end / scale, np.full(count, TALL["reduction"]), colour, edge=edge)


def _across(ax: Axes) -> float:
    """Points per unit of the time axis."""
    begin, end = ax.get_xlim()
    return points_across(ax) / (end - begin)


def _draw_bands(ax: Axes, bars: Bars, scale: float, shown: tuple[float, float], colours: Mapping[str, str]) -> None:
    """Stack the shares of the time that each kind takes in each line, averaged around every place."""
    from matplotlib.collections import PolyCollection

    window, places = PERIODS * sum(bars.typical.values()), round(points_across(ax))
    begin, end = shown
    time = np.linspace(begin, end, places)
    left, right = np.maximum(time - window / 2, begin), np.minimum(time + window / 2, end)
    lines = np.arange(len(bars.lines))
    under = np.zeros((len(lines), places))
    last = bars.ops.end - bars.ops.inside
    periods = {OP_KINDS[kind]: (bars.ops.kind == kind, bars.ops.start, last) for kind in bars.typical}
    periods |= {"exchange": (bars.ops.inside > 0, last, bars.ops.end)} if bars.ops.inside.any() else {}
    for kind, (of_kind, starts, stops) in periods.items():
        mine = np.flatnonzero(of_kind)
        mine = mine[np.lexsort((starts[mine], bars.ops.line[mine]))]
        top = under.copy()
        for line, ops in enumerate(np.split(mine, np.searchsorted(bars.ops.line[mine], lines[1:]))):
            ends = np.column_stack([starts[ops], stops[ops]]).ravel()
            busy = np.cumsum(np.diff(ends, prepend=0.0) * (np.arange(len(ends)) % 2))  # until each end
            if len(ops):
                top[line] += (np.interp(right, ends, busy) - np.interp(left, ends, busy)) / (right - left)
        heights = np.concatenate([under, top[:, ::-1]], axis=1)
        low = lines[:, np.newaxis] + FULL / 2  # lines are counted downwards
        corners = np.stack(np.broadcast_arrays(np.append(time, time[::-1]) / scale, low - FULL * heights), axis=2)
        look: dict[str, Any] = {"facecolors": colours[kind], "linewidths": 0}
        shapes = PolyCollection(list(corners), rasterized=heights.size > MANY_BARS, **look)
        ax.add_collection(shapes, autolim=False)
        under = top


def _rectangles(
    ax: Axes,
    line: NDArray[Any],
    start: NDArray[Any],
    end: NDArray[Any],
    tall: NDArray[Any],
    colour: NDArray[Any],
    *,
    edge: float = 0.0,
) -> None:
    """Draw bars with a white edge of so many points, which many bars do not have."""
    from matplotlib.collections import PolyCollection

    low, high = line - tall / 2, line + tall / 2
    corners = np.stack([start, low, end, low, end, high, start, high], axis=1).reshape(-1, 4, 2)
    wide = edge and len(line) < 3000 and ax.get_ylim()[0] < 48
    lines: dict[str, Any] = {"edgecolors": "white", "linewidths": edge} if wide else {"linewidths": 0.1}
    if not wide:
        lines["edgecolors"] = "face"
    shapes = PolyCollection(corners, facecolors=colour.tolist(), rasterized=len(line) > MANY_BARS, **lines)  # type: ignore[arg-type]
    ax.add_collection(shapes, autolim=False)


def _draw_numbers(ax: Axes, bars: Bars, scale: float, colours: Mapping[str, str]) -> None:
    """Write micro-batch numbers into all ops, as large as fits; into none if one has no room."""
    mine = np.flatnonzero((bars.ops.microbatch >= 0) & (bars.ops.end > bars.ops.start))
    pairs = zip(bars.ops.microbatch[mine].tolist(), bars.ops.second[mine].tolist(), strict=True)
    texts = [palette.number(*pair) for pair in pairs]
    wide = (bars.ops.end - bars.ops.start)[mine] / scale * _across(ax)
    high = ax.get_window_extent().height * 72 / ax.figure.dpi / max(len(bars.lines), 1)
    letters = np.array([len(text) for text in texts])
    for size in map(points, NUMBER_SIZES):
        if high >= 1.3 * size and (wide > size * WIDTH_OF_DIGIT * letters + BESIDE).all():
            break
    else:
        return
    for i, text in zip(mine.tolist(), texts, strict=True):
        middle = (bars.ops.start[i] + bars.ops.end[i]) / 2 / scale
        shade = shades(colours[OP_KINDS[bars.ops.kind[i]]], bars.chunks)[bars.ops.chunk[i]]
        ax.text(middle, bars.ops.line[i], text, color=ink(shade), fontsize=size, **NUMBER)


def _line_name(bars: Bars, line: int) -> str:
    rank, times = bars.lines.rank[line], bars.lines.times[line]
    return f"rank {rank}" + (f"{TIMES}{times:,}" if times > 1 else "")


def _name_lines(ax: Axes, bars: Bars) -> None:
    """Label as many ranks as fit on the left, and draw a line between replicas."""
    count = len(bars.lines)
    most = min(40.0, ax.get_window_extent().height * 72 / ax.figure.dpi / points(0.9))
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 1 << 40) if count / step <= most)
    shown = range(0, count, every)
    many = len(set(bars.lines.replica)) > 1
    ax.set_yticks(list(shown), [_line_name(bars, i) for i in shown], fontsize=points(0.8 if every == 1 else 0.7))
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    starts = [i for i in range(count) if i == 0 or bars.lines.replica[i] != bars.lines.replica[i - 1]]
    if not many:
        return
    tall = ax.get_window_extent().height * 72 / ax.figure.dpi / count
    for begin, end in zip(starts, [*starts[1:], count], strict=True):
        if begin and count / len(starts) > 1:
            ax.axhline(begin - 0.5, color="0.75", linewidth=0.8)
        name, upright = f"replica {bars.lines.replica[begin]}", end - begin <= 2
        room = tall * (end - begin) >= points(0.8 * WIDTH_OF_LETTER) * (1 if upright else len(name))
        if len(starts) <= 16 and room:
            ax.text(
                1.003, (begin + end - 1) / 2, name, transform=ax.get_yaxis_transform(),
                rotation=0 if upright else 90, fontsize=points(0.8), ha="left", va="center", color="0.35",
            )  # fmt: skip
