"""A hidden folder inside the target folder, where files are written before they are moved.

Several runs may create, fill and abandon folders below the same parents concurrently. A lock shows that the run that
owns a workshop is alive: the next run removes the workshops of runs that were killed.
"""

import contextlib
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from hybrid_des.errors import UsageError

if sys.platform != "win32":
    import fcntl

PREFIX = ".part-"
TRIES = 100  # each other run may remove a parent that it created and does not need


@contextlib.contextmanager
def reserved(folder: Path) -> Iterator[Path]:
    """Create a folder and a workshop in it, which is removed at the end; on an error, also what was created for it.

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
                workshop, lock = _new(folder, begun)
            yield workshop
        finally:
            if lock is not None:
                lock.close()
            _remove(begun)
    except BaseException:
        for place in missing:
            with contextlib.suppress(OSError):  # another run writes there
                place.rmdir()
        raise


def _remove(workshops: Sequence[Path]) -> None:
    """Remove workshops completely, even if an interrupt occurs meanwhile."""
    try:
        for workshop in workshops:
            shutil.rmtree(workshop, ignore_errors=True)
    except BaseException:
        for workshop in workshops:
            shutil.rmtree(workshop, ignore_errors=True)
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
    """Create a folder, and a workshop in it with its lock; its path is first appended to `begun`."""
    for tries_left in reversed(range(TRIES)):
        workshop = folder / f"{PREFIX}{secrets.token_hex(4)}"
        begun.append(workshop)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            workshop.mkdir(mode=0o700)
            lock = _lock(workshop)
            if (workshop / "lock").exists():
                return workshop, lock
            if lock is not None:  # another run considered it stale before it was locked
                lock.close()
        except (FileNotFoundError, FileExistsError, BlockingIOError):  # mkdir checks twice: it may vanish in between
            if not tries_left:
                raise
    raise BlockingIOError(f"no lock after {TRIES} tries")


def _lock(workshop: Path) -> IO[str] | None:
    """Lock a workshop until the file is closed or the process ends; None if the file system has no locks.

    Raises:
        BlockingIOError: another process has locked it.
    """
    file = (workshop / "lock").open("a")
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
    """Remove the workshops of runs that were killed."""
    for workshop in folder.glob(f"{PREFIX}*/"):
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                (workshop / "lock").unlink()  # fails while it is open
                shutil.rmtree(workshop, ignore_errors=True)
            elif (lock := _lock(workshop)) is not None:
                with lock:
                    shutil.rmtree(workshop, ignore_errors=True)
