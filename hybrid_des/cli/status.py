"""What the terminal shows while the user waits: a status line for one simulation, a bar for a sweep."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

PATIENCE_S = 1.0  # before the status line appears


@contextlib.contextmanager
def status_line(quiet: bool) -> Iterator[None]:
    """Show that a simulation is running if it takes longer than a moment and stderr is a terminal."""
    shown: list[Status] = []

    def show() -> None:
        from rich.console import Console

        shown.append(Console(stderr=True).status("simulating"))
        shown[0].start()

    timer = threading.Timer(PATIENCE_S, show)
    if sys.stderr.isatty() and not quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        for status in shown:
            status.stop()


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function (cases done, cases in total) that moves a bar; None if stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("cases")
        yield lambda done, total: bar.update(task, completed=done, total=total)
