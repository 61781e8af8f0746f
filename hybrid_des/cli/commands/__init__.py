"""The commands of the command line, one file each, named as the command.

A command's file opens with a docstring whose first line `--help` shows, and defines

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(args: argparse.Namespace) -> int: ...        # returns the exit code

It is imported only when its command is used.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import argparse

_FOLDER = Path(__file__).parent


class Command(Protocol):
    """What a command's file defines."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit code."""


def names() -> list[str]:
    """All commands, sorted."""
    return sorted(file.stem.replace("_", "-") for file in _FOLDER.glob("[!_]*.py"))


def summary(name: str) -> str:
    """First line of a command's file, read without importing it."""
    with (_FOLDER / f"{_module(name)}.py").open(encoding="utf-8") as file:
        return file.readline().strip().strip('"').removesuffix(".")


def find(name: str) -> Command:
    """Import a command's file."""
    return cast("Command", importlib.import_module(f"hybrid_des.cli.commands.{_module(name)}"))


def _module(name: str) -> str:
    return name.replace("-", "_")
