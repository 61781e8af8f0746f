"""Shared style of pictures: axes, units, line colours, legends, saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import one_line
from hybrid_des.report.bars import ACTIVITIES, Bars, bars_of
from hybrid_des.report.plots.figure import (
    Look,
    Shown,
    View,
    chosen,
    narrow,
    points,
    save_as,
    seconds_of,
    vector_figure,
)
from hybrid_des.simulation.run import Run
from hybrid_des.timeline import OP_KINDS
from hybrid_des.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = "osD^vP*X"
SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))

LETTERS_PER_PATCH = 5  # width of a legend's patch and gaps
WIDTH_OF_LETTER = 0.55  # of its size
LONGEST_TEXT = 120  # characters
MOST_POWERS = 7  # of ten, labelled on an axis

Colour = tuple[float, float, float]


def axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The given axes, or those of a new pyplot figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained", FigureClass=vector_figure())[1]


def new_figure(size: tuple[float, float]) -> Figure:
    """Make a figure of a size in inches, outside pyplot's state."""
    return vector_figure()(figsize=size, layout="constrained")


def scale_of(seconds: float) -> tuple[float, str]:
    """The most readable unit for a time: its length in seconds and its name."""
    return next(((size, name) for size, name in SCALES if seconds >= 2 * size), SCALES[-1] if seconds else SCALES[0])


def shade(colour: str, part: int, parts: int) -> Colour:
    """The colour itself for the first part, and lighter shades for later ones."""
    from matplotlib.colors import to_rgb

    light = 0.55 * part / max(parts - 1, 1)
    red, green, blue = (channel + (1 - channel) * light for channel in to_rgb(colour))
    return red, green, blue


def dark(colour: str) -> bool:
    """Whether text on a colour is to be white: its luminance (ITU-R BT.601) is below a half."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def verbatim(text: str) -> str:
    """A user's text for a picture: one printable line, in which dollar signs do not mark formulas."""
    return one_line(text, LONGEST_TEXT).replace("$", r"\$")


def plain(ax: Axes) -> Axes:
    """Hide the right and upper spine."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis at a few round values within its limits, written out, such as 0.5, 1, 2 and 5."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    first, last = floor(log10(low)), ceil(log10(high))
    if high < 10 * low:
        values = [float(value) for value in MaxNLocator(5).tick_values(low, high)]
    elif high < 200 * low:
        values = [step * 10.0**power for power in range(first, last + 1) for step in (1, 2, 5)]
    else:
        values = [10.0**power for power in range(first, last + 1, 1 + (last - first) // MOST_POWERS)]
    axis.set_major_locator(FixedLocator([value for value in values if low <= value <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def legend(ax: Axes, **options: Any) -> None:
    """Place a legend without a frame, by default to the right of the data."""
    where = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0}
    ax.legend(**{"frameon": False, "fontsize": points(0.8), **where, **options})


def legend_above(ax: Axes, colours: Mapping[str, Any]) -> None:
    """Place a legend of coloured patches above the data, on the right; several colours share one patch."""
    from matplotlib.colors import is_color_like
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    if not colours:
        return
    columns = _columns(list(colours), points_across(ax) / points(0.8 * WIDTH_OF_LETTER)) if narrow(ax) else len(colours)
    several = [[one] if is_color_like(one) else one for one in colours.values()]
    patches = [tuple(Patch(color=colour) for colour in shades) for shades in several]
    gaps = {"borderaxespad": 0.2, "handlelength": 1.2, "columnspacing": 1.2}
    legend(ax, handles=patches, labels=list(colours), handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
           loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, **gaps)  # fmt: skip


def _columns(names: Sequence[str], room: float) -> int:
    """The most columns of a legend, filled column by column, that fit into so many letters."""
    for columns in range(len(names), 1, -1):
        parts = np.array_split(np.array([len(name) + LETTERS_PER_PATCH for name in names]), columns)
        if sum(int(part.max()) for part in parts) <= room:
            return columns
    return 1


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `name`.png and `name`.svg, reproducible byte for byte."""
    save_as(figure, folder / f"{name}.png", dpi=150)
    save_as(figure, folder / f"{name}.svg")


# The Gantt chart: one line per rank, by replica; drawn as collections, so that many ranks stay fast.
#
# Of steps too short to be seen only the first are drawn. If ops would be narrower than that even in one step, bands
# show what share of the time each kind takes.


WIDEST = 12.0  # inches
LOWEST = 0.45  # share of the height that a narrow chart keeps at least
MANY_BARS = 20_000  # above this, an SVG contains the bars as an image
MOST_LINES = 512  # of a whole run: a picture has hardly more rows of pixels
NUMBER_SIZE = 0.65  # of the size of texts
WIDTH_OF_DIGIT = 0.62  # of its size
NUMBER: dict[str, Any] = {
    "ha": "center", "va": "center_baseline", "clip_on": True, "in_layout": False,
}  # fmt: skip
NARROWEST = 2.5  # points of a typical op of any kind; narrower bars are no more than texture
PERIODS = 2  # forwards and backwards that a band averages over
MOST_NUMBERED = 0.5  # share of the bars of a kind that must have room for a number, else none has one
TALL = {"optimizer": 0.45, "reduction": 0.22}  # heights of bars; others fill the line
FULL = 0.86


def draw(run: Run, picture: Callable[[Run, Axes], Axes]) -> Figure:
    """Make a picture of a run on a new figure, outside pyplot's state."""
    figure = new_figure(size_of(run.scenario.parallel.ranks))
    picture(run, figure.add_subplot())
    return figure


def size_of(ranks: int, width: float = WIDEST) -> tuple[float, float]:
    """Size in inches of a chart with one line per rank."""
    return width, max(width / WIDEST, LOWEST) * min(1.5 + 0.32 * ranks, 4.5 + 0.075 * ranks, 18.0)


def gantt(
    source: Run | pd.DataFrame,
    ax: Axes | None = None,
    **shown: Unpack[Shown],
) -> Axes:
    """Draw the ops of each rank over time; numbers are micro-batches, two of a fused pair, lighter shades later chunks.

    For a run with too many ranks for a picture, only some replicas are drawn, evenly spaced; of too many steps, the
    first ones. Of too many ops in one step, bands show shares of the time. The label of the time axis says so.

    Args:
        source: a run, or its timeline table, whole or filtered.
        ax: axes to draw on; default: a new pyplot figure.
        steps: those to draw, one or several.
        ranks: those to draw.
        window: begin and end of the time to draw, such as ("100 ms", "400 ms") or in seconds.
        colours: by the names of the legend, such as {"forward": "black"}.
        labels: texts by those usually drawn, such as {"rank 0": "GPU 0", "title": ""}.
        size: of a new figure: `column`, `page`, `notebook`, its width in inches, or width and height.

    Raises:
        UsageError: there is no such rank, step, colour or text, or the window or size is wrong.
    """
    run, view = None if hasattr(source, "columns") else source, View(**shown)
    every = 1 if run is None or view.ranks is not None else replicas_apart(run)
    bars = bars_of(cast("pd.DataFrame", source) if run is None else run.timeline, every)
    between = seconds_of(view.window)
    steps, ranks = chosen("steps", view.steps, bars.step.tolist()), chosen("ranks", view.ranks, bars.ranks)
    bars = bars if ranks is None else bars.of_ranks(ranks)
    bars = bars if steps is None else bars.of_steps(steps)
    whole = between is None and steps is None
    with view.canvas(ax, lambda width: size_of(len(bars.ranks), width)[1]) as ax:
        note: list[str] = []
        if whole:
            bars, note = _visible_steps(bars, points_across(ax))
        elif between is not None:
            bars = bars.within(*between)
        _draw(ax, bars, between or (0.0 if whole else bars.first, bars.last), note, view)
        if run is not None:
            ax.set_title(title_of(run), loc="left", fontsize=points(1), pad=20)  # above the legend
        return view.dress(ax)


def points_across(ax: Axes) -> float:
    """The width of axes in points."""
    return ax.get_window_extent().width * 72 / float(ax.figure.dpi)


def _draw(ax: Axes, bars: Bars, shown: tuple[float, float], note: Sequence[str], look: Look) -> None:
    """Draw bars, or bands where bars would be too narrow, between two times in seconds."""
    begin, end = shown
    banded = min(bars.typical.values(), default=0.0) * points_across(ax) < NARROWEST * (end - begin)
    scale, unit = scale_of(end - begin)
    ax.set_xlim(begin / scale, end / scale or 1)
    ax.set_ylim(len(bars.ranks) - 0.4, -0.6)
    palette = {kind: look.colour(one.label, one.colour) for kind, one in ACTIVITIES.items()}
    if banded:
        _draw_bands(ax, bars, scale, shown, palette)
        note = [*note, "height: share of the time"]
    _draw_bars(ax, bars, scale, ("optimizer",) if banded else OP_KINDS, palette)
    if not banded:
        _draw_numbers(ax, bars, scale, palette)
    _name_lines(ax, bars)
    legend_above(ax, _legend(bars, palette, chunks=not banded))
    ax.set_xlabel(";  ".join([f"time ({unit})", *note]))


def _visible_steps(bars: Bars, width: float) -> tuple[Bars, list[str]]:
    """The bars of as many steps as show typical ops wide enough, at least one, and a note on those left out."""
    shortest, steps = min(bars.typical.values(), default=0.0), np.unique(bars.step)
    if len(steps) <= 1 or shortest * width >= NARROWEST * bars.last:
        return bars, []
    ends = np.array([bars.end[bars.step == step].max() for step in steps])
    shown = max(1, int(np.count_nonzero(np.maximum.accumulate(ends) * NARROWEST <= shortest * width)))
    which = "first step" if shown == 1 else f"first {shown} steps"
    return bars.of_steps(np.unique(bars.step)[:shown].tolist()), [f"the {which} of {len(steps):,}"]


def replicas_apart(run: Run) -> int:
    """The stride of the replicas that are drawn: one in this many."""
    replicas = len({run.timeline.layout.coordinate(rank, "data") for rank in run.ranks})
    return max(1, min(-(-len(run.ranks) // MOST_LINES), replicas))


def title_of(run: Run) -> str:
    """Name, schedule and sizes, and the main figures."""
    facts, parallel, schedule = summary(run), run.scenario.parallel, run.scenario.schedule
    sizes = f"p {parallel.pipeline}, d {parallel.data}, m {schedule.microbatches}"
    figures = f"step {format_seconds(facts['step_time_s'])},  bubble {facts['bubble_ratio']:.1%}"
    if (every := replicas_apart(run)) > 1:
        figures += f",  one replica in {every:,}"
    if run.timeline.alike > 1:
        figures += f",  each rank stands for {run.timeline.alike:,} identical ones"
    kind = verbatim(str(schedule.kind or ("order from a file" if schedule.file else "as traced")))
    return f"{verbatim(facts['name'])}:  {kind}, {sizes};  {figures}"


def _legend(bars: Bars, palette: Mapping[str, str], chunks: bool) -> dict[str, str | list[Colour]]:
    """The colour of each kind of bar and, with `chunks`, the shades of several chunks on the first kind."""
    kinds = [kind for i, kind in enumerate(OP_KINDS) if (bars.kind == i).any()]
    if len(bars.waits):
        kinds.append("reduction")
    colours: dict[str, str | list[Colour]] = {ACTIVITIES[kind].label: palette[kind] for kind in kinds}
    last = int(bars.chunk.max(initial=0))
    if chunks and last and kinds:
        shades = [shade(palette[kinds[0]], chunk, last + 1) for chunk in range(last + 1)]
        colours[f"chunks 0 to {last}, dark to light"] = shades
    return colours


def _draw_bars(ax: Axes, bars: Bars, scale: float, kinds: Sequence[str], palette: Mapping[str, str]) -> None:
    """Draw ops of some kinds, and periods of gradient reduction along the lower edge of their line."""
    mine = np.isin(bars.kind, [OP_KINDS.index(kind) for kind in kinds])
    chunks = int(bars.chunk.max(initial=0)) + 1
    colours = np.array([[shade(palette[kind], c, chunks) for c in range(chunks)] for kind in OP_KINDS])
    tall = np.array([TALL.get(kind, FULL) for kind in OP_KINDS])
    kind, start, end = bars.kind[mine], bars.start[mine] / scale, bars.end[mine] / scale
    _rectangles(ax, bars.line[mine], start, end, tall[kind], colours[kind, np.maximum(bars.chunk[mine], 0)])
    line, start, end = bars.waits.T
    colour = np.tile(shade(palette["reduction"], 0, 1), (len(line), 1))
    low = line + (FULL - TALL["reduction"]) / 2  # along the lower edge, below the numbers
    _rectangles(ax, low, start / scale, end / scale, np.full(len(line), TALL["reduction"]), colour)


def _draw_bands(ax: Axes, bars: Bars, scale: float, shown: tuple[float, float], palette: Mapping[str, str]) -> None:
    """Stack the shares of the time that each kind takes in each line, averaged around every place."""
    from matplotlib.collections import PolyCollection

    window, places = PERIODS * sum(bars.typical.values()), round(points_across(ax))
    begin, end = shown
    time = np.linspace(begin, end, places)
    left, right = np.maximum(time - window / 2, begin), np.minimum(time + window / 2, end)
    lines = np.arange(len(bars.ranks))
    under = np.zeros((len(lines), places))
    for kind in bars.typical:
        mine = np.flatnonzero(bars.kind == kind)
        mine = mine[np.lexsort((bars.start[mine], bars.line[mine]))]
        top = under.copy()
        for line, ops in enumerate(np.split(mine, np.searchsorted(bars.line[mine], lines[1:]))):
            ends = np.column_stack([bars.start[ops], bars.end[ops]]).ravel()
            busy = np.cumsum(np.diff(ends, prepend=0.0) * (np.arange(len(ends)) % 2))  # until each end
            if len(ops):
                top[line] += (np.interp(right, ends, busy) - np.interp(left, ends, busy)) / (right - left)
        heights = np.concatenate([under, top[:, ::-1]], axis=1)
        low = lines[:, np.newaxis] + FULL / 2  # lines are counted downwards
        corners = np.stack(np.broadcast_arrays(np.append(time, time[::-1]) / scale, low - FULL * heights), axis=2)
        look: dict[str, Any] = {"facecolors": palette[OP_KINDS[kind]], "linewidths": 0}
        shapes = PolyCollection(list(corners), rasterized=heights.size > MANY_BARS, **look)
        ax.add_collection(shapes, autolim=False)
        under = top


def _rectangles(
    ax: Axes, line: NDArray[Any], start: NDArray[Any], end: NDArray[Any], tall: NDArray[Any], colour: NDArray[Any]
) -> None:
    from matplotlib.collections import PolyCollection

    low, high = line - tall / 2, line + tall / 2
    corners = np.stack([start, low, end, low, end, high, start, high], axis=1).reshape(-1, 4, 2)
    width = 0.4 if len(line) < 3000 and ax.get_ylim()[0] < 48 else 0.0
    edge = {"edgecolors": "white", "linewidths": width} if width else {"edgecolors": "face", "linewidths": 0.1}
    shapes = PolyCollection(corners, facecolors=colour, rasterized=len(line) > MANY_BARS, **edge)  # type: ignore[arg-type]
    ax.add_collection(shapes, autolim=False)


def _draw_numbers(ax: Axes, bars: Bars, scale: float, palette: Mapping[str, str]) -> None:
    """Write micro-batch numbers into the bars that have room; of a kind with little room for most, into none."""
    tall, digit = points(NUMBER_SIZE), points(NUMBER_SIZE * WIDTH_OF_DIGIT)
    if ax.get_window_extent().height * 72 / ax.figure.dpi < 1.3 * tall * len(bars.ranks):
        return
    begin, end = ax.get_xlim()
    across = points_across(ax) / (end - begin)
    wide = (bars.end - bars.start) / scale * across
    pairs = zip(bars.microbatch.tolist(), bars.second.tolist(), strict=True)
    texts = np.array([_number(*pair) for pair in pairs], dtype=np.str_)
    room = (bars.microbatch >= 0) & (wide > digit * np.char.str_len(texts) + 3)
    for kind in range(len(OP_KINDS)):
        mine = (bars.kind == kind) & (bars.microbatch >= 0)
        if not mine.any() or room[mine].mean() < MOST_NUMBERED:
            continue
        for i in np.flatnonzero(mine & room).tolist():
            middle = (bars.start[i] + bars.end[i]) / 2 / scale
            ink = "white" if dark(palette[OP_KINDS[kind]]) and bars.chunk[i] == 0 else "black"
            ax.text(middle, bars.line[i], str(texts[i]), color=ink, fontsize=tall, **NUMBER)


def _number(microbatch: int, second: int) -> str:
    return f"{microbatch}" if second < 0 else f"{microbatch}+{second}"


def _name_lines(ax: Axes, bars: Bars) -> None:
    """Label as many ranks as fit on the left, and draw a line between replicas."""
    count = len(bars.ranks)
    most = min(40.0, ax.get_window_extent().height * 72 / ax.figure.dpi / points(0.9))
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 1 << 40) if count / step <= most)
    shown = range(0, count, every)
    many = len(set(bars.replicas)) > 1
    ax.set_yticks(list(shown), [f"rank {bars.ranks[i]}" for i in shown], fontsize=points(0.8 if every == 1 else 0.7))
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    starts = [i for i in range(count) if i == 0 or bars.replicas[i] != bars.replicas[i - 1]]
    if not many:
        return
    tall = ax.get_window_extent().height * 72 / ax.figure.dpi / count
    for begin, end in zip(starts, [*starts[1:], count], strict=True):
        if begin and count / len(starts) > 1:
            ax.axhline(begin - 0.5, color="0.75", linewidth=0.8)
        name, upright = f"replica {bars.replicas[begin]}", end - begin <= 2
        room = tall * (end - begin) >= points(0.8 * WIDTH_OF_LETTER) * (1 if upright else len(name))
        if len(starts) <= 16 and room:
            ax.text(
                1.003, (begin + end - 1) / 2, name, transform=ax.get_yaxis_transform(),
                rotation=0 if upright else 90, fontsize=points(0.8), ha="left", va="center", color="0.35",
            )  # fmt: skip
