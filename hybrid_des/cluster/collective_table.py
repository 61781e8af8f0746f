"""Measured times of collectives, by group and size: a table that `hybrid-des measure` writes.

    bytes,time_us,collective,ranks,nodes
    4096,56.1,all-reduce,2,1
    16777216,9120.4,all-reduce,2,1

Times of a group that was measured are interpolated by size. Other groups take a law with the table's constants,

    time = start + (n − 1) · hop + (n − 1)/n · bytes · rate

for n members, which a ring obeys whatever starting it costs (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005);
start, hop and rate are those of least relative errors over all measured groups on one node, or on several, and at
least 0.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from operator import mul
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.time_table import COLUMNS, MICROSECOND, TimeTable
from hybrid_des.errors import UsageError
from hybrid_des.files import read_text
from hybrid_des.units import parse_quantity

GROUP = ("collective", "ranks", "nodes")  # columns, besides those of a table of times


class MeasuredGroup(NamedTuple):
    """A group whose times were measured."""

    collective: str
    ranks: int
    nodes: int


@dataclass(frozen=True)
class CollectiveTable:
    """Times of collectives.

    Attributes:
        groups: what was measured, with its times.
        source: the file.
    """

    groups: tuple[tuple[MeasuredGroup, TimeTable], ...]
    source: str = field(default="", compare=False)

    def time(self, collective: str, ranks: int, nodes: int, size: int) -> int | None:
        """Picoseconds of a collective over a group; None if no such collective was measured on one node, or several."""
        known = _by_group(self).get(MeasuredGroup(collective, ranks, nodes))
        if known is not None:
            return known.time(size)
        law = _law(self, collective, nodes > 1)
        return None if law is None else round(sum(map(mul, law, _terms(ranks, size)), 0.0))


@lru_cache(maxsize=64)
def _by_group(table: CollectiveTable) -> Mapping[MeasuredGroup, TimeTable]:
    return dict(table.groups)


def _terms(ranks: int, size: int) -> tuple[float, float, float]:
    return 1.0, ranks - 1.0, size * (ranks - 1) / ranks


@lru_cache(maxsize=64)
def _law(table: CollectiveTable, collective: str, several: bool) -> tuple[float, ...] | None:
    """Picoseconds to start, per hop and per byte; None if nothing was measured."""
    rows, times = [], []
    for group, measured in table.groups:
        if group.collective == collective and (group.nodes > 1) == several:
            rows += [_terms(group.ranks, size) for size, _ in measured.entries]
            times += [time for _, time in measured.entries]
    if not rows:
        return None
    scaled = np.array(rows) / np.array(times)[:, None]
    return _not_negative(scaled, np.ones(len(times)))


def _not_negative(factors: NDArray[np.float64], target: NDArray[np.float64]) -> tuple[float, ...]:
    """The non-negative solution with the least squares: the best of those that leave some factors out."""
    count = factors.shape[1]
    best: tuple[float, ...] = (0.0,) * count
    least = float(target @ target)
    for used in (used for size in range(1, count + 1) for used in combinations(range(count), size)):
        constants, *_ = np.linalg.lstsq(factors[:, used], target, rcond=None)
        error = float(np.sum((factors[:, used] @ constants - target) ** 2))
        if (constants >= 0).all() and error < least:
            solved: dict[int, float] = dict(zip(used, constants.tolist(), strict=True))
            best, least = tuple(solved.get(number, 0.0) for number in range(count)), error
    return best


def is_collective_table(path: str | Path) -> bool:
    """Whether the first line of a file names the columns of such a table.

    Raises:
        UsageError: the file cannot be read.
    """
    return {*COLUMNS, *GROUP} <= {name.strip() for name in read_text(path).partition("\n")[0].split(",")}


def read_collective_table(path: str | Path) -> CollectiveTable:
    """Read such a table.

    Raises:
        UsageError: the file cannot be read, or a row has no sound values.
    """
    entries: dict[MeasuredGroup, dict[int, int]] = {}
    for group, size, time in _rows(path):
        if size in entries.setdefault(group, {}):
            raise UsageError(f"{path}: {group.collective} of {group.ranks} ranks: {size} bytes twice")
        entries[group][size] = time
    if not entries:
        raise UsageError(f"{path}: a table without entries")
    tables = [(group, TimeTable(tuple(sorted(sizes.items())), group.ranks)) for group, sizes in entries.items()]
    return CollectiveTable(tuple(tables), str(path))


def _rows(path: str | Path) -> Iterator[tuple[MeasuredGroup, int, int]]:
    for number, row in enumerate(csv.DictReader(read_text(path).splitlines()), 2):
        try:
            values = [parse_quantity(row[name] or "", "number") for name in ("ranks", "nodes")]
            size, time = parse_quantity(row["bytes"] or "", "size"), parse_quantity(row["time_us"] or "", "number")
        except (ValueError, KeyError) as error:
            raise UsageError(f"{path}: row {number}: {error}") from None
        whole = [*values, size]
        if any(value.denominator != 1 or not 0 < value <= 10**15 for value in whole) or not 0 < time <= 10**12:
            raise UsageError(f"{path}: row {number}: expected whole ranks, nodes and bytes, and microseconds above 0")
        group = MeasuredGroup(row["collective"] or "", int(values[0]), int(values[1]))
        yield group, int(size), round(time * MICROSECOND)
