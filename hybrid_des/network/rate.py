"""Rates: how long a number of bytes occupies a link.

A link's rate is chosen once, when the link is first used. A flow looks service times up in it, so a constant rate and
a measured one cost the same. Where a bandwidth varies over simulated time, links and flows have classes of their own
(`sharing.fifo`, `sharing.fair`), so that constant ones pay nothing for it.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import model_validator

from hybrid_des.errors import LONGEST_SHOWN, TooLongError, UsageError, one_line
from hybrid_des.network.fabric import Bandwidth, Fabric, PortSpec
from hybrid_des.options import LinkBandwidth, NamesFile, Reads, Section, Time, describe
from hybrid_des.reading import read_text
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_bandwidth, parse_quantity, to_picoseconds

# Measured times: a table from message size to time that replaces the formulas of a link or collective.
#
#     bytes,time_us              times are interpolated linearly between entries and extrapolated beyond the first and
#     1048576,76.71              the last; the extrapolated time at zero bytes is the latency
#     16777216,245.1
#
# One latency and one bandwidth fit either the small or the large messages of a real machine; a table fits both.


COLUMNS = ["bytes", "time_us"]
MICROSECOND = 10**6  # picoseconds
MESSAGE = "message"  # the operation of a link's table


@dataclass(frozen=True)
class TimeTable:
    """A piecewise linear map from message size to time.

    Attributes:
        entries: (bytes, picoseconds), in ascending order of size.
        ranks: size of the measured group, if known.
        operation: what was measured, if known: a collective such as all_reduce, or `MESSAGE` for one message.
        source: file the table was read from.
    """

    entries: tuple[tuple[int, int], ...]
    ranks: int | None = None
    operation: str | None = None
    source: str = field(default="", compare=False)

    def time(self, size: int) -> int:
        """Picoseconds for `size` bytes, rounded once; never negative."""
        if len(self.entries) == 1:
            ((only, time),) = self.entries
            return round(Fraction(time * size, only))
        place = min(max(bisect_right(self.entries, (size, -1)), 1), len(self.entries) - 1)
        (left, before), (right, after) = self.entries[place - 1 : place + 1]
        return max(0, before + round(Fraction((after - before) * (size - left), right - left)))

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
    ranks, operation = _comment(lines, r"ranks: *(\d{1,9})"), _comment(lines, r"operation: *([a-z_]{1,30})")
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
    return TimeTable(tuple(entries), int(ranks) if ranks else None, operation, str(path))


def write_table(table: TimeTable, about: str, more: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """Format a table as text for `read_table`; exact, since times are whole picoseconds. `more` are further columns."""
    facts = {"operation": table.operation, "ranks": table.ranks}
    head = [f"# {about}"] + [f"# {name}: {value}" for name, value in facts.items() if value]
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


LONGEST_S = 86_400  # a day for one message: the clock holds 106 days, for all messages of all ranks


class Rate(dict[int, int]):
    """Bytes → picoseconds of service, computed once per size; this base class serves any size in no time."""

    def __missing__(self, size: int) -> int:
        time = self[size] = self.ticks(size, 1)
        return time

    def ticks(self, size: int, per_picosecond: int) -> int:
        """The service time of `size` bytes in a finer unit, rounded once to the nearest; raises as `exactly` does."""
        return round(self.exactly(size) * per_picosecond)

    def exactly(self, size: int) -> Fraction:
        """The service time of `size` bytes in picoseconds, not rounded: for links whose bandwidth varies."""
        return Fraction(0)


class ConstantRate(Rate):
    """A fixed number of bytes per second, whatever the size."""

    def __init__(self, bandwidth: Fraction) -> None:
        super().__init__()
        self._bandwidth = bandwidth

    def exactly(self, size: int) -> Fraction:
        """The service time of `size` bytes in picoseconds, not rounded.

        Raises:
            TooLongError: it is longer than a day.
        """
        if size > LONGEST_S * self._bandwidth:
            takes = f"{float(size / self._bandwidth):.6g} s at {format_bandwidth(self._bandwidth)}"
            raise TooLongError(f"a message of {size:,} bytes takes {takes}; was a unit such as GB/s forgotten?")
        return Fraction(size * PICOSECONDS_PER_SECOND) / self._bandwidth


class MeasuredRate(Rate):
    """The times of a table of measurements, without its latency."""

    def __init__(self, table: TimeTable) -> None:
        super().__init__()
        self._table = table

    def exactly(self, size: int) -> Fraction:
        """The service time of `size` bytes; the table has whole picoseconds."""
        return Fraction(self._table.occupancy(size))


def rate_of(bandwidth: Bandwidth) -> Rate:
    """The rate of a link of this bandwidth."""
    if bandwidth is None:
        return Rate()
    if isinstance(bandwidth, TableBandwidth):
        return MeasuredRate(bandwidth.table)
    return ConstantRate(bandwidth)


def idle_time(fabric: Fabric, sender: int, receiver: int, size: int) -> int:
    """Picoseconds that a message takes from one GPU to another on idle links."""
    route = fabric.route(sender, receiver)
    return route.latency + max(rate_of(fabric.links[name].bandwidth)[size] for name in route.links)


# The figures of a link as given in a scenario: bandwidth and latency, or a table of measured times.


def _table(value: Any, operation: str | None) -> TimeTable:
    if not isinstance(value, str | TimeTable):
        raise ValueError(f"expected the path of a CSV file, found {describe(value)}")
    try:
        table = TableBandwidth(read_table(value)).table if isinstance(value, str) else value
    except UsageError as error:
        raise ValueError(str(error)) from None
    if operation and table.operation not in (None, operation):
        raise ValueError(
            f"{table.source or 'the table'} holds times of {table.operation}, expected those of {operation}"
        )
    return table


def _reads(operation: str | None = None) -> Reads:
    """Read a table; refuse one whose file names another operation."""
    return Reads(lambda value: _table(value, operation), {"type": "string"})


# the file is read when it is named
Table = Annotated[TimeTable, _reads(), NamesFile()]
LinkTable = Annotated[TimeTable, _reads(MESSAGE), NamesFile()]
AllReduceTable = Annotated[TimeTable, _reads("all_reduce"), NamesFile()]


class LinkFigures(Section):
    """A kind of link: both figures are for one direction."""

    bandwidth: LinkBandwidth = None
    """Bytes per second; inf for a free link. Default from the GPU."""
    latency: Time = Fraction(0)
    """End-to-end latency, counted once. Default from the GPU."""
    table: LinkTable | None = None
    """Instead of both: a CSV file of message sizes and times, as written by `hybrid-des calibrate --link`.

    Under `sharing: fair`, concurrent messages share the rate of its largest entries."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> LinkFigures:
        if self.table is not None and self.model_fields_set & {"bandwidth", "latency"}:
            raise ValueError("a table replaces bandwidth and latency; give one or the other")
        return self

    @property
    def port(self) -> PortSpec:
        """These figures as a topology's `PortSpec`."""
        if self.table is not None:
            return PortSpec(TableBandwidth(self.table), self.table.latency)
        return PortSpec(self.bandwidth, to_picoseconds(self.latency))
