"""Copies of the graph of causes in a folded run: each point of what is simulated once has an image in every copy.

The copies are the elements of the fold's group, numbered in the order of `Fold.elements`, 0 being the identity. Where a
process group meets, elements that map the group to itself leave the point of the meeting where it is: the elements of a
coset share a point, and the one that gives the lowest ranks stands for it.

An edge may lead from one copy to another, as a message to the next node does. Its `turn` is the element that maps the
cause as it is simulated to the one that releases the simulated point; the edge's image under g leads from the cause's
image under g + turn to the point's image under g.

A run that is not folded has one element.

`LinkImages` are the links of a run, with the images of those that were simulated for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.engine.causes import Causes
from hybrid_des.folding.folded_routes import Endpoints
from hybrid_des.folding.symmetry import Element, Fold
from hybrid_des.planning.program_table import Column
from hybrid_des.simulation.timeline import Timeline


class Images:
    """The numbered elements of a fold.

    Attributes:
        fold: which ranks are simulated.
        order: number of elements.
        endpoints: the images of switches that serve ranks.
    """

    def __init__(self, fold: Fold, fabric: Fabric) -> None:
        self.fold, self.order, self.endpoints = fold, fold.order, Endpoints(fold, fabric)
        self._elements = np.array(list(fold.elements()), dtype=np.int64).reshape(self.order, len(fold.folded_axes))
        self._sums: dict[tuple[int, int], int] = {}

    def element(self, number: Column | int) -> tuple[Column, ...]:
        """Elements by their numbers: a column per folded axis."""
        return tuple(np.moveaxis(self._elements[number], -1, 0))

    def number(self, element: Sequence[Column]) -> Column:
        """The numbers of elements."""
        number = np.zeros((), dtype=np.int64)
        for times, count in zip(element, self.fold.counts, strict=True):
            number = number * count + times
        return np.asarray(number)

    def numbered(self, elements: Sequence[Element]) -> Column:
        """The numbers of a list of elements."""
        columns = np.array(elements, dtype=np.int64).reshape(len(elements), len(self.fold.folded_axes)).T
        return np.broadcast_to(self.number(tuple(columns)), len(elements))

    def combined(self, this: Column, other: Column) -> Column:
        """The numbers of compositions."""
        if self.order == 1:
            return np.zeros(np.broadcast_shapes(np.shape(this), np.shape(other)), dtype=np.int64)
        return self.number(self.fold.combined(self.element(this), self.element(other)))  # type: ignore[arg-type]

    def inverse(self, number: Column) -> Column:
        """The numbers of inverses."""
        return np.broadcast_to(self.number(self.fold.inverse(self.element(number))), np.shape(number))  # type: ignore[arg-type]

    def moved(self, rank: Column | int, number: Column | int) -> Column:
        """The images of ranks and switches; of negative ones, which are none, themselves."""
        ranks = np.broadcast_to(rank, np.broadcast_shapes(np.shape(rank), np.shape(number)))
        images = np.where(ranks < 0, ranks, self.fold.move(ranks, self.element(number)))  # type: ignore[arg-type]
        switches = ranks >= (self.fold.layout.ranks if self.order > 1 else np.inf)  # without images, any server
        if switches.any():
            numbers = np.broadcast_to(number, ranks.shape)[switches]
            images[switches] = self.endpoints.move_switches(ranks[switches], self.element(numbers))
        return images

    def rank(self, rank: int, number: int) -> int:
        """The image of one rank or switch, which takes a twentieth of the time of a column of one."""
        if not 0 <= rank < self.fold.layout.ranks:
            return int(self.moved(rank, number))
        return int(self.fold.move(rank, tuple(self._elements[number].tolist())))

    def plus(self, this: int, other: int) -> int:
        """The number of one composition."""
        if not this or not other:
            return this or other
        if (number := self._sums.get((this, other))) is None:
            number = self._sums[this, other] = int(self.combined(np.int64(this), np.int64(other)))  # type: ignore[arg-type]
        return number

    def keeping(self, ranks: Sequence[int], *, last: bool = False) -> Column:
        """For each element, the one that stands for its coset of the elements that map a group of ranks to itself.

        Args:
            ranks: the group.
            last: whether the one that gives the highest ranks stands for a coset, not the lowest.

        Raises:
            ValueError: a member's representative is not in the group.
        """
        every = np.arange(self.order)
        if self.order == 1 or (len(ranks) == self.fold.layout.ranks and not last):
            return np.zeros(self.order, dtype=np.int64)
        members = np.sort(np.fromiter(ranks, dtype=np.int64, count=len(ranks)))
        simulated = members[self.fold.simulated(members)]
        images = np.unique(self.moved(simulated[:, None], every))
        if not np.isin(members, images).all():
            raise ValueError(f"the group of rank {members[0]} meets ranks that others stand for")
        kept = [g for g in every.tolist() if np.array_equal(np.sort(self.moved(members, g)), members)]
        standing = np.full(self.order, -1)
        first = -1 if last else 1
        for g in np.argsort(first * self.moved(0, every), kind="stable").tolist():
            if standing[g] < 0:
                standing[self.combined(np.asarray(kept), np.int64(g))] = g  # type: ignore[arg-type]
        return standing


@dataclass(frozen=True)
class LinkImages:
    """The links that messages of simulated ranks are sent over, under their own names.

    Attributes:
        names: of the links, sorted.
        lane: by link, the number of the simulated one.
        turned: by link, the element that maps the simulated one to it.
        limited: by link, whether it has a bandwidth, so that messages may have to wait for each other.
        channels: by lane, a channel on one of its images.
    """

    names: Sequence[str]
    lane: Column
    turned: Column
    limited: Column
    channels: Sequence[Channel]
    fabric: Fabric
    folded: Images

    @classmethod
    def of(cls, timeline: Timeline, trace: Causes, fabric: Fabric, images: Images) -> LinkImages:
        """The links of a run."""
        names, link = timeline.links, timeline.of_channel["link"]
        own = np.zeros(len(names), dtype=np.int64)
        own[link] = np.arange(len(link))  # the last channel on each link
        channels = [timeline.channels[number] for number in own.tolist()]
        limited = np.array([fabric.links[name].bandwidth is not None for name in names], dtype=np.int64)
        if images.order == 1:
            return cls(names, np.arange(len(names)), np.zeros(len(names), np.int64), limited, channels, fabric, images)
        legs = [trace.legs[number] for number in own.tolist()]
        lanes = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in legs))}
        lane = np.array([lanes[name] for name, _ in legs], dtype=np.int64)
        first = [channels[place] for place in np.unique(lane, return_index=True)[1].tolist()]
        return cls(names, lane, images.numbered([turned for _, turned in legs]), limited, first, fabric, images)

    def images(self, lane: int) -> list[str]:
        """The names of all images of a simulated link."""
        channel, every = self.channels[lane], np.arange(self.folded.order)
        ends = (self.folded.moved(rank, every).tolist() for rank in (channel.sender, channel.receiver))
        return [self.fabric.route(*both).links[channel.hop] for both in zip(*ends, strict=True)]
