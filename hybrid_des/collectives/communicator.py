"""Communicators: one rank's part in what a process group does together, carried by messages or replayed.

communicator.run(step, call)    a routine that takes part in one collective; the call says which one

Communicator    the algorithm runs on all channels of the group at once, each with its share of the buffer
Barrier         all members meet, and continue
OnStream        carried by another one, or timed, on a stream: after the collectives that its rank started before
Replayed        all members meet; then the time that the collective takes alone passes (`folding.times`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import simpy

from hybrid_des.collectives import Collective
from hybrid_des.collectives.buffer import Buffer, shares_of
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.engine.clock import Environment
from hybrid_des.errors import NumericsError
from hybrid_des.network.mailbox import ReplayedGroup

Shares = Callable[[int, int, int], Sequence[int]]  # (elements, members, channels) → the elements on each channel


class Taken(Protocol):
    """What collectives take from the computation of a GPU (`simulation.speeds.Beside`)."""

    def begin(self, now: int, share: Fraction) -> None:
        """A collective begins that takes this share."""

    def end(self, now: int, share: Fraction) -> None:
        """It ends."""


class Work(NamedTuple):
    """What a call does: its algorithm with its options, a member's buffer, and picoseconds before it begins."""

    algorithm: Collective
    buffer: Buffer
    launch: int = 0


class Communicator:
    """A member, or a server, of a process group, by messages.

    Args:
        env: the environment.
        group: its view of the group.
        begin: returns the work of each call of a training step.
        shares: how a buffer is divided among channels.
        member: its rank and the stage, for errors of arithmetic, and so that the collective is a process of its own.
        beside: what is told when a collective begins and ends, and the share that it takes from computation.

    Attributes:
        meetings: none, since nothing is replayed.
    """

    meetings: Sequence[ReplayedGroup] = ()

    def __init__(
        self,
        env: Environment,
        group: Group,
        begin: Callable[[], Callable[[Any], Work]],
        shares: Shares = shares_of,
        *,
        member: tuple[int, int] | None = None,
        beside: tuple[Taken, Fraction] | None = None,
    ) -> None:
        self._env, self._group, self._begin, self._beside = env, group, begin, beside
        self._shares, self._member = shares, member
        self._step = -1
        self._work: Callable[[Any], Work]

    def run(self, step: int, call: Any) -> Routine:
        """Take part in a collective, in messages labelled with a training step."""
        if step != self._step:
            self._step = step
            self._group.begin(step)
            self._work = self._begin()
        algorithm, buffer, launch = self._work(call)
        routine = on_channels(self._group, buffer, algorithm, self._shares)
        if launch:
            return self._after(launch, routine)
        return routine if self._member is None else self._apart(routine, *self._member)

    def start(self, step: int, call: Any) -> Any:
        """Start a collective in a process of its own, an event to wait for."""
        return self._env.process(self.run(step, call))

    def _after(self, launch: int, routine: Routine) -> Routine:
        yield self._env.timeout(launch)
        yield from routine

    def _apart(self, routine: Routine, rank: int, stage: int) -> Routine:
        """Run in a process of its own, so that messages need not pass through a chain of `yield from`."""
        try:
            if self._beside is None:
                yield self._env.process(routine)
                return
            taken, share = self._beside
            taken.begin(self._env.now, share)
            yield self._env.process(routine)
            taken.end(self._env.now, share)
        except NumericsError as error:
            raise NumericsError(f"rank {rank}, step {self._step}, reduction of stage {stage}: {error}") from None


class Replayed:
    """A member of process groups whose collectives are replayed: per part, its meeting with the others, if it has any.

    Attributes:
        meetings: with the others of each part.
    """

    def __init__(self, meetings: Sequence[ReplayedGroup | None]) -> None:
        self._of_part = meetings
        self.meetings = [meeting for meeting in meetings if meeting]

    def run(self, step: int, durations: Sequence[int]) -> Routine:
        """Take part in one collective per part, one after the other."""
        for meeting, duration in zip(self._of_part, durations, strict=True):
            if meeting and duration:
                yield meeting.join(duration)


class Stream:
    """The stream of a rank's collectives beside its computation: one after the other, in the order of their start.

    Attributes:
        meetings: itself, which computation asks when collectives are under way.
        until: when the last one ends, if that is known.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._last: simpy.Event | None = None
        self._periods: list[tuple[int, int | None]] = []
        self.until = 0
        self.meetings = [self]

    def take(self, duration: int) -> tuple[int, int]:
        """Begin and end of a collective of known duration that is started now."""
        begin = max(self.until, self._env.now)
        self.until = begin + duration
        self._periods.append((begin, self.until))
        return begin, self.until

    def after_others(self, routine: Routine) -> Any:
        """A routine that waits for its turn; it returns when that came, and when it ended."""
        before, self._last = self._last, simpy.Event(self._env)
        return self._in_turn(before, self._last, routine)

    def _in_turn(self, before: simpy.Event | None, done: simpy.Event, routine: Routine) -> Any:
        if before is not None:
            yield before
        begin, place = self._env.now, len(self._periods)
        self._periods.append((begin, None))
        yield from routine
        self._periods[place] = begin, self._env.now
        done.succeed()
        return begin, self._env.now

    def periods(self, since: int) -> Iterator[tuple[int, int]]:
        """The periods, from `since` until now, during which a collective was under way; the last one first."""
        now = self._env.now
        for start, end in reversed(self._periods):
            if end is not None and end <= since:
                return
            if start < now:
                yield max(start, since), now if end is None else min(end, now)


class OnStream:
    """A member whose collectives wait for those that its rank started before on the same stream.

    Args:
        env: the environment.
        stream: that of the rank.
        communicator: carries them; None: they take as long as they would alone, from their own start on.

    Attributes:
        meetings: those of the stream.
    """

    def __init__(self, env: Environment, stream: Stream, communicator: Communicator | None) -> None:
        self._env, self._stream, self._communicator = env, stream, communicator
        self.meetings = stream.meetings

    def start(self, step: int, call: Any) -> Any:
        """Start a collective: its begin and end, or an event with these as its value."""
        if self._communicator is None:
            return self._stream.take(call.launch + call.alone)
        return self._env.process(self._stream.after_others(self._communicator.run(step, call)))


class Barrier:
    """A member of the barrier at the end of a step.

    Attributes:
        meetings: none that computation could overlap.
    """

    meetings: Sequence[ReplayedGroup] = ()

    def __init__(self, meeting: ReplayedGroup) -> None:
        self._meeting = meeting

    def run(self, step: int, call: None) -> Routine:
        """Wait for all others."""
        yield self._meeting.join(0)


def on_channels(group: Group, buffer: Buffer, algorithm: Collective, shares: Shares = shares_of) -> Routine:
    """Run an algorithm on all channels of a group at once, each with a part of the buffer."""
    if group.tuned is not None:
        return algorithm(group, buffer)
    rings = group.rings
    if len(rings) == 1:
        return algorithm(rings[0], buffer)
    parts = buffer.sections(shares(buffer.elements, group.size, len(rings)))
    return _at_once(group, [algorithm(*one) for one in zip(rings, parts, strict=True)])


def _at_once(group: Group, routines: Sequence[Routine]) -> Routine:
    yield group.together(*routines)
