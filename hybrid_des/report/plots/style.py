"""Shared style of pictures: axes, units, line colours, legends, saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import one_line
from hybrid_des.report.bars import ACTIVITIES, Bars, bars_of
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

LONGEST_TEXT = 120  # characters
MOST_POWERS = 7  # of ten, labelled on an axis

Colour = tuple[float, float, float]


def axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The given axes, or those of a new pyplot figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def new_figure(size: tuple[float, float]) -> Figure:
    """Make a figure of a size in inches, outside pyplot's state."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def scale_of(seconds: float) -> tuple[float, str]:
    """The most readable unit for a time: its length in seconds and its name."""
    return next(((size, name) for size, name in SCALES if seconds >= 2 * size), SCALES[-1] if seconds else SCALES[0])


def shade(colour: str, part: int, parts: int) -> Colour:
    """The colour itself for the first part, and lighter shades for later ones."""
    from matplotlib.colors import to_rgb

    light = 0.55 * part / max(parts - 1, 1)
    red, green, blue = (channel + (1 - channel) * light for channel in to_rgb(colour))
    return red, green, blue


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
    ax.legend(**{"frameon": False, "fontsize": 8, **where, **options})


def legend_above(ax: Axes, colours: Mapping[str, str | Sequence[Colour]]) -> None:
    """Place a one-line legend of coloured patches above the data, on the right; several colours share one patch."""
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    if not colours:
        return
    several = [[one] if isinstance(one, str) else one for one in colours.values()]
    patches = [tuple(Patch(color=colour) for colour in shades) for shades in several]
    gaps = {"borderaxespad": 0.2, "handlelength": 1.2, "columnspacing": 1.2}
    legend(ax, handles=patches, labels=list(colours), handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
           loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=max(len(patches), 1), **gaps)  # fmt: skip


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `name`.png and `name`.svg, reproducible byte for byte: no dates or random identifiers."""
    import warnings

    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "hybrid_des"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a scenario's name may be in any script
        figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


# The Gantt chart: one line per rank, by replica; drawn as collections, so that many ranks stay fast.
#
# Of steps too short to be seen only the first are drawn. If ops would be narrower than that even in one step, bands
# show what share of the time each kind takes.


MANY_BARS = 20_000  # above this, an SVG contains the bars as an image
MOST_LINES = 512  # of a whole run: a picture has hardly more rows of pixels
NUMBER_SIZE = 6.5  # points
POINTS_PER_DIGIT = 0.62 * NUMBER_SIZE
NUMBER: dict[str, Any] = {
    "fontsize": NUMBER_SIZE, "ha": "center", "va": "center_baseline", "clip_on": True, "in_layout": False,
}  # fmt: skip
NARROWEST = 1.5  # points of a typical op of any kind; narrower bars are no more than texture
PERIODS = 2  # forwards and backwards that a band averages over
MOST_NUMBERED = 0.5  # share of the bars of a kind that must have room for a number, else none has one
TALL = {"optimizer": 0.45, "reduction": 0.22}  # heights of bars; others fill the line
FULL = 0.86


def draw(run: Run, picture: Callable[[Run, Axes], Axes]) -> Figure:
    """Make a picture of a run on a new figure, outside pyplot's state."""
    figure = new_figure(size_of(run.scenario.parallel.ranks))
    picture(run, figure.add_subplot())
    return figure


def size_of(ranks: int) -> tuple[float, float]:
    """Size in inches of a chart with one line per rank."""
    return 12.0, min(1.5 + 0.32 * ranks, 4.5 + 0.075 * ranks, 18.0)


def gantt(source: Run | pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the ops of each rank over time; numbers are micro-batches, two of a fused pair, lighter shades later chunks.

    For a run with too many ranks for a picture, only some replicas are drawn, evenly spaced; of too many steps, the
    first ones. Of too many ops in one step, bands show shares of the time. The label of the time axis says so.

    Args:
        source: a run, or its timeline table, whole or filtered.
        ax: axes to draw on; default: a new pyplot figure.
    """
    run = None if hasattr(source, "columns") else source
    every = 1 if run is None else replicas_apart(run)
    bars = bars_of(cast("pd.DataFrame", source) if run is None else run.timeline, every)
    ax = axes(ax, size_of(len(bars.ranks)))
    width = ax.get_window_extent().width * 72 / ax.figure.dpi
    bars, note = _visible_steps(bars, width)
    banded = min(bars.typical.values(), default=0.0) * width < NARROWEST * bars.last
    scale, unit = scale_of(bars.last)
    ax.set_xlim(0, bars.last / scale or 1)
    ax.set_ylim(len(bars.ranks) - 0.4, -0.6)
    if banded:
        _draw_bands(ax, bars, scale, round(width))
        note.append("height: share of the time")
    _draw_bars(ax, bars, scale, ("optimizer",) if banded else OP_KINDS)
    if not banded:
        _draw_numbers(ax, bars, scale)
    _name_lines(ax, bars)
    legend_above(ax, _legend(bars, chunks=not banded))
    ax.set_xlabel(";  ".join([f"time ({unit})", *note]))
    if run is not None:
        ax.set_title(title_of(run), loc="left", fontsize=10, pad=20)  # above the legend
    return ax


def _visible_steps(bars: Bars, width: float) -> tuple[Bars, list[str]]:
    """The bars of as many steps as show typical ops wide enough, at least one, and a note on those left out."""
    shortest, steps = min(bars.typical.values(), default=0.0), np.unique(bars.step)
    if len(steps) <= 1 or shortest * width >= NARROWEST * bars.last:
        return bars, []
    ends = np.array([bars.end[bars.step == step].max() for step in steps])
    shown = max(1, int(np.count_nonzero(np.maximum.accumulate(ends) * NARROWEST <= shortest * width)))
    which = "first step" if shown == 1 else f"first {shown} steps"
    return bars.first_steps(shown), [f"the {which} of {len(steps):,}"]


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
    kind = verbatim(str(schedule.kind or "order from a file"))
    return f"{verbatim(facts['name'])}:  {kind}, {sizes};  {figures}"


def _legend(bars: Bars, chunks: bool) -> dict[str, str | list[Colour]]:
    """The colour of each kind of bar and, with `chunks`, the shades of several chunks on the first kind."""
    kinds = [kind for i, kind in enumerate(OP_KINDS) if (bars.kind == i).any()]
    if len(bars.waits):
        kinds.append("reduction")
    colours: dict[str, str | list[Colour]] = {ACTIVITIES[kind].label: ACTIVITIES[kind].colour for kind in kinds}
    last = int(bars.chunk.max(initial=0))
    if chunks and last and kinds:
        shades = [shade(ACTIVITIES[kinds[0]].colour, chunk, last + 1) for chunk in range(last + 1)]
        colours[f"chunks 0 to {last}, dark to light"] = shades
    return colours


def _draw_bars(ax: Axes, bars: Bars, scale: float, kinds: Sequence[str]) -> None:
    """Draw ops of some kinds, and periods of gradient reduction along the lower edge of their line."""
    mine = np.isin(bars.kind, [OP_KINDS.index(kind) for kind in kinds])
    chunks = int(bars.chunk.max(initial=0)) + 1
    colours = np.array([[shade(ACTIVITIES[kind].colour, c, chunks) for c in range(chunks)] for kind in OP_KINDS])
    tall = np.array([TALL.get(kind, FULL) for kind in OP_KINDS])
    kind, start, end = bars.kind[mine], bars.start[mine] / scale, bars.end[mine] / scale
    _rectangles(ax, bars.line[mine], start, end, tall[kind], colours[kind, np.maximum(bars.chunk[mine], 0)])
    line, start, end = bars.waits.T
    colour = np.tile(shade(ACTIVITIES["reduction"].colour, 0, 1), (len(line), 1))
    low = line + (FULL - TALL["reduction"]) / 2  # along the lower edge, below the numbers
    _rectangles(ax, low, start / scale, end / scale, np.full(len(line), TALL["reduction"]), colour)


def _draw_bands(ax: Axes, bars: Bars, scale: float, places: int) -> None:
    """Stack the shares of the time that each kind takes in each line, averaged around every place."""
    from matplotlib.collections import PolyCollection

    window = PERIODS * sum(bars.typical.values())
    time = np.linspace(0.0, bars.last, places)
    left, right = np.maximum(time - window / 2, 0.0), np.minimum(time + window / 2, bars.last)
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
        look: dict[str, Any] = {"facecolors": ACTIVITIES[OP_KINDS[kind]].colour, "linewidths": 0}
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


def _draw_numbers(ax: Axes, bars: Bars, scale: float) -> None:
    """Write micro-batch numbers into the bars that have room; of a kind with little room for most, into none."""
    box = ax.get_window_extent()
    points = 72 / ax.figure.dpi
    if box.height * points < 1.3 * NUMBER_SIZE * len(bars.ranks):
        return
    across = box.width * points / ax.get_xlim()[1]
    wide = (bars.end - bars.start) / scale * across
    pairs = zip(bars.microbatch.tolist(), bars.second.tolist(), strict=True)
    texts = np.array([_number(*pair) for pair in pairs], dtype=np.str_)
    room = (bars.microbatch >= 0) & (wide > POINTS_PER_DIGIT * np.char.str_len(texts) + 3)
    for kind in range(len(OP_KINDS)):
        mine = (bars.kind == kind) & (bars.microbatch >= 0)
        if not mine.any() or room[mine].mean() < MOST_NUMBERED:
            continue
        for i in np.flatnonzero(mine & room).tolist():
            middle = (bars.start[i] + bars.end[i]) / 2 / scale
            ink = "white" if OP_KINDS[kind] in ("F", "W") and bars.chunk[i] == 0 else "black"  # white on dark bars
            ax.text(middle, bars.line[i], str(texts[i]), color=ink, **NUMBER)


def _number(microbatch: int, second: int) -> str:
    return f"{microbatch}" if second < 0 else f"{microbatch}+{second}"


def _name_lines(ax: Axes, bars: Bars) -> None:
    """Label as many ranks as fit on the left, and draw a line between replicas."""
    count = len(bars.ranks)
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 1 << 40) if count / step <= 40)
    shown = range(0, count, every)
    many = len(set(bars.replicas)) > 1
    ax.set_yticks(list(shown), [f"rank {bars.ranks[i]}" for i in shown], fontsize=8 if every == 1 else 7)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    starts = [i for i in range(count) if i == 0 or bars.replicas[i] != bars.replicas[i - 1]]
    if not many:
        return
    for begin, end in zip(starts, [*starts[1:], count], strict=True):
        if begin and count / len(starts) > 1:
            ax.axhline(begin - 0.5, color="0.75", linewidth=0.8)
        if len(starts) <= 16:
            ax.text(
                1.003, (begin + end - 1) / 2, f"replica {bars.replicas[begin]}", transform=ax.get_yaxis_transform(),
                rotation=90 if end - begin > 2 else 0, fontsize=8, ha="left", va="center", color="0.35",
            )  # fmt: skip
