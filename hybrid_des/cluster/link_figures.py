"""The figures of a link as given in a scenario: bandwidth and latency, or a table of measured times."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

from pydantic import model_validator

from hybrid_des.cluster.fabric import PortSpec
from hybrid_des.cluster.time_table import (
    MESSAGE,
    CollectiveTable,
    TableBandwidth,
    TimeTable,
    is_collective_table,
    read_collective_table,
    read_table,
)
from hybrid_des.errors import UsageError
from hybrid_des.options import LinkBandwidth, NamesFile, Reads, Section, Time, describe
from hybrid_des.units import to_picoseconds


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


def _all_reduces(value: Any) -> TimeTable | CollectiveTable:
    if isinstance(value, CollectiveTable):
        return value
    try:
        if isinstance(value, str) and is_collective_table(value):
            return read_collective_table(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return _table(value, "all_reduce")


AllReduceTable = Annotated[TimeTable | CollectiveTable, Reads(_all_reduces, {"type": "string"}), NamesFile()]


def _collectives(value: Any) -> CollectiveTable:
    if isinstance(value, CollectiveTable):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected the path of a CSV file, found {describe(value)}")
    try:
        if is_collective_table(value):
            return read_collective_table(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"{value}: not a table of collectives by group, as `hybrid-des measure` writes it")


CollectiveFile = Annotated[CollectiveTable, Reads(_collectives, {"type": "string"}), NamesFile()]


class LinkFigures(Section):
    """A kind of link: both figures are for one direction."""

    bandwidth: LinkBandwidth = None
    """Bytes per second; inf for a free link. Default from the GPU."""
    latency: Time = Fraction(0)
    """End-to-end latency, counted once. Default from the GPU."""
    table: LinkTable | None = None
    """Instead of both: a CSV file of message sizes and times, as written by `hybrid-des measure --from FILE --link`.

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
