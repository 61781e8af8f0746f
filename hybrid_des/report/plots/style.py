"""Shared style of pictures: axes, units, line colours, legends, saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.errors import one_line
from hybrid_des.report.plots.figure import (
    LegendPlace,
    narrow,
    points,
    save_as,
    vector_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


MARKERS = "osD^vP*X"


SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))


LETTERS_PER_PATCH = 5  # width of a legend's patch and gaps


WIDTH_OF_LETTER = 0.55  # of its size


LONGEST_TEXT = 120  # characters


SHORTEST = 12  # characters of a name, however little room there is


LONGEST_ENTRY = 32  # characters of a user's name in a legend within axes


MOST_POWERS = 7  # of ten, labelled on an axis


BELOW = 3.5  # size of the axis below a picture, in sizes of text


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


def verbatim(text: str, longest: int = LONGEST_TEXT) -> str:
    """A user's text for a picture: one printable line, in which dollar signs do not mark formulas."""
    return one_line(text, min(longest, LONGEST_TEXT)).replace("$", r"\$")


def title(ax: Axes, name: str, rest: str = "", size: float = 10, **where: Any) -> None:
    """Put a user's name and what follows it above the axes on the left; a name too long for the figure is cut.

    Args:
        ax: the axes.
        name: of any length, in any letters.
        rest: what follows, whole.
        size: of the text, in points.
        where: options of `Axes.set_title`.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    room = (1 - ax.get_position().x0) * float(figure.get_figwidth()) * 72  # to the right edge of the figure
    letters = int(room / (WIDTH_OF_LETTER * size))
    ax.set_title(f"{verbatim(name, max(SHORTEST, letters - len(rest)))}{rest}", loc="left", fontsize=size, **where)


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


def place_legend(ax: Axes, side: LegendPlace, names: Sequence[str] = (), **options: Any) -> None:
    """Place a legend without a frame around the data, if at all.

    Args:
        ax: the axes.
        side: where it is.
        names: its entries, which above and below the data are in as few rows as fit.
        options: of `legend`.
    """
    if side == "none":
        return
    if side == "right":
        texts = 1.005 if not ax.texts else 1.005 + points(2) / points_across(ax)  # beside the names of replicas
        legend(ax, **{"bbox_to_anchor": (texts, 1.0), **options})
        return
    columns = _columns(names, points_across(ax) / points(0.8 * WIDTH_OF_LETTER)) if narrow(ax) else len(names)
    gaps = {"borderaxespad": 0.2, "columnspacing": 1.2, "ncols": max(columns, 1)}
    if side == "above":
        legend(ax, **{"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), **gaps, **options})
        return
    from matplotlib.transforms import ScaledTranslation

    figure = ax.get_figure(root=True)
    assert figure is not None
    under = ScaledTranslation(0, -points(BELOW) / 72, figure.dpi_scale_trans)  # the axis and its label
    where = {"loc": "upper center", "bbox_to_anchor": (0.45, 0), "bbox_transform": ax.transAxes + under}
    legend(ax, **{**where, **gaps, **options})


def legend_of_colours(ax: Axes, colours: Mapping[str, Any], side: LegendPlace | None = None) -> None:
    """Place a legend of named patches, by default above the data, on the right; several colours share one patch."""
    if colours:
        place_legend(ax, side or "above", list(colours), **patches_of(colours))


def patches_of(colours: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a legend of named patches."""
    from matplotlib.colors import is_color_like
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    several = [[one] if is_color_like(one) else one for one in colours.values()]
    patches = [tuple(Patch(color=colour) for colour in shades) for shades in several]
    handlers = {tuple: HandlerTuple(ndivide=None, pad=0)}
    return {"handles": patches, "labels": list(colours), "handler_map": handlers, "handlelength": 1.2}


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


def points_across(ax: Axes) -> float:
    """The width of axes in points."""
    return ax.get_window_extent().width * 72 / float(ax.figure.dpi)
