"""Failures: what fails at which rate, and random histories of when it does."""

import heapq
from collections.abc import Iterator, Sequence
from math import gamma
from typing import NamedTuple

import numpy as np

from hybrid_des.studies.goodput.failure_sources import Source
from hybrid_des.units import PICOSECONDS_PER_SECOND

CHUNK = 256  # random numbers drawn at a time


JOB, SPARES = 0, 1


GAPS, PARTS = 0, 1


class FailureEvent(NamedTuple):
    """A failure: its time (ps), the index of its class, whether the part is a spare's, and the part."""

    time: int
    source: int
    spare: bool
    part: int


def history(sources: Sequence[Source], horizon: int, seed: int, replication: int) -> list[FailureEvent]:
    """All failures before a horizon in picoseconds, in order of time; simultaneous ones in the order of the classes."""
    streams = []
    for i, source in enumerate(sources):
        for group, parts in ((JOB, source.parts), (SPARES, source.spare_parts)):
            if parts:
                drawn = _strikes(source, len(parts), horizon, (seed, replication, group, source.name))
                streams.append([FailureEvent(time, i, group == SPARES, part) for time, part in drawn])
    return list(heapq.merge(*streams))


Key = tuple[int, int, int, str]


def _stream(key: Key, what: int) -> np.random.Generator:
    seed, replication, group, name = key
    return np.random.default_rng([seed, replication, group, what, *name.encode()])


def _strikes(source: Source, parts: int, horizon: int, key: Key) -> Iterator[tuple[int, int]]:
    """Times and parts, in order of time."""
    if source.mean is None:
        if key[2] == SPARES:
            return
        times: Iterator[int] = iter(source.times)
    elif source.shape != 1:
        yield from sorted(_lives(source, parts, horizon, key))
        return
    else:
        times = _arrivals(source.mean / parts, horizon, key)
    which = _stream(key, PARTS)
    drawn: list[int] = []
    for time in times:
        if time >= horizon:
            return
        if not drawn:
            drawn = which.integers(0, parts, CHUNK)[::-1].tolist()
        yield time, drawn.pop()


def _arrivals(mean: float, horizon: int, key: Key) -> Iterator[int]:
    """A Poisson process: of parts with exponential lifetimes, each is equally likely to fail next."""
    gaps, time = _stream(key, GAPS), 0
    while time < horizon:
        for gap in (gaps.standard_exponential(CHUNK) * (mean * PICOSECONDS_PER_SECOND)).tolist():
            time += round(gap)
            yield time


def _lives(source: Source, parts: int, horizon: int, key: Key) -> Iterator[tuple[int, int]]:
    """Failures of parts with Weibull lifetimes, drawn in rounds of one lifetime per part."""
    assert source.mean is not None
    lives = _stream(key, GAPS)
    scale = source.mean / gamma(1 + 1 / source.shape) * PICOSECONDS_PER_SECOND
    times = [0] * parts
    while min(times) < horizon:
        for part, life in enumerate((lives.weibull(source.shape, parts) * scale).tolist()):
            times[part] += max(round(life), 1)
            if times[part] < horizon:
                yield times[part], part
