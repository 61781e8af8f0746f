"""A limit of real time on a whole command, for those that simulate several times or train.

A plain run is ended between two events, with what is known so far; here, whatever the command is doing ends.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType

from hybrid_des.errors import SimulationError, UsageError
from hybrid_des.units import format_seconds

AGAIN_S = 1.0  # after which to raise once more: Python drops exceptions raised in `__del__`


class OutOfTimeError(SimulationError):
    """The budget of a command is spent."""

    exit_code = 3


@contextmanager
def within(budget_s: float, name: str) -> Iterator[None]:
    """End what runs inside after some real seconds; infinitely many are no limit.

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
        signal.setitimer(signal.ITIMER_REAL, budget_s, AGAIN_S)
        yield
    except Exception:
        if fired:  # compiled code may replace an exception with its own
            raise spent from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
