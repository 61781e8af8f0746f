"""How a command runs: no longer than its budget, on this machine or on a Dask cluster."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from types import FrameType

from hybrid_des.errors import SimulationError, UsageError
from hybrid_des.units import format_seconds

AGAIN_S = 1.0  # after which to raise once more: Python drops exceptions raised in `__del__`


class OutOfTimeError(SimulationError):
    """The budget of a command is spent."""

    exit_code = 3


def has_timer() -> bool:
    """Whether this system, and this thread, can be interrupted by a timer."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def timer(after_s: float, every_s: float, act: Callable[[], None]) -> Iterator[None]:
    """Call a function after some real seconds, and then every few; what it raises ends what runs inside."""

    def ring(number: int, frame: FrameType | None) -> None:
        act()

    before = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s, every_s)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # again: the timer may have interrupted the one above
        signal.signal(signal.SIGALRM, before)


@contextmanager
def within(budget_s: float, name: str, grace_s: float = 0.0) -> Iterator[None]:
    """End what runs inside after some real seconds and a grace; infinitely many are no limit.

    Raises:
        OutOfTimeError: the budget is spent; the message names the scenario.
        UsageError: this system, or a thread other than the main one, has no timer.
    """
    if budget_s == inf:
        yield
        return
    if not has_timer():
        raise UsageError(f"{name}: --budget: there is no timer here that could end the command")
    spent = OutOfTimeError(f"{name}: not complete: the budget of {format_seconds(budget_s)} is spent")
    fired: list[bool] = []

    def end() -> None:
        fired.append(True)
        raise spent

    try:
        with timer(budget_s + grace_s, AGAIN_S, end):
            yield
    except Exception:
        if fired:  # compiled code may replace an exception with its own
            raise spent from None
        raise


GRACE_S = 1.0  # after which a run ends that has not looked at its budget: it is planned, or a plug-in does not return


def ended_late(budget_s: float, name: str) -> AbstractContextManager[None]:
    """End a simulation that does not end by itself when its budget is spent, where a timer can."""
    return within(budget_s, name, GRACE_S) if has_timer() else nullcontext()
