"""A process per call: it is killed, with all that it has started, when its budget is spent or nobody waits for it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hybrid_des.errors import HybridDesError, SimulationError, UsageError
from hybrid_des.interface.live.worker import START
from hybrid_des.interface.mcp import tools
from hybrid_des.interface.mcp.arguments import Arguments
from hybrid_des.interface.mcp.fence import fenced
from hybrid_des.interface.mcp.tools import Reply, failure
from hybrid_des.registry import user_line


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
        folder: the folder of the server.
        tool: its name.
        given: its arguments, valid.
        until: when its process is ended, on the monotonic clock.
    """

    folder: Path
    tool: str
    given: Arguments
    until: float


def prepare() -> None:
    """Start what processes are copied from, with everything imported: a call then begins at once."""
    if START == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload([__name__])
        forkserver.ensure_running()


@contextmanager
def begun(call: Call) -> Iterator[Connection[Any, Any]]:
    """A process that works on a call; its reply arrives in the connection, and at the end it is killed."""
    context: Any = multiprocessing.get_context(START)
    connection, theirs = context.Pipe()
    process = context.Process(target=work, args=(call, theirs))
    process.start()
    theirs.close()
    try:
        yield connection
    finally:
        _kill(process.pid)
        process.kill()  # one that has not begun has no group yet
        process.join()
        process.close()
        connection.close()


def _kill(group: int) -> None:
    """End a process and its copies."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            os.kill(group, signal.SIGTERM)
        else:
            os.killpg(group, signal.SIGKILL)


def work(call: Call, connection: Connection[Any, Any]) -> None:
    """Answer a call in this process, which ends as soon as nobody waits for the answer."""
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, with all copies of this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    os.chdir(call.folder)
    sys.addaudithook(fenced(call.folder))
    with contextlib.suppress(BrokenPipeError):
        connection.send(answered(call))


def answered(call: Call) -> Reply:
    """The reply to a call; what is wrong with it in one line."""
    try:
        return tools.reply(call.tool, call.given, call.until)
    except HybridDesError as error:
        return failure(error, str(error), error.exit_code)
    except MemoryError as error:
        return failure(error, "out of memory: the scenario needs more than this machine has", SimulationError.exit_code)
    except OSError as error:
        return failure(error, f"{error.filename}: {error.strerror}", UsageError.exit_code)
    except Exception as error:
        if not (line := user_line(error)):
            raise
        return failure(error, line, UsageError.exit_code)


def _end_with(connection: Connection[Any, Any]) -> None:
    """End this process and its copies as soon as the other end of its connection is closed."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    _kill(os.getpid())
