"""How much each link carries over time, in windows: for the pictures and the trace's counters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid_des.network.purpose import PURPOSES, Purpose
from hybrid_des.timeline import Column, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True)
class LinkUse:
    """What the links of a run carried.

    Attributes:
        links: names, sorted.
        edges: where the windows begin and end, in picoseconds; one more than there are windows.
        rate: link × window, bytes per second averaged over the window.
    """

    links: tuple[str, ...]
    edges: Column
    rate: NDArray[np.float64]


def link_rates(timeline: Timeline, windows: int = 200, purposes: Collection[Purpose] = PURPOSES) -> LinkUse | None:
    """Average the bytes on every link over equal windows, or None where a run keeps no messages or takes no time.

    A message's bytes count evenly over the time that it occupies the link; one that takes no time counts where it is.

    Args:
        timeline: one with messages.
        windows: how many.
        purposes: which messages count.
    """
    duration = timeline.duration
    if timeline.messages is None or duration <= 0:
        return None
    links = tuple(sorted({channel.link for channel in timeline.channels}))
    number = {link: i for i, link in enumerate(links)}
    edges = duration * np.arange(windows + 1) // windows if duration < 2**50 else _coarse(duration, windows)
    rows = timeline.messages_of(lambda channel: channel.purpose in purposes)
    link = np.array([number[channel.link] for channel in timeline.channels], dtype=np.int64)[rows["channel"]]
    size, start, end = rows["bytes"].astype(float), rows["start"], rows["end"]
    carried = np.zeros((len(links), windows))
    width = np.diff(edges).astype(float)
    sudden = start == end
    at = np.minimum(np.searchsorted(edges, start[sudden], side="right") - 1, windows - 1)
    np.add.at(carried, (link[sudden], at), size[sudden])
    moving = ~sudden & (size > 0)
    link, start, end = link[moving], start[moving], end[moving]
    speed = size[moving] / (end - start)
    _spread(carried, edges, width, link, start, speed)
    _spread(carried, edges, width, link, end, -speed)
    return LinkUse(links, edges, np.maximum(carried, 0.0) / width * PICOSECONDS_PER_SECOND)


def _spread(
    carried: NDArray[np.float64],
    edges: Column,
    width: NDArray[np.float64],
    link: Column,
    since: Column,
    speed: NDArray[np.float64],
) -> None:
    """Add what flows at `speed` from `since` on: part of the window it begins in, and all windows after it."""
    links, windows = carried.shape
    at = np.minimum(np.searchsorted(edges, since, side="right") - 1, windows - 1)
    place = link * windows + at
    shape = (links, windows)
    carried += np.bincount(place, speed * (edges[at + 1] - since), minlength=carried.size).reshape(shape)
    begun = np.bincount(place, speed, minlength=carried.size).reshape(shape)
    carried[:, 1:] += np.cumsum(begun, axis=1)[:, :-1] * width[1:]


def _coarse(duration: int, windows: int) -> Column:
    """Edges of windows so long that multiplying first would not fit in 64 bits."""
    return np.array([duration * i // windows for i in range(windows + 1)], dtype=np.int64)
