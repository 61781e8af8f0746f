"""Which images of a group's members do the same in its collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hybrid_des import collectives
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.collectives.permutation import Permutation
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.symmetry import Element, Fold

RankArray = NDArray[np.int64]


Groups = Mapping[tuple[int, int, int], ProcessGroup]  # by stage, part and first rank


def check_images(
    fold: Fold,
    processes: ProcessGroup,
    buffers: Sequence[Buffer],
    options: collectives.Given,
    *,
    nodes: RankArray,
    groups: Groups,
) -> None:
    """Check that the images of a group are a group in which every member does the same.

    Args:
        fold: the images.
        processes: the group, its members in ascending order.
        buffers: those of a member, one per bucket.
        options: those of the collective.
        nodes: the node of each rank.
        groups: all groups.

    Raises:
        FoldRefusal: they are not; names how the members differ.
    """
    ranks = array_of(processes.ranks[: processes.size])
    for element in fold.generators:
        images, seats, image = _image(fold, element, ranks, processes, groups)
        of_nodes = nodes[ranks].tolist(), nodes[images].tolist()
        permutation = Permutation(seats, *of_nodes, buffers, processes.channels, image.channels, processes.tuned)
        if reason := collectives.asymmetry(processes.kind, permutation, options):
            here, there = int(ranks[0]), int(fold.move(int(ranks[0]), element))
            raise FoldRefusal(f"ranks {here} and {there}: {reason}")


def _image(
    fold: Fold, element: Element, ranks: RankArray, processes: ProcessGroup, groups: Groups
) -> tuple[RankArray, RankArray, ProcessGroup]:
    """The images of a group in ascending order, their seats in it, and the group that they form."""
    moved = fold.move(ranks, element)
    images = np.sort(moved)
    if (np.diff(ranks) <= 0).any():
        raise FoldRefusal(f"rank {int(ranks[0])} holds stage {processes.stage} twice")
    group: ProcessGroup | None = processes
    if (images != ranks).any():
        group = groups.get((processes.stage, processes.part, int(images[0])))
        members = () if group is None else group.ranks[: group.size]
        if len(members) != len(images) or (array_of(members) != images).any():
            raise FoldRefusal(f"ranks {int(moved[0])} and {int(moved[-1])} reduce gradients in different groups")
    assert group is not None
    return images, np.searchsorted(images, moved), group


def array_of(ranks: Sequence[int]) -> RankArray:
    """RankArray as an array."""
    return np.fromiter(ranks, dtype=np.int64, count=len(ranks))


def check_nodes(fold: Fold, nodes: RankArray, element: Element) -> None:
    """Check that an image of ranks on one node is on one node; otherwise their routes are rarely alike.

    Raises:
        FoldRefusal: they are not; names the first.
    """
    ranks = np.arange(len(nodes))
    firsts = np.empty(nodes.max() + 1, np.int64)
    firsts[nodes[::-1]] = ranks[::-1]  # of equal places, the last value stays
    first = firsts[nodes]  # rank of each rank's node
    images = fold.move(ranks, element)
    for rank in np.flatnonzero(nodes[images] != nodes[images[first]])[:1].tolist():
        here, there = int(first[rank]), int(images[first[rank]])
        raise FoldRefusal(f"ranks {here} and {rank} share a node, their images {there} and {images[rank]} do not")
