"""A replica of an engine: it admits samples, reads them, and generates a token of each in every decode step.

Between two changes (a sample ends or joins, a pause, no more room) the sequences are the same, so a stretch of decode
steps is one event. What joins or pauses waits for the end of the decode step under way, as in engines with continuous
batching. What has joined is read at once, while no decode step runs.

    room   tokens of all sequences that have keys and values, a prompt that several share counted once, plus one
           more per sequence, fit into `EngineCosts.room`. If they do not, those that wait for tools lose theirs,
           then the sequence that joined last; it waits first in line, and is read again.
    reads  a decode step reads the keys and values of every sequence, shared prompts once for each.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Protocol

from hybrid_des.engine.clock import Environment
from hybrid_des.studies.rl.parts import EngineKind
from hybrid_des.studies.rl.record import EngineSpan, EngineState
from hybrid_des.studies.rl.sample import Group, Work

PROPORTIONS = 6  # tried before halving


class Listener(Protocol):
    """Whom a replica tells what happens."""

    def at_boundary(self, replica: Replica) -> None:
        """No decode step runs on it now: it can go on."""

    def ended(self, work: Work) -> None:
        """The last token of a sample is there."""

    def returned(self, replica: Replica, work: Work) -> None:
        """The tool that a sample of a replica waited for has answered."""


class Replica:
    """An engine on some GPUs.

    Attributes:
        number, gpus, concurrency: its number, its GPUs, the most sequences.
        running: its sequences, in the order in which they joined.
        waiting: samples that wait for room or a place, first come first.
        away: its samples that wait for tools.
        load: samples that run or wait here.
        stopped: what it is said to do while it begins nothing more, for a sync or since its GPUs train.
        busy: whether a prefill or decode steps are under way.
        generated, prefilled: tokens so far.
        spans: what it did.
    """

    def __init__(self, env: Environment, number: int, kind: EngineKind, listener: Listener, *, keep: bool) -> None:
        self.number, self.gpus, self.concurrency = number, kind.gpus, kind.concurrency
        self.running = dict[Work, None]()
        self.waiting = deque[Work]()
        self.away = dict[Work, None]()
        self.load = 0
        self.stopped: EngineState | None = None
        self.busy = False
        self.generated = self.prefilled = 0
        self.spans = list[EngineSpan]()
        self._env, self._costs, self._listener, self._keep = env, kind.costs, listener, keep
        self._ends = list[tuple[int, int, Work]]()  # decode step, order of joining, sample
        self._joined = 0
        self._done = 0  # decode steps so far
        self._held = 0  # tokens that a decode step reads
        self._used = 0  # tokens that take room
        self._residents = dict[Group, int]()
        self._kept = dict[Work, None]()  # not running, with keys and values
        self._piece = self._steps = self._begin = 0  # number of the piece under way, its decode steps, when it began
        self._state: EngineState = "waiting"
        self._sequences = self._since = 0

    def mark(self, state: EngineState, sequences: int, since: int) -> None:
        """Do something else from a time on, not before what is known so far."""
        if state == self._state and sequences == self._sequences:
            return
        if since > self._since:
            self.spans.append(EngineSpan(self.number, self._since, since, self._state, self._sequences))
        self._state, self._sequences, self._since = state, sequences, since

    def close(self) -> None:
        """End the last span now, and count what its samples have generated."""
        for work in list(self.running):
            self._leave(work)
        now = self._env.now
        if now > self._since:
            self.spans.append(EngineSpan(self.number, self._since, now, self._state, self._sequences))
            self._since = now

    def add(self, work: Work) -> None:
        """Let a sample wait here; it joins after the decode step under way, if there is room and a place."""
        self.waiting.append(work)
        self.load += 1
        work.replica = self
        if len(self.running) < self.concurrency:
            self.interrupt()

    def interrupt(self) -> None:
        """End the stretch under way with its decode step under way; the one that ends now is over."""
        if not self.busy:
            self._listener.at_boundary(self)
        else:
            steps = self._steps_until(self._env.now - self._begin)
            if steps < self._steps:
                self._book(steps)

    def _steps_until(self, elapsed: int) -> int:
        """The least number of decode steps of this stretch that last so long; none, while it is still read."""
        if elapsed <= 0:
            return 0
        sequences, held, lasts = len(self.running), self._held, self._costs.stretch_ps
        low, high, before, after = 0, self._steps, 0, lasts(sequences, held, self._steps)
        tries = 0
        while high - low > 1:
            # steps take nearly the same time each, so that a proportion finds the number at once, or halving does
            share = (elapsed - before) * (high - low) // (after - before) if tries < PROPORTIONS else (high - low) // 2
            middle = low + max(1, min(high - low - 1, share))
            time = lasts(sequences, held, middle)
            if time < elapsed:
                low, before = middle, time
            else:
                high, after = middle, time
            tries += 1
        return high

    def _book(self, steps: int) -> None:
        """Let the stretch under way end after so many steps; after those that have ended, at once."""
        self._piece += 1
        self._steps = steps
        ends = self._begin + self._costs.stretch_ps(len(self.running), self._held, steps)
        if ends == self._env.now:
            self._decoded()
        else:
            self._env.at(ends, (self._ended, self._piece))

    def proceed(self) -> None:
        """Read what joins, and begin decode steps, if there is anything to do."""
        if self.busy or self.stopped:
            return
        self._make_room()
        tokens = self._admit()
        if not self.running:
            return
        self._begin = self._env.now
        if tokens:
            self.prefilled += tokens
            self.mark("prefill", len(self.running), self._begin)
            self._begin += self._costs.prefill_ps(tokens)
        self._decode()

    def _decode(self) -> None:
        """Book decode steps after what is read first, until a part of a sample ends, or the room is full."""
        costs, running = self._costs, len(self.running)
        ends = self._ends
        while ends[0][2].ends_at != ends[0][0]:  # of a sample that does not run any more
            heappop(ends)
        free = costs.room(running) - self._used
        steps = min(ends[0][0] - self._done, free // running)
        self.busy, self._steps = True, steps
        self._piece += 1
        self.mark("decode", running, self._begin)
        self._env.at(self._begin + costs.stretch_ps(running, self._held, steps), (self._ended, self._piece))

    def _ended(self, booking: tuple[object, int]) -> None:
        """A stretch has ended, unless that was booked otherwise meanwhile."""
        if booking[1] == self._piece:
            self._decoded()

    def _decoded(self) -> None:
        """Count the steps of a stretch, and let go whose part has ended."""
        self.busy = False
        steps, running = self._steps, len(self.running)
        self._done += steps
        self._held += steps * running
        self._used += steps * running
        self.generated += steps * running
        ends, done = self._ends, self._done
        while ends and ends[0][0] <= done:
            step, _, work = heappop(ends)
            if work.ends_at == step:
                self._part_ended(work)
        self._listener.at_boundary(self)

    def _admit(self) -> int:
        """Let those join that wait and fit; the tokens to be read for them."""
        tokens, waiting = 0, self.waiting
        while waiting and len(self.running) < self.concurrency:
            work, running = waiting[0], len(self.running) + 1
            takes = work.own - work.kept + (0 if work.group in self._residents else work.group.drawn.prompt)
            if self._used + takes + running > self._costs.room(running):
                if self.running or not self._evict(work):
                    break
                continue
            waiting.popleft()
            tokens += self._join(work, takes)
        return tokens

    def _join(self, work: Work, takes: int) -> int:
        """Let a sample run; the tokens to be read for it."""
        group, own = work.group, work.generated + work.tools
        prompt = group.drawn.prompt
        tokens = missing = own - work.kept
        if self not in group.cached:
            group.cached.append(self)
            tokens += prompt
        if work.read:
            work.recomputed += tokens - min(work.unread, missing)
        self._used += takes
        self._held += prompt + own
        if not work.resident:
            self._residents[group] = self._residents.get(group, 0) + 1
            work.resident = work.read = True
        elif self._kept:
            self._kept.pop(work, None)
        work.unread, work.kept = 0, own
        work.ends_at = self._done + work.part_end - work.generated
        self._joined += 1
        heappush(self._ends, (work.ends_at, self._joined, work))
        self.running[work] = None
        return tokens

    def _leave(self, work: Work) -> None:
        """Stop running a sample, whose keys and values stay."""
        work.generated = work.part_end - (work.ends_at - self._done)
        work.ends_at = -1
        work.kept = own = work.generated + work.tools
        self._held -= work.group.drawn.prompt + own
        del self.running[work]
        self._kept[work] = None

    def _drop(self, work: Work) -> None:
        """Forget the keys and values of a sample that does not run."""
        self._kept.pop(work, None)
        group, left = work.group, self._residents[work.group] - 1
        self._used -= work.kept
        work.kept, work.resident = 0, False
        if left:
            self._residents[group] = left
        else:
            del self._residents[group]
            self._used -= group.drawn.prompt

    def _make_room(self) -> None:
        """Take keys and values away until those of the next token of each sequence fit."""
        running = self.running
        while running and self._used + len(running) > self._costs.room(len(running)):
            if not self._evict(None):
                self._preempt()

    def _preempt(self) -> None:
        """Let the sample that joined last wait first in line, without its keys and values."""
        work = next(reversed(self.running))
        self._leave(work)
        self._drop(work)
        self.waiting.appendleft(work)

    def _evict(self, besides: Work | None) -> bool:
        """Take the keys and values of the last sample that does not run, but for one; whether there was any."""
        work = next((work for work in reversed(self._kept) if work is not besides), None)
        if work is not None:
            self._drop(work)
        return work is not None

    def _part_ended(self, work: Work) -> None:
        """A part of a sample has ended: a tool runs, or the sample is complete."""
        self._leave(work)
        self.load -= 1
        drawn = work.group.drawn
        if work.generated == drawn.responses[work.index]:
            self._drop(work)
            work.ended = self._env.now
            self._listener.ended(work)
            return
        if not self._keep:
            self._drop(work)
        self.away[work] = None
        wait = drawn.waits[work.index][work.part]
        work.part += 1
        work.part_end = drawn.parts[work.index][work.part]
        self._env.at(self._env.now + wait, (self._returned, work, work.tries))

    def _returned(self, booking: tuple[object, Work, int]) -> None:
        """A tool has answered, unless the sample has been begun anew meanwhile."""
        _, work, tries = booking
        if tries == work.tries:
            del self.away[work]
            self._listener.returned(self, work)

    def release(self, work: Work) -> None:
        """Forget what there is of a sample that goes elsewhere."""
        if work.resident:
            self._drop(work)

    def forget(self) -> None:
        """Drop all keys and values: samples that run wait first in line, in their order."""
        running = list(self.running)
        for work in running:
            self._leave(work)
        for work in list(self._kept):
            self._drop(work)
        self.waiting.extendleft(reversed(running))
        self._ends.clear()

    def recall(self) -> None:
        """Let samples that wait for tools wait here instead: they are begun anew."""
        self.waiting.extend(self.away)
        self.load += len(self.away)
        self.away.clear()

    def hand_back(self) -> list[Work]:
        """Give up the samples that wait here, in their order; those that wait for tools are given up later."""
        works = list(self.waiting)
        self.waiting.clear()
        self.load -= len(works)
        return works
