"""First in, first out: a link takes messages in the order in which their heads arrive, one at a time.

    head arrives ──► start = max(head, free) ──► free = start + bytes/bandwidth
    through at end = max(free, tail's arrival);  the head is at the next link at end − slowest so far + latency

so a message over equal links is cut through (bytes/bandwidth counted once), and a faster link further on is not
held by a slow sender. Cost: no event at the first link, one at each further link, one for a waiting receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

from simpy.events import NORMAL, Event

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.recorder import Rows
from hybrid_des.network.link import Hop
from hybrid_des.network.message import Message
from hybrid_des.network.sharing import Put, sharing


class Head(Event):
    """The head of a message on its way to the next link."""

    _ok = True
    _value = None

    def __init__(self, flow: FifoFlow, hop: int, at: int, tail: int, slowest: int, message: Message, tag: int) -> None:
        self.hop = hop
        self.tail = tail
        self.slowest = slowest
        self.message = message
        self.tag = tag
        self.callbacks = flow.on_head  # shared: nobody else waits for a head
        env = flow.env
        heappush(env._queue, (at, NORMAL, next(env._eid), self))


class FifoFlow:
    """One flow under `fifo`."""

    __slots__ = (
        "bytes",
        "env",
        "first",
        "hops",
        "label",
        "messages",
        "on_head",
        "put",
        "rows",
        "scales",
    )

    def __init__(self, env: Environment, hops: tuple[Hop, ...], put: Put, rows: Rows | None) -> None:
        self.env = env
        self.hops = hops
        self.put = put
        self.rows = rows
        self.on_head: list[Callable[[Any], None]] = [self._arrive]
        self.label = 0
        self.messages = 0
        self.bytes = 0
        self.scales = 0

    def send(self, message: Message, tag: int | None = None) -> None:
        """Hand a message to the first link; the sender goes on at once."""
        if tag is None:
            tag = self.label
        size = message.size
        self.messages += 1
        self.bytes += size
        self.scales += message.scales
        link, latency, channel = self.hops[0]
        now = self.env._now
        start = link.free
        if start < now:
            start = now
        time = link.times[size]
        end = link.free = start + time
        if (rows := self.rows) is not None:
            rows.write(rows.pack(channel, tag, now, start, end, size))
        if len(self.hops) == 1:
            self.put(message, tag, end + latency)
        else:
            Head(self, 1, start + latency, end + latency, time, message, tag)

    def _arrive(self, head: Head) -> None:
        """Serve a head at a further link, and send it on or hand the message over."""
        message = head.message
        link, latency, channel = self.hops[head.hop]
        now = self.env._now
        start = link.free
        if start < now:
            start = now
        time = link.times[message.size]
        end = link.free = start + time
        if (rows := self.rows) is not None:
            rows.write(rows.pack(channel, head.tag, now, start, end, message.size))
        if end < head.tail:
            end = head.tail
        if head.hop + 1 == len(self.hops):
            self.put(message, head.tag, end + latency)
        else:
            slowest = time if time > head.slowest else head.slowest
            Head(self, head.hop + 1, end - slowest + latency, end + latency, slowest, message, head.tag)


@sharing("fifo")
class Fifo:
    """Links serve one message at a time, in order."""

    def __init__(self, env: Environment, rows: Rows | None) -> None:
        self._env = env
        self._rows = rows

    def flow(self, hops: tuple[Hop, ...], put: Put) -> FifoFlow:
        """Open a flow over these hops."""
        return FifoFlow(self._env, hops, put, self._rows)
