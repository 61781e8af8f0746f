"""Whether GPUs are wired alike, so that the same happens to their flows at the same times.

Two groups are connected alike if their routes have one canonical form: links numbered as they appear, with bandwidths
and latencies. Where the wiring declares equal blocks, groups that differ by an exchange of blocks need no such look.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from hybrid_des.cluster.connections import Connection, around, in_blocks, signature
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.rings import channels
from hybrid_des.layout import Layout


def nonisomorphic(fabric: Fabric, groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The first of each set of groups whose rings are connected alike."""
    seen: dict[Hashable, Sequence[int]] = {}
    for group in groups:
        seen.setdefault(in_blocks(fabric, group) or tuple(group), group)
    by_signature: dict[Any, Sequence[int]] = {}
    for group in seen.values():
        by_signature.setdefault(signature(fabric, flows_of(fabric, group)), group)
    return list(by_signature.values())


def nonisomorphic_along(fabric: Fabric, layout: Layout, axis: str) -> list[Sequence[int]]:
    """The same of the groups along an axis, found once."""
    key = axis, tuple(layout.sizes.items()), tuple(layout.order), layout.expert, layout.expert_tensor
    return fabric.once(key, lambda: nonisomorphic(fabric, layout.groups(axis)))


def flows_of(fabric: Fabric, group: Sequence[int]) -> list[Connection]:
    """The flows around a group, and around its channels where they depend on which of its GPUs are linked."""
    rings = channels(fabric, group, tuned=True) if fabric.linked else []
    return [flow for ring in (group, *rings) for flow in around(ring)]


def isomorphic(fabric: Fabric, images: Mapping[Connection, Connection]) -> bool:
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
            known = counterpart.get(link)
            if known is None:
                if fabric.links[link].bandwidth != fabric.links[same].bandwidth:
                    return False
                counterpart[link], carried[link] = same, []
            elif known != same:
                return False
            carried[link].append(image)
    return all(
        len(set(flows)) == len(flows) and set(flows) == of_images[counterpart[link]] for link, flows in carried.items()
    )
