"""Command-line arguments: a parser whose errors are one line, and the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hybrid_des.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line and shows a description as it is written."""

    def __init__(self, program: str, description: str | None, usage: str | None = None, epilog: str = "") -> None:
        super().__init__(
            program,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Report a wrong command line.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add `--set a.b=value`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="replace a value of the scenario, such as --set schedule.kind=gpipe",
    )


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add `--import FILE`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE",
        help="first run a Python file that registers user-defined schedules, topologies or collectives",
    )


def add_out(parser: argparse.ArgumentParser, description: str, metavar: str = "DIR") -> None:
    """Add `--out`, a folder or file to write to."""
    parser.add_argument("--out", metavar=metavar, type=_path, help=description)


def import_files(files: Sequence[str]) -> None:
    """Run user-defined Python files.

    Raises:
        UsageError: one is missing, or fails.
    """
    if files:
        from hybrid_des.registry import import_file

        for file in files:
            import_file(file)


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def _path(text: str) -> Path:
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("expected a path, found an empty text; the current folder is .")
    return Path(text)
