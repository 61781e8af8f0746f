"""Which images of a group's members do the same in its collective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hybrid_des import collectives
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import LANES, ProcessGroup
from hybrid_des.collectives.permutation import Permutation, channel_images
from hybrid_des.simulation.folding.refusals import FoldRefusal
from hybrid_des.simulation.folding.symmetry import Element, Fold
from hybrid_des.units import grouped_by

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
        buffers: those of a member, one per size of buckets.
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


class ChannelImages:
    """Which channel of a group becomes which, for the groups with several.

    Args:
        fold: the images.
        groups: the process groups of a run.
    """

    def __init__(self, fold: Fold, groups: Iterable[ProcessGroup]) -> None:
        self._fold = fold
        several = [group for group in groups if len(group.channels) > 1]
        self._groups = {(group.stage, group.part, int(group.ranks[0])): group for group in several}
        self._of_stage = grouped_by(several, lambda group: (group.stage, group.part))
        self._sources: dict[tuple[int, int, int, Element], list[int]] = {}

    def source(self, lane: int, at: tuple[int, int, int], element: Element) -> int:
        """The lane of a representative whose image is this one of its image.

        Args:
            lane: as in `Group`; of flows around the ring of a channel, its number from 1 on, modulo `LANES`.
            at: stage and part of the group, and the representative.
            element: the image.
        """
        number = lane % LANES
        if not number or at[:2] not in self._of_stage:
            return lane
        sources = self._sources.get((*at, element))
        if sources is None:
            sources = self._sources[(*at, element)] = self._of(*at, element)
        return lane - number + sources[number - 1] + 1 if sources else lane

    def _of(self, stage: int, part: int, rank: int, element: Element) -> list[int]:
        """For each channel of the image of a rank's group, the channel whose image it is; none if all keep theirs."""
        group = next((group for group in self._of_stage[stage, part] if rank in group.ranks[: group.size]), None)
        if group is None:
            return []
        members = array_of(group.ranks[: group.size])
        _, places, image = _image(self._fold, element, members, group, self._groups)
        images = channel_images(places, group.channels, image.channels)
        assert images is not None  # otherwise the fold would have been refused
        numbers = [number for number, _ in images]
        return [] if numbers == list(range(len(numbers))) else sorted(range(len(numbers)), key=numbers.__getitem__)


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
