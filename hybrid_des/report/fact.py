"""A line of a report."""

from typing import NamedTuple


class Fact(NamedTuple):
    """One line: label, value and note; `weight` is "", "bold", "dim" or "alarm"."""

    label: str
    value: str
    note: str = ""
    weight: str = ""
