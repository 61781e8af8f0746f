"""Sets of flows that do not interfere with each other, as no link that limits them is on routes of two sets.

    ring of channel 0    0 → 1 → … → 64 → …       by adapters 0: one set
    ring of channel 1    1 → 2 → … → 65 → …       by adapters 1: another, alike

Each does as it would alone, and those that are alike do the same at the same times. Unlike in `components`, where it is
not known which members send to each other, flows are given, and links that are infinitely fast join nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain

from hybrid_des.cluster.components import connected
from hybrid_des.cluster.connections import Connection, links_of, signature
from hybrid_des.cluster.fabric import Fabric


def flows_apart(
    fabric: Fabric, flows: Sequence[Sequence[Connection]], does: Sequence[Hashable]
) -> list[list[list[int]]]:
    """Divide groups of flows into sets that share no link that limits them; those that are alike are listed together.

    Groups have numbers. Alike sets are in the same order, group by group.

    Args:
        fabric: the wiring.
        flows: those of each group, in an order that is the same for groups that are alike.
        does: a value per group, equal for groups that send the same on their flows, in order.
    """
    users: dict[str, list[int]] = {}
    for number, of_group in enumerate(flows):
        for link in links_of(fabric, of_group):
            if fabric.links[link].bandwidth is not None:
                users.setdefault(link, []).append(number)
    alike: dict[Hashable, list[list[int]]] = {}
    for numbers in map(sorted, connected(users.values(), range(len(flows)))):
        wiring = signature(fabric, chain.from_iterable(flows[number] for number in numbers))
        key = tuple((does[number], len(flows[number])) for number in numbers), wiring
        alike.setdefault(key, []).append(numbers)
    return list(alike.values())
