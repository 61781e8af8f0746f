"""Max-min fair, over links whose bandwidth varies: rates are solved again when it changes.

A change is booked only while a flow is on its link and no flow of the component drains before it; a flow on a link at
factor 0 has rate 0 and does not drain until the next change.
"""

from collections.abc import Mapping

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import succeed_at
from hybrid_des.engine.recorder import Rows
from hybrid_des.network.conditions import Conditions
from hybrid_des.network.fabric import LinkSpec
from hybrid_des.network.link import Hop, Transmission
from hybrid_des.network.message import Message
from hybrid_des.network.rate import Rate
from hybrid_des.network.sharing import Put, varying
from hybrid_des.network.sharing.fair import NEVER, TICK, Fair, FairFlow, Instant, SharedLink
from hybrid_des.network.sharing.max_min import Port, connected


class VaryingPort(Port):
    """A link of finite bandwidth that varies.

    Attributes:
        usual: its capacity at factor 1.
        conditions: its state over time.
    """

    __slots__ = ("conditions", "usual")

    def __init__(self, usual: int, conditions: Conditions) -> None:
        super().__init__(usual)
        self.usual = usual
        self.conditions = conditions


class VaryingSharedLink(SharedLink):
    """A link that flows share, at a bandwidth that varies."""

    __slots__ = ("conditions",)

    def __init__(self, model: Fair, spec: LinkSpec, rate: Rate, conditions: Conditions) -> None:
        super().__init__(model, spec, rate)
        self.conditions = conditions
        if self.port is not None:
            self.port = VaryingPort(self.port.capacity, conditions)

    def _do_put(self, event: Transmission) -> bool:
        """Send a transmission; its time of arrival is known when it has drained."""
        self.put_queue.remove(event)  # it is under way

        def put(message: Message, tag: int, at: int) -> None:
            succeed_at(self.env, event, at)

        VaryingFairFlow(self.model, (Hop(self, self.latency, 0),), put, None).send(Message(event.size))
        return False


class VaryingFairFlow(FairFlow):
    """One flow over links, some of which vary.

    Attributes:
        deliver: called with a message and its time of arrival.
        reached: when the last message arrived.
    """

    __slots__ = ("conditions", "deliver", "reached")

    def __init__(self, model: Fair, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(model, hops, self._hand, rows)
        self.deliver, self.reached = put, 0
        self.conditions = [hop.link.conditions for hop in hops if isinstance(hop.link, VaryingSharedLink)]

    def turn(self, rate: int, tick: int) -> None:
        """Drain at a new rate from a tick on; at rate 0, never."""
        if rate:
            super().turn(rate, tick)
            return
        if tick > self.since and self.start != self.model.env.now:
            self.remaining -= self.rate * (tick - self.since)
            self.since = tick
        self.rate, self.drains = 0, NEVER

    def _begin(self, message: Message, tag: int, asked: int, since: int) -> None:
        """Start draining a message at the rate to be solved, even if the flow is alone."""
        if not self.ports:  # it takes no time
            super()._begin(message, tag, asked, since)
            return
        self.message, self.tag, self.asked = message, tag, asked
        self.start, self.since = self.model.env.now, since
        self.remaining = self.times[message.size] * self.full
        self._wait(self.ports[0])

    def _hand(self, message: Message, tag: int, at: int) -> None:
        """Hand a message over with the current latency; it does not overtake earlier messages."""
        now = self.model.env.now
        self.reached = max(self.reached, at + sum(one.delay(now) for one in self.conditions))
        self.deliver(message, tag, self.reached)


@varying("fair")
class VaryingFair(Fair):
    """Flows share bandwidth, which varies on links with conditions."""

    def __init__(self, env: Environment, rows: Rows | None, conditions: Mapping[str, Conditions]) -> None:
        super().__init__(env, rows)
        self._conditions = conditions
        self._changes: dict[int, list[VaryingPort]] = {}

    def link(self, spec: LinkSpec, rate: Rate) -> SharedLink:
        """Make a link."""
        conditions = self._conditions.get(spec.name)
        return super().link(spec, rate) if conditions is None else VaryingSharedLink(self, spec, rate, conditions)

    def flow(self, hops: tuple[Hop, ...], put: Put) -> FairFlow:
        """Open a flow over these hops."""
        if not any(isinstance(hop.link, VaryingSharedLink) for hop in hops):
            return super().flow(hops, put)
        return VaryingFairFlow(self, hops, put, self._rows)

    def _end(self, instant: Instant) -> None:
        now = self.env.now
        for port in self._changes.pop(now, ()):
            self.left.append((port, now << TICK))
        super()._end(instant)

    def _solve(self, port: Port) -> None:
        """Find the rates of all flows of a port's component, and book what happens next: a drain or a change."""
        now = self.env.now
        flows, ports = connected(port, self._solutions)
        varies = [port for port in ports if isinstance(port, VaryingPort)]
        for one in varies:
            one.capacity = int(one.usual * one.conditions.bandwidth.factor(now))
        self._turn(flows, ports)
        drains = [flow.drains for flow in flows if flow.drains != NEVER]
        first = min(drains, default=None)
        if first is not None:
            self.end_of(first).flows.extend(flow for flow in flows if flow.drains == first)
        for one in varies:
            change = one.conditions.bandwidth.next_change(now)
            if one.flows and change is not None and (first is None or change < first):
                self.end_of(change)
                self._changes.setdefault(change, []).append(one)
