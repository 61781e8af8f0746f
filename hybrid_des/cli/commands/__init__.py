"""The verbs of the command line, one file each; a file's name is its verb.

A verb's file opens with a docstring whose first line `--help` shows, and holds

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(args: argparse.Namespace) -> int: ...        # gives the exit code

It is imported only when its verb is used. What several commands take stands here.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import argparse

_FOLDER = Path(__file__).parent


class Verb(Protocol):
    """What a verb's file holds."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Say what the verb takes."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it, and give the exit code."""


def names() -> list[str]:
    """All verbs, sorted."""
    return sorted(file.stem.replace("_", "-") for file in _FOLDER.glob("[!_]*.py"))


def summary(name: str) -> str:
    """The one line that a verb's file opens with, read without running it."""
    with (_FOLDER / f"{_module(name)}.py").open(encoding="utf-8") as file:
        return file.readline().strip().strip('"').removesuffix(".")


def find(name: str) -> Verb:
    """Import a verb's file."""
    return cast("Verb", importlib.import_module(f"hybrid_des.cli.commands.{_module(name)}"))


def _module(name: str) -> str:
    return name.replace("-", "_")


def add_set(parser: argparse.ArgumentParser) -> None:
    """Let a command take `--set a.b=value`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="put a value in place of what the file says, such as --set schedule.kind=gpipe",
    )


def add_import(parser: argparse.ArgumentParser) -> None:
    """Let a command take `--import FILE`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE",
        help="first run a Python file of your own that registers schedules, topologies or collectives",
    )


def import_files(files: Sequence[str]) -> None:
    """Run a user's own files.

    Raises:
        UsageError: one is missing, or fails.
    """
    if files:
        from hybrid_des.registry import import_file

        for file in files:
            import_file(file)
