"""The work of a job between two events: steps, and the checkpoints that save them.

    unsaved --snapshot--> being written --`write` later--> saved                 (sync: immediately; async: in storage)
                                                       --> held in memory --> saved                  (memory: persist)

A checkpoint is due at the end of the first step at which `every` of work has been done since the last one, but not
before that one is written. A failure loses unsaved work and the step in progress.

Below are closed forms for the interval between checkpoints with exponential failures; times in any one unit.

τ is work, C the cost of its checkpoint, M the mean time between failures.
"""

import math
from collections import Counter
from dataclasses import dataclass

from hybrid_des.studies.goodput.ledger import Ledger
from hybrid_des.studies.goodput.states import Step

CONVERGED = 1e-15


MOST_ROUNDS = 100


def young(cost: float, mtbf: float) -> float:
    """Young's best interval between checkpoints, √(2CM) (Communications of the ACM 17(9), 1974)."""
    return math.sqrt(2 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's best interval, √(2CM)·[1 + ⅓√(C/2M) + ⅑(C/2M)] − C, or M if C ≥ 2M (FGCS 22(3), 2006, equation 37)."""
    share = cost / (2 * mtbf)
    if share >= 1:
        return mtbf
    return young(cost, mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - cost


def best_interval(cost: float, mtbf: float) -> float:
    """The interval with the least expected time per unit of work: M·(1 + W₀(−e^(−C/M − 1))), W₀ Lambert's function.

    With y = τ/M it is the root of ln(1 − y) + y + C/M = 0, found by Newton's method from above: the left side is
    decreasing and concave, so no step overshoots the root, and no digits cancel if C is small.
    """
    a = cost / mtbf
    if a <= 0:
        return 0.0
    y = min(math.sqrt(2 * a), -math.expm1(-1 - a))
    for _ in range(MOST_ROUNDS):
        step = (math.log1p(-y) + y + a) * (1 - y) / y
        y += step
        if abs(step) <= CONVERGED * y:
            break
    return mtbf * y


FEW = 3  # fewer checkpoints are counted one by one


@dataclass(frozen=True)
class Saving:
    """When work is saved, and the cost of saving it, in picoseconds.

    Attributes:
        every: work between two checkpoints; None if `steps` is given; neither: never.
        steps: steps between two checkpoints.
        stop: how long a checkpoint stops the job.
        write: the time from then until it is saved.
        persist, persist_write: interval and write time of storage copies of in-memory checkpoints; None: no copies.
    """

    every: int | None = None
    steps: int | None = None
    stop: int = 0
    write: int = 0
    persist: int | None = None
    persist_write: int = 0

    @property
    def ever(self) -> bool:
        """Whether anything is saved at all."""
        return self.every is not None or self.steps is not None


class SavedWork:
    """Steps and checkpoints, advanced from one time to the next; times are picoseconds."""

    def __init__(self, saving: Saving, ledger: Ledger, step: Step) -> None:
        self.upcoming = step  # the next step; one in progress does not change
        self.checkpoints = 0
        self._saving = saving
        self._ledger = ledger
        self._step = step
        self._into = 0  # time into the step in progress
        self._left = 0  # rest of the stop for a checkpoint
        self._since = 0  # work and steps since the last checkpoint
        self._count = 0
        self._unsaved: Counter[Step] = Counter()
        self._writing: Counter[Step] = Counter()
        self._written_at = 0
        self._held: Counter[Step] = Counter()
        self._persisting: Counter[Step] = Counter()
        self._persisted_at = 0
        self._persist_from = 0

    def advance(self, now: int, until: int, *, to_checkpoint: bool = False) -> int:
        """Advance to `until` or, with `to_checkpoint`, to the next snapshot if earlier; returns the time reached."""
        while now < until:
            self._settle(now)
            if self._left or (not self._into and self._due(now)):
                self._left = self._left or self._saving.stop
                stopped = min(self._left, until - now)
                self._left -= stopped
                self._ledger["checkpoint"] += stopped
                now += stopped
                if not self._left:
                    self._snapshot(now)
                    if to_checkpoint:
                        break
            elif self._into:
                now = self._finish_step(now, until)
            else:
                self._step = self.upcoming
                now = self._cycles(now, until) if not to_checkpoint else now
                now = self._whole_steps(now, until)
        if not (self._left or self._into or self._saving.stop) and self._due(now):
            self._snapshot(now)  # one that takes no time still fits
        return now

    def wait_until_written(self, now: int) -> int:
        """How long it takes from `now` until the last checkpoint is saved."""
        return max(self._written_at - now, 0) if self._writing else 0

    def lose(self, now: int, memory: bool) -> int:
        """Drop unsaved work, with `memory` also work held only in memory; returns its picoseconds."""
        self._settle(now)
        lost = self._unsaved + self._writing
        if memory:
            lost += self._held + self._persisting
            self._held, self._persisting = Counter(), Counter()
        time = sum(count * step.time for step, count in lost.items()) + self._into
        self._unsaved, self._writing = Counter(), Counter()
        self._into = self._left = self._since = self._count = 0
        self._ledger["rework"] += time
        return time

    def close(self) -> None:
        """Book all work that is not lost at the end, including the step in progress."""
        for steps in (self._unsaved, self._writing, self._held, self._persisting):
            self._ledger.book(steps)
        left, step = self._into, self._step
        for cause, part in (("useful", step.useful), ("fewer_replicas", step.fewer), ("slow", step.slow)):
            took = min(left, max(part, 0))
            self._ledger[cause] += took
            left -= took
        self._ledger["jitter"] += left

    def _finish_step(self, now: int, until: int) -> int:
        time = min(self._step.time - self._into, until - now)
        self._into += time
        if self._into == self._step.time:
            self._into = 0
            self._add(1)
        return now + time

    def _add(self, count: int) -> None:
        self._unsaved[self._step] += count
        self._since += count * self._step.time
        self._count += count

    def _whole_steps(self, now: int, until: int) -> int:
        """Run as many steps as fit before a checkpoint is due; begins another one if there is time left."""
        fit, due = (until - now) // self._step.time, self._until_due(now)
        count = fit if due is None else min(fit, due)
        self._add(count)
        now += count * self._step.time
        if count == fit and count != due:
            self._into = until - now
            now = until
        return now

    def _cycles(self, now: int, until: int) -> int:
        """Run many cycles of the steps up to a checkpoint and the checkpoint, without counting them one by one."""
        saving, steps = self._saving, self._interval
        if not steps or self._since or saving.persist is not None:
            return now
        work = steps * self._step.time
        cycles = (until - now) // (work + saving.stop)
        if cycles < FEW or max(saving.write, self.wait_until_written(now)) > work:
            return now
        self._ledger.book(self._writing)
        self._ledger.book(Counter({self._step: (cycles - 1) * steps}))
        self._ledger["checkpoint"] += cycles * saving.stop
        self.checkpoints += cycles - 1
        now += cycles * (work + saving.stop)
        self._unsaved = Counter({self._step: steps})
        self._snapshot(now)
        return now

    def _due(self, now: int) -> bool:
        return self._until_due(now) == 0

    @property
    def _interval(self) -> int | None:
        """Steps until enough work is done for a checkpoint; None: never."""
        saving = self._saving
        if saving.steps is not None:
            return max(saving.steps - self._count, 0)
        if saving.every is not None:
            return max(-(-(saving.every - self._since) // self.upcoming.time), 0)
        return None

    def _until_due(self, now: int) -> int | None:
        """Steps until a checkpoint can begin, after the last one is written; None: never."""
        steps = self._interval
        return None if steps is None else max(steps, -(-self.wait_until_written(now) // self.upcoming.time))

    def _snapshot(self, now: int) -> None:
        self.checkpoints += 1
        self._writing, self._unsaved = self._unsaved, Counter()
        self._written_at = now + self._saving.write
        self._since = self._count = 0
        self._settle(now)

    def _settle(self, now: int) -> None:
        """Book what has been saved by now."""
        if self._persisting and self._persisted_at <= now:
            self._ledger.book(self._persisting)
            self._persisting = Counter()
        if self._writing and self._written_at <= now:
            written, self._writing = self._writing, Counter()
            if self._saving.persist is None:
                self._ledger.book(written)
                return
            self._held += written
            if not self._persisting and self._written_at - self._persist_from >= self._saving.persist:
                self._persist_from = self._written_at
                self._persisted_at = self._written_at + self._saving.persist_write
                self._persisting, self._held = self._held, Counter()
                self._settle(now)
