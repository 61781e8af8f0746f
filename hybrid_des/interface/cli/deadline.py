"""How a command runs: no longer than its budget, on this machine or on a Dask cluster."""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from types import FrameType

from hybrid_des.errors import SimulationError, UsageError
from hybrid_des.units import format_seconds

AGAIN_S = 1.0  # after which to raise once more: Python drops exceptions raised in `__del__`


class OutOfTimeError(SimulationError):
    """The budget of a command is spent."""

    exit_code = 3


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
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise UsageError(f"{name}: --budget: there is no timer here that could end the command")
    spent = OutOfTimeError(f"{name}: not complete: the budget of {format_seconds(budget_s)} is spent")
    fired: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        fired.append(number)
        raise spent

    before = signal.signal(signal.SIGALRM, end)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, budget_s + grace_s, AGAIN_S)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Exception:
        if fired:  # compiled code may replace an exception with its own
            raise spent from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # again: the timer may have interrupted the one above
        signal.signal(signal.SIGALRM, before)


GRACE_S = 1.0  # after which a run ends that has not looked at its budget: it is planned, or a plug-in does not return


def ended_late(budget_s: float, name: str) -> AbstractContextManager[None]:
    """End a simulation that does not end by itself when its budget is spent, where a timer can."""
    can = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    return within(budget_s, name, GRACE_S) if can else nullcontext()
