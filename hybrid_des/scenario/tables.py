"""A table of measured times as a value of a scenario: the file is read and checked with the scenario."""

from __future__ import annotations

from typing import Annotated, Any

from hybrid_des.errors import UsageError
from hybrid_des.network.times import TableBandwidth, TimeTable, read_table
from hybrid_des.scenario.values import Reads, describe


def _table(value: Any) -> TimeTable | None:
    if value is None or isinstance(value, TimeTable):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected the path of a CSV file, found {describe(value)}")
    try:
        return TableBandwidth(read_table(value)).table
    except UsageError as error:
        raise ValueError(str(error)) from None


Table = Annotated[TimeTable | None, Reads(_table, lambda: {"type": "string"})]
