"""Whether members of a group may stand for others in a collective: the conditions that one registers as `images`.

A folded run simulates some members, and takes the others, their images, to do the same at the same time. An image puts
every member into another place of the group, or into the group of another part of the model. A ring looks the same from
all of its places, and so does an exchange of halves; what is left to check is that all send the same amount.
"""

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.buffer import Buffer, shares_of
from hybrid_des.collectives.group import seats


class Permutation(NamedTuple):
    """How an image seats the members of a group.

    Attributes:
        places: the place of each member's image.
        nodes: a number for each member, equal for those on one node.
        image_nodes: in the group of the images, the number at each place.
        buffers: those of a member, one for each of their sizes.
        rings: the channels of the group, each an order of places; none: one in the order of places.
        image_rings: those of the group of the images.
        tuned: what the collective knows about the wiring of the group.
    """

    places: NDArray[np.int64]
    nodes: Sequence[int]
    image_nodes: Sequence[int]
    buffers: Sequence[Buffer]
    rings: Sequence[Sequence[int]] = ()
    image_rings: Sequence[Sequence[int]] = ()
    tuned: Any = None


Images = Callable[[Permutation, Any], str]  # how the members differ, in words; empty if they do the same


def rotation(places: NDArray[np.int64]) -> int | None:
    """The number of places by which every place is rotated; None if it is not the same for all."""
    turned = (places - np.arange(len(places))) % len(places)
    return int(turned[0]) if (turned == turned[0]).all() else None


def exchange(places: NDArray[np.int64]) -> int | None:
    """The number that every place is exchanged by (xor); None if it is not the same for all."""
    changed = places ^ np.arange(len(places))
    return int(changed[0]) if (changed == changed[0]).all() else None


def in_place(permutation: Permutation) -> bool:
    """Whether every member keeps its place, in a group with as many members on each node, in the same order."""
    kept = (permutation.places == np.arange(len(permutation.places))).all()
    return bool(kept) and _shared(permutation.nodes) == _shared(permutation.image_nodes)


def _shared(nodes: Sequence[int]) -> list[int]:
    """For each place, the first one on the same node."""
    first: dict[int, int] = {}
    return [first.setdefault(node, place) for place, node in enumerate(nodes)]


def differing(elements: int, pieces: int, turn: int) -> str:
    """How pieces of `elements` elements that are `turn` places apart differ in size, in words; empty if they do not."""
    if turn % (pieces // gcd(pieces, elements)):
        return f"the {pieces} pieces of {elements:,} gradients differ in size (gradients.pad makes them equal)"
    return ""


def around(permutation: Permutation, options: Any = None) -> str:
    """Rings, in each of which every member owns a piece of an equal part of the buffer."""
    if len(permutation.rings) != len(permutation.image_rings):
        return f"they reduce over {len(permutation.rings)} and {len(permutation.image_rings)} channels"
    members, channels = len(permutation.places), len(permutation.rings) or 1
    images = channel_images(permutation.places, permutation.rings, permutation.image_rings)
    if images is None or not _in_same_order(permutation, [image for image, _ in images]):
        return "the members of a ring are not rotated by the same number of places"
    for buffer in permutation.buffers:
        shares = shares_of(buffer.elements, members, channels)
        for number, (image, turn) in enumerate(images):
            if shares[number] != shares[image]:
                return f"the {channels} channels of {buffer.elements:,} gradients differ in size"
            if differing(shares[number], members, turn):
                return differing(buffer.elements, members, turn)
    return ""


def channel_images(
    places: NDArray[np.int64], rings: Sequence[Sequence[int]], image_rings: Sequence[Sequence[int]]
) -> list[tuple[int, int]] | None:
    """For each channel, the one that its image is, and by how many places that is rotated; None if it is none.

    If places are rotated within every node, a ring that leaves it through one adapter becomes one that leaves it
    through the next. Arguments as in `Permutation`.
    """
    whole = np.arange(len(places))[np.newaxis]
    here, others = (np.asarray(each) if len(each) else whole for each in (rings, image_rings))
    moved, known = places[here], dict[bytes, list[int]]()
    for number, ring in enumerate(others):
        known.setdefault(_from_first(ring), []).append(number)
    positions = np.argsort(others, axis=1)  # of each place in each ring
    images: list[tuple[int, int]] = []
    for number, ring in enumerate(moved):
        taken = {image for image, _ in images}
        free = [one for one in known.get(_from_first(ring), ()) if one not in taken]
        turns = [(one, int(positions[one, ring[0]])) for one in free]
        if not turns:
            return None
        images.append(min(turns, key=lambda image: (image[0] != number, image[1] != 0)))
    return images


def _in_same_order(permutation: Permutation, images: Sequence[int]) -> bool:
    """Whether the image of every member serves the images of its channels in the same order (`Group.in_turn`)."""
    if len(images) == 1:
        return True
    here, there = (
        np.argsort(np.argsort(rings, axis=1) if len(set(nodes)) > 1 else np.zeros_like(rings), axis=0, kind="stable")
        for rings, nodes in (
            (permutation.rings, permutation.nodes), (permutation.image_rings, permutation.image_nodes),
        )
    )  # fmt: skip
    return bool((np.asarray(images)[here] == there[:, permutation.places]).all())


def _from_first(ring: NDArray[np.int64]) -> bytes:
    """A ring from its place 0 on: the same for rings in the same order."""
    places, first = ring.tobytes(), int(np.argmin(ring)) * ring.itemsize
    return places[first:] + places[:first]


def along_rings(permutation: Permutation) -> str:
    """Members whose roles depend on their places in the rings of channels, as in a tree that begins with the first."""
    if in_place(permutation):
        return ""
    images = channel_images(permutation.places, permutation.rings, permutation.image_rings)
    if images is None or any(turn for _, turn in images):
        return "the members of a tree do not all do the same"
    return around(permutation)


def at_switches(permutation: Permutation, pieces: Callable[[Buffer], int]) -> str:
    """Members of nodes whose switches sum a piece of each segment for each member, and perhaps over nodes.

    Images may leave members where they are, or exchange those of every node alike.

    Args:
        permutation: how members are seated.
        pieces: the number of pieces of a buffer, of which each segment has as many as a node has members.
    """
    if in_place(permutation):
        return ""
    here, there = (np.array(seats(nodes)[1]) for nodes in (permutation.nodes, permutation.image_nodes))
    there, first = there[permutation.places], here[:, 0] == 0
    exchanged = there[first, 1]  # of the first node, whose members are in order
    if list(permutation.nodes) != list(permutation.image_nodes) or (here[:, 0] != there[:, 0]).any():
        return "the nodes whose switches add do not all do the same"
    if (there[:, 1] != exchanged[here[:, 1]]).any():
        return "the members of several nodes are not permuted in the same way"
    for buffer in permutation.buffers:
        count = pieces(buffer)
        if buffer.elements % count:
            return f"the {count} pieces of {buffer.elements:,} gradients differ in size"
    return ""


def any_order(permutation: Permutation, options: Any = None) -> str:
    """Every member does the same, wherever it is."""
    return ""


def in_pairs(permutation: Permutation, options: Any = None) -> str:
    """Whole buffers between partners at distances that are powers of two."""
    members = len(permutation.places)
    if members & (members - 1):
        return f"of {members} members, no power of two, some have a guest"
    return "" if exchange(permutation.places) is not None else "partners are not shifted by the same number of places"


def differing_buckets(permutation: Permutation, turn: int) -> str:
    """How pieces of a bucket, one per member, differ in size if `turn` places apart; empty if they do not."""
    members = len(permutation.places)
    return next(filter(None, (differing(buffer.elements, members, turn) for buffer in permutation.buffers)), "")
