"""Why each moment of a run happened: a graph of causes, recorded beside the rows on request.

A process is a chain of points, one after each wait. A point has an edge from the previous point, with the time spent
computing in between, or launching a collective, as lag, and one from each cause that it waited for:

    start ── computed ──► point ── received ──► point ── all have met ──► point
                                      ▲                        ▲
                               message or handoff        the others' points

Processes are followed from outside, by the events they yield, so that schedules and collectives need not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from struct import error
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simpy.events import Condition

from hybrid_des.engine.bookings import Arrival, Delivered
from hybrid_des.engine.clock import LAUNCH, Environment, Process, Timeout
from hybrid_des.engine.long_rows import LongRows
from hybrid_des.engine.recorder import Recorder, Rows, out_of_range

Column = NDArray[np.int64]
Steps = Generator[Any, Any, Any]

NOTHING = -1
FLOW_SHIFT = 32  # bits of a message's number among those of its flow
START, COMPUTED, WAITED, MET, LAUNCHED = range(5)  # kinds of points
OF_PROCESSES = Process, Condition  # events that are, or have parts that are, the ends of processes
ALONE = Timeout, *OF_PROCESSES  # events of one process
RECEIVED = Arrival, Delivered  # events of messages and handoffs, unless processes meet at them
TABLES = ("ops", "steps", "reductions", "gathers", "waits")  # `table` of a mark
OPS, STEPS = map(TABLES.index, ("ops", "steps"))


@dataclass(slots=True)
class Thread:
    """A process that is followed.

    Attributes:
        number: its place among all processes.
        at: its latest point.
        pieces: the points at which pieces of computing have ended since its last op row.
    """

    number: int
    at: int
    pieces: list[int] = field(default_factory=list)


class Causes:
    """The causes of one run.

    Attributes:
        rows: the message rows; their number so far orders points among them.
        points: per point its kind, thread, time, message rows so far, the previous point, the lag from it, and the
            cause that it waited for, if it is that of one message or handoff: a point, or the code of a message.
        edges: further edges: from a point, or from the code of a message; to a point; lag.
        sends: per message its flow, and the point at which it is sent.
        marks: per row of the tables its table, number, thread, and the thread's point.
        pieces: per piece of an op its row and the point at its end.
        meetings: per point at which a known group of ranks meets, its place in `groups`.
        groups: in a folded run, the ranks of each group that meets, or that a switch serves, simulated or not.
        serving: in a folded run, the first thread of each switch, and the place of its ranks in `groups`.
        legs: in a folded run, the simulated link of each channel, and the element of the fold that maps it to the
            channel's own.
        later: picoseconds to be added to the recorded times.
    """

    def __init__(self) -> None:
        self.rows: Rows | None = None
        self.points = LongRows(("kind", "thread", "time", "row", "before", "lag", "cause"), "time")
        self.edges = Rows(("cause", "point", "lag"))
        self.sends = LongRows(("flow", "point"), "point")
        self.marks = Rows(("table", "row", "thread", "point"))
        self.pieces = Rows(("row", "point"))
        self.meetings = Rows(("point", "group"))
        self.groups: list[Sequence[int]] = []
        self.serving: list[tuple[int, int]] = []
        self.legs: list[tuple[str, tuple[int, ...]]] = []
        self.later = 0
        self.current: Thread | None = None
        self.origin = NOTHING
        self._threads = self._points = self._flows = 0

    def clear(self) -> None:
        """Forget a run that is begun anew."""
        vars(self).update(vars(Causes()))

    def point(self, kind: int, thread: int, time: int, before: int, lag: int = 0, cause: int = NOTHING) -> int:
        """Add a point and return its number."""
        rows, points, number = self.rows, self.points, self._points
        row = (
            kind,
            thread,
            time,
            0 if rows is None else rows.moved + len(rows.numbers) // rows.width,
            before,
            lag,
            cause,
        )
        try:
            points.write(points.pack(*row))
        except error as refusal:
            raise out_of_range(refusal, max(row)) from None
        self._points = number + 1
        return number

    def open(self) -> int:
        """Add a flow and return its number."""
        self._flows += 1
        return self._flows - 1

    @property
    def here(self) -> int:
        """The point of the running process."""
        return NOTHING if self.current is None else self.current.at

    def mark(self, table: int, number: int) -> None:
        """Note at which point a row is written."""
        thread = self.current
        assert thread is not None
        self.marks.add((table, number, thread.number, thread.at))
        if table == 0:
            for piece in thread.pieces:
                self.pieces.add((number, piece))
            thread.pieces.clear()

    def serve(self, ranks: Sequence[int]) -> None:
        """Attribute threads that begin next, with the run, to a switch that serves these ranks."""
        self.serving.append((self._threads, len(self.groups)))
        self.groups.append(ranks)

    def thread(self, time: int) -> Thread:
        """Begin a thread at the point of the process that starts it."""
        self._threads += 1
        return Thread(self._threads - 1, self.point(START, self._threads - 1, time, self.here))

    def meet(self, thread: Thread, time: int, event: Any) -> None:
        """Add the point at which all processes meet that wait for an event."""
        event.met = self.point(MET, thread.number, time, NOTHING)
        if (group := event.__dict__.get("group")) is not None:
            self.meetings.add((event.met, group))
        lag = time - max(arrived for arrived, _ in event.arrived)
        for _, point in event.arrived:
            self.edges.add((point, event.met, lag))

    def join(self, thread: Thread, time: int, *causes: int) -> None:
        """Resume a thread after the causes that it has waited for."""
        thread.at = at = self.point(WAITED, thread.number, time, thread.at)
        edges = self.edges
        for cause in causes:
            if cause != NOTHING:
                edges.write(edges.pack(cause, at, 0))

    def columns(self) -> dict[str, dict[str, Column]]:
        """All tables as columns; all causes but previous points are among the edges, where message n is −2−n."""
        names = ("points", "edges", "sends", "marks", "pieces", "meetings")
        tables = {name: getattr(self, name).mapped() for name in names}
        if self.later:
            tables["points"]["time"] = tables["points"]["time"] + self.later
        cause, edges = tables["points"].pop("cause"), tables["edges"]
        point = np.flatnonzero(cause != NOTHING)
        alone = {"cause": cause[point], "point": point, "lag": np.zeros_like(point)}
        tables["edges"] = {name: np.concatenate([alone[name], edges[name]]) for name in alone}
        _number_messages(tables["edges"]["cause"], tables["sends"]["flow"])
        return tables

    def let_go(self) -> None:
        """Free the memory of what was read of the rows of points and messages, where these are in files."""
        for rows in (self.points, self.sends, self.rows):
            if rows is not None:
                rows.let_go()


def code_of(flow: int, number: int) -> int:
    """The code of a message, by its number among those of its flow."""
    return -2 - (flow << FLOW_SHIFT | number)


def _number_messages(cause: Column, flow: Column) -> None:
    """Write −2−n for the codes among causes, given the flow of each message n."""
    messages = np.flatnonzero(cause < NOTHING)
    of, number = np.divmod(-2 - cause[messages], 1 << FLOW_SHIFT)
    order = np.argsort(flow, kind="stable")
    counts = np.bincount(flow)
    first = np.cumsum(counts) - counts
    cause[messages] = -2 - order[first[of] + number]


class TracedProcess(Process):
    """A process with the thread that follows it."""

    def __init__(self, env: TracedEnvironment, steps: Steps) -> None:
        self.thread = env.trace.thread(env.now)
        super().__init__(env, env.followed(steps, self.thread))


class TracedEnvironment(Environment):
    """An environment that follows its processes."""

    __slots__ = ("trace",)

    def __init__(self, trace: Causes) -> None:
        super().__init__()
        self.trace = trace
        self.process = self._follow

    def _follow(self, steps: Steps) -> Process:
        return TracedProcess(self, steps)

    def followed(self, steps: Steps, thread: Thread) -> Steps:
        """Run a process, with a point after each wait."""
        trace, number, value = self.trace, thread.number, None
        go_on: Callable[[Any], Any] = steps.send
        try:
            while True:
                trace.current = thread
                event = go_on(value)
                received = event.__class__ in RECEIVED and hasattr(event, "origin")  # as nearly always
                if meets := not (received or hasattr(event, "origin") or isinstance(event, ALONE)):
                    event.__dict__.setdefault("arrived", []).append((self.now, thread.at))
                try:
                    value = yield event
                except Exception as error:
                    value, go_on = error, steps.throw
                    continue
                go_on = steps.send
                if received:
                    thread.at = trace.point(WAITED, number, self.now, thread.at, 0, event.origin)
                else:
                    self._waited(thread, event, meets)
        except StopIteration as done:
            return done.value

    def _waited(self, thread: Thread, event: Any, meets: bool) -> None:
        trace = self.trace
        if isinstance(event, Timeout):
            kind = LAUNCHED if event._value is LAUNCH else COMPUTED
            thread.at = trace.point(kind, thread.number, self.now, thread.at, int(event._delay))
            if kind == COMPUTED:
                thread.pieces.append(thread.at)
        elif meets:
            if "met" not in event.__dict__:
                trace.meet(thread, self.now, event)
            thread.at = event.met
        elif isinstance(event, OF_PROCESSES):
            trace.join(thread, self.now, *_causes(event))
        else:
            thread.at = trace.point(WAITED, thread.number, self.now, thread.at, 0, event.origin)


class TracedView(TracedEnvironment):
    """The environment of one job among several: its processes are followed, those of other jobs are not."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Environment, trace: Causes) -> None:
        self._whole = whole
        super().__init__(trace)
        self.agenda, self.apart = whole.agenda, whole.apart

    @property
    def now(self) -> int:
        """The current simulated time, which all jobs share."""
        return self._whole.now

    @now.setter
    def now(self, time: int) -> None:
        """Leave the time as it is: the whole environment advances it."""

    @property
    def events(self) -> int:
        """The number of events processed, those of all jobs."""
        return self._whole.events

    @events.setter
    def events(self, count: int) -> None:
        """Leave the number as it is."""


def _causes(event: Any) -> Iterator[int]:
    """The points, or codes of messages, that made an event happen."""
    if isinstance(event, Condition):
        for part in event._events:
            yield from _causes(part)
    elif isinstance(event, TracedProcess):
        yield event.thread.at
    elif hasattr(event, "origin"):
        yield event.origin


class MarkedRows(Rows):
    """Rows for which a trace keeps the points at which they were written."""

    def __init__(self, rows: Rows, trace: Causes, table: int) -> None:
        super().__init__(rows.columns)
        self._trace = trace
        self._table = table
        self._keep, self.write = self.write, self._marked

    def _marked(self, row: bytes) -> None:
        """Append one row, and note its point."""
        self._trace.mark(self._table, len(self))
        self._keep(row)


def traced(recorder: Recorder, trace: Causes) -> Recorder:
    """Make a recorder report its rows to a trace."""
    for table, name in enumerate(TABLES):
        setattr(recorder, name, MarkedRows(getattr(recorder, name), trace, table))
    trace.rows, recorder.further = recorder.messages, [trace.points, trace.sends]
    return recorder
