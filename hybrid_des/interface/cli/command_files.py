"""The commands of the command line, one file per command.

A command's file starts with a docstring, whose first line `--help` shows, and defines

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(args: argparse.Namespace) -> int: ...        # returns the exit code

It is imported only when its command is used. The file of a command that is a word of Python ends in an underscore.
"""

import importlib
import keyword
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parent / "commands"


def names() -> list[str]:
    """All commands, sorted."""
    return sorted(file.stem.rstrip("_").replace("_", "-") for file in _FOLDER.glob("[!_]*.py"))


def summary(name: str) -> str:
    """First line of a command's file, read without importing it."""
    with (_FOLDER / f"{_module(name)}.py").open(encoding="utf-8") as file:
        return file.readline().strip().strip('"').removesuffix(".")


def find(name: str) -> ModuleType:
    """Import a command's file."""
    return importlib.import_module(f"hybrid_des.interface.cli.commands.{_module(name)}")


def _module(name: str) -> str:
    return f"{name.replace('-', '_')}{'_' if keyword.iskeyword(name) else ''}"
