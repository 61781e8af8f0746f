"""Ring all-reduce as a SimPy textbook would write it, over the routes of a scenario.

A process a message and link, a `Resource` a link, a `Store` a mailbox; nothing is shared with the program but the
wiring and the sizes, so that it is both what the simulator is measured against and what its result must equal.
"""

from __future__ import annotations

import simpy

from hybrid_des.network.rate import rate_of
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.wiring import fabric_of
from hybrid_des.units import split_evenly


def ring(scenario: Scenario) -> tuple[int, int]:
    """All-reduce the gradients of one stage over all replicas: picoseconds it takes, and how many messages."""
    n = scenario.parallel.data
    sizes = [4 * elements for elements in split_evenly(int(scenario.workload.parameters), n)]
    fabric = fabric_of(scenario)
    env = simpy.Environment()
    links = {name: simpy.Resource(env) for name in fabric.links}
    mailboxes = [simpy.Store(env) for _ in range(n)]
    timeline = []

    def cross(sender, receiver, size, hop, slowest, tail):
        """Occupy one link; the head goes on before the tail has come."""
        route = fabric.route(sender, receiver)
        name, latency = route.links[hop], route.latencies[hop]
        time = rate_of(fabric.links[name].bandwidth)[size]
        asked = env.now
        with links[name].request() as turn:
            yield turn
            start = env.now
            end = max(start + time, tail)
            last = hop + 1 == len(route.links)
            if not last:
                env.process(
                    follow(
                        end - max(slowest, time) + latency,
                        sender,
                        receiver,
                        size,
                        hop,
                        max(slowest, time),
                        end + latency,
                    )
                )
            yield env.timeout(time)
        timeline.append((name, asked, start, env.now, size))
        if last:
            yield env.timeout(end + latency - env.now)
            yield mailboxes[receiver].put(size)

    def follow(at, sender, receiver, size, hop, slowest, tail):
        yield env.timeout(at - env.now)
        yield from cross(sender, receiver, size, hop + 1, slowest, tail)

    def rank(me):
        for phase in (0, 1):
            for k in range(n - 1):
                env.process(cross(me, (me + 1) % n, sizes[(me + phase - k) % n], 0, 0, 0))
                yield mailboxes[me].get()

    ranks = [env.process(rank(me)) for me in range(n)]
    env.run(until=env.all_of(ranks))
    return int(env.now), 2 * n * (n - 1)
