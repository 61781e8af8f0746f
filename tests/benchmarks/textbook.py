"""Ring all-reduce as a SimPy textbook would write it, over the routes of a scenario.

A process a message and link, a `Resource` a link, a `Store` a mailbox; nothing is shared with the program but the
wiring and the sizes, so that it is both what the simulator is measured against and what its result must equal.
"""

from __future__ import annotations

import simpy

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rate import rate_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.units import split_evenly


def ring(scenario: Scenario) -> tuple[int, int]:
    """All-reduce the gradients of one stage over all replicas: picoseconds it takes, and how many messages."""
    n = scenario.parallel.data
    sizes = [4 * elements for elements in split_evenly(int(scenario.workload.parameters), n)]
    network = Network(fabric_of(scenario), n)
    env = network.env

    def rank(me):
        for phase in (0, 1):
            for k in range(n - 1):
                env.process(network.cross(me, (me + 1) % n, sizes[(me + phase - k) % n]))
                yield network.mailboxes[me].get()

    env.run(until=env.all_of([env.process(rank(me)) for me in range(n)]))
    return int(env.now), 2 * n * (n - 1)


class Network:
    """The links and mailboxes of some ranks, and what has crossed a link."""

    def __init__(self, fabric: Fabric, ranks: int) -> None:
        self.env = simpy.Environment()
        self.fabric = fabric
        self.links = {name: simpy.Resource(self.env) for name in fabric.links}
        self.mailboxes = [simpy.Store(self.env) for _ in range(ranks)]
        self.timeline = []

    def cross(self, sender, receiver, size, hop=0, slowest=0, tail=0):
        """Occupy one link; the head goes on before the tail has come."""
        route, env = self.fabric.route(sender, receiver), self.env
        name, latency = route.links[hop], route.latencies[hop]
        last = hop + 1 == len(route.links)
        time = rate_of(self.fabric.links[name].bandwidth)[size]
        asked = env.now
        with self.links[name].request() as turn:
            yield turn
            start = env.now
            end = max(start + time, tail)
            if not last:
                slowest = max(slowest, time)
                head = end - slowest + latency
                env.process(self.follow(head, sender, receiver, size, hop + 1, slowest, end + latency))
            yield env.timeout(time)
        self.timeline.append((name, asked, start, env.now, size))
        if last:
            yield env.timeout(end + latency - env.now)
            yield self.mailboxes[receiver].put(size)

    def follow(self, at, *message):
        """Cross the next link, when the head has come to it."""
        yield self.env.timeout(at - self.env.now)
        yield from self.cross(*message)
