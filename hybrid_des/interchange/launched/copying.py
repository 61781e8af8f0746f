"""A copy of a folder for a script to run in: small files as they are, large ones with their size and no content.

What a launch script reads is small: other scripts, settings. Weights, data and checkpoints are there for it to find,
not to read. Links to places outside the folder become what they point at, a folder an empty one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hybrid_des.errors import UsageError

LARGEST = 2**20  # bytes of a file that is copied with its content
MOST = 50_000  # files and folders
MOST_BYTES = 2**28  # of content
_WITHOUT_CONTENT = ("__pycache__", "node_modules", ".mypy_cache", ".pytest_cache", "wandb")
_ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")  # what a folder with an environment of Python has; of it, bin is copied


class Changes(NamedTuple):
    """What a script did to the copy: paths of files, relative to the folder."""

    written: tuple[str, ...]
    deleted: tuple[str, ...]


def folder_for(directory: Path, script: Path | None) -> Path:
    """The folder to copy for a script: the repository of Git around it, the current folder, or its own.

    Args:
        directory: the current folder.
        script: its path; None for a command without one.

    Raises:
        UsageError: each of them has too many files.
    """
    own = directory if script is None else script.parent
    repository = (one for one in (own, *own.parents) if (one / ".git").exists())
    around = (one for one in (directory,) if own.is_relative_to(one))
    folders = [*dict.fromkeys((*repository, *around, own))]
    for folder in folders:
        if _fits(folder):
            return folder
    raise UsageError(
        f"{folders[-1]}: more than {MOST:,} files, or {MOST_BYTES // 2**20} MiB in small ones: too much to copy; give "
        "the script a folder of its own, with the files that it sources"
    )


def _fits(folder: Path) -> bool:
    count = size = 0
    for entry, _ in _entries(folder, folder):
        content = entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
        count, size = count + 1, size + (content if content <= LARGEST else 0)
        if count > MOST or size > MOST_BYTES:
            return False
    return True


def copy(folder: Path, to: Path) -> None:
    """Copy a folder; what cannot be read is missing."""
    for entry, within in _entries(folder, folder):
        with suppress(OSError):
            _copy_one(Path(entry.path), to / within, folder, to)


def _entries(folder: Path, root: Path) -> Iterator[tuple[os.DirEntry[str], Path]]:
    """What is in a folder, outer before inner, with its path in the root."""
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except OSError:
        return
    names = {entry.name for entry in entries}
    is_environment = any(name in names for name in _ENVIRONMENTS)
    for entry in entries:
        if is_environment and entry.is_dir(follow_symlinks=False) and entry.name != "bin":
            continue
        yield entry, Path(entry.path).relative_to(root)
        empty = entry.name in _WITHOUT_CONTENT or (entry.name == "objects" and folder.name == ".git")
        if entry.is_dir(follow_symlinks=False) and not empty:
            yield from _entries(Path(entry.path), root)


def _copy_one(path: Path, to: Path, folder: Path, copied: Path) -> None:
    if path.is_symlink():
        target = path.resolve()
        if target.is_relative_to(folder):
            to.symlink_to(os.path.relpath(copied / target.relative_to(folder), to.parent))
            return
        path = target
    if path.is_dir():
        to.mkdir()
    elif path.is_file() and path.stat().st_size <= LARGEST:
        shutil.copy2(path, to)
    elif path.is_file():
        to.touch()
        os.truncate(to, path.stat().st_size)
        shutil.copystat(path, to)


def listed(folder: Path) -> dict[str, tuple[int, int]]:
    """The files in a folder, each with its size and time of change."""
    files = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            facts = path.lstat()
            files[str(path.relative_to(folder))] = facts.st_size, facts.st_mtime_ns
    return files


def changes(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> Changes:
    """What differs between two lists of files."""
    written = tuple(name for name, facts in after.items() if before.get(name) != facts)
    return Changes(written, tuple(name for name in before if name not in after))
