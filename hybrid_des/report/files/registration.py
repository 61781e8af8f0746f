"""Output formats: functions that write files into a folder and register their names.

    @output("summary.json")
    def summary_json(findings: RunAnalysis, folder: Path) -> None: ...

`write` runs all formats in a temporary folder inside the target and moves the files when all are complete, so that an
error, Ctrl-C or SIGTERM while they are written leaves nothing behind. Each move is atomic, the moves together are not:
a run that is killed between them leaves a mixture of its own files and those of the run before it. Output files of an
earlier run that are not rewritten are removed.
"""

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.registry import Registry
from hybrid_des.report.files.staging import Written, write_files, write_whole

UNFINISHED = "unfinished.json"


Format = Callable[["RunAnalysis", Path], list[str] | None]  # returns notes for the user, one line each


_REGISTRY: Registry[Format] = Registry("output", "hybrid_des.report.files")


names = _REGISTRY.names


find = _REGISTRY.__getitem__


def output(*files: str, rows: bool = True, needs: str | None = None) -> Callable[[Format], Format]:
    """Register a format under the name of its first file.

    Args:
        files: names of its files.
        rows: whether it needs recorded rows, so that `record: none` skips it.
        needs: an optional module that it needs.
    """
    return _REGISTRY(files[0], files=files, rows=rows, needs=needs)


def write(findings: RunAnalysis, folder: str | Path) -> Written:
    """Write every applicable format into `folder`, created if missing; an error while writing changes nothing.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    # a module once imported stays in memory: optional ones are imported last
    formats = sorted((find(name) for name in names()), key=lambda entry: entry.facts["needs"] is not None)

    def fill(staging: Path) -> list[str]:
        notes: list[str] = []
        for entry in formats:
            kept = findings.run.scenario.record != "none" or not entry.facts["rows"]
            if kept and (entry.facts["needs"] is None or importlib.util.find_spec(entry.facts["needs"])):
                notes += entry.build(findings, staging) or []
                _give_back()
        return notes

    return write_whole(folder, fill, replaces=[UNFINISHED, *(file for one in formats for file in one.facts["files"])])


def _give_back() -> None:
    """Return freed memory to the system: glibc keeps it once arrays of that size have been freed before."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # other C libraries have none
        trim(0)


def write_unfinished(facts: Mapping[str, Any], folder: str | Path) -> Written:
    """Write what is known of a run that its budget stopped, in place of the files of a run.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    stale = [file for name in names() for file in find(name).facts["files"]]
    return write_files(folder, {UNFINISHED: dict(facts)}, replaces=stale)
