"""The picture of a corpus: predicted against measured, and errors by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.report.plots.style import LINES, MARKERS, legend, log_ticks, new_figure
from hybrid_des.report.plots.style import plain as plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
from hybrid_des.measured.validation.corpus import FIGURES, Prediction, grouped

NAMES = {
    "step_time_s": ("step time", "s", 1.0),
    "collective_time_s": ("time", "µs", 1e-6),
    "peak_memory_bytes": ("peak memory", "GB", 1e9),
}


MOST_GROUPS = 8


def picture(title: str, predictions: Sequence[Prediction], by: str | None = None) -> Figure:
    """One pair of axes per figure; colours show the values of a column, if they are few."""
    shown = [figure for figure in FIGURES if any(p.ratio(figure) for p in predictions)]
    panels = max(1, len(shown))
    figure = new_figure((5.2 * panels, 5.6))
    axes = figure.subplots(2, panels, squeeze=False, sharex="col", height_ratios=(3, 1))
    groups = grouped(predictions, by) if by else {}
    few = groups if 0 < len(groups) <= MOST_GROUPS else {"": list(predictions)}
    for column, name in enumerate(shown):
        _panel(axes[0, column], axes[1, column], name, few)
    if len(few) > 1 and shown:
        legend(axes[0, -1], title=by)
    figure.suptitle(title, fontsize=10)
    return figure


def _panel(above: Axes, below: Axes, name: str, groups: Mapping[str, list[Prediction]]) -> None:
    words, unit, scale = NAMES[name]
    for i, (label, rows) in enumerate(groups.items()):
        pairs = [(p.measured[name] / scale, ratio) for p in rows if (ratio := p.ratio(name)) is not None]
        style: dict[str, Any] = {"color": LINES[i % len(LINES)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ""}
        measured = [pair[0] for pair in pairs]
        above.plot(measured, [value * ratio for value, ratio in pairs], label=label, markersize=5, **style)
        below.plot(measured, [100 * (ratio - 1) for _, ratio in pairs], markersize=4, **style)
    for ax in (above, below):
        ax.set_xscale("log")
        plain_axes(ax)
    above.set_yscale("log")
    ends = (*above.get_xlim(), *above.get_ylim())
    for axis in (below.xaxis, above.yaxis):  # above has the x axis of below
        log_ticks(axis)
    above.axline((min(ends), min(ends)), (max(ends), max(ends)), color="0.6", linewidth=1, zorder=0)
    below.axhline(0, color="0.6", linewidth=1, zorder=0)
    above.set_ylabel(f"predicted {words} ({unit})")
    below.set_ylabel("error (%)")
    below.set_xlabel(f"measured {words} ({unit})")
