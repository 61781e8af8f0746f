"""Whether jobs on shared links take further steps: each repeats its step until all have done their own.

    a   own ── own ── own │
    b   own ── own │ ── further ── further ── (begun before a was done, so it ends)
                   └ b is done, a is not: b goes on

A job has done its own steps when the compute streams of all of its ranks have; those end after all other streams of a
step, and after the barrier if there is one. All ranks of a job take the same steps: the first rank that asks for a
further step decides for all.
"""

from __future__ import annotations

from hybrid_des.cluster.traced_transport import known
from hybrid_des.engine.bookings import Arrival, Delivered
from hybrid_des.engine.causes import NOTHING, Causes
from hybrid_des.engine.clock import LAST, Environment


class Repetition:
    """The jobs of a simulation that have not done their own steps.

    Attributes:
        left: their numbers.
    """

    def __init__(self, env: Environment, jobs: int) -> None:
        self.env = env
        self.left = set(range(jobs))


class FurtherSteps:
    """Whether one job takes further steps.

    Args:
        jobs: all jobs.
        number: of the job.
        ranks: number of its compute streams.
        steps: its own number of steps.
        repeats: whether it takes further steps at all.
        trace: of the job, if it is explained.
    """

    def __init__(
        self, jobs: Repetition, number: int, ranks: int, steps: int, *, repeats: bool, trace: Causes | None
    ) -> None:
        self._jobs, self._number, self._steps = jobs, number, steps
        self._repeats, self._trace = repeats, trace
        self._working = ranks
        self._known: dict[int, tuple[bool, int]] = {}  # step → whether it is taken, and the point that decided
        self._asked: dict[int, tuple[Arrival, int]] = {}
        self._waiting: dict[int, list[Arrival]] = {}

    def ask(self, step: int) -> Arrival | Delivered:
        """An event whose value is whether a compute stream takes this step, for which it asks when the last has ended.

        It is decided at the end of the picosecond in which the first one asks, so that it does not matter which of
        several jobs that are done at the same time asks first.
        """
        if step == self._steps:
            self._working -= 1
            if not self._working:
                self._jobs.left.discard(self._number)
        if step in self._known:
            return _here(self._known[step][0])
        if step not in self._asked:
            env = self._jobs.env
            point = NOTHING if self._trace is None else self._trace.here
            self._asked[step] = known(Arrival.of(env), NOTHING), point
            env.at(env.now, (lambda _: self._decide(step),), LAST)
        return self._asked[step][0]

    def told(self, step: int) -> Arrival | Delivered:
        """The same for a server, which has no compute stream: it waits until a rank has asked."""
        if step in self._known:
            return _here(*self._known[step])
        waiting = Arrival.of(self._jobs.env)
        self._waiting.setdefault(step, []).append(waiting)
        return waiting

    def _decide(self, step: int) -> None:
        taken, now = self._repeats and bool(self._jobs.left - {self._number}), self._jobs.env.now
        asked, point = self._asked.pop(step)
        self._known[step] = taken, point
        for event in (asked, *(known(waiting, point) for waiting in self._waiting.pop(step, ()))):
            event.happen(now, taken)


def _here(taken: bool, point: int = NOTHING) -> Delivered:
    here: Delivered = known(Delivered(taken), point)
    return here
