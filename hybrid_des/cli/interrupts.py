"""Ctrl-C, recorded when it arrives: compiled code may turn the exception into another (matplotlib's does)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Yield a list to which every Ctrl-C appends its signal number, besides raising KeyboardInterrupt."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    on_main_thread = threading.current_thread() is threading.main_thread()
    if not on_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted  # Ctrl-C is handled elsewhere
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
