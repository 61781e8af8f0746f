"""Which images of a group's members do the same in its collective.

A fold moves every process group onto another one, or onto itself in another order. It is exact only if each member's
image has the same part in the collective of its group: sends as much, to the images of the members it sends to. The
collectives themselves say when that is so (`collectives.permutation`); here they are asked about every group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des import collectives
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import LANES, ProcessGroup
from hybrid_des.collectives.permutation import Permutation, channel_images
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import Element, Fold
from hybrid_des.units import grouped_by

RankArray = NDArray[np.int64]


MOVED = 2**14  # members of groups that are moved at once


Groups = Mapping[tuple[int, int, int], ProcessGroup]  # by stage, part and first rank


def check_images(
    fold: Fold,
    asked: Sequence[tuple[ProcessGroup, Sequence[Buffer]]],
    options: collectives.Given,
    *,
    nodes: RankArray,
    groups: Groups,
) -> None:
    """Check that the images of groups are groups in which every member does the same.

    Many groups are moved at once, and one is asked about of those whose members are seated alike. The first group is
    looked at by itself: where members differ, its own mostly do.

    Args:
        fold: the images.
        asked: the groups, their members in ascending order, with the buffers of a member, one per size of buckets.
        options: those of the collective.
        nodes: the node of each rank.
        groups: all groups.

    Raises:
        FoldRefusal: they are not; names how the members differ.
    """
    seated = _ImageCheck(fold, options, nodes, groups)
    seated.check(asked[:1])
    for size, of_size in groupby(asked[1:], lambda asking: asking[0].size):
        alike, count = list(of_size), max(1, MOVED // size)
        for first in range(0, len(alike), count):
            seated.check(alike[first : first + count])


class _MovedGroups(NamedTuple):
    """Groups of one size under an image, a row for each.

    Attributes:
        moved: the images of members, in their order.
        images: the same in ascending order.
        seats: the place of each member's image among these.
        nodes: for each member, and for each of `images`, the first of all these that is on the same node.
        stay: whether the images of a group are its members.
    """

    moved: RankArray
    images: RankArray
    seats: RankArray
    nodes: RankArray
    stay: Sequence[bool]

    @classmethod
    def of(cls, ranks: RankArray, fold: Fold, element: Element, nodes: RankArray) -> _MovedGroups:
        """Groups, a row for each, under an image; `nodes` has that of every rank."""
        moved = fold.move(ranks, element)
        order = np.argsort(moved, axis=1)
        images = np.take_along_axis(moved, order, axis=1)
        on_nodes = _first_equal(nodes[np.concatenate([ranks, images], axis=1)])
        return cls(moved, images, np.argsort(order, axis=1), on_nodes, (images == ranks).all(axis=1).tolist())


class _ImageCheck:
    """Whether the members of groups do the same as their images, once for all that are seated alike."""

    def __init__(self, fold: Fold, options: collectives.Given, nodes: RankArray, groups: Groups) -> None:
        self._fold, self._options, self._nodes, self._groups = fold, options, nodes, groups
        self._reasons: dict[Hashable, str] = {}
        self._forms: dict[Hashable, int] = {}  # of channels
        self._form_of: dict[int, int] = {}

    def check(self, asked: Sequence[tuple[ProcessGroup, Sequence[Buffer]]]) -> None:
        """Check groups of one size; raises `FoldRefusal` for the first that differs from an image."""
        if not asked:
            return
        ranks = np.array([array_of(processes.ranks[: processes.size]) for processes, _ in asked])
        each = [_MovedGroups.of(ranks, self._fold, element, self._nodes) for element in self._fold.generators]
        twice: list[bool] = np.any(ranks[:, 1:] <= ranks[:, :-1], axis=1).tolist()
        for row, (processes, buffers) in enumerate(asked):
            for element, moved in zip(self._fold.generators, each, strict=True):
                image = processes
                if twice[row] or not moved.stay[row]:
                    image = _group_at(processes, ranks[row], moved.moved[row], moved.images[row], self._groups)
                if reason := self._reason(processes, buffers, moved, row, image):
                    here = int(ranks[row, 0])
                    raise FoldRefusal(f"ranks {here} and {self._fold.move(here, element)}: {reason}")

    def _reason(
        self, processes: ProcessGroup, buffers: Sequence[Buffer], moved: _MovedGroups, row: int, image: ProcessGroup
    ) -> str:
        """How the members of a group differ from their images, in words; empty if they do not."""
        seats, nodes = moved.seats[row], moved.nodes[row]
        channels = self._form(processes.channels), self._form(image.channels)
        key = processes.kind, seats.tobytes(), nodes.tobytes(), id(buffers), channels, id(processes.tuned)
        if key not in self._reasons:
            here, there = nodes[: len(seats)].tolist(), nodes[len(seats) :].tolist()
            permutation = Permutation(seats, here, there, buffers, processes.channels, image.channels, processes.tuned)
            self._reasons[key] = collectives.asymmetry(processes.kind, permutation, self._options)
        return self._reasons[key]

    def _form(self, channels: Sequence[Sequence[int]]) -> int:
        """A number that is equal for equal channels."""
        form = self._form_of.get(id(channels))
        if form is None:
            form = self._form_of[id(channels)] = self._forms.setdefault(tuple(map(tuple, channels)), len(self._forms))
        return form


def _first_equal(rows: RankArray) -> RankArray:
    """For each entry, the first place of its row that has an equal one."""
    count, width = rows.shape
    apart = np.arange(count)[:, np.newaxis]
    _, first, inverse = np.unique(rows + apart * (rows.max() + 1), return_index=True, return_inverse=True)
    places: RankArray = first[inverse.ravel()].reshape(rows.shape) - apart * width
    return places


def _group_at(
    processes: ProcessGroup, ranks: RankArray, moved: RankArray, images: RankArray, groups: Groups
) -> ProcessGroup:
    """The group that the images of a group's members form, in their order and in ascending order."""
    if (ranks[1:] <= ranks[:-1]).any():
        raise FoldRefusal(f"rank {int(ranks[0])} holds stage {processes.stage} twice")
    if (images == ranks).all():
        return processes
    group = groups.get((processes.stage, processes.part, int(images[0])))
    members = () if group is None else group.ranks[: group.size]
    if group is None or len(members) != len(images) or (array_of(members) != images).any():
        raise FoldRefusal(f"ranks {int(moved[0])} and {int(moved[-1])} reduce gradients in different groups")
    return group


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
        moved = self._fold.move(members, element)
        seated = np.sort(moved)
        image = _group_at(group, members, moved, seated, self._groups)
        images = channel_images(np.searchsorted(seated, moved), group.channels, image.channels)
        assert images is not None  # otherwise the fold would have been refused
        numbers = [number for number, _ in images]
        return [] if numbers == list(range(len(numbers))) else sorted(range(len(numbers)), key=numbers.__getitem__)


def array_of(ranks: Sequence[int]) -> RankArray:
    """Ranks as an array."""
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
        raise FoldRefusal(
            f"ranks {here} and {rank} share a node, but their counterparts {there} and {images[rank]} do not"
        )
