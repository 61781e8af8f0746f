"""The plot of a spread: the distribution of step times, and how two scenarios differ seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybrid_des.report.plots.style import LINES, LONGEST_ENTRY, legend, new_figure, plain, scale_of, title, verbatim

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 30


def histogram(samples: Mapping[str, ArrayLike], usual: Mapping[str, float] | None = None) -> Figure:
    """Draw the step times of one or two scenarios, by name, in seconds; for two, also the differences of pairs.

    Args:
        samples: step times by seed.
        usual: step times without jitter, drawn as dashed lines.
    """
    pair = len(samples) == 2
    figure = new_figure((11.0 if pair else 7.0, 4.2))
    panels = figure.subplots(1, 2 if pair else 1, squeeze=False)[0]
    _times(panels[0], samples, usual or {})
    if pair:
        first, second = samples
        _differences(
            panels[1], np.subtract(samples[second], samples[first]), (second, f" − {verbatim(first, LONGEST_ENTRY)}")
        )
    return figure


def _times(ax: Axes, samples: Mapping[str, ArrayLike], usual: Mapping[str, float]) -> None:
    numbers = np.concatenate([np.asarray(sample) for sample in samples.values()])
    scale, unit = scale_of(float(numbers.max()))
    bins = np.histogram_bin_edges(numbers / scale, BINS).tolist()
    for colour, (name, sample) in zip(LINES, samples.items(), strict=False):
        times = np.asarray(sample) / scale
        ax.hist(times, bins, color=colour, alpha=0.55, label=verbatim(name, LONGEST_ENTRY))
        for percent, style in ((50, "-"), (99, ":")):
            ax.axvline(float(np.percentile(times, percent)), color=colour, linestyle=style, linewidth=1.2)
        if name in usual:
            ax.axvline(usual[name] / scale, color=colour, linestyle="--", linewidth=1)
    plain_times = ", without jitter (dashed)" if usual else ""
    ax.set_title(f"median (solid), 99 % (dotted){plain_times}", loc="left", fontsize=9)
    ax.set_xlabel(f"step time ({unit})")
    ax.set_ylabel("runs")
    legend(ax, loc="upper right", bbox_to_anchor=(1.0, 1.0))
    plain(ax)


def _differences(ax: Axes, differences: NDArray[np.float64], names: tuple[str, str]) -> None:
    scale, unit = scale_of(float(np.abs(differences).max()))
    ax.hist(differences / scale, BINS, color="0.55")
    ax.axvline(0, color="black", linewidth=1)
    title(ax, *names, 9)
    ax.set_xlabel(f"difference with the same seed ({unit})")
    plain(ax)
