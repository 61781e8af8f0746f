"""Which images of a group's members do the same in a collective: conditions that a collective registers as `images`.

An image seats every member at a place in the group, its own or that of another part of the model. A ring looks the
same to all of its members, and so does an exchange of halves; what is left to check is that they send the same amount.
"""

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.collectives.buffer import Buffer, shares_of


class Permutation(NamedTuple):
    """How an image seats the members of a group.

    Attributes:
        places: the place of each member's image.
        nodes: the node of each member.
        image_nodes: in the group of the images, the node at each place.
        buffers: those of a member, one per bucket.
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
    sizes = [(buffer.elements, shares_of(buffer.elements, members, channels)) for buffer in permutation.buffers]
    whole = [np.arange(members)]
    for number, (ring, image) in enumerate(
        zip(permutation.rings or whole, permutation.image_rings or whole, strict=True)
    ):
        place_in = np.argsort(np.asarray(image))  # of a member of the image's group
        turn = rotation(place_in[permutation.places[np.asarray(ring)]])
        if turn is None:
            return "the members of a ring are not rotated by the same number of places"
        for elements, shares in sizes:
            if differing(shares[number], members, turn):
                return differing(elements, members, turn)
    return ""


def any_order(permutation: Permutation, options: Any = None) -> str:
    """Every member does the same, wherever it is."""
    return ""


def in_pairs(permutation: Permutation, options: Any = None) -> str:
    """Whole buffers between partners at distances that are powers of two."""
    members = len(permutation.places)
    if members & (members - 1):
        return f"of {members} members, no power of two, some have a guest"
    return "" if exchange(permutation.places) is not None else "partners are not exchanged by the same number of places"


def differing_buckets(permutation: Permutation, turn: int) -> str:
    """How pieces of a bucket, one per member, differ in size if `turn` places apart; empty if they do not."""
    members = len(permutation.places)
    return next(filter(None, (differing(buffer.elements, members, turn) for buffer in permutation.buffers)), "")
