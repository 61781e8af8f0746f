"""Shared style of pictures: axes, units, line colours, legends, saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import one_line

if TYPE_CHECKING:
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
