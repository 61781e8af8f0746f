"""Link use over time, averaged over windows, for pictures and the counters of the trace."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.purposes import PURPOSES, Purpose
from hybrid_des.planning.program_table import Column
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

Rates = NDArray[np.float64]


@dataclass(frozen=True)
class LinkUse:
    """The use of the links of a run.

    Attributes:
        links: names, sorted.
        edges: boundaries of the windows in picoseconds, one more than there are windows.
        rate: link × window, bytes per second averaged over the window.
    """

    links: tuple[str, ...]
    edges: Column
    rate: Rates


def link_rates(timeline: Timeline, windows: int = 200, purposes: Collection[Purpose] = PURPOSES) -> LinkUse | None:
    """Average the bytes on every link over equal windows; None for a run without messages or duration.

    The bytes of a message are spread evenly over the time that it occupies the link.

    Args:
        timeline: a timeline with messages.
        windows: number of windows.
        purposes: purposes of the messages to count.
    """
    duration = timeline.duration
    if (timeline.messages is None and timeline.stream is None) or duration <= 0:
        return None
    links = timeline.links
    edges = np.array([duration * i // windows for i in range(windows + 1)], dtype=np.int64)  # products exceed 64 bits
    rows = timeline.messages_of(lambda channel: channel.purpose in purposes)
    link = timeline.of_channel["link"][rows["channel"]]
    size, start, end = rows["bytes"].astype(float), rows["start"], rows["end"]
    carried = np.zeros((len(links), windows))
    sudden = start == end
    at = np.minimum(np.searchsorted(edges, start[sudden], side="right") - 1, windows - 1)
    np.add.at(carried, (link[sudden], at), size[sudden])
    moving = ~sudden & (size > 0)
    link, start, end = link[moving], start[moving], end[moving]
    speed = size[moving] / (end - start)
    _spread(carried, edges, link, start, speed)
    _spread(carried, edges, link, end, -speed)
    return LinkUse(links, edges, np.maximum(carried, 0.0) / np.diff(edges).astype(float) * PICOSECONDS_PER_SECOND)


def _spread(carried: Rates, edges: Column, link: Column, since: Column, speed: Rates) -> None:
    """Add flows of rate `speed` from `since` on: to part of the window they start in, and to all later ones."""
    windows = carried.shape[1]
    at = np.minimum(np.searchsorted(edges, since, side="right") - 1, windows - 1)
    cell = link * windows + at
    carried += np.bincount(cell, speed * (edges[at + 1] - since), minlength=carried.size).reshape(carried.shape)
    begun = np.bincount(cell, speed, minlength=carried.size).reshape(carried.shape)
    carried[:, 1:] += np.cumsum(begun, axis=1)[:, :-1] * np.diff(edges).astype(float)[1:]
