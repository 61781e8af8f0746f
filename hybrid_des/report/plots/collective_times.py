"""The picture of a collective over message sizes: its time, and the bus bandwidth that it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybrid_des.report.plots.style import LINES, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def times_and_bandwidths(figure: Figure, title: str, rows: Sequence[tuple[int, int, float]]) -> Figure:
    """Draw two axes side by side; rows are (bytes, picoseconds, bus bandwidth in GB/s)."""
    left, right = figure.subplots(1, 2)
    sizes = [size for size, _, _ in rows]
    _sizes_below(left).plot(sizes, [time / 1e6 for _, time, _ in rows], color=LINES[0], marker="o", markersize=4)
    if all(time for _, time, _ in rows):
        left.set_yscale("log")
    left.set_ylabel("time (µs)")
    _sizes_below(right).plot(sizes, [bus for _, _, bus in rows], color=LINES[1], marker="s", markersize=4)
    right.set_ylim(bottom=0)
    right.set_ylabel("bus bandwidth (GB/s)")
    figure.suptitle(title, fontsize=10)
    return figure


def _sizes_below(ax: Axes) -> Axes:
    ax.set_xscale("log", base=2)
    ax.set_xlabel("bytes")
    return plain(ax)
