"""Max-min rates: connected components of flows and links, and the rate of each flow; time plays no part here.

A flow is anything with `ports`, the links of finite bandwidth on its route, and `solved`, for internal use.
"""

from typing import Any


class Port:
    """A link of finite bandwidth and the flows that have a message on it, in the order of their arrival.

    Attributes:
        capacity: its bandwidth in work units per tick.
        changed: the tick at which a flow last left others on it, or its bandwidth changed.
        left, open: while rates are solved: capacity not assigned yet, flows whose rate is not known yet.
        solved: the last solution that it was part of.
    """

    __slots__ = ("capacity", "changed", "flows", "left", "open", "solved")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.flows: dict[Any, None] = {}
        self.changed = self.left = self.open = self.solved = 0


def connected(port: Port, solution: int) -> tuple[list[Any], list[Port]]:
    """The connected component of a port: flows are joined by the ports they share, ports by flows."""
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
    """The rate of every flow on these ports: the links with the smallest share per flow are filled first.

    All links with that share are filled at once: shares are rounded down, so filling one of them would leave the others
    with remainders that depend on which was first.
    Source: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2.
    """
    rates: dict[Any, int] = {}
    for port in ports:
        port.left = port.capacity
        port.open = len(port.flows)
    while ports := [port for port in ports if port.open]:
        rate = ports[0].left // ports[0].open
        tightest: list[Port] = []
        for port in ports:
            share = port.left // port.open
            if share == rate:
                tightest.append(port)
            elif share < rate:
                rate, tightest = share, [port]
        for full in tightest:
            for flow in full.flows:
                if flow not in rates:
                    rates[flow] = rate
                    for port in flow.ports:
                        port.left -= rate
                        port.open -= 1
    return rates
