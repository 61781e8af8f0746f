"""The content of a message."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Message:
    """Bytes on the wire, how many of them are a codec's scales, and the arrays, if any.

    Messages without data are sent many times; treat them as constants.
    """

    size: int
    scales: int = 0
    data: Any = None
