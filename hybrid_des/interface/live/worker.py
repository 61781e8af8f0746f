"""The process that simulates for one page: the newest request is answered, and no request may take too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import signal
import threading
from collections.abc import Callable
from math import inf
from multiprocessing.connection import Connection
from typing import Any

from hybrid_des.interface.live.frames import NewerRequest, Request, ServerState, answer
from hybrid_des.registry import import_file
from hybrid_des.units import format_seconds

GRACE_S = 5.0  # beyond the budget of a simulation: for planning, and for the rows that are drawn


WARM_UP = 0  # the number of a request that no page has sent
EARLY = -1  # in place of a number, with a part of an answer that is still being found


START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class Worker:
    """A process that answers the requests of one page; it is replaced if it takes too long or is killed.

    Args:
        state: what the page starts from.

    Attributes:
        answered: called with every answer as JSON, in the thread of the event loop.
    """

    def __init__(self, state: ServerState) -> None:
        self._desk = state
        self.answered: Callable[[str], None] = lambda text: None
        self._loop = asyncio.get_running_loop()
        self._newest = 0
        self._timer: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        if START == "forkserver":  # every process after the first one starts with all modules imported
            multiprocessing.set_forkserver_preload([__name__])
        context: Any = multiprocessing.get_context(START)
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(self._desk, theirs), daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(target=self._read, args=(self._connection,), daemon=True).start()

    def ask(self, request: Request) -> None:
        """Send a request; it replaces older ones of its kind that wait or are being simulated."""
        self._newest = request.number
        with contextlib.suppress(OSError):  # killed: `_lost` follows
            self._connection.send(request)
        if self._timer is None:
            self._wait()

    def warm_up(self) -> None:
        """Simulate the first scenario, before there is a page that asks for it."""
        self.ask(Request(number=WARM_UP, file=self._desk.file.name))

    def stop(self) -> None:
        """End the process."""
        self._cancel()
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _read(self, connection: Connection) -> None:
        """Pass answers on to the event loop, in a thread of its own."""
        with contextlib.suppress(EOFError, OSError, RuntimeError):  # the process or the event loop has ended
            while True:
                number, text = connection.recv()
                self._loop.call_soon_threadsafe(self._arrived, connection, number, text)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lost, connection)

    def _wait(self) -> None:
        if self._desk.budget_s < inf:
            self._timer = self._loop.call_later(self._desk.budget_s + GRACE_S, self._late)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arrived(self, connection: Connection, number: int, text: str) -> None:
        if connection is not self._connection or connection.closed:
            return
        self._cancel()
        if number < self._newest:
            self._wait()
        if number != WARM_UP:
            self.answered(text)

    def _late(self) -> None:
        self._replace(f"not complete: the budget of {format_seconds(self._desk.budget_s)} is spent")

    def _lost(self, connection: Connection) -> None:
        if connection is self._connection and not connection.closed:
            self._replace("the process that simulates has ended: it was killed, or has met a defect (see the terminal)")

    def _replace(self, problem: str) -> None:
        self.stop()
        self.answered(json.dumps({"number": self._newest, "problems": [problem]}))
        self._start()


def work(state: ServerState, connection: Connection) -> None:
    """Answer requests until the connection is closed: of each kind the newest, the kind that waits longest first.

    Reasons and advice are found when nothing else is waiting.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this process
    for file in state.imports:
        import_file(file)
    waiting: dict[str, Request] = {}
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            while connection.poll() or not waiting:
                request: Request = connection.recv()
                waiting[request.want] = request
                if request.want == "frame":
                    waiting.pop("why", None)  # of an earlier one
            request = min(waiting.values(), key=lambda asked: asked.want == "why")  # which may take long, last
            try:
                reply = answer(state, request, connection.poll, lambda part: connection.send((EARLY, json.dumps(part))))
            except NewerRequest:
                continue
            del waiting[request.want]
            connection.send((request.number, json.dumps(reply, allow_nan=False)))
