"""Measured times: a table from message size to time that replaces the formulas of a link or collective.

    bytes,time_us              times are interpolated linearly between entries and extrapolated beyond the first and
    1048576,76.71              the last; the extrapolated time at zero bytes is the latency
    16777216,245.1

One latency and one bandwidth fit either the small or the large messages of a real machine; a table fits both.

A `CollectiveTable`, which `hybrid-des measure` writes, has the times of collectives by group and size:

    bytes,time_us,collective,ranks,nodes
    4096,56.1,all-reduce,2,1
    16777216,9120.4,all-reduce,2,1

Times of a group that was measured are interpolated by size. Other groups take a law with the table's constants,

    time = start + (n − 1) · hop + (n − 1)/n · bytes · rate

for n members, which a ring obeys whatever starting it costs (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005);
start, hop and rate are those of least relative errors over all measured groups on one node, or on several, and at
least 0.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, pairwise
from operator import mul
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import LONGEST_SHOWN, UsageError, one_line
from hybrid_des.files import read_text
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bytes, parse_quantity

COLUMNS = ["bytes", "time_us"]


MICROSECOND = 10**6  # picoseconds


MESSAGE = "message"  # the operation of a link's table


OF_NODE = "all of a node"  # the adapters that carried what a link's table says, if it was not one


@dataclass(frozen=True)
class TimeTable:
    """A piecewise linear map from message size to time.

    Attributes:
        entries: (bytes, picoseconds), in ascending order of size.
        ranks: size of the measured group, if known.
        operation: what was measured, if known: a collective such as all_reduce, or `MESSAGE` for one message.
        source: file the table was read from.
        nodes: number of nodes of the measured group, if known.
        adapters: `OF_NODE` if all adapters of a node carried each message together.
        measured: the first and last size that was measured, if the table has others; those follow from a law.
    """

    entries: tuple[tuple[int, int], ...]
    ranks: int | None = None
    operation: str | None = None
    source: str = field(default="", compare=False)
    nodes: int | None = None
    adapters: str | None = None
    measured: tuple[int, int] | None = None

    def time(self, size: int) -> int:
        """Picoseconds for `size` bytes, rounded once; never negative."""
        if len(self.entries) == 1:
            ((only, time),) = self.entries
            return round(Fraction(time * size, only))
        index = min(max(bisect_right(self.entries, (size, -1)), 1), len(self.entries) - 1)
        (left, before), (right, after) = self.entries[index - 1 : index + 1]
        return max(0, before + round(Fraction((after - before) * (size - left), right - left)))

    def divided(self, parts: int) -> TimeTable:
        """The table of one of so many links that carry each message together, in equal parts."""
        sizes = {max(1, round(Fraction(size, parts))): time for size, time in self.entries}
        measured = self.measured and (max(1, self.measured[0] // parts), self.measured[1] // parts)
        return replace(self, entries=tuple(sizes.items()), adapters=None, measured=measured)

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and last size that was measured."""
        return self.measured or (self.entries[0][0], self.entries[-1][0])

    def covers(self, size: int) -> bool:
        """Whether a size lies between the measured ones."""
        first, last = self.bounds
        return first <= size <= last

    @property
    def extent(self) -> str:
        """Between which sizes the table was measured, in words."""
        first, last = self.bounds
        return f"{self.source or 'the table'} was measured from {format_bytes(first)} to {format_bytes(last)}"

    @property
    def latency(self) -> int:
        """Picoseconds for an empty message."""
        return self.time(0)

    def occupancy(self, size: int) -> int:
        """Picoseconds for which `size` bytes occupy a link: the time beyond the latency."""
        return max(0, self.time(size) - self.latency)

    @property
    def rate(self) -> Fraction:
        """Bytes per second between the last two entries.

        Raises:
            UsageError: the time does not increase between them.
        """
        (left, before), (right, after) = ((0, 0), *self.entries)[-2:]
        if after <= before:
            raise UsageError(f"{self.source or 'table'}: {right} bytes must take longer than {left}")
        return Fraction((right - left) * PICOSECONDS_PER_SECOND, after - before)


class TableBandwidth(Fraction):
    """A measured bandwidth that depends on message size; its numeric value is that of large messages."""

    __slots__ = ("table",)
    table: TimeTable

    def __new__(cls, table: TimeTable) -> TableBandwidth:
        """Make a bandwidth from a table whose last times increase."""
        self = super().__new__(cls, table.rate)
        self.table = table
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableBandwidth) and self.table == other.table

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.table)

    def __reduce__(self) -> tuple[type[TableBandwidth], tuple[TimeTable]]:
        return TableBandwidth, (self.table,)

    def __copy__(self) -> TableBandwidth:
        return self

    def __deepcopy__(self, memo: object) -> TableBandwidth:
        return self


def read_table(path: str | Path) -> TimeTable:
    """Read a table from a CSV file whose first columns are `bytes` and `time_us`; lines starting with # are comments.

    Raises:
        UsageError: the file cannot be read or is not such a table.
    """
    lines = read_text(path).splitlines()
    ranks, nodes = (_comment(lines, rf"{what}: *(\d{{1,9}})") for what in ("ranks", "nodes"))
    operation, adapters = _comment(lines, r"operation: *([a-z_]{1,30})"), _comment(lines, rf"adapters: *({OF_NODE})")
    bounds = _comment(lines, r"measured: *(\d{1,15} to \d{1,15}) bytes")
    try:
        rows = list(csv.reader(line for line in lines if line.strip() and not line.startswith("#")))
    except csv.Error as error:
        raise UsageError(f"{path}: not a table of times: {error}") from None
    if not rows or [name.strip() for name in rows[0][: len(COLUMNS)]] != COLUMNS:
        raise UsageError(f"{path}: not a table of times; expected the columns {','.join(COLUMNS)}")
    entries = [_entry(path, number, row, len(rows[0])) for number, row in enumerate(rows[1:], 1)]
    if not entries:
        raise UsageError(f"{path}: a table without entries")
    for before, after in pairwise(entries):
        if after[0] <= before[0]:
            raise UsageError(f"{path}: sizes must increase, but {after[0]} follows {before[0]}")
    counts = (int(count) if count else None for count in (ranks, nodes))
    first, _, last = (bounds or "").partition(" to ")
    measured = (int(first), int(last)) if bounds else None
    return TimeTable(tuple(entries), next(counts), operation, str(path), next(counts), adapters, measured)


def write_table(table: TimeTable, about: str, more: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """Format a table as text for `read_table`, below lines about it; exact, since times are whole picoseconds.

    `more` are further columns.
    """
    facts = {name: getattr(table, name) for name in ("operation", "ranks", "nodes", "adapters")}
    first, *others = about.split("\n")
    measured = ["measured: {} to {} bytes".format(*table.measured)] if table.measured else []
    said = [first, *(f"{name}: {value}" for name, value in facts.items() if value), *measured, *others]
    head = [f"# {line}" for line in said]
    entries = ([str(size), _microseconds(time)] for size, time in table.entries)
    rows = [",".join((*entry, *cells)) for entry, *cells in zip(entries, *more.values(), strict=True)]
    return "\n".join([*head, ",".join((*COLUMNS, *more)), *rows]) + "\n"


def _comment(lines: Sequence[str], pattern: str) -> str | None:
    matches = (re.fullmatch(rf"# *{pattern} *", line) for line in lines if line.startswith("#"))
    return next((match[1] for match in matches if match), None)


def _entry(path: str | Path, number: int, row: Sequence[str], columns: int) -> tuple[int, int]:
    where = f"{path}: entry {number}"
    if len(row) != columns:
        raise UsageError(f"{where} has {len(row)} values, not {columns}")
    try:
        size, time = parse_quantity(shown(row[0]), "size"), parse_quantity(shown(row[1]), "number")
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if size.denominator != 1 or not 0 < size <= 10**15 or time > 10**12:
        raise UsageError(f"{where}: expected a whole number of bytes and microseconds, found {shown(','.join(row))}")
    return int(size), round(time * MICROSECOND)


def _microseconds(time: int) -> str:
    whole, rest = divmod(time, MICROSECOND)
    return f"{whole}.{rest:06}".rstrip("0").rstrip(".")


def shown(text: str) -> str:
    """Reduce text from outside to a few printable characters, for messages."""
    return one_line(text.strip(), LONGEST_SHOWN)


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
    """Whether the first line of a file, below comments, names the columns of such a table.

    Raises:
        UsageError: the file cannot be read.
    """
    head = next((line for _, line in _below_comments(path)), "")
    return {*COLUMNS, *GROUP} <= {name.strip() for name in head.split(",")}


def write_collective_table(table: CollectiveTable, about: Sequence[str]) -> str:
    """Format a table as text for `read_collective_table`, below comments."""
    rows = [
        f"{size},{_microseconds(time)},{group.collective},{group.ranks},{group.nodes}"
        for group, times in table.groups
        for size, time in times.entries
    ]
    return "\n".join([*(f"# {line}" for line in about), ",".join((*COLUMNS, *GROUP)), *rows]) + "\n"


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


def _below_comments(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that hold something, with their numbers, without those that start with #."""
    lines = enumerate(read_text(path).splitlines(), 1)
    return ((number, line) for number, line in lines if line.strip() and not line.startswith("#"))


def _rows(path: str | Path) -> Iterator[tuple[MeasuredGroup, int, int]]:
    lines = list(_below_comments(path))
    for (number, _), row in zip(lines[1:], csv.DictReader(line for _, line in lines), strict=False):
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
