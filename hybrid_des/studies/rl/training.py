"""The trainer: it waits for samples, trains on them, and sends its weights to the engines.

    batch   `updates` optimizer steps, in takes of `take`: forward passes over the samples of a take, then its steps
    rest    after the steps of a batch
    sync    after `sync.every` batches: engines come to rest, then weights are sent

Colocated engines and the trainer change sides after all samples of a sync have been generated, and before it. Lent GPUs
change sides while the trainer waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from math import ceil
from typing import Any, Protocol

from simpy.events import Event

from hybrid_des.engine.clock import Environment
from hybrid_des.scenario.sections.rl import Rl
from hybrid_des.studies.rl.admission import Admission
from hybrid_des.studies.rl.fleet import Fleet
from hybrid_des.studies.rl.parts import TrainerCosts
from hybrid_des.studies.rl.queue import Queue
from hybrid_des.studies.rl.record import TrainerSpan, TrainerState, WeightSync
from hybrid_des.studies.rl.sample import Group
from hybrid_des.units import to_picoseconds

Wait = Generator[Event, Any, None]


class Hub(Protocol):
    """What the trainer asks the loop for."""

    def changed(self) -> None:
        """Something has happened that others may wait for."""

    def until(self, condition: Callable[[], bool], what: Callable[[], str]) -> Event:
        """An event that happens once a condition holds; `what` tells what it is."""

    def trained(self, groups: list[Group], batch: int) -> None:
        """Prompts have left the queue for a batch."""

    def synced(self) -> None:
        """A weight sync has ended."""


class Trainer:
    """The trainer.

    Args:
        env: the environment.
        rl: the section.
        prompts: of an optimizer step.
        costs: how long it takes.
        sync_ps: picoseconds of a weight sync.

    Attributes:
        spans, syncs: what it did.
        batch: the number of the batch that it waits for or trains.
        queue: prompts that are ready.
    """

    def __init__(self, env: Environment, rl: Rl, prompts: int, costs: TrainerCosts, sync_ps: int) -> None:
        self._env, self._rl, self._prompts, self._costs, self._sync_ps = env, rl, prompts, costs, sync_ps
        self.spans, self.syncs = list[TrainerSpan](), list[WeightSync]()
        self.batch = 0
        self._state: TrainerState = "first samples"
        self._since = 0
        self._needed = 0

    def connect(self, hub: Hub, fleet: Fleet, queue: Queue, admission: Admission) -> None:
        """Whom it works with."""
        self._hub, self._fleet, self.queue, self._admission = hub, fleet, queue, admission

    def mark(self, state: TrainerState) -> None:
        """Do something else from now on."""
        self.close()
        self._state = state

    def close(self) -> None:
        """End the last span now."""
        if self._env.now > self._since:
            self.spans.append(TrainerSpan(self._since, self._env.now, self._state, self.batch))
        self._since = self._env.now

    def look(self) -> None:
        """Note that half of the samples that it waits for are there."""
        if self._state == "first samples" and 2 * len(self.queue) >= self._needed:
            self.mark("long tail")

    def run(self, syncs: int) -> Wait:
        """Train until so many weight syncs have ended."""
        rl = self._rl
        for version in range(1, syncs + 1):
            if rl.colocated:
                yield from self._generated()
            for number in range(rl.sync.every):
                self.batch = (version - 1) * rl.sync.every + number
                yield from self._train()
            if rl.colocated:
                yield from self._change("drained")
            yield from self._sync(version)
        yield self._hub.until(lambda: True, lambda: "the end")  # what else ends now has ended

    def _train(self) -> Wait:
        """Train a batch."""
        rl, size = self._rl, self._prompts
        for _ in range(rl.updates // rl.take):
            yield from self._samples(rl.take * size)
            groups = self.queue.take(rl.take * size)
            updates = [groups[first : first + size] for first in range(0, len(groups), size)]
            times = self._costs.take([[tokens for group in update for tokens in group.tokens()] for update in updates])
            self._hub.trained(groups, self.batch)
            self.mark("passes")
            yield self._env.timeout(sum(passes for passes, _ in times))
            self.mark("train")
            for _, step in times:
                yield self._env.timeout(step)
                self._admission.trained += size
                self._hub.changed()
        self.mark("rest")
        yield self._env.timeout(to_picoseconds(rl.rest))
        self.close()

    def _samples(self, needed: int) -> Wait:
        """Wait for the samples of so many prompts."""
        self._needed = needed
        lend, queue = self._rl.lend, self.queue
        if lend is not None and len(queue) < lend.below * needed:
            yield from self._lend(needed)
        self.mark("first samples")
        self.look()

        def told() -> str:
            return f"{needed} prompts of batch {self.batch}, of which {len(queue)} are in the queue"

        yield self._hub.until(lambda: queue.has(needed), told)

    def _lend(self, needed: int) -> Wait:
        """Let the trainer's GPUs generate until a share of what it needs is there."""
        lend, fleet, queue = self._rl.lend, self._fleet, self.queue
        assert lend is not None
        share = ceil(lend.below * needed)
        yield from self._switch(to_picoseconds(lend.to_rollout), "switching")
        fleet.go_on(fleet.lent)
        self.mark("lent")
        yield self._hub.until(lambda: len(queue) >= share, lambda: f"{share} prompts while it lends its GPUs")
        fleet.stop(fleet.lent, "drained")
        yield self._hub.until(lambda: not any(one.busy for one in fleet.lent), lambda: "engines on its GPUs")
        fleet.withdraw()
        yield from self._switch(to_picoseconds(lend.to_trainer), "away")

    def _switch(self, time: int, then: Any) -> Wait:
        """Change sides of lent GPUs."""
        self.mark("switching")
        self._fleet.stop(self._fleet.lent, "switching")
        yield self._env.timeout(time)
        self._fleet.stop(self._fleet.lent, then)

    def _generated(self) -> Wait:
        """Let colocated engines generate all samples until the next sync."""
        needed = self._prompts * self._rl.updates * self._rl.sync.every
        self.mark("lent")
        yield self._hub.until(
            lambda: self.queue.has(needed) and self._fleet.quiet,
            lambda: f"{needed} prompts, of which {len(self.queue)} are in the queue",
        )
        yield from self._change("drained")

    def _change(self, then: Any) -> Wait:
        """Change sides of colocated GPUs."""
        self.mark("switching")
        self._fleet.stop(self._fleet.own, "switching")
        yield self._env.timeout(to_picoseconds(self._rl.rollout[0].switch))
        self._fleet.stop(self._fleet.own, then)

    def _sync(self, version: int) -> Wait:
        """Send weights to the engines."""
        fleet = self._fleet
        self.mark("sync")
        if self._rl.sync.running == "wait":
            fleet.drain()
        else:
            fleet.stop(fleet.own, "drained")
        yield self._hub.until(lambda: fleet.quiet, lambda: f"engines to come to rest for sync {version}")
        fleet.stop(fleet.own, "sync")
        begin = self._env.now
        yield self._env.timeout(self._sync_ps)
        self.syncs.append(WeightSync(begin, self._env.now, version))
        self.close()
        self._hub.synced()
