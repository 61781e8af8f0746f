"""Whether GPUs are wired alike, so that the same happens to their flows at the same times.

Two groups are connected alike if their routes have one canonical form: links numbered as they appear, with bandwidths
and latencies. Where the wiring declares equal blocks, groups that differ by an exchange of blocks need no such look.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from hybrid_des.network.fabric import Fabric


class Connection(NamedTuple):
    """Messages from one GPU to another; `what` distinguishes flows between the same two."""

    sender: int
    receiver: int
    what: str | int = ""


def links_of(fabric: Fabric, flows: Iterable[Connection]) -> set[str]:
    """The links on the routes of flows."""
    return {link for flow in flows for link in fabric.route(flow.sender, flow.receiver).links}


def around(ring: Sequence[int], what: str | int = "") -> list[Connection]:
    """The flows around a ring."""
    return [Connection(*ends, what) for ends in pairwise([*ring, ring[0]])]


def signature(fabric: Fabric, flows: Iterable[Connection]) -> tuple[Any, ...]:
    """The canonical form of routes: equal if the same flows share equal links in the same way."""
    names: dict[str, int] = {}
    routes = []
    for flow in flows:
        route = fabric.route(flow.sender, flow.receiver)
        hops = ((names.setdefault(name, len(names)), fabric.links[name].bandwidth) for name in route.links)
        routes.append((*hops, *route.latencies))
    return tuple(routes)


def in_blocks(fabric: Fabric, gpus: Iterable[int]) -> tuple[tuple[int, int], ...] | None:
    """The canonical form of GPUs under exchanges of equal blocks; None if the wiring has none."""
    if fabric.blocks is None:
        return None
    blocks: dict[int, int] = {}
    places = (divmod(gpu, fabric.blocks.size) for gpu in gpus)
    return tuple((blocks.setdefault(block, len(blocks)), place) for block, place in places)


def distinct(fabric: Fabric, groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The first of each set of groups whose rings are connected alike."""
    seen: dict[Any, Sequence[int]] = {}
    for group in groups:
        seen.setdefault(in_blocks(fabric, group) or tuple(group), group)
    found: dict[Any, Sequence[int]] = {}
    for group in seen.values():
        found.setdefault(signature(fabric, around(group)), group)
    return list(found.values())


def alike(fabric: Fabric, images: Mapping[Connection, Connection]) -> bool:
    """Whether every flow shares its links just as its image does.

    That is so if each link has one counterpart of the same bandwidth, and the images of the flows on it are distinct
    and exactly those on the counterpart. Flows that send at the same times as their images then stay alike.
    """
    counterpart: dict[str, str] = {}
    carried: dict[str, list[Connection]] = {}
    of_images: dict[str, set[Connection]] = {}
    for image in set(images.values()):
        for link in fabric.route(image.sender, image.receiver).links:
            of_images.setdefault(link, set()).add(image)
    for flow, image in images.items():
        route, other = fabric.route(flow.sender, flow.receiver), fabric.route(image.sender, image.receiver)
        if route.latencies != other.latencies:
            return False
        for link, same in zip(route.links, other.links, strict=True):
            equal = fabric.links[link].bandwidth == fabric.links[same].bandwidth
            if not equal or counterpart.setdefault(link, same) != same:
                return False
            carried.setdefault(link, []).append(image)
    return all(
        len(set(flows)) == len(flows) and set(flows) == of_images[counterpart[link]] for link, flows in carried.items()
    )
