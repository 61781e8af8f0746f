"""Uncontended: every message has its links to itself, however many others are on them.

No network does this. Runs under it show what queueing costs; scenarios cannot choose it.
"""

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Rows
from hybrid_des.network.link import Hop
from hybrid_des.network.message import Message
from hybrid_des.network.sharing import Flow, Put, sharing
from hybrid_des.network.sharing.fifo import Fifo


class FreeFlow(Flow):
    """One flow of messages that never wait."""

    __slots__ = ("env", "latency")

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        super().__init__(hops, put, rows)
        self.env = env
        self.latency = sum(hop.latency for hop in hops)

    def send(self, message: Message, tag: int | None = None) -> None:
        """Let a message arrive after its latency and its time on the slowest link."""
        if tag is None:
            tag = self.label
        size = message.size
        self.messages += 1
        self.bytes += size
        self.scales += message.scales
        now = self.env.now
        end = now + max(hop.link.rate[size] for hop in self.hops)
        if self.rows is not None:
            for hop in self.hops:
                self.rows.add((hop.channel, tag, now, now, end, size))
        self.put(message, tag, end + self.latency)


@sharing("uncontended")
class Uncontended(Fifo):
    """Links serve all messages at once, each at the full rate."""

    def flow(self, hops: tuple[Hop, ...], put: Put) -> FreeFlow:
        """Open a flow over these hops."""
        return FreeFlow(self._env, hops, put, self._rows)
