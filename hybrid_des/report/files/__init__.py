"""Output formats, one file each: a function that writes its files into a folder and registers itself.

    @output("summary.json")
    def summary_json(source: Source, folder: Path) -> None: ...

`write` runs them all in a folder of its own inside the target and moves the files over when every one is whole, so an
error or Ctrl-C leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hybrid_des.errors import UsageError
from hybrid_des.registry import Registry

if TYPE_CHECKING:
    import pandas as pd

    from hybrid_des.simulation.run import Run


class Source(Protocol):
    """What a format may read; `hybrid_des.result.Result` is one."""

    @property
    def run(self) -> Run:
        """The run itself."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """The summary."""

    @property
    def timeline(self) -> pd.DataFrame:
        """The timeline."""


class Output(Protocol):
    """What an output file holds."""

    def __call__(self, source: Source, folder: Path) -> list[str] | None:
        """Write into the folder; what it returns are notes for the user, one line each."""


class Written(NamedTuple):
    """The files that are there now, and what the user should know about them."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]


_REGISTRY: Registry[Output] = Registry("output", "hybrid_des.report.files")

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def output(name: str, *, rows: bool = True, needs: str | None = None) -> Callable[[Output], Output]:
    """Register a format.

    Args:
        name: of its file, or of the first of them.
        rows: whether it is made from recorded rows, so that `record: none` leaves it out.
        needs: a module without which it is left out.
    """
    return _REGISTRY(name, rows=rows, needs=needs)


def write(source: Source, folder: str | Path) -> Written:
    """Write every format that applies into `folder`, which is made where it is missing: all files or none.

    Raises:
        UsageError: the folder cannot be made or written.
    """

    def fill(workshop: Path) -> list[str]:
        notes: list[str] = []
        for name in names():
            if _applies(name, source.run):
                notes += find(name).build(source, workshop) or []
        return notes

    return write_whole(folder, fill)


def write_whole(folder: str | Path, fill: Callable[[Path], list[str]]) -> Written:
    """Put what `fill` writes into a folder of its own into `folder`, which is made where it is missing: all or nothing.

    Raises:
        UsageError: the folder cannot be made or written.
    """
    folder = Path(folder)
    missing: list[Path] = []
    try:
        missing += [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as workshop:
            notes = fill(Path(workshop))
            made = sorted(Path(workshop).iterdir())
            if taken := [path.name for path in made if (folder / path.name).is_dir()]:
                raise UsageError(f"{folder}: cannot write here: {taken[0]} is a directory")
            paths = tuple(path.replace(folder / path.name) for path in made)
        return Written(paths, tuple(notes))
    except OSError as error:
        _remove(missing)
        raise UsageError(f"{folder}: cannot write here: {error.strerror or error}") from error
    except BaseException:
        _remove(missing)
        raise


def _applies(name: str, run: Run) -> bool:
    facts = find(name).facts
    kept = run.scenario.record != "none" or not facts["rows"]
    return kept and (facts["needs"] is None or importlib.util.find_spec(facts["needs"]) is not None)


def _remove(folders: list[Path]) -> None:
    """Take back the folders that were made, innermost first; one that holds something stays."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
