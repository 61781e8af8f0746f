"""The queue between engines and trainer: prompts whose samples all have their rewards, in the order of their training.

There are two orders. `completed`: those that were ready first; of those ready at the same time, the one begun first.
`oldest`: those begun first, in exactly that order; the trainer waits for them, whatever else is ready.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from hybrid_des.studies.rl.sample import Group


class Queue(Protocol):
    """Prompts that are ready, of which the trainer takes some."""

    def begin(self, group: Group) -> None:
        """A prompt has been begun."""

    def put(self, group: Group) -> None:
        """A prompt is ready."""

    def leave(self, groups: Sequence[Group]) -> None:
        """Prompts, ready or not, are thrown away."""

    def has(self, count: int) -> bool:
        """Whether the trainer can take so many."""

    def take(self, count: int) -> list[Group]:
        """Take so many, in order."""

    def ready(self) -> list[Group]:
        """Those in the queue, in the order in which they were begun."""

    def __len__(self) -> int:
        """How many are ready."""


class CompletedFirst:
    """Those that were ready first."""

    def __init__(self) -> None:
        self._heap = list[tuple[int, int, Group]]()

    def begin(self, group: Group) -> None:
        """Nothing: until it is ready, it does not count."""

    def put(self, group: Group) -> None:
        """Add a prompt."""
        heappush(self._heap, (group.ready, group.number, group))

    def leave(self, groups: Sequence[Group]) -> None:
        """Remove prompts that are ready."""
        if gone := {group.number for group in groups if group.ready >= 0}:
            self._heap = [entry for entry in self._heap if entry[1] not in gone]
            heapify(self._heap)

    def has(self, count: int) -> bool:
        """Whether so many are ready."""
        return len(self._heap) >= count

    def take(self, count: int) -> list[Group]:
        """Take those that were ready first."""
        return [heappop(self._heap)[2] for _ in range(count)]

    def ready(self) -> list[Group]:
        """Those in the queue, in the order in which they were begun."""
        return sorted((group for _, _, group in self._heap), key=lambda group: group.number)

    def __len__(self) -> int:
        return len(self._heap)


class OldestFirst:
    """Those begun first, in that order."""

    def __init__(self) -> None:
        self._begun = OrderedDict[Group, None]()  # but for those of `_first`
        self._first = list[Group]()  # begun before all others, and ready
        self._ready = dict[Group, None]()

    def begin(self, group: Group) -> None:
        """Expect a prompt."""
        self._begun[group] = None

    def put(self, group: Group) -> None:
        """Add a prompt."""
        self._ready[group] = None

    def leave(self, groups: Sequence[Group]) -> None:
        """Expect prompts no more."""
        for group in groups:
            if group in self._begun:
                del self._begun[group]
            else:
                self._first.remove(group)
            self._ready.pop(group, None)

    def has(self, count: int) -> bool:
        """Whether the first so many are ready."""
        begun, first = self._begun, self._first
        while len(first) < count and begun and (group := next(iter(begun))) in self._ready:
            del begun[group]
            first.append(group)
        return len(first) >= count

    def take(self, count: int) -> list[Group]:
        """Take those that were begun first."""
        taken, self._first = self._first[:count], self._first[count:]
        for group in taken:
            del self._ready[group]
        return taken

    def ready(self) -> list[Group]:
        """Those in the queue, in the order in which they were begun."""
        return sorted(self._ready, key=lambda group: group.number)

    def __len__(self) -> int:
        return len(self._ready)
