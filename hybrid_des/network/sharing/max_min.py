"""Max-min rates: which streams and links hang together, and what each stream gets; nothing here knows of time.

A stream is anything with `ports`, the links of finite bandwidth on its route, and `solved`, for use here.
"""

from __future__ import annotations

from typing import Any


class Port:
    """A link of finite bandwidth and the streams that have a message on it, in the order in which they came.

    Attributes:
        capacity: its bandwidth in work units a tick.
        changed: the tick at which a stream last came to it or left it.
        left, open: while rates are solved: capacity not given away yet, streams whose rate is not known yet.
        solved: the last solution that it was part of.
    """

    __slots__ = ("capacity", "changed", "left", "open", "solved", "streams")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.streams: dict[Any, None] = {}
        self.changed = self.left = self.open = self.solved = 0


def connected(port: Port, solution: int) -> tuple[list[Any], list[Port]]:
    """All streams and ports that hang together with a port: streams that share a port, ports that share a stream."""
    streams: list[Any] = []
    ports = [port]
    port.solved = solution
    for port in ports:  # grows
        for stream in port.streams:
            if stream.solved != solution:
                stream.solved = solution
                streams.append(stream)
                for other in stream.ports:
                    if other.solved != solution:
                        other.solved = solution
                        ports.append(other)
    return streams, ports


def max_min(ports: list[Port]) -> dict[Any, int]:
    """The rate of every stream on these ports: the link that gives its streams least is filled first.

    Source: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2.
    """
    rates: dict[Any, int] = {}
    for port in ports:
        port.left = port.capacity
        port.open = len(port.streams)
    while ports := [port for port in ports if port.open]:
        tightest = min(ports, key=share)
        rate = share(tightest)
        for stream in tightest.streams:
            if stream not in rates:
                rates[stream] = rate
                for port in stream.ports:
                    port.left -= rate
                    port.open -= 1
    return rates


def share(port: Port) -> int:
    """What a port gives to each stream whose rate is not known yet."""
    return port.left // port.open
