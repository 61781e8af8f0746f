"""A hidden folder inside the target folder, where files are written before they are moved.

Several runs may create, fill and abandon folders below the same parents concurrently. A lock shows that the run that
owns a staging is alive: the next run removes the staging folders of runs that were killed.
"""

import contextlib
import json
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from hybrid_des.errors import UsageError

if sys.platform != "win32":
    import fcntl

PREFIX = ".part-"
TRIES = 100  # each other run may remove a parent that it created and does not need


class Written(NamedTuple):
    """The written files, and notes for the user."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]


@contextlib.contextmanager
def reserved(folder: Path) -> Iterator[Path]:
    """Create a folder and a staging in it, which is removed at the end; on an error, also what was created for it.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    missing: list[Path] = []
    begun: list[Path] = []  # recorded before it exists: an interrupt may occur at any time
    lock = None
    try:
        try:
            with cannot_be_written(folder):
                missing += [place for place in (folder, *folder.parents) if not place.exists()]
                _remove_stale(folder)
                staging, lock = _new(folder, begun)
            yield staging
        finally:
            if lock is not None:
                lock.close()
            _remove(begun)
    except BaseException:
        for made in missing:
            with contextlib.suppress(OSError):  # another run writes there
                made.rmdir()
        raise


def _remove(folders: Sequence[Path]) -> None:
    """Remove staging folders completely, even if an interrupt occurs meanwhile."""
    try:
        for staging in folders:
            shutil.rmtree(staging, ignore_errors=True)
    except BaseException:
        for staging in folders:
            shutil.rmtree(staging, ignore_errors=True)
        raise


@contextlib.contextmanager
def cannot_be_written(folder: Path) -> Iterator[None]:
    """Explain a system error in one line that names the folder.

    Raises:
        UsageError: in place of the system error.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _new(folder: Path, begun: list[Path]) -> tuple[Path, IO[str] | None]:
    """Create a folder, and a staging in it with its lock; its path is first appended to `begun`."""
    for tries_left in reversed(range(TRIES)):
        staging = folder / f"{PREFIX}{secrets.token_hex(4)}"
        begun.append(staging)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            staging.mkdir(mode=0o700)
            lock = _lock(staging)
            if (staging / "lock").exists():
                return staging, lock
            if lock is not None:  # another run considered it stale before it was locked
                lock.close()
        except (FileNotFoundError, FileExistsError, BlockingIOError):  # mkdir checks twice: it may vanish in between
            if not tries_left:
                raise
    raise BlockingIOError(f"no lock after {TRIES} tries")


def _lock(staging: Path) -> IO[str] | None:
    """Lock a staging until the file is closed or the process ends; None if the file system has no locks.

    Raises:
        BlockingIOError: another process has locked it.
    """
    file = (staging / "lock").open("a")
    if sys.platform == "win32":
        return file  # an open file cannot be removed there
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise
        return None
    return file


def _remove_stale(folder: Path) -> None:
    """Remove the staging folders of runs that were killed."""
    stale: list[Path] = []
    with contextlib.suppress(FileNotFoundError):  # another run may remove the folder meanwhile
        stale += folder.glob(f"{PREFIX}*/")
    for staging in stale:
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                (staging / "lock").unlink()  # fails while it is open
                shutil.rmtree(staging, ignore_errors=True)
            elif (lock := _lock(staging)) is not None:
                with lock:
                    shutil.rmtree(staging, ignore_errors=True)


def write_whole(folder: str | Path, fill: Callable[[Path], list[str] | None], replaces: Iterable[str] = ()) -> Written:
    """Write files into a folder, created if missing; an error while writing changes nothing.

    Args:
        folder: the target folder.
        fill: writes files into a given folder, and may return notes for the user.
        replaces: names of files to remove if `fill` does not write them.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    folder = Path(folder)
    with reserved(folder) as staging, cannot_be_written(folder):
        (made_in := staging / "new").mkdir()
        notes = fill(made_in) or []
        made = sorted(made_in.iterdir())
        if taken := [path.name for path in made if (folder / path.name).is_dir()]:
            raise UsageError(f"{folder}: cannot be written: {taken[0]} is a directory")
        stale = {*replaces} - {path.name for path in made}
        with _set_aside([folder / name for name in sorted(stale)], staging):
            paths = tuple(path.replace(folder / path.name) for path in made)
    return Written(paths, tuple(notes))


@contextlib.contextmanager
def _set_aside(files: Iterable[Path], staging: Path) -> Iterator[None]:
    """Move files away, and back on an error."""
    places = {file: staging / file.name for file in files if file.is_file()}
    try:
        for file, aside in places.items():
            file.replace(aside)
        yield
    except BaseException:
        for file, aside in places.items():
            if aside.exists():
                aside.replace(file)
        raise


def write_files(folder: str | Path, contents: Mapping[str, Any], replaces: Iterable[str] = ()) -> Written:
    """Write files into a folder, created if missing, by what they hold; an error while writing changes nothing.

    Args:
        folder: the target folder.
        contents: texts, bytes, tables (as CSV), figures (as PNG and SVG, named without a suffix), values for JSON, by
            name; None stands for a file of an earlier run that is removed.
        replaces: names of further files to remove.

    Raises:
        UsageError: the folder cannot be created or written.
    """

    def fill(staging: Path) -> None:
        for name, content in contents.items():
            if content is not None:
                write_content(staging / name, content)

    gone = (name for name, content in contents.items() if content is None)
    return write_whole(folder, fill, replaces=[*gone, *replaces])


def write_content(path: Path, content: Any) -> None:
    """Write a text, bytes, a table as CSV, a figure as PNG and SVG, or a value as JSON."""
    if isinstance(content, bytes):
        path.write_bytes(content)
        return
    if hasattr(content, "savefig"):
        from hybrid_des.report.plots.style import save

        save(content, path.parent, path.name)
    elif hasattr(content, "to_csv"):
        from hybrid_des.analysis.safe_csv import write_csv

        write_csv(content, path)
    else:
        text = content
        if not isinstance(content, str):
            text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")
