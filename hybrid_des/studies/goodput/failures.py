"""Failures: what fails at which rate, and random histories of when it does.

A source is a class of `faults`, with its parts in the job and among the spares, and its rate.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gamma
from typing import NamedTuple

import numpy as np

from hybrid_des.errors import UsageError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.cluster import NodeKind
from hybrid_des.scenario.sections.faults import FailureClass, Faults, nodes_below
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_picoseconds

Places = Sequence[Sequence[int]]  # the places that each part takes down


Parts = tuple[Places, Places, Sequence[int]]


@dataclass(frozen=True)
class Source:
    """A class of failures; places are nodes: those of the job from 0 on, then the spares.

    Attributes:
        name, what: those of the class.
        parts, spare_parts: the places that each part takes down, for parts of the job and of the spares.
        homes: the place of the node that each part of the job belongs to; empty for parts of several nodes.
        mean: mean time between failures of one part in seconds; None if `times` gives them.
        shape: shape of a Weibull distribution; 1 is exponential.
        times: given times of failures, in picoseconds.
        repair: picoseconds until its nodes are back; None if unknown.
        flap, slow, lasts: effects other than a stop: picoseconds, share of the speed, picoseconds.
    """

    name: str
    what: str
    parts: Places
    spare_parts: Places
    homes: Sequence[int]
    mean: float | None
    shape: float
    times: tuple[int, ...]
    repair: int | None
    flap: int | None = None
    slow: Fraction | None = None
    lasts: int | None = None

    @property
    def stops(self) -> bool:
        """Whether its failures stop the job."""
        return self.flap is None and self.slow is None

    def rate(self, horizon: int) -> float:
        """Failures of the job's parts per second; for given times, of those within a horizon in picoseconds."""
        if self.mean is None:
            return sum(time < horizon for time in self.times) / (horizon / 10**12)
        return len(self.parts) / self.mean


def faults_of(scenario: Scenario) -> Faults:
    """The section `faults`.

    Raises:
        UsageError: the scenario has none.
    """
    if scenario.faults is None:
        raise UsageError(f"{scenario.name}: goodput needs a section faults: {{horizon: 54 d, classes: [...]}}")
    return scenario.faults


def sources_of(scenario: Scenario) -> list[Source]:
    """The classes of a scenario with `faults`, resolved on its cluster."""
    faults, nodes = faults_of(scenario), scenario.cluster.nodes_for(scenario.parallel.ranks)
    spares = faults.spares.nodes if faults.spares else 0
    repair = faults.spares.repair if faults.spares else None
    parts: dict[tuple[str, int], Parts] = {}  # shared by classes
    sources = []
    for name, failure in zip(faults.names, faults.classes, strict=True):
        key = failure.what, nodes_below(failure, scenario.cluster) or 0
        if key not in parts:
            parts[key] = _parts(scenario, *key, nodes, spares)
        sources.append(_source(failure, name, repair if failure.repair is None else failure.repair, parts[key]))
    return sources


def _source(failure: FailureClass, name: str, repair: Fraction | None, parts: Parts) -> Source:
    mean, shape = None, 1.0
    if failure.mtbf is not None:
        mean = float(failure.mtbf)
    elif failure.count is not None and failure.over is not None:
        mean = float(len(parts[0]) * failure.over / failure.count)
    elif failure.weibull is not None:
        shape = float(failure.weibull.shape)
        mean = float(failure.weibull.scale) * math.gamma(1 + 1 / shape)
    effect = failure.effect
    return Source(
        name,
        failure.what,
        *parts,
        mean,
        shape,
        tuple(sorted(map(to_picoseconds, failure.times or ()))),
        None if repair is None else to_picoseconds(repair),
        None if effect is None or effect.flap is None else to_picoseconds(effect.flap),
        None if effect is None else effect.slow,
        None if effect is None or effect.lasts is None else to_picoseconds(effect.lasts),
    )


def _parts(scenario: Scenario, what: str, below: int, nodes: Sequence[NodeKind], spares: int) -> Parts:
    """The parts of a class: on each node, below each switch or power domain, or the job as a whole."""
    job = len(nodes)
    if what == "job":
        return ((),), (), ()
    if what in ("switch", "power"):
        return _groups(0, job, below), _groups(job, spares, below), ()
    counts = [_count(what, kind) for kind in nodes]
    counts[-1] = min(counts[-1], scenario.parallel.ranks - sum(counts[:-1])) if what == "gpu" else counts[-1]
    at = [place for place, count in enumerate(counts) for _ in range(count)]
    beside = [job + spare for spare in range(spares) for _ in range(_count(what, nodes[0]))]
    if below == 0:
        return [()] * len(at), [()] * len(beside), at
    groups, spare = _groups(0, job, below), _groups(job, spares, below)
    return [groups[place // below] for place in at], [spare[(place - job) // below] for place in beside], at


def _count(what: str, kind: NodeKind) -> int:
    """Parts of a kind on one node; a link is the cable of a network adapter."""
    return {"gpu": kind.gpus_per_node, "node": 1}.get(what, kind.infiniband.nics_per_node)


def _groups(first: int, count: int, size: int) -> list[range]:
    return [range(first + at, first + min(at + size, count)) for at in range(0, count, size)]


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
