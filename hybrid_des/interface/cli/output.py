"""Terminal output: robust streams, and progress while a simulation runs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import UsageError, one_line, printable

if TYPE_CHECKING:
    import argparse

    from rich.status import Status

    from hybrid_des.report.files.staging import Written
    from hybrid_des.simulation.watch import RunProgress

PATIENCE_S = 1.0  # before the status line appears


def make_output_safe() -> None:
    """Replace characters that the terminal cannot encode; discard output if the stream is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (open as long as the program runs)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    """Discard buffered output, so that closing stdout does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(message: str) -> None:
    """Print a message to stderr; stdout is for data."""
    print("\n".join(map(one_line, message.split("\n"))), file=sys.stderr)


def show(text: str, *, verbatim: bool = False) -> None:
    """Print lines for people to stdout; a name or a path in them cannot control the terminal.

    Lines wider than the terminal are wrapped, unless the text is `verbatim`, such as a command or a file to copy.
    """
    if (width := output_width()) is not None and not verbatim:
        from hybrid_des.report.text import within

        text = within(text, width)
    print(printable(text))


def warn(args: argparse.Namespace) -> None:
    """Print the warnings of a command, unless it is quiet."""
    for warning in () if vars(args).get("quiet") else vars(args).get("warnings", ()):
        say(f"warning: {warning}")


def print_json(args: argparse.Namespace, value: Any, *, ascii_only: bool = True) -> None:
    """Print what a command found as JSON, an object with its warnings, if there are any."""
    if isinstance(value, Mapping) and (warnings := vars(args).get("warnings")):
        value = {**value, "warnings": warnings}
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=ascii_only))


def show_result(
    args: argparse.Namespace,
    value: Callable[[], Any],
    text: Callable[[], str],
    *,
    ascii_only: bool = True,
    verbatim: bool = False,
) -> None:
    """Print what a command found: a value as JSON with --json, else its text, as `show` does."""
    if args.json:
        print_json(args, value(), ascii_only=ascii_only)
    else:
        show(text(), verbatim=verbatim)


def terminal_width(otherwise: int = 100) -> int:
    """Columns of the terminal, or of an output that is none."""
    return shutil.get_terminal_size((otherwise, 24)).columns


def output_width() -> int | None:
    """Columns that lines may take: those of the terminal or of COLUMNS, at least 40; None: any number, as in a pipe."""
    known = terminal_width(0)
    return max(known, 40) if known else None


def say_written(folder: Path, written: Written) -> None:
    """Say what was written into a folder."""
    for note in written.notes:
        say(note)
    say(f"wrote {len(written.paths)} files to {folder}")


def write_file(path: Path, text: str) -> None:
    """Write the file atomically; a device or pipe directly.

    Raises:
        UsageError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.part") if path.name else path
    try:
        if path.is_dir():
            raise UsageError(f"{path}: is a folder, expected the name of a file")
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"{path}: {error.strerror or error}") from None


def write_out(path: Path | None, text: Callable[[], str]) -> None:
    """Write the file of `--out`, if there is one, and say so."""
    if path is not None:
        write_file(path, text())
        say(f"wrote {path}")


def progress_line(headway: RunProgress) -> str:
    """One line: share of ops, events per second, and time left."""
    from hybrid_des.units import format_seconds, format_share

    left = headway.left_s
    rate = headway.events / headway.elapsed_s
    then = f"no op has ended for {headway.still_s:.0f} s" if left is None else f"{format_seconds(round(left))} left"
    return f"simulating: {format_share(headway.share, 0)} of the ops, {rate:,.0f} events/s, {then}"


@contextlib.contextmanager
def status_line(quiet: bool, text: str = "simulating") -> Iterator[Callable[[str], None] | None]:
    """Show a status line on a terminal if a simulation takes longer than `PATIENCE_S`.

    Yields a function that replaces its text; None if stderr is not a terminal.
    """
    shown: list[Status] = []

    def show() -> None:
        from rich.console import Console

        shown.append(Console(stderr=True).status(text))
        shown[0].start()

    def update(text: str) -> None:
        for status in shown:
            status.update(text)

    timer = threading.Timer(PATIENCE_S, show)
    if on_terminal := sys.stderr.isatty() and not quiet:
        timer.start()
    try:
        yield update if on_terminal else None
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        for status in shown:
            status.stop()


@contextlib.contextmanager
def progress_bar(quiet: bool, text: str = "cases") -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function (amount done, total) that updates a progress bar; None if stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text)
        yield lambda done, total: bar.update(task, completed=done, total=total)
