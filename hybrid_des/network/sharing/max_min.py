"""Max-min rates: which flows and links hang together, and what each flow gets; nothing here knows of time.

A flow is anything with `ports`, the links of finite bandwidth on its route, and `solved`, for use here.
"""

from __future__ import annotations

from typing import Any


class Port:
    """A link of finite bandwidth and the flows that have a message on it, in the order in which they came.

    Attributes:
        capacity: its bandwidth in work units a tick.
        changed: the tick at which a flow last came to it or left it.
        left, open: while rates are solved: capacity not given away yet, flows whose rate is not known yet.
        solved: the last solution that it was part of.
    """

    __slots__ = ("capacity", "changed", "flows", "left", "open", "solved")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.flows: dict[Any, None] = {}
        self.changed = self.left = self.open = self.solved = 0


def connected(port: Port, solution: int) -> tuple[list[Any], list[Port]]:
    """All flows and ports that hang together with a port: flows that share a port, ports that share a flow."""
    flows: list[Any] = []
    ports = [port]
    port.solved = solution
    for port in ports:  # grows
        for flow in port.flows:
            if flow.solved != solution:
                flow.solved = solution
                flows.append(flow)
                for other in flow.ports:
                    if other.solved != solution:
                        other.solved = solution
                        ports.append(other)
    return flows, ports


def max_min(ports: list[Port]) -> dict[Any, int]:
    """The rate of every flow on these ports: the link that gives its flows least is filled first.

    Source: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2.
    """
    rates: dict[Any, int] = {}
    for port in ports:
        port.left = port.capacity
        port.open = len(port.flows)
    while ports := [port for port in ports if port.open]:
        tightest = min(ports, key=share)
        rate = share(tightest)
        for flow in tightest.flows:
            if flow not in rates:
                rates[flow] = rate
                for port in flow.ports:
                    port.left -= rate
                    port.open -= 1
    return rates


def share(port: Port) -> int:
    """What a port gives to each flow whose rate is not known yet."""
    return port.left // port.open
