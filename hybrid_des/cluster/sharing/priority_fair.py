"""Priority by preemption: flows share bandwidth as under `fair`, those of a higher priority before all others.

    rates    the flows of the highest priority share the links, max-min; then those of the next priority share what is
             left, and so on: a flow that finds nothing left has rate 0 until more urgent ones have drained

This is how a switch with strict priority queues serves packets of flows that each send as fast as they can. Where all
priorities are equal, it is `fair`.
"""

from typing import Any

from hybrid_des.cluster.link import Hop
from hybrid_des.cluster.sharing.fair import Fair, FairFlow
from hybrid_des.cluster.sharing.max_min import Port, max_min
from hybrid_des.cluster.sharing.registration import Put, sharing
from hybrid_des.engine.recorder import Rows


def most_urgent_first(ports: list[Port]) -> dict[Any, int]:
    """The rate of every flow on these ports, priority by priority."""
    if len({flow.priority for port in ports for flow in port.flows}) == 1:
        return max_min(ports)
    return by_priority(ports)


def by_priority(ports: list[Port]) -> dict[Any, int]:
    """The same in general, for flows that may count several times on a port (`carried`).

    What rounding leaves of a full link goes to nobody: less urgent flows wait.
    """
    flows = dict.fromkeys(flow for port in ports for flow in port.flows)
    rates: dict[Any, int] = {}
    for port in ports:
        port.left = port.capacity
    for level in sorted({flow.priority for flow in flows}, reverse=True):
        for port in ports:
            port.open = 0
        for flow in flows:
            if flow.priority == level:
                for port, times in flow.carried:
                    port.open += times
        _share(ports, level, rates)
    return rates


def _share(ports: list[Port], level: int, rates: dict[Any, int]) -> None:
    """Share what is left of the ports among the flows of one priority, max-min."""
    while ports := [port for port in ports if port.open]:
        rate = min(port.left // port.open for port in ports)
        for full in [port for port in ports if port.left // port.open == rate]:
            for flow in full.flows:
                if flow.priority == level and flow not in rates:
                    rates[flow] = rate
                    for port, times in flow.carried:
                        port.left -= rate * times
                        port.open -= times
            full.left = 0


@sharing("priority-fair")
class PriorityFair(Fair):
    """Flows share bandwidth, the most urgent ones first."""

    solve = staticmethod(most_urgent_first)

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> FairFlow:
        """Open a flow over these hops, whose messages are recorded in these rows."""
        flow = super().flow(hops, put, rows)
        flow.priority = priority
        return flow
