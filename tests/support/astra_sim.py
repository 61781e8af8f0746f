"""The rules by which ASTRA-sim carries out execution traces, in a few lines that share nothing with the package.

A GPU has one computation under way, and one send or collective; receives wait for their message. Of the nodes that
are ready, the one with the lowest number goes first (astra-sim, workload/HardwareResource.cc and Workload.cc). What
ends at one time: computation before messages before collectives. Messages share nothing: each takes latency + size /
bandwidth (its congestion-unaware network), and a ring all-reduce of n ranks 2(n − 1) such steps of a part.
"""

import heapq
from collections import Counter
from itertools import count

COMPUTATION, MESSAGE, COLLECTIVE = range(3)
SLOTS = {"computation": COMPUTATION, "send": MESSAGE, "collective": MESSAGE}


class AstraSim:
    """One step of traces; times are picoseconds."""

    def __init__(self, traces, latency, bandwidth):
        self._traces, self._latency, self._bandwidth = traces, latency, bandwidth
        self._of = [{node.id: node for node in trace.nodes} for trace in traces]
        self._left = [{node.id: len({*node.needs}) for node in trace.nodes} for trace in traces]
        self._ready = [{number for number, left in one.items() if not left} for one in self._left]
        self._busy = [set() for _ in traces]  # the slots of each rank
        self._sent, self._expected, self._here = set(), {}, {}  # messages that arrived, are waited for; collectives
        self._calls = [Counter() for _ in traces]
        self._events, self._number, self._now = [], count(), 0

    def step(self):
        """When the last node ends."""
        for rank in range(len(self._traces)):
            self._issue(rank)
        while self._events:
            self._now, _, _, rank, number = heapq.heappop(self._events)
            self._end(rank, number)
        assert not any(any(left.values()) for left in self._left)
        return self._now

    def _at(self, time, kind, rank, number):
        heapq.heappush(self._events, (time, kind, next(self._number), rank, number))

    def _wire(self, size):
        return self._latency + size * 10**12 // self._bandwidth

    def _end(self, rank, number):
        node = self._of[rank][number]
        self._busy[rank].discard(SLOTS.get(node.kind))
        for other in self._traces[rank].nodes:
            if number in other.needs:
                self._left[rank][other.id] -= 1
                if not self._left[rank][other.id]:
                    self._ready[rank].add(other.id)
        if node.kind == "send":
            message = rank, node.peer, node.tag
            self._sent.add(message)
            if message in self._expected:
                self._end(node.peer, self._expected.pop(message))
        self._issue(rank)

    def _issue(self, rank):
        for number in sorted(self._ready[rank]):
            node = self._of[rank][number]
            slot = SLOTS.get(node.kind)
            if slot in self._busy[rank]:
                continue
            self._ready[rank].discard(number)
            self._busy[rank] |= {slot} - {None}
            if node.kind == "computation":
                self._at(self._now + node.duration, COMPUTATION, rank, number)
            elif node.kind == "send":
                self._at(self._now + self._wire(node.size), MESSAGE, rank, number)
            elif node.kind == "collective":
                self._join(rank, node)
            elif (message := (node.peer, rank, node.tag)) in self._sent:
                self._at(self._now, MESSAGE, rank, number)
            else:
                self._expected[message] = number

    def _join(self, rank, node):
        call = node.group, self._calls[rank][node.group]
        self._calls[rank][node.group] += 1
        here = self._here.setdefault(call, [])
        here.append((rank, node.id))
        members = len(self._traces[rank].groups[node.group])
        if len(here) == members:
            part = node.size if node.does == "all-gather" else node.size // members
            steps = (members - 1) * (2 if node.does == "all-reduce" else 1)
            for one in here:
                self._at(self._now + steps * self._wire(part), COLLECTIVE, *one)
