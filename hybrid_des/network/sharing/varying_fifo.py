"""First in, first out, over links whose bandwidth varies: service time is integrated over the timetable.

    head arrives ──► start = max(head, free, end of a flap) ──► free: when ∫ factor dt = bytes/bandwidth

A message in service continues at the new bandwidth when it changes, and after a flap. The head waits at a link for the
end of a flap; its latency is the one at the moment it leaves the link, and it does not overtake earlier heads.
"""

from collections.abc import Mapping

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import succeed_at
from hybrid_des.engine.recorder import Rows
from hybrid_des.network.conditions import Conditions
from hybrid_des.network.fabric import LinkSpec
from hybrid_des.network.link import Hop, Link, Transmission
from hybrid_des.network.message import Message
from hybrid_des.network.rate import Rate
from hybrid_des.network.sharing import Flow, Put, varying
from hybrid_des.network.sharing.fifo import Fifo, FifoFlow, Head


class VaryingLink(Link):
    """A link that serves in order, at a bandwidth that varies.

    Attributes:
        conditions: its state over time.
    """

    __slots__ = ("conditions",)

    def __init__(self, env: Environment, spec: LinkSpec, rate: Rate, conditions: Conditions) -> None:
        super().__init__(env, spec, rate)
        self.conditions = conditions

    def serve(self, size: int) -> tuple[int, int]:
        """Serve a message that arrives now, after all others; return the start and the end of its service."""
        bandwidth = self.conditions.bandwidth
        start = bandwidth.resumes(max(self.free, self.env.now))
        self.free = bandwidth.end(start, self.rate.exactly(size))
        return start, self.free

    def _do_put(self, event: Transmission) -> bool:
        """Serve a transmission after everything requested so far."""
        _, end = self.serve(event.size)
        succeed_at(self.env, event, end + self.latency + self.conditions.delay(end))
        return True


class VaryingFifoFlow(FifoFlow):
    """One flow over links, some of which vary."""

    __slots__ = ("reached",)

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(env, hops, put, rows)
        self.on_head = SERVE
        self.reached = [0] * len(hops)  # after each link: when the last message reached the next one or the receiver

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender continues immediately."""
        self.messages += 1
        self.bytes += message.size
        self.scales += message.scales
        self._serve(0, message, self.label if tag is None else tag, 0)

    @staticmethod
    def arrive(head: Head) -> None:
        """Serve a head at a further link."""
        assert isinstance(head.flow, VaryingFifoFlow)
        head.flow._serve(head.hop, head.message, head.tag, head.slowest)

    def _serve(self, hop: int, message: Message, tag: int, slowest: int) -> None:
        """Serve a head at a link, and send it on or hand the message over."""
        link, latency, channel = self.hops[hop]
        now, more = self.env.now, 0
        if isinstance(link, VaryingLink):
            start, end = link.serve(message.size)
        else:
            start = max(link.free, now)
            end = link.free = start + link.rate[message.size]
        if self.rows is not None:
            self.rows.add((channel, tag, now, start, end, message.size))
        slowest, end = max(slowest, end - start), max(end, now + slowest)
        last = hop + 1 == len(self.hops)
        leaves = end if last else end - slowest
        if isinstance(link, VaryingLink):
            more = link.conditions.delay(leaves)
        at = self.reached[hop] = max(self.reached[hop], leaves + latency + more)
        if last:
            self.put(message, tag, at)
        else:
            self._forward(hop + 1, at, slowest, message, tag)


SERVE = (VaryingFifoFlow.arrive,)


@varying("fifo")
class VaryingFifo(Fifo):
    """Links serve one message at a time, in order; those with conditions at a bandwidth that varies."""

    def __init__(self, env: Environment, rows: Rows | None, conditions: Mapping[str, Conditions]) -> None:
        super().__init__(env, rows)
        self._conditions = conditions

    def link(self, spec: LinkSpec, rate: Rate) -> Link:
        """Make a link."""
        conditions = self._conditions.get(spec.name)
        return super().link(spec, rate) if conditions is None else VaryingLink(self._env, spec, rate, conditions)

    def flow(self, hops: tuple[Hop, ...], put: Put) -> Flow:
        """Open a flow over these hops."""
        if not any(isinstance(hop.link, VaryingLink) for hop in hops):
            return super().flow(hops, put)
        return VaryingFifoFlow(self._env, hops, put, self._rows)
