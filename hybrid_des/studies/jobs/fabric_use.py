"""The use of the busiest links over time, by job, as a picture and as shares of bins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.report.plots.curves import natural
from hybrid_des.report.plots.style import LINES, legend_of_colours, new_figure, plain, scale_of, verbatim
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import Neighbours
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DRAWN = 12  # links
BINS = 400  # of the time axis
GREY = "#8A8A8A"


def draw_fabric_use(neighbours: Neighbours) -> Figure:
    """The use of the busiest shared links over time, by job: a lane per link, a colour per owner."""
    lanes = drawn_links(neighbours)
    figure = new_figure((10.0, 1.2 + 0.55 * max(len(lanes), 1)))
    ax = figure.subplots()
    scale, unit = scale_of(neighbours.rows.end / PICOSECONDS_PER_SECOND)
    colours = colours_of(neighbours)
    edges = bins_of(neighbours)
    for lane, link in enumerate(reversed(lanes)):
        for name, base, top in use_of(neighbours, link, edges):
            low, high = (np.append(one, one[-1]) * 0.85 + lane for one in (base, top))
            ax.fill_between(edges / PICOSECONDS_PER_SECOND / scale, low, high, step="post", color=colours[name], lw=0)
    ax.set_yticks([lane + 0.42 for lane in range(len(lanes))], [verbatim(link) for link in reversed(lanes)])
    ax.set_ylim(0, max(len(lanes), 1))
    ax.set_xlabel(f"time ({unit})")
    legend_of_colours(ax, colours)
    plain(ax)
    return figure


def colours_of(neighbours: Neighbours) -> dict[str, str]:
    """The colour of each job, and of background traffic."""
    owners = enumerate(neighbours.rows.owners)
    return {one.name: GREY if one.name == OTHERS else LINES[number % len(LINES)] for number, one in owners}


def use_of(neighbours: Neighbours, link: str, edges: Any) -> Iterator[tuple[str, Any, Any]]:
    """For each owner of messages on a link: its name, and where its share of each bin begins and ends, stacked."""
    base = np.zeros(len(edges) - 1)
    for name, share in _shares(neighbours, link, edges):
        top = np.minimum(base + share, 1.0)
        yield name, base, top
        base = top


def bins_of(neighbours: Neighbours) -> Any:
    """The edges of the bins of the time axis, in picoseconds."""
    return np.linspace(0, max(neighbours.rows.end, 1), BINS + 1)


def drawn_links(neighbours: Neighbours) -> list[str]:
    """The busiest links, those that several jobs use first, in natural order."""
    summary, shared = neighbours.summary["links"], set(neighbours.summary["shared_links"])

    def busy(link: str) -> tuple[bool, float]:
        return link not in shared, -sum(summary[link]["busy_ratio"].values())

    return sorted(sorted(summary, key=busy)[:MOST_DRAWN], key=natural)


def _shares(neighbours: Neighbours, link: str, edges: Any) -> Iterator[tuple[str, Any]]:
    """For each owner, the share of each bin for which its messages occupy a link."""
    width = edges[1] - edges[0]
    for name, start, end, alone in neighbours.rows.on(link):
        used = np.zeros(len(edges))
        rate = alone / np.maximum(end - start, 1)  # of the link's bandwidth, while a message is on it
        for times, sign in ((start, 1.0), (end, -1.0)):  # the integral of the rate is piecewise linear
            at = np.sort(times)
            weight = np.append(0.0, np.cumsum(rate[np.argsort(times)]))
            moment = np.append(0.0, np.cumsum(rate[np.argsort(times)] * at))
            number = np.searchsorted(at, edges, side="right")
            used += sign * (weight[number] * edges - moment[number])
        yield name, np.clip(np.diff(used) / width, 0, 1)
