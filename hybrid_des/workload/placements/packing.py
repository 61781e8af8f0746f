"""Packing experts and their copies on ranks, greedily by load, as EPLB does (deepseek-ai/EPLB, README).

    groups ──► nodes       so that nodes serve about as many tokens: experts of a group stay together
    copies ──► experts     each to the expert with the most tokens per copy, node by node
    copies ──► ranks       the one with the most tokens first, each on the rank of the node with the fewest so far

Where groups cannot be divided over nodes, or nodes have unequal numbers of ranks, all ranks are one node.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_des.units import grouped_by
from hybrid_des.workload.placements.registration import Placement, Wanted


def packed(weights: Sequence[float], packs: int) -> list[list[int]]:
    """Items in packs of equal numbers: the heaviest first, each in the lightest pack that has room."""
    room = len(weights) // packs
    held: list[list[int]] = [[] for _ in range(packs)]
    if room == 1:
        return [[item] for item in range(packs)]
    heavy = [0.0] * packs
    for item in sorted(range(len(weights)), key=lambda item: -weights[item]):
        pack = min((pack for pack in range(packs) if len(held[pack]) < room), key=heavy.__getitem__)
        held[pack].append(item)
        heavy[pack] += weights[item]
    return held


def copied(weights: Sequence[float], slots: int) -> list[int]:
    """The item in each of so many slots: every item once, then copies of the one with the most weight per copy."""
    counts, chosen = [1] * len(weights), list(range(len(weights)))
    while len(chosen) < slots:
        most = max(chosen[: len(weights)], key=lambda item: weights[item] / counts[item])
        counts[most] += 1
        chosen.append(most)
    return chosen


def spread(wanted: Wanted, slots: int) -> Placement:
    """Experts in so many slots, which are divided evenly over the ranks."""
    loads, groups = wanted.loads, wanted.groups
    on = list(grouped_by(range(len(wanted.nodes)), wanted.nodes.__getitem__).values())
    if groups % len(on) or len({len(ranks) for ranks in on}) > 1:
        groups, on = 1, [list(range(len(wanted.nodes)))]
    size = len(loads) // groups
    of_groups = [sum(loads[group * size : (group + 1) * size]) for group in range(groups)]
    held: dict[int, tuple[int, ...]] = {}
    for ranks, mine in zip(on, packed(of_groups, len(on)), strict=True):
        experts = [group * size + number for group in mine for number in range(size)]
        own = [loads[expert] for expert in experts]
        chosen = copied(own, slots // len(on))
        counts = [chosen.count(item) for item in range(len(experts))]
        shares = [own[item] / counts[item] for item in chosen]
        for rank, placed in zip(ranks, packed(shares, len(ranks)), strict=True):
            held[rank] = tuple(experts[chosen[slot]] for slot in placed)
    return tuple(held[rank] for rank in range(len(wanted.nodes)))
