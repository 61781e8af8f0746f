"""Meetings: where the members of a group begin a replayed collective together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simpy.events import Event

from hybrid_des.engine.clock import Environment
from hybrid_des.engine.events import Arrival
from hybrid_des.engine.lineage import Lineage, LineageEnvironment
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.lineage_mailboxes import Round
from hybrid_des.folding.orbits import Fold


class Barrier:
    """The barrier of all GPUs at the end of a training step."""

    def __init__(self, env: Environment, parties: int) -> None:
        self._env = env
        self._parties = parties
        self._missing = parties
        self._open = env.event()

    def wait(self) -> Event:
        """Arrive at the barrier; the returned event triggers when all have arrived."""
        event = self._open
        self._missing -= 1
        if not self._missing:
            self._missing, self._open = self._parties, self._env.event()
            event.succeed()
        return event


class Meeting:
    """Where the members of a group begin a collective of known duration together.

    Attributes:
        until: when the latest collective ends.
    """

    def __init__(self, env: Environment, size: int) -> None:
        self._env = env
        self._size = self._missing = size
        self._over = Arrival(env)
        self._periods: list[tuple[int, int]] = []
        self.until = 0

    def join(self, duration: int) -> Event:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        over, now = self._over, self._env.now
        self._missing -= 1
        if not self._missing:
            self.until = now + duration
            self._periods.append((now, self.until))
            over.happen(self.until, None)
            self._missing, self._over = self._size, Arrival(self._env)
        return over

    def busy(self, since: int) -> int:
        """Picoseconds from `since` until now during which a collective was under way."""
        now, took = self._env.now, 0
        for start, end in reversed(self._periods):
            if end <= since:
                break
            took += min(end, now) - max(start, since)
        return took

    def periods(self, since: int) -> Iterator[tuple[int, int]]:
        """The periods, from `since` until now, during which a collective was under way; the last one first."""
        for start, end in reversed(self._periods):
            if end <= since:
                return
            yield max(start, since), min(end, self._env.now)


class LineageBarrier(Barrier):
    """The barrier of the simulated GPUs, in a folded run."""

    def __init__(self, env: LineageEnvironment, parties: int) -> None:
        super().__init__(env, parties)
        self._round = Round(env, parties)

    def wait(self) -> Event:
        """Arrive at the barrier; the returned event triggers when all have arrived."""
        return self._round.join(0)


class LineageMeeting(Meeting):
    """A meeting of the simulated members of a group, in a folded run.

    How much of a collective is under way at a moment at which one begins depends on who comes first.
    """

    def __init__(self, env: LineageEnvironment, size: int) -> None:
        self._round = Round(env, size)
        self._asked: list[tuple[int, Lineage]] = []
        self._begun: list[tuple[int, Lineage]] = []
        super().__init__(env, size)

    _env: LineageEnvironment

    def join(self, duration: int) -> Event:
        """Arrive; the event happens `duration` picoseconds after the last member's arrival."""
        event = self._round.join(duration)
        if self._round.empty:
            now = self._env.now
            self._begun = [(now, self._env.lineage)]
            self._check(self._asked)
            self._until = now + duration
            self._periods.append((now, self._until))
        return event

    @property
    def until(self) -> int:
        """When the latest collective ends."""
        if self._asked and self._asked[0][0] < self._env.now:
            self._asked = []
        self._asked.append((self._env.now, self._env.lineage))
        self._check(self._begun)
        return self._until

    @until.setter
    def until(self, time: int) -> None:
        self._until = time

    def _check(self, others: list[tuple[int, Lineage]]) -> None:
        env = self._env
        if any(at == env.now and not env.decided(one, env.lineage) for at, one in others):
            raise FoldRefusal("a collective begins when a layer does, and which is first differs between replicas")


def barrier_of(env: Environment, parties: int) -> Barrier:
    """The barrier of all simulated GPUs."""
    return LineageBarrier(env, parties) if isinstance(env, LineageEnvironment) else Barrier(env, parties)


def meetings_of(
    env: Environment, groups: Sequence[Sequence[Sequence[int]]], fold: Fold | None = None
) -> Mapping[int, Sequence[Meeting | None]]:
    """Rank → where it meets the other members of its groups, part by part; of a fold, the simulated ranks."""
    found: dict[int, list[Meeting | None]] = {}
    for part, of_part in enumerate(groups):
        for ranks in of_part:
            members = [rank for rank in ranks if fold is None or fold.simulated(rank)]
            kind = LineageMeeting if isinstance(env, LineageEnvironment) else Meeting
            meeting = kind(env, len(members))  # type: ignore[arg-type]
            for rank in members:
                found.setdefault(rank, [None] * len(groups))[part] = meeting
    return found
