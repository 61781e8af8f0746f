"""A connection to a Dask cluster that ends promptly: on an error, on Ctrl-C, if its workers stay away."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from hybrid_des.errors import UsageError, installing
from hybrid_des.interface.cli.output import say
from hybrid_des.studies.pool import WorkersLostError

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
