"""The picture of a replay: measured and simulated steps, and the slowdown of every stage of every replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hybrid_des.measured.replay.stragglers import Stragglers
from hybrid_des.report.plots.style import LINES, legend, new_figure, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_CELLS = 400  # up to which cells show numbers


def heat_map(stragglers: Stragglers, steps: pd.DataFrame) -> Figure:
    """Draw first to last compute step by step (`Replayed.steps`), and S of each worker alone, replica × stage."""
    figure = new_figure((11.0, 4.2))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    places = np.arange(len(steps))
    if "measured_s" in steps:
        left.plot(places, steps.measured_s, color=LINES[0], marker="o", markersize=3, label="measured")
    left.plot(places, steps.simulated_s, color=LINES[1], linestyle="--", label="simulated")
    left.axhline(stragglers.what_if.ideal_length.max() / 1e12, color="0.5", linewidth=1, label="all ops at the mean")
    left.set_ylim(bottom=0)
    left.set_xlabel("measured step")
    left.set_ylabel("first to last compute (s)")
    legend(plain(left), loc="lower left", bbox_to_anchor=(0.0, 0.0))
    workers = stragglers.classes[stragglers.classes.what == "worker"]
    grid = workers.pivot(index="replica", columns="stage", values="slowdown").to_numpy(dtype=float)
    image = right.imshow(grid, cmap="YlOrRd", vmin=1, vmax=max(float(grid.max()), 1.1), aspect="auto")
    for (row, column), value in np.ndenumerate(grid) if grid.size <= MOST_CELLS else ():
        dark = value > (1 + image.get_clim()[1]) / 2
        right.text(
            column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
        )
    right.set_xlabel("stage")
    right.set_ylabel("replica")
    right.set_xticks(range(grid.shape[1]))
    right.set_yticks(range(grid.shape[0]))
    right.set_title("slowdown by this worker alone", loc="left", fontsize=9)
    return figure
