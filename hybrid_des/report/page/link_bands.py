"""Links by kind, and which of them carry the collectives inside ops, which a page draws there as it does in their ops.

    band       all links of one kind, such as NVLink: a page shows their mean use until they are unfolded
    carriers   of a rank and an axis: the links to and from the next rank of its group, and across nodes where it
               spans several

Replayed collectives take no messages; which links are theirs follows from the routes between the ranks of a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hybrid_des.analysis.counterfactual.what_if import link_kind
from hybrid_des.analysis.verdict import SHARE_NAMES
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.errors import HybridDesError

NAMES = {"nvlink": "NVLink", "nic": "NIC", "pcie": "PCIe"}


def bands_of(
    lanes: Sequence[dict[str, Any]],
    fabric: Fabric | None,
    replayed: Mapping[str, Sequence[Sequence[int]]],
    numbers: Mapping[str, int],
    hidden: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The bands of a page; a lane of links gets the number of its band, and the lane of ranks whose collectives it has.

    Args:
        lanes: of ranks and of links.
        fabric: routes between ranks; without, links carry messages only.
        replayed: axis → groups of ranks whose collectives take no messages.
        numbers: axis → the number of the kind of bar of its collectives inside ops, where any are exposed.
        hidden: axes of which collectives inside ops are hidden by computation, and so not drawn.
    """
    links = [lane for lane in lanes if lane["group"] == "link"]
    axes: dict[str, dict[str, None]] = {link_kind(lane["name"]): {} for lane in links}
    numbered = {
        rank: number
        for number, lane in enumerate(lanes)
        if lane["group"] == "rank"
        for rank in (lane["rank"], *lane["also"])
    }
    carried: dict[str, int] = {}
    for axis in dict.fromkeys((*numbers, *hidden)) if fabric is not None else ():
        for group in replayed[axis]:
            for rank in numbered.keys() & set(group):
                for link in carriers(fabric, rank, group):
                    carried.setdefault(link, numbered[rank])
                    axes.setdefault(link_kind(link), {})[axis] = None
    places = {kind: place for place, kind in enumerate(axes)}
    for lane in links:
        lane["band"] = places[link_kind(lane["name"])]
        known = [carried[name] for name in (lane["name"], *lane["also"]) if name in carried]
        if known:  # links with the same messages are of ranks that do the same
            lane["inside"] = known[0]
    return [
        {
            "name": NAMES.get(kind, kind),
            "inside": [numbers[axis] for axis in of_kind if axis in numbers],
            "hidden": [SHARE_NAMES[axis] for axis in of_kind if axis in hidden],
        }
        for kind, of_kind in axes.items()
    ]


def carriers(fabric: Fabric | None, rank: int, group: Sequence[int]) -> Iterator[str]:
    """The links of a rank that carry the collectives of its group: the first of each kind on its routes."""
    if fabric is None or len(group) < 2:
        return
    node = fabric.node_of[rank]
    beyond = next((other for other in group if fabric.node_of[other] != node), None)
    after = group[(list(group).index(rank) + 1) % len(group)]
    for partner in dict.fromkeys(other for other in (after, beyond) if other is not None):
        try:
            ways = fabric.route(rank, partner).links, fabric.route(partner, rank).links[::-1]
        except HybridDesError:  # wires that the user gives may lack a route
            continue
        for way in ways:
            yield from {link_kind(link): link for link in reversed(way)}.values()
