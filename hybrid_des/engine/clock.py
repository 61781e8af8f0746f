"""Simulated time: SimPy's environment, whose clock counts whole picoseconds.

Many GPUs act at the same time, so events are kept by time: a heap of distinct times and for each time its events in the
order in which they were booked. Those of another priority than the usual one are few and kept apart, by time and
priority. The order of events is exactly SimPy's: by time, then priority, then booking.

In a ring over 1,024 ranks, the objects of all ranks do not fit into a processor's cache of 1 MiB, so every message
misses it. Objects per rank are therefore few and small, and an event is released as soon as it has been processed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from types import MethodType
from typing import Any

import simpy
from simpy.core import EmptySchedule, StopSimulation
from simpy.events import NORMAL, URGENT, Event, EventPriority, _describe_frame

from hybrid_des.engine.recorder import LAST_TIME, TimeRangeError
from hybrid_des.errors import UsageError

RESUMED = EventPriority(URGENT - 1)  # an event that `run(until=…)` left half processed


FIRST = URGENT  # before everything usual at the same time


LAST = EventPriority(NORMAL + 1)  # after everything else at the same time


BEAT = 2**12  # events from one beat to the next


ALL = 2**62  # more events than there are


PRIORITY = 2  # bits: a moment is `time << PRIORITY | priority − RESUMED`


USUAL = NORMAL - RESUMED


LAUNCH = "launch"  # the value of a timeout in which nothing is computed: a collective is being launched


_NO_EVENT = re.compile(r'File "(.*)", line (\d+), in .*Invalid yield value "(.*)"', re.DOTALL)  # SimPy's error


class Agenda:
    """Events by time.

    Attributes:
        booked: time → its events.
        times: a heap of the keys.
    """

    __slots__ = ("booked", "times")

    def __init__(self) -> None:
        self.booked: dict[int, list[Any]] = {}
        self.times: list[int] = []

    def book(self, at: int, event: Any) -> None:
        """Add an event after the others of its time.

        Where an event is booked for every message or op, these lines stand instead of a call.
        """
        booked = self.booked
        if at in booked:
            booked[at].append(event)
        else:
            booked[at] = [event]
            heappush(self.times, at)

    def put_back(self, at: int, events: list[Any]) -> None:
        """Book events that were taken out, last first, again: before those booked for their time meanwhile."""
        booked = self.booked
        if at not in booked:
            heappush(self.times, at)
        booked[at] = [*reversed(events), *booked.get(at, ())]


class Timeout(simpy.Timeout):
    """SimPy's timeout, with fewer calls and less memory."""

    __slots__ = ("_delay", "_ok", "_value", "callbacks", "env")

    def __init__(self, env: Environment, delay: int, value: Any = None) -> None:
        if delay.__class__ is not int or delay < 0:
            super().__init__(env, delay, value)
            return
        self.env = env
        self.callbacks = []
        self._value = value
        self._delay = delay
        self._ok = True
        agenda, at = env.agenda, env.now + delay
        booked = agenda.booked
        if at in booked:
            booked[at].append(self)
        else:
            booked[at] = [self]
            heappush(agenda.times, at)


class Process(simpy.Process):
    """SimPy's process, with less memory, and one callback for all events that it waits for, where SimPy makes one each.

    That callback, `_wake`, refers to the process, so it is dropped when the process ends.
    """

    __slots__ = ("_generator", "_target", "_wake", "callbacks", "env")

    def __init__(self, env: Environment, generator: Any) -> None:
        self._wake: Any = self._resume
        super().__init__(env, generator)

    def _resume(self, event: Any) -> None:
        """Continue with the value of an event until the next one that has not happened yet, as SimPy does."""
        env = self.env
        env._active_proc = self
        while event._ok:
            try:
                event = self._generator.send(event._value)
            except BaseException as end:
                self._ended(end)
                return
            try:
                callbacks = event.callbacks
            except AttributeError:
                frame = _describe_frame(self._generator.gi_frame)  # type: ignore[attr-defined]
                raise RuntimeError(f'\n{frame}Invalid yield value "{event}"') from None
            if callbacks is not None:
                callbacks.append(self._wake)
                self._target = event
                env._active_proc = None
                return
        super()._resume(event)  # throws the failure into the generator

    def _ended(self, end: BaseException) -> None:
        """Happen as an event: the generator has returned or failed."""
        del self._wake
        self._ok = isinstance(end, StopIteration)
        if isinstance(end, StopIteration):
            self._value = end.value
        else:
            assert end.__traceback__ is not None
            self._value = end.with_traceback(end.__traceback__.tb_next)  # without the frame of `_resume`
        self.env.schedule(self)
        self._target, self.env._active_proc = None, None  # type: ignore[assignment]


class Environment(simpy.Environment):
    """SimPy's environment with times in whole picoseconds.

    Attributes:
        now: the current simulated time.
        events: the number of events processed.
        agenda: the pending events.
        apart: those of another priority than the usual one, by moment.
        timeout, process, event: make events, as in SimPy.
    """

    __slots__ = ("agenda", "apart", "event", "events", "now", "process", "timeout")

    now: int
    timeout: Callable[..., Timeout]
    process: Callable[..., Process]
    event: Callable[[], Event]

    def __init__(self, initial_time: int = 0) -> None:
        # SimPy's own event queue is not made: the methods that would read it are overridden below
        self.now = whole(initial_time)
        self.events = 0
        self.agenda, self.apart = Agenda(), Agenda()
        self._active_proc = None
        self.timeout = MethodType(Timeout, self)
        self.process = MethodType(Process, self)
        self.event = MethodType(Event, self)

    def at(self, time: int, event: Any, priority: int = NORMAL) -> None:
        """Book an event for a time not in the past; `event` is triggered, or a `bookings.Booking`."""
        if priority == NORMAL:
            self.agenda.book(time, event)
        else:
            self.apart.book(time << PRIORITY | priority - RESUMED, event)

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """Book a triggered event after a delay.

        Raises:
            ValueError: the delay is not a whole number, or the priority is not one of SimPy's or `LAST`.
        """
        if delay.__class__ is not int:
            delay = whole(delay)
        if priority is not NORMAL and not RESUMED <= priority <= LAST:
            raise ValueError(f"priority {priority} is not one of URGENT, NORMAL and LAST")
        self.at(self.now + delay, event, priority)

    def awaited(self, event: Any) -> Any:
        """An event of another process for which a process waits, now; networks that trace orders are told so."""
        return event

    def descend(self, moments: Sequence[int]) -> None:
        """What is booked now descends from events that are left out; environments that trace orders are told.

        Args:
            moments: when they would happen, in picoseconds from now; the last is that of what is booked.
        """

    def peek(self) -> float:
        """The time of the next event; infinity if there is none."""
        firsts = [*self.agenda.times[:1], *(moment >> PRIORITY for moment in self.apart.times[:1])]
        return min(firsts, default=simpy.core.Infinity)

    def step(self) -> None:
        """Process the next event.

        Raises:
            EmptySchedule: there is none.
        """
        self._process(1)

    def run(self, until: float | Event | None = None, beat: Callable[[], None] | None = None) -> Any:
        """Process events until there are none, until a time, or until an event; return that event's value.

        Args:
            until: a time or an event.
            beat: called after every `BEAT` events, if given.

        Raises:
            ValueError: the time is not in the future, or is not whole.
            RuntimeError: no events are left, but `until` has not happened.
            TimeRangeError: simulated time no longer fits into 64 bits.
        """
        if until is not None:
            end = until if isinstance(until, Event) else self._end_at(until)
            if end.callbacks is None:
                return end.value
            end.callbacks.append(StopSimulation.callback)
        value = None
        try:
            while beat is not None:
                self._process(BEAT)
                beat()
            self._process(ALL)
        except StopSimulation as stop:
            value = stop.args[0]
        except RuntimeError as error:
            told = _of_a_process(error)
            if told is None:
                raise
            raise told from None
        except EmptySchedule:
            if until is not None:
                raise RuntimeError(f'No scheduled events left but "until" event was not triggered: {end}') from None
        if self.now > LAST_TIME:
            raise TimeRangeError
        return value

    def _end_at(self, time: float) -> Event:
        """Book an event for the end of a run, ahead of everything else at that time."""
        at = whole(time)
        if at <= self.now:
            raise ValueError(f"until ({at}) must be greater than the current simulation time")
        end = Event(self)
        end._ok = True
        end._value = None
        self.at(at, end, URGENT)
        return end

    def _process(self, most: int) -> None:
        """Process `most` events.

        Raises:
            EmptySchedule: there are fewer.
        """
        agenda, apart = self.agenda, self.apart
        times, moments = agenda.times, apart.times
        number = self.events
        end = number + most
        while number < end:
            if moments and (not times or moments[0] < times[0] << PRIORITY | USUAL):
                taken, key = apart, heappop(moments)
                self.now = key >> PRIORITY
            elif times:
                taken, key = agenda, heappop(times)
                self.now = key
            else:
                raise EmptySchedule
            events = taken.booked.pop(key)
            events.reverse()
            try:
                while True:
                    event = events.pop()
                    self.events = number = number + 1
                    if event.__class__ is tuple:
                        event[0](event)
                    else:
                        callbacks, event.callbacks = event.callbacks, None
                        if len(callbacks) == 1:  # as nearly always: saves an iterator
                            callback = callbacks[0]
                            callback(event)
                        else:
                            for callback in callbacks:
                                callback(event)
                        if not event._ok and not hasattr(event, "_defused"):
                            raise copied(event._value)
                    if not events or number == end:
                        break
                    if moments and moments[0] < (key if taken is apart else key << PRIORITY | USUAL):
                        break  # a more urgent event has been booked at this time
            except StopSimulation:
                # the remaining callbacks run if the simulation is continued
                event.callbacks = callbacks[callbacks.index(callback) + 1 :]
                self.at(self.now, event, RESUMED)
                raise
            finally:
                if events:
                    taken.put_back(key, events)


def _of_a_process(error: RuntimeError) -> UsageError | None:
    """SimPy's error about a process that yields no event in one line; None for another error."""
    match = _NO_EVENT.search(str(error))
    if match is None:
        return None
    where, line, value = match.groups()
    return UsageError(f"{where}:{line}: a process yields {value}; expected an event, such as what receive() returns")


def copied(failure: BaseException) -> BaseException:
    """A copy of an exception, with its own traceback."""
    copy = type(failure)(*failure.args)
    copy.__cause__ = failure
    return copy


def whole(number: float) -> int:
    """A number of picoseconds as an integer.

    Raises:
        ValueError: it is not whole.
    """
    integer = int(number)
    if integer != number:
        raise ValueError(f"simulated time counts whole picoseconds; {number} is not whole")
    return integer
