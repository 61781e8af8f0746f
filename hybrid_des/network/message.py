"""The content of a message."""

from typing import Any


class Message:
    """Bytes on the wire, how many of them are a codec's scales, and the arrays, if any.

    Messages without data are sent many times; treat them as constants.
    """

    __slots__ = ("data", "scales", "size")

    def __init__(self, size: int, scales: int = 0, data: Any = None) -> None:
        self.size = size
        self.scales = scales
        self.data = data
