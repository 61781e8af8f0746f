"""How a command runs: no longer than its budget, on this machine or on a Dask cluster."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from types import FrameType
from typing import Any

from hybrid_des.cli.output import say
from hybrid_des.errors import SimulationError, UsageError, installing
from hybrid_des.pool import WorkersLostError
from hybrid_des.units import format_seconds

# A limit of real time on a whole command, for those that simulate several times or train.
#
# A plain run is ended between two events, with what is known so far; here, whatever the command is doing ends.


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
        signal.setitimer(signal.ITIMER_REAL, budget_s + grace_s, AGAIN_S)
        yield
    except Exception:
        if fired:  # compiled code may replace an exception with its own
            raise spent from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


GRACE_S = 1.0  # after which a run ends that has not looked at its budget: it is planned, or a plug-in does not return


def ended_late(budget_s: float, name: str) -> AbstractContextManager[None]:
    """End a simulation that does not end by itself when its budget is spent, where a timer can."""
    can = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    return within(budget_s, name, GRACE_S) if can else nullcontext()


# A connection to a Dask cluster that ends promptly: on an error, on Ctrl-C, if its workers stay away.


LONGEST_SILENCE_S = 10  # of a scheduler that was asked for a connection
LONGEST_WITHOUT_S = 30  # without workers, before a sweep is given up


@contextmanager
def workers(address: str | None, jobs: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `sweep_rows` and `explore` that say where they run: on a cluster, or on this machine."""
    if address is None:
        yield {"jobs": jobs}
        return
    with connected(address) as (executor, waiting):
        yield {"executor": executor, "waiting": waiting}


@contextmanager
def connected(address: str) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """Yield the executor of a cluster, and a check that it has workers, to call while nothing finishes.

    Raises:
        UsageError: Dask is not installed, or no scheduler responds.
        WorkersLostError: raised by the check after `LONGEST_WITHOUT_S`.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(f"--dask needs the dask extra: {installing('dask')}") from None
    logging.disable(logging.ERROR)  # it would log at length what is reported below in one line
    try:
        with _client(Client, address) as client, client.get_executor() as executor:
            try:
                yield executor, workers_check(client)
            finally:
                executor.shutdown(wait=False)
    except WorkersLostError as error:
        raise WorkersLostError(f"--dask {address}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _client(connect: Callable[..., Any], address: str) -> Iterator[Any]:
    try:
        asyncio.run(_greet(address))
        client = connect(address, timeout=f"{LONGEST_SILENCE_S}s")
    except (OSError, ValueError) as error:
        reason = str(error) or f"silence for {LONGEST_SILENCE_S} s"
        raise UsageError(f"--dask {address}: no scheduler responds ({reason})") from None
    try:
        yield client
    finally:
        client.close(timeout=1)


async def _greet(address: str) -> None:
    """Connect and disconnect: a client would wait forever for a scheduler that accepts it and never replies."""
    from distributed.comm.core import connect
    from distributed.security import Security

    arguments = Security().get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, LONGEST_SILENCE_S, **arguments), LONGEST_SILENCE_S)
    comm.abort()


def workers_check(client: Any) -> Callable[[], None]:
    """A check, to call periodically, that a cluster has not been without workers for long."""
    since: list[float] = []

    def check() -> None:
        if client.nthreads():
            since.clear()
        elif not since:
            since.append(time.monotonic())
            say(f"--dask {client.scheduler.address}: waiting for workers")
        elif time.monotonic() - since[0] > LONGEST_WITHOUT_S:
            raise WorkersLostError(f"no workers for {LONGEST_WITHOUT_S} s")

    return check
