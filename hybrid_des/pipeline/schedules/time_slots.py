"""A grid of ranks and time slots, in which several schedules place their ops before real times are known.

Papers draw schedules so, with one slot per op. Only the order of each rank's ops goes into the plan.
"""

from hybrid_des.pipeline.plan import Op


class Slots:
    """The slots of one rank, and the ops in them: `placed`, each with its first slot.

    `_next[slot]` points from a taken slot towards the next free one; path compression keeps searches near constant
    time.
    """

    def __init__(self) -> None:
        self.placed: list[tuple[int, Op]] = []
        self._next: dict[int, int] = {}

    @property
    def program(self) -> list[Op]:
        """The rank's program: its ops by slot."""
        return [op for _, op in sorted(self.placed, key=lambda pair: pair[0])]

    def put(self, slot: int, op: Op, length: int = 1) -> None:
        """Put an op into `length` slots from `slot` on."""
        self.take(slot, length)
        self.placed.append((slot, op))

    def take(self, slot: int, length: int = 1) -> None:
        """Take `length` slots from `slot` on."""
        for at in range(slot, slot + length):
            self._next[at] = at + 1

    def free(self, slot: int, length: int = 1) -> int:
        """Find the first `length` consecutive free slots from `slot` on."""
        start = self._first(slot)
        while (end := next((at for at in range(start, start + length) if at in self._next), None)) is not None:
            start = self._first(end)
        return start

    def close_before(self, slot: int, count: int) -> None:
        """Close the free ones of the `count` slots before `slot`."""
        for at in range(max(0, slot - count), slot):
            if at not in self._next:
                self.take(at)

    def _first(self, slot: int) -> int:
        end = slot
        while end in self._next:
            end = self._next[end]
        while slot != end:
            self._next[slot], slot = end, self._next[slot]
        return end
