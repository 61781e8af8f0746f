"""The job over weeks: a discrete-event simulation of running, stopping, recovering, and nodes that leave and return.

    running --failure--> detection --> [repair] --> [swap] --> restart --> running
                  a failure while the job is down starts this again (restart.can_fail), or has no effect

Places are nodes: those of the job, then the spares. A failed node leaves its place empty, and returns when it is
repaired: to its own place if that is still empty, else to an empty place of the job, else to the spares.

`job_of` makes the job of a scenario with `faults`, `replicate` runs its replications.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.faults import NEVER, OPTIMAL, Checkpoint
from hybrid_des.studies.goodput.failures import FailureEvent, Source, faults_of, history, sources_of
from hybrid_des.studies.goodput.ledger import Ledger
from hybrid_des.studies.goodput.states import SlowPart, Stages, State, Steps, gpu_stages_of, replicas_of, stages_of
from hybrid_des.studies.goodput.work import SavedWork, Saving, best_interval
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_picoseconds

RUNNING = "running"


Mark = tuple[str, int, int]  # a node, GPU or NIC: what, the place of its node, its number there


UP = (RUNNING, "flap", "checkpoint")  # phases in which the job has its nodes


@dataclass(frozen=True)
class JobSpec:
    """A job and its response to failures; times are picoseconds.

    Attributes:
        horizon: the wall time.
        sources: the classes of failures.
        replicas, stages: the replicas and the pipeline ranks on each of its nodes.
        gpu_stages: the pipeline rank of each GPU of each node.
        spares: number of standby nodes.
        replaced: whether failed nodes leave an empty place; False if nothing is known about their replacement.
        saving, in_memory: its checkpoints, and whether they are lost if several nodes fail.
        detect, swap, restart: durations of the phases of a recovery.
        can_fail: whether failures count while it is down.
        fewest: the fewest replicas with which it continues; None: all of them.
    """

    horizon: int
    sources: Sequence[Source]
    replicas: Sequence[frozenset[int]]
    stages: Sequence[Stages]
    gpu_stages: Sequence[Stages]
    spares: int
    replaced: bool
    saving: Saving
    in_memory: bool
    detect: int
    swap: int
    restart: int
    can_fail: bool
    fewest: int | None


class Failure(NamedTuple):
    """A failure that occurred: its time, class and part, the job's phase, its effect, and the picoseconds of rework."""

    time: int
    source: int
    spare: bool
    part: int
    phase: str
    effect: str
    rework: int


class Interval(NamedTuple):
    """An interval of the history: its start, end and phase, the step time while running, and the replicas."""

    start: int
    end: int
    phase: str
    step: int | None
    replicas: int


@dataclass
class Replication:
    """One replication."""

    ledger: Ledger = field(default_factory=Ledger)
    failures: list[Failure] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    checkpoints: int = 0

    @property
    def stops(self) -> int:
        """The number of times that the job was stopped while it was running."""
        return sum(one.effect == "stop" and one.phase in UP for one in self.failures)


class RenewalProcess:
    """One replication of a job; `run` runs it to the horizon."""

    def __init__(self, job: JobSpec, strikes: Sequence[FailureEvent], steps: Steps) -> None:
        self.job = job
        self.outcome = Replication()
        self._steps = steps
        self._strikes = strikes
        self._time = 0
        self._phase, self._phase_end = RUNNING, 0
        self._since = 0  # the start of the current interval
        self._empty: set[int] = set()  # places of the job
        self._free: set[int] = set()  # places of spares
        self._returns: list[tuple[int, int]] = []  # when a node is repaired, and its place
        self._slow: dict[Mark, tuple[int, Fraction]] = {}  # its end, and the share of the speed
        self._filled = False  # whether a node has joined the job since it stopped
        self._all = frozenset().union(*job.replicas)
        self._working = self._all
        self._work = SavedWork(job.saving, self.outcome.ledger, steps.healthy)

    def run(self) -> Replication:
        """Run to the horizon.

        Raises:
            HybridDesError: a state's step cannot be simulated.
        """
        for strike in self._strikes:
            self._until(strike.time)
            self._strike(strike)
        self._until(self.job.horizon)
        self._note()
        self._work.close()
        self.outcome.checkpoints = self._work.checkpoints
        return self.outcome

    # time

    def _until(self, time: int) -> None:
        """Advance to a time, handling everything that ends until then."""
        while True:
            ends = [until for until, _ in self._slow.values()]
            event = min([time, *ends, *(when for when, _ in self._returns[:1])])
            self._pass(event)
            for mark in [mark for mark, (until, _) in self._slow.items() if until <= event]:
                del self._slow[mark]
                self._change()
            while self._returns and self._returns[0][0] <= event:
                self._come_back(heapq.heappop(self._returns)[1])
            if event == time:
                self._pass(event)  # a phase of zero length may have begun
                return

    def _pass(self, until: int) -> None:
        while self._time < until or (self._phase not in (RUNNING, "repair") and self._phase_end == self._time):
            if self._phase == RUNNING:
                rejoin = len(self._working) < len(self._all) and not self._whole() <= self._working
                before = self._work.checkpoints
                self._time = self._work.advance(self._time, until, to_checkpoint=rejoin)
                if rejoin and self._work.checkpoints > before:
                    self._enter("checkpoint", self._work.wait_until_written(self._time))
                continue
            end = until if self._phase == "repair" else min(self._phase_end, until)
            self.outcome.ledger[self._phase] += end - self._time
            self._time = end
            if self._phase != "repair" and end == self._phase_end:
                self._leave()

    def _enter(self, phase: str, duration: int = 0) -> None:
        self._note()
        self._phase, self._phase_end = phase, self._time + duration

    def _leave(self) -> None:
        """Enter the phase that follows the one that ends."""
        if self._phase == "detection":
            self._replace()
        elif self._phase == "swap":
            self._enter("restart", self.job.restart)
        elif self._phase == "checkpoint":
            self._load(swap=False)  # joining nodes were prepared while the job was running
        else:
            self._enter(RUNNING)
            self._change()

    def _note(self) -> None:
        """Close the current interval."""
        if self._time > self._since:
            step = self._work.upcoming.time if self._phase == RUNNING else None
            self.outcome.intervals.append(Interval(self._since, self._time, self._phase, step, len(self._working)))
        self._since = self._time

    # failures

    def _strike(self, strike: FailureEvent) -> None:
        source = self.job.sources[strike.source]
        places = (source.spare_parts if strike.spare else source.parts)[strike.part]
        running = self._phase in UP
        phase, rework = self._phase, 0
        if not running and not self.job.can_fail:
            effect = "none"
        elif not source.stops:
            effect = self._disturb(source, strike.part) if running and not strike.spare else "none"
        else:
            hit = self._take_down(places, source.repair) if self.job.replaced else list(places)
            concerned = [place for place in hit if place < len(self.job.replicas)]
            if places and not hit:
                effect = "none"
            elif places and not any(self.job.replicas[place] & self._needed for place in concerned):
                effect = "idle"
            else:
                effect = "stop"
                rework = self._stop(len(hit) > 1)
        self.outcome.failures.append(Failure(*strike, phase, effect, rework))

    @property
    def _needed(self) -> frozenset[int]:
        """The replicas that are working or being loaded; all while that is undecided."""
        return self._all if self._phase in ("detection", "repair") else self._working

    def _stop(self, several: bool) -> int:
        rework = self._work.lose(self._time, memory=self.job.in_memory and several)
        self._enter("detection", self.job.detect)
        return rework

    def _disturb(self, source: Source, part: int) -> str:
        """Pause or slow down a running job for some time."""
        if source.flap is not None:
            end = self._time + source.flap
            if self._phase == RUNNING:
                self._enter("flap", source.flap)
            else:
                self._phase_end = max(self._phase_end, end)
            return "flap"
        assert source.slow is not None and source.lasts is not None
        home = source.homes[part]
        mark = "nic" if source.what == "link" else source.what, home, part - source.homes.index(home)
        until, share = self._slow.get(mark, (0, Fraction(1)))
        self._slow[mark] = max(until, self._time + source.lasts), min(share, source.slow)
        self._change()
        return "slow"

    def _change(self) -> None:
        """Set the next step to that of the cluster's current state."""
        slowed: dict[tuple[str, Stages, int], Fraction] = {}
        for (what, node, number), (_, share) in self._slow.items():
            if self.job.replicas[node] & self._working and node not in self._empty:
                stages = self.job.stages[node] if what != "gpu" else (self.job.gpu_stages[node][number],)
                key = what, stages, 0 if what == "gpu" else number
                slowed[key] = min(share, slowed.get(key, share))
        parts = tuple(SlowPart(*key, share) for key, share in sorted(slowed.items()))
        step = self._steps.of(State(len(self._working), parts))
        if step is not self._work.upcoming:
            self._note()
            self._work.upcoming = step

    # nodes

    def _take_down(self, places: Sequence[int], repair: int | None) -> list[int]:
        """Send the nodes at these places to repair; returns the places that were occupied."""
        job, spares = len(self.job.replicas), self._free
        hit = [place for place in places if place not in self._empty and place not in spares]
        for slot in hit:
            (self._empty if slot < job else self._free).add(slot)
            self._slow = {mark: spell for mark, spell in self._slow.items() if mark[1] != slot}
            heapq.heappush(self._returns, (self._time + (repair or 0), slot))
        return hit

    def _come_back(self, slot: int) -> None:
        """Return a repaired node to its own place, to another empty one of the job, or to the spares."""
        if self._empty:
            self._empty.remove(slot if slot in self._empty else min(self._empty))
            self._filled = True
        else:
            self._free.remove(slot if slot in self._free else min(self._free))
        if self._phase == "repair":
            self._replace()

    def _replace(self) -> None:
        """Put spares into empty places; then continue, wait, or make do with fewer replicas."""
        job = len(self.job.replicas)
        waiting = [place for place in range(job, job + self.job.spares) if place not in self._free]
        for slot, spare in zip(sorted(self._empty), waiting, strict=False):
            self._empty.remove(slot)
            self._free.add(spare)
            self._filled = True
        fewest = len(self._all) if self.job.fewest is None else self.job.fewest
        if len(self._whole()) < fewest:
            if self._phase != "repair":
                self._enter("repair")
            return
        self._load(swap=self._filled)

    def _load(self, swap: bool) -> None:
        """Continue with the replicas that are whole now; a node that returns later joins at a checkpoint."""
        self._enter(*(("swap", self.job.swap) if swap else ("restart", self.job.restart)))
        self._working, self._filled = self._whole(), False

    def _whole(self) -> frozenset[int]:
        """The replicas that have all of their nodes."""
        return self._all.difference(*(self.job.replicas[place] for place in self._empty))


MOST_FAILURES = 10**6  # expected in all replications


EVERY_STEP = Saving(steps=1)  # if nothing is known about checkpoints, no work is lost


def job_of(scenario: Scenario) -> JobSpec:
    """The job of a scenario.

    Raises:
        UsageError: it has no `faults`, or more failures than can be simulated.
    """
    faults = faults_of(scenario)
    horizon, sources = to_picoseconds(faults.horizon), sources_of(scenario)
    expected = expected_failures(scenario, sources)
    if expected > MOST_FAILURES:
        message = f"{expected:.3g} failures in all replications are more than can be simulated (at most 1e6)"
        raise UsageError(f"{scenario.name}: faults: {message}")
    return JobSpec(
        horizon,
        sources,
        replicas_of(scenario),
        stages_of(scenario),
        gpu_stages_of(scenario),
        spares=faults.spares.nodes if faults.spares else 0,
        replaced=faults.spares is not None,
        saving=saving_of(faults.checkpoint, mtbf_of(sources, horizon)),
        in_memory=faults.checkpoint is not None and faults.checkpoint.mode == "memory",
        detect=to_picoseconds(faults.detect or 0),
        swap=to_picoseconds((faults.spares and faults.spares.swap) or 0),
        restart=to_picoseconds(faults.restart.time if faults.restart else 0),
        can_fail=faults.restart is None or faults.restart.can_fail,
        fewest=faults.elastic.min_replicas if faults.elastic else None,
    )


def expected_failures(scenario: Scenario, sources: Iterable[Source]) -> float:
    """Expected failures in all replications, including those of spares."""
    faults = faults_of(scenario)
    seconds = float(faults.horizon)
    parts = [(source, len(source.parts) + len(source.spare_parts)) for source in sources]
    each = (len(one.times) if one.mean is None else count * seconds / one.mean for one, count in parts)
    return sum(each, 0.0) * faults.replications


def mtbf_of(sources: Iterable[Source], horizon: int) -> float | None:
    """Mean time in seconds between failures that stop the job; None if there are none."""
    rate = sum(source.rate(horizon) for source in sources if source.stops)
    return 1 / rate if rate else None


def saving_of(checkpoint: Checkpoint | None, mtbf: float | None) -> Saving:
    """When work is saved; `optimal` is the exact best interval for the time that a checkpoint stops the job."""
    if checkpoint is None:
        return EVERY_STEP
    if checkpoint.every == NEVER or (checkpoint.every == OPTIMAL and mtbf is None):
        return Saving()
    stop, write = to_picoseconds(checkpoint.stop), to_picoseconds(checkpoint.write or 0)
    every: Fraction | str = checkpoint.every
    if every == OPTIMAL and mtbf is not None:
        every = Fraction(best_interval(float(checkpoint.stop), mtbf))
    persist = checkpoint.persist
    return Saving(
        None if isinstance(every, str) else to_picoseconds(every),
        checkpoint.steps,
        stop,
        write,
        to_picoseconds(persist.every) if persist else None,
        to_picoseconds(persist.write) if persist else 0,
    )


def with_interval(job: JobSpec, seconds: float) -> JobSpec:
    """The same job with another time between checkpoints."""
    every = max(round(seconds * PICOSECONDS_PER_SECOND), 1)
    return replace(job, saving=replace(job.saving, every=every, steps=None))


def replicate(job: JobSpec, steps: Steps, numbers: Iterable[int]) -> list[Replication]:
    """Run replications by their numbers, which with the scenario's seed select their random numbers.

    Raises:
        HybridDesError: the step of a state cannot be simulated.
    """
    seed = steps.scenario.seed
    return [RenewalProcess(job, history(job.sources, job.horizon, seed, number), steps).run() for number in numbers]
