"""The figures of a link as a scenario gives them: bandwidth and latency, or a table of measured times."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any

from pydantic import model_validator

from hybrid_des.errors import UsageError
from hybrid_des.network.fabric import PortSpec
from hybrid_des.network.times import TableBandwidth, TimeTable, read_table
from hybrid_des.options import LinkBandwidth, NamesFile, Reads, Section, Time, describe
from hybrid_des.units import to_picoseconds


def _table(value: Any) -> TimeTable:
    if isinstance(value, TimeTable):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected the path of a CSV file, found {describe(value)}")
    try:
        return TableBandwidth(read_table(value)).table
    except UsageError as error:
        raise ValueError(str(error)) from None


Table = Annotated[TimeTable, Reads(_table, {"type": "string"}), NamesFile()]  # the file is read when it is named


class LinkFigures(Section):
    """A kind of link: both figures are for one direction."""

    bandwidth: LinkBandwidth = None
    """Bytes a second; inf for a free link. Default from the GPU."""
    latency: Time = Fraction(0)
    """From end to end, once. Default from the GPU."""
    table: Table | None = None
    """Instead of both: a CSV file message size → time, such as `hybrid-des calibrate --link` makes.

    Under `sharing: fair` messages that meet slow each other down as on a link of the rate of its largest entries."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> LinkFigures:
        if self.table is not None and self.model_fields_set & {"bandwidth", "latency"}:
            raise ValueError("a table stands instead of bandwidth and latency; give it or them")
        return self

    @property
    def port(self) -> PortSpec:
        """The same in a topology's terms."""
        if self.table is not None:
            return PortSpec(TableBandwidth(self.table), self.table.latency)
        return PortSpec(self.bandwidth, to_picoseconds(self.latency))
