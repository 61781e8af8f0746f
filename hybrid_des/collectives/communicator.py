"""Communicators: one rank's part in what a process group does together, carried by messages or replayed.

communicator.run(step, call)    a routine that takes part in one collective; the call says which one

Communicator    the algorithm runs on all channels of the group at once, each with its share of the buffer
Barrier         all members meet, and continue
Met             all members meet; then the time passes, beside the op
OnStream        carried by another one, or timed, on a stream: after the collectives that its rank started before
Replayed        all members meet; then the time that the collective takes alone passes (`cost_model.collective_times`)
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import simpy

from hybrid_des.cluster.mailbox import ReplayedGroup
from hybrid_des.collectives.buffer import Buffer, shares_of
from hybrid_des.collectives.group import Group, Routine
from hybrid_des.collectives.registration import Collective
from hybrid_des.engine.clock import LAUNCH, Environment
from hybrid_des.errors import NumericsError

Shares = Callable[[int, int, int], Sequence[int]]  # (elements, members, channels) → the elements on each channel


class Computing(Protocol):
    """The computation of a GPU, which collectives slow (`simulation.computation.Computation`)."""

    def during(self, lost: Fraction, begin: int, end: int | None = None) -> Any:
        """A collective takes this share of its speed; an end that is not yet known is told to `over`."""

    def over(self, period: Any) -> None:
        """The collective of this period ends now."""


class Work(NamedTuple):
    """What a call does.

    Attributes:
        algorithm: with its options.
        buffer: a member's.
        launch: picoseconds before it begins.
        lost: share of its speed that computation beside it loses.
    """

    algorithm: Collective
    buffer: Buffer
    launch: int = 0
    lost: Fraction = Fraction(0)


class Communicator:
    """A member, or a server, of a process group, by messages.

    Args:
        env: the environment.
        group: its view of the group.
        begin: returns the work of each call of a training step.
        shares: how a buffer is divided among channels.
        member: its rank and the stage, for errors of arithmetic, and so that the collective is a process of its own.
        beside: the computation that it slows, if it does.
    """

    def __init__(
        self,
        env: Environment,
        group: Group,
        begin: Callable[[], Callable[[Any], Work]],
        shares: Shares = shares_of,
        *,
        member: tuple[int, int] | None = None,
        beside: Computing | None = None,
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
        algorithm, buffer, launch, lost = self._work(call)
        routine = on_channels(self._group, buffer, algorithm, self._shares)
        if self._member is not None:
            routine = self._apart(routine, *self._member)
        if lost and self._beside is not None:
            routine = self._slowing(self._beside, lost, routine)
        return self._after(launch, routine) if launch else routine

    def start(self, step: int, call: Any) -> Any:
        """Start a collective in a process of its own, an event to wait for."""
        return self._env.process(self.run(step, call))

    def _after(self, launch: int, routine: Routine) -> Routine:
        yield self._env.timeout(launch, LAUNCH)
        yield from routine

    def _apart(self, routine: Routine, rank: int, stage: int) -> Routine:
        """Run in a process of its own, so that messages need not pass through a chain of `yield from`."""
        try:
            yield self._env.process(routine)
        except NumericsError as error:
            raise NumericsError(f"rank {rank}, step {self._step}, reduction of stage {stage}: {error}") from None

    def _slowing(self, beside: Computing, lost: Fraction, routine: Routine) -> Routine:
        period = beside.during(lost, self._env.now)
        yield from routine
        beside.over(period)


class Met:
    """A member of a process group whose collectives inside ops begin together, and take as long as they do alone.

    Args:
        env: the environment.
        meeting: with the others.
        beside: the computation that they slow, if they do.
    """

    def __init__(self, env: Environment, meeting: ReplayedGroup, beside: Computing | None) -> None:
        self._env, self._meeting, self._beside = env, meeting, beside

    def run(self, step: int, call: Any) -> Routine:
        """Take part in a collective."""
        if call.launch:
            yield self._env.timeout(call.launch, LAUNCH)
        slowed = self._beside if call.lost else None
        period = slowed and slowed.during(call.lost, self._env.now)
        yield self._meeting.join(call.alone)
        if slowed:
            slowed.over(period)

    def start(self, step: int, call: Any) -> Any:
        """Start a collective in a process of its own, an event to wait for."""
        return self._env.process(self.run(step, call))


class Replayed:
    """A member of process groups whose collectives are replayed.

    Args:
        meetings: per part, with the others, if there are any.
    """

    def __init__(self, meetings: Sequence[ReplayedGroup | None]) -> None:
        self._of_part = meetings

    def run(self, step: int, durations: Sequence[int]) -> Routine:
        """Take part in one collective per part, one after the other."""
        for meeting, duration in zip(self._of_part, durations, strict=True):
            if meeting and duration:
                yield meeting.join(duration)


class Stream:
    """The stream of a rank's collectives beside its computation: one after the other, in the order of their start.

    Args:
        env: the environment.
        beside: the computation that they slow, if they do.
    """

    def __init__(self, env: Environment, beside: Computing | None) -> None:
        self._env, self._beside = env, beside
        self._last: simpy.Event | None = None
        self._until = 0

    def take(self, duration: int, lost: Fraction) -> tuple[int, int]:
        """Begin and end of a collective of known duration that is started now."""
        begin = max(self._until, self._env.now)
        self._until = begin + duration
        if lost and self._beside is not None:
            self._beside.during(lost, begin, self._until)
        return begin, self._until

    def after_others(self, routine: Routine) -> Any:
        """A routine that waits for its turn; it returns when that came, and when it ended."""
        before, self._last = self._last, simpy.Event(self._env)
        return self._in_turn(before, self._last, routine)

    def _in_turn(self, before: simpy.Event | None, done: simpy.Event, routine: Routine) -> Any:
        if before is not None:
            yield self._env.awaited(before)
        begin = self._env.now
        yield from routine
        done.succeed()
        return begin, self._env.now


class OnStream:
    """A member whose collectives wait for those that its rank started before on the same stream.

    Args:
        env: the environment.
        stream: that of the rank.
        communicator: carries them; None: they take as long as they would alone, from their own start on.

    Attributes:
        timed: whether they take as long as they would alone.
    """

    def __init__(self, env: Environment, stream: Stream, communicator: Communicator | Met | None) -> None:
        self._env, self._stream, self._communicator = env, stream, communicator
        self.timed = communicator is None

    def start(self, step: int, call: Any) -> Any:
        """Start a collective: its begin and end, or an event with these as its value."""
        if self._communicator is None:
            return self._stream.take(call.launch + call.alone, call.lost)
        return self._env.process(self._stream.after_others(self._communicator.run(step, call)))


class Barrier:
    """A member of the barrier at the end of a step.

    Attributes:
        meeting: where all of them meet.
    """

    def __init__(self, meeting: ReplayedGroup) -> None:
        self.meeting = meeting

    def run(self, step: int, call: None) -> Routine:
        """Wait for all others."""
        yield self.meeting.join(0)


def on_channels(group: Group, buffer: Buffer, algorithm: Collective, shares: Shares = shares_of) -> Routine:
    """Run an algorithm on all channels of a group at once, each with a part of the buffer."""
    if group.tuned is not None:
        return algorithm(group, buffer)
    rings = group.rings
    if len(rings) == 1:
        return algorithm(rings[0], buffer)
    parts = buffer.sections(shares(buffer.elements, group.size, len(rings)))
    return _at_once(group, [algorithm(rings[number], parts[number]) for number in group.in_turn])


def _at_once(group: Group, routines: Sequence[Routine]) -> Routine:
    yield group.together(*routines)
