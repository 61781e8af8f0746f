"""The picture of a sweep: one column of its table over another, with one line per value of a third."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hybrid_des.sweep.axes import Plot
from hybrid_des.sweep.runner import Row, columns
from hybrid_des.units import Dimension, parse_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 16
LABEL_SPACE = 0.08  # of an axis, for the label of a tick
PER_STEP = ("loss", "accuracy")  # lists with one entry per step; others have one per pipeline rank
_DIMENSIONS: tuple[Dimension, ...] = ("number", "time", "size", "bandwidth", "compute")


def draw(rows: Sequence[Row], picture: Plot, ax: Axes | None = None) -> Axes:
    """Draw the sweep's `plot` on the given axes or on a new figure; failed cases are left out.

    Texts such as "4 ms" or "2p" are ordered by their quantities. Of a list with one entry per rank the maximum is
    drawn, of one with one entry per step the last.

    Raises:
        UsageError: the table has no such column, or `y` holds no numbers.
    """
    import pandas as pd

    from hybrid_des.report import plots

    flat = [columns(row) for row in rows if "error" not in row]
    for row in flat[:1]:
        picture.check(row)
    shown = [row for row in flat if all(_quantity(row[k]) == _quantity(v) for k, v in picture.where.items())]
    places = _places([row[picture.x] for row in shown])
    frame = pd.DataFrame(
        {
            "x": [places[_key(row[picture.x])] for row in shown],
            "y": [_number(picture.y, row[picture.y]) for row in shown],
            "hue": [", ".join(str(row[name]) for name in picture.hue) for row in shown],
        }
    )
    ax = plots.lines(frame, "x", "y", "hue" if picture.hue else None, ax)
    _set_axes(ax, picture, places, {_key(row[picture.x]): row[picture.x] for row in shown})
    legend = ax.get_legend()
    if picture.hue and legend is not None:
        legend.set_title(", ".join(map(label, picture.hue)))
        legend.set_alignment("left")
    facts = [flat[0]["name"]] if flat else []
    facts += [f"{label(name)} {value}" for name, value in picture.where.items()]
    ax.set_title(",  ".join(facts), loc="left", fontsize=10, parse_math=False)
    return ax


def label(column: str) -> str:
    """Label of an axis: a column without its section, with its unit in brackets."""
    words = column.partition(".")[2] if not column.startswith("idle_s") else column
    words = words or column
    for ending, unit in (("_s", " (s)"), ("_bytes", " (bytes)"), ("_ratio", " ratio")):
        words = words.removesuffix(ending) + unit if words.endswith(ending) else words
    return words.replace("idle_s.", "idle for ").replace("_per_s", " per s").replace(".", " ").replace("_", " ")


def _set_axes(ax: Axes, picture: Plot, places: dict[Any, float], cells: dict[Any, Any]) -> None:
    at = sorted(set(places.values()))
    doubling = len(at) > 2 and all(a > 0 and b >= 1.5 * a for a, b in itertools.pairwise(at))
    if doubling:
        ax.set_xscale("log", base=2)
    if len(at) <= MOST_TICKS:
        named = {places[key]: _text(cell) for key, cell in cells.items()}
        ax.set_xticks(at, [named[place] if place in _apart(at) or doubling else "" for place in at])
        ax.minorticks_off()
    ax.set_xlabel(label(picture.x))
    ax.set_ylabel(label(picture.y))
    ax.set_ylim(bottom=0)
    if picture.y.endswith("_ratio"):
        ax.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g} %")


def _apart(at: Sequence[float]) -> list[float]:
    """The ticks that leave enough space between them for their labels."""
    room, kept = LABEL_SPACE * (at[-1] - at[0]), at[:1]
    for place in at[1:]:
        if place - kept[-1] >= room:
            kept = [*kept, place]
    return list(kept)


def _places(cells: Sequence[Any]) -> dict[Any, float]:
    """Position of each value: its quantity, or its order of appearance if one of them is no quantity."""
    values = {_key(cell): _quantity(cell) for cell in cells}
    if all(isinstance(value, float) for value in values.values()):
        return values
    return {key: float(place) for place, key in enumerate(values)}


def _key(cell: Any) -> Any:
    return str(cell) if isinstance(cell, list) else cell


def _number(name: str, cell: Any) -> float:
    if isinstance(cell, list):
        return float(cell[-1] if name in PER_STEP else max(cell))
    return float(cell)


def _text(cell: Any) -> str:
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


def _quantity(cell: Any) -> Any:
    """A number, or a text that is a quantity or a multiple of p, as a float; anything else as it is."""
    if isinstance(cell, int | float | Fraction) and not isinstance(cell, bool):
        return float(cell)
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if text.endswith(("p", "%")):
        text = text[:-1] or "1"
    for dimension in _DIMENSIONS:
        try:
            return float(parse_quantity(text, dimension))
        except ValueError:
            continue
    return cell
