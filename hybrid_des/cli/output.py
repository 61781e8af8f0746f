"""Terminal output that never fails by itself: poor encodings, closed streams, readers that leave early."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


def make_output_safe() -> None:
    """Replace characters that the terminal cannot encode; discard output if the stream is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (open as long as the program runs)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """Discard what is still buffered, so that closing stdout raises no second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(message: str) -> None:
    """Print a message to stderr; stdout is for data."""
    print(message, file=sys.stderr)
