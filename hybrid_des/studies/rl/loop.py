"""A loop of reinforcement learning, simulated: engines, rewards, a queue, a trainer, weight syncs.

At each time, everything that ends then is processed first, in any order: decode steps, rewards, optimizer steps. Then
the loop settles, in this order: rewards that wait begin; the trainer takes what it waits for; prompts are begun and
their samples given to engines; engines begin their next prefill or decode steps. So what happens at the same time does
not depend on the order in which it was booked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf

from simpy.events import Event

from hybrid_des.engine.clock import LAST, Environment
from hybrid_des.errors import DeadlockError, SimulationError, UsageError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.rl import Rl
from hybrid_des.simulation.run import reduced_gc
from hybrid_des.studies.rl.admission import Admission
from hybrid_des.studies.rl.draws import GroupDraws
from hybrid_des.studies.rl.fleet import Fleet
from hybrid_des.studies.rl.parts import EngineCosts, LoopParts, TrainerCosts
from hybrid_des.studies.rl.parts_of_scenario import engines_said, parts_of
from hybrid_des.studies.rl.queue import CompletedFirst, OldestFirst, Queue
from hybrid_des.studies.rl.record import LoopRecord, QueueLength, Sample
from hybrid_des.studies.rl.rewards import Rewards
from hybrid_des.studies.rl.sample import Group, Work
from hybrid_des.studies.rl.training import Trainer
from hybrid_des.units import format_seconds

NOTES = (
    "a sample goes to the engine with the fewest samples of those with a free place, and stays there",
    "an engine reads prompts between decode steps, a shared one once, and keeps them until their samples have ended",
    "weights reach all engines at the same time",
)


def notes_of(rl: Rl) -> tuple[str, ...]:
    """What a report should say about how a loop is simulated, a sentence each."""
    told = {
        "a sample that waits for a tool takes no place of its engine, and returns to it": rl.turns is not None,
        "samples begun anew at a sync have the age of their new beginning": rl.sync.running == "restart",
        "samples of lent GPUs continue on other engines when these return": rl.lend is not None,
        "colocated engines generate all samples until the next sync before the trainer begins": rl.colocated,
        "of GPUs in turns, neither side holds memory in the other's turn": rl.colocated or rl.lend is not None,
    }
    return (*NOTES, *(note for note, holds in told.items() if holds))


class Loop:
    """A loop under way.

    Attributes:
        env: its environment.
        version: weight syncs so far.
        queue: prompts that are ready.
    """

    def __init__(self, rl: Rl, seed: int, prompts: int, parts: LoopParts) -> None:
        """Prepare a loop.

        Args:
            rl: the section.
            seed: of what is drawn.
            prompts: of an optimizer step.
            parts: engines, trainer, syncs.
        """
        self.env, self.version = Environment(), 0
        self._rl, self._draws = rl, GroupDraws(rl, seed)
        self._admission = Admission(rl, prompts * rl.updates)
        self.queue: Queue = OldestFirst() if rl.order == "oldest" else CompletedFirst()
        self._rewards = Rewards(self.env, rl.reward, self._ready, self.changed)
        self._settling = False
        self._beat: Callable[[], None] | None = None
        self._goal: tuple[Callable[[], bool], Callable[[], str], Event] | None = None
        self._left = dict[Group, None]()  # not trained or thrown away
        self._samples, self._queued = list[Sample](), [QueueLength(0, 0, 0)]
        self._fleet = Fleet(
            self.env, rl, parts, self._admission, begin=self._begin, ended=self._ended, changed=self.changed
        )
        self._trainer = Trainer(self.env, rl, prompts, parts.trainer, parts.sync_ps)
        self._trainer.connect(self, self._fleet, self.queue, self._admission)

    def run(self, syncs: int, beat: Callable[[], None] | None = None) -> None:
        """Run until so many weight syncs have ended.

        Raises:
            DeadlockError: the trainer waits for what never comes.
        """
        process = self.env.process(self._trainer.run(syncs))
        self._beat = beat
        try:
            self.env.run(process, beat)
        except RuntimeError as error:
            if self._goal is None or "No scheduled events left" not in str(error):
                raise
            raise DeadlockError(f"rl: the trainer waits for {self._goal[1]()}; {self._admission.told()}") from None
        for replica in self._fleet.replicas:
            replica.close()

    def changed(self) -> None:
        """Settle once everything that ends now has been processed."""
        if not self._settling:
            self._settling = True
            self.env.at(self.env.now, (self._settle,), LAST)

    def until(self, condition: Callable[[], bool], what: Callable[[], str]) -> Event:
        """An event that happens once a condition holds; `what` tells what it is."""
        event = self.env.event()
        self._goal = condition, what, event
        self.changed()
        return event

    def _settle(self, _: object) -> None:
        self._settling = False
        at_once = self._rewards.serve()
        if self._goal is not None and self._goal[0]():
            self._goal[2].succeed()
            self._goal, at_once = None, True
        if at_once:
            self.changed()
            return
        self._trainer.look()
        self._fleet.dispatch()
        self._fleet.proceed()
        groups, running = len(self.queue), self._fleet.running
        last = self._queued[-1]
        if last.groups != groups or last.running != running:
            if last.time == self.env.now:
                self._queued.pop()
            self._queued.append(QueueLength(self.env.now, groups, running))

    def _begin(self) -> Group:
        """The next prompt."""
        group = Group(self._admission.begun, self._draws.next(), self.env.now, self.version)
        self._admission.begun += 1
        self._left[group] = None
        self.queue.begin(group)
        return group

    def _ended(self, work: Work) -> None:
        """The last token of a sample is there."""
        work.last = self.version
        self._rewards.ended(work)

    def _ready(self, group: Group) -> None:
        """All samples of a prompt have their rewards."""
        if group.drawn.filtered:
            self._throw_away([group], "filtered")
        elif self._is_stale(group):
            self._throw_away([group], "dropped")
        else:
            group.ready, group.fate = self.env.now, "queued"
            self.queue.put(group)
        self.changed()

    def _is_stale(self, group: Group) -> bool:
        rl = self._rl
        return rl.stale == "drop" and rl.max_age is not None and self.version - group.version > rl.max_age

    def _throw_away(self, groups: Sequence[Group], fate: str) -> None:
        """Prompts are not trained; others may be begun instead."""
        self.queue.leave(groups)
        self._admission.gone += len(groups)
        self._finish(groups, fate)

    def _finish(self, groups: Sequence[Group], fate: str) -> None:
        """Write down what happened to the samples of prompts."""
        for group in groups:
            group.fate = fate
            group.ready = self.env.now if group.ready < 0 else group.ready
            del self._left[group]
            self._samples += group.samples()

    def trained(self, groups: Sequence[Group], batch: int) -> None:
        """Prompts have left the queue for a batch."""
        if self._beat is not None:
            self._beat()  # the trainer may have taken long
        self._admission.taken += len(groups)
        for group in groups:
            group.batch, group.age_at = batch, self.version
        self._finish(groups, "trained")
        self.changed()

    def synced(self) -> None:
        """A weight sync has ended."""
        self.version += 1
        self._admission.synced()
        if stale := [group for group in self.queue.ready() if self._is_stale(group)]:
            self._throw_away(stale, "dropped")
        self._fleet.synced(self.version)
        self.changed()

    def record(self, trainer_gpus: int, notes: tuple[str, ...], *, trainer_fits: bool) -> LoopRecord:
        """What happened; the loop has ended."""
        samples = self._samples + [sample for group in self._left for sample in group.samples()]
        replicas = self._fleet.replicas
        return LoopRecord(
            end=self.env.now,
            samples=tuple(sorted(samples, key=lambda sample: sample.group)),
            engines=tuple(span for replica in replicas for span in replica.spans),
            trainer=tuple(self._trainer.spans),
            syncs=tuple(self._trainer.syncs),
            queue=tuple(self._queued),
            gpus_of_replicas=tuple(replica.gpus for replica in replicas),
            lent=len(self._fleet.lent),
            trainer_gpus=trainer_gpus,
            notes=notes,
            trainer_fits=trainer_fits,
            generated=sum(replica.generated for replica in replicas),
            prefilled=sum(replica.prefilled for replica in replicas),
        )


class LoopUnfinishedError(SimulationError):
    """A loop was ended by its budget, in real seconds."""

    exit_code = 3


def run_loop(
    scenario: Scenario,
    *,
    engines: EngineCosts | Sequence[EngineCosts] | None = None,
    trainer: TrainerCosts | None = None,
    sync_ps: int | None = None,
    budget_s: float = inf,
) -> LoopRecord:
    """Simulate the loop of a scenario with `rl`.

    Args:
        scenario: it has a section `rl`; `steps` counts weight syncs.
        engines: times of a replica, or of one of each kind of `rl.rollout`. Default: those of the scenario's GPUs.
        trainer: times of optimizer steps. Default: `rl.trainer`.
        sync_ps: picoseconds of a weight sync. Default: `rl.sync`.
        budget_s: real seconds after which to give up.

    Returns:
        What happened. The same scenario gives the same record.

    Raises:
        UsageError: the scenario has no section `rl`.
        Refusal: an engine has no room for a sample, or a part does not support the sizes.
        DeadlockError: the trainer waits for prompts that may not be begun.
        LoopUnfinishedError: the budget is spent.
    """
    if scenario.rl is None or scenario.batch is None:
        raise UsageError(f"{scenario.name}: expected a section rl, such as that of scenarios/REFERENCE.md")
    parts = parts_of(scenario, engines=engines, trainer=trainer, sync=sync_ps)
    loop = Loop(scenario.rl, scenario.seed, scenario.batch // scenario.rl.samples, parts)
    with reduced_gc():
        loop.run(scenario.steps, None if budget_s == inf else _limit(scenario.name, budget_s))
    of_engines = () if engines is not None else dict.fromkeys(engines_said(scenario))
    notes = (*notes_of(scenario.rl), *of_engines, *getattr(parts.trainer, "notes", ()))
    return loop.record(scenario.parallel.ranks, notes, trainer_fits=getattr(parts.trainer, "fits", True))


def _limit(name: str, budget_s: float) -> Callable[[], None]:
    """What ends a loop when its budget is spent."""
    last = time.monotonic() + budget_s

    def beat() -> None:
        if time.monotonic() > last:
            raise LoopUnfinishedError(f"{name}: not complete: the budget of {format_seconds(budget_s)} is spent")

    return beat
