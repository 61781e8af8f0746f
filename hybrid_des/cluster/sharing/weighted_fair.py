"""Max-min fair sharing in a folded run, where a message may stand for several that share a link.

    all flows      a, its image a' ─► one uplink     b ─► another
    simulated      a, counted twice ─► that uplink   b, counted once

Images of a flow begin, drain and change their rates together, so one of them has the rate of all, if each link counts
as many flows as there are images on it. Rates are found from the same whole numbers as with all of them, so every
time is the same to the picosecond. Priorities are read where the model that it stands for reads them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_des.cluster.link import Hop
from hybrid_des.cluster.mailbox import Message
from hybrid_des.cluster.sharing.fair import Fair, FairFlow
from hybrid_des.cluster.sharing.max_min import Port
from hybrid_des.cluster.sharing.priority_fair import by_priority
from hybrid_des.cluster.sharing.registration import Put
from hybrid_des.engine.bookings import Booking
from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Rows

MOST_KNOWN, MOST_FLOWS = 4_000, 32  # sets of flows whose rates are kept, and flows of one: some 20 MB


class WeightedFlow(FairFlow):
    """A flow that stands for several."""

    __slots__ = ("_carried", "_several")

    def __init__(self, model: Fair, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(model, hops, put, rows)
        self._carried: Sequence[tuple[Port, int]] = [(port, 1) for port in self.ports]
        self._several = False

    @property
    def carried(self) -> Sequence[tuple[Port, int]]:
        """Its ports, and how many of its images each carries."""
        return self._carried

    def weigh(self, images: Mapping[str, int]) -> None:
        """Tell how many of its images each link carries; what paces it, each has of its own."""
        links: Any = [hop.link for hop in self.hops]
        of_links = {link.port: images[link.spec.name] for link in links if link.port}
        self._carried = [(port, of_links.get(port, 1)) for port in self.ports]
        self._several = any(several > 1 for _, several in self._carried)

    def _begin(self, message: Message, tag: int, asked: int, since: int) -> None:
        """Start draining a message; where it shares a link with its images, at the rate to be solved."""
        time = self.times[message.size]
        if not (self._several and time):
            super()._begin(message, tag, asked, since)
            return
        self.message, self.tag, self.asked = message, tag, asked
        self.start, self.since = self.model.env.now, since
        self.remaining = time * self.full
        self._wait(self.ports[0])


class KnownRates(dict[frozenset[FairFlow], dict[Any, int]]):
    """The rates of flows that share ports, kept if these are few: they meet again in each step, for each bucket."""

    def of(self, ports: list[Port]) -> dict[Any, int]:
        """The rate of every flow on these ports."""
        flows = frozenset[FairFlow]().union(*[port.flows for port in ports])
        rates = self.get(flows)
        if rates is None:
            rates = by_priority(ports)
            if len(flows) <= MOST_FLOWS:
                if len(self) >= MOST_KNOWN:
                    self.clear()
                self[flows] = rates
        return rates


class WeightedFair(Fair):
    """Flows share bandwidth, some of them for several.

    Attributes:
        ends: how many instants have ended, which all images have in common.
    """

    def __init__(self, env: Environment, *, urgent: bool) -> None:
        super().__init__(env)
        self._urgent = urgent
        self.solve = KnownRates().of
        self.ends = 0

    def flow(self, hops: tuple[Hop, ...], put: Put, rows: Rows | None, priority: int = 0) -> WeightedFlow:
        """Open a flow over these hops, whose messages are recorded in these rows."""
        flow = WeightedFlow(self, hops, put, rows)
        flow.priority = priority if self._urgent else 0
        return flow

    def _end(self, booking: Booking) -> None:
        self.ends += 1
        super()._end(booking)
