"""The work of a job between two events: steps, and the checkpoints that save them.

    unsaved --snapshot--> being written --`write` later--> saved                 (sync: at once; async: in storage)
                                                       --> held in memory --> saved                  (memory: persist)

A checkpoint is due at the end of the first step at which `every` of work has been done since the last one, and not
before that one is written. A failure loses what is not saved, and the part of the step that was going on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hybrid_des.renewal.ledger import Ledger
from hybrid_des.renewal.states import Step

FEW = 3  # checkpoints that are counted one by one


@dataclass(frozen=True)
class Saving:
    """When work is saved and what that costs, in picoseconds.

    Attributes:
        every: work between two checkpoints; None if `steps` says it; neither: never.
        steps: steps between two checkpoints.
        stop: how long a checkpoint stops the job.
        write: from then on until it is saved.
        persist, persist_write: of copies in storage where checkpoints are held in memory; None: they are not.
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
    """Steps and checkpoints, told from when to when; times are picoseconds."""

    def __init__(self, saving: Saving, ledger: Ledger, step: Step) -> None:
        self.upcoming = step  # of the next step; one that has begun ends as it began
        self.checkpoints = 0
        self._saving = saving
        self._ledger = ledger
        self._step = step
        self._into = 0  # of the step that is going on
        self._left = 0  # of the stop for a checkpoint
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
        """Go on from `now` to `until`, or to the end of the first stop for a checkpoint; returns where it ended."""
        while now < until:
            self._settle(now)
            if self._left:
                now += self._stop(min(self._left, until - now))
                if not self._left:
                    self._snapshot(now)
                    if to_checkpoint:
                        break
            elif self._into:
                now = self._finish_step(now, until)
            elif self._due(now):
                self._left = self._saving.stop
                if not self._left:
                    self._snapshot(now)
                    if to_checkpoint:
                        break
            else:
                self._step = self.upcoming
                now = self._cycles(now, until) if not to_checkpoint else now
                now = self._whole_steps(now, until)
        if not (self._left or self._into or self._saving.stop) and self._due(now):
            self._snapshot(now)  # one that takes no time is not too late
        return now

    def wait_until_written(self, now: int) -> int:
        """How long it takes from `now` until the last checkpoint is saved."""
        return max(self._written_at - now, 0) if self._writing else 0

    def lose(self, now: int, memory: bool) -> int:
        """Drop what is not saved, with `memory` also what only memory holds; returns its picoseconds."""
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
        """Book everything that is not lost at the end, also the part of a step."""
        for steps in (self._unsaved, self._writing, self._held, self._persisting):
            self._ledger.book(steps)
        left, step = self._into, self._step
        for cause, part in (("useful", step.useful), ("fewer_replicas", step.fewer), ("slow", step.slow)):
            took = min(left, max(part, 0))
            self._ledger[cause] += took
            left -= took
        self._ledger["jitter"] += left

    def _stop(self, time: int) -> int:
        self._left -= time
        self._ledger["checkpoint"] += time
        return time

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
        """As many steps as fit before a checkpoint is due; begins another one if there is time left."""
        fit, due = (until - now) // self._step.time, self._until_due(now)
        count = fit if due is None else min(fit, due)
        self._add(count)
        now += count * self._step.time
        if count == fit and count != due:
            self._into = until - now
            now = until
        return now

    def _cycles(self, now: int, until: int) -> int:
        """Many times the steps between two checkpoints and the checkpoint, without counting them one by one."""
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
        """Steps until so much work is done that it is to be saved; None: never."""
        saving = self._saving
        if saving.steps is not None:
            return max(saving.steps - self._count, 0)
        if saving.every is not None:
            return max(-(-(saving.every - self._since) // self.upcoming.time), 0)
        return None

    def _until_due(self, now: int) -> int | None:
        """Steps until a checkpoint can begin, the last one being written; None: never."""
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
