"""The rows of a sweep on disk, a line of JSON each, so that a sweep that is stopped can be resumed.

    {"sweep": "3f2a…", "cases": 360}
    {"case": 17, "row": {"schedule.kind": "gpipe", "step_time_s": 1.435, …}}

The first line identifies the sweep: its scenario, cases, plug-ins and version. Unlike `sweep.partial.csv`, which is for
readers, a row keeps its types and its mappings here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from hybrid_des.errors import UsageError
from hybrid_des.report.files.staging import cannot_be_written
from hybrid_des.studies.pool import LOST
from hybrid_des.studies.sweep.axes import Sweep
from hybrid_des.studies.sweep.rows import Row, journal

LOG = "sweep.partial.jsonl"
SAME = "the same scenario, cases, plug-ins and version"

Known = Mapping[int, Row]
Note = Callable[[int, Row], None]


@contextmanager
def sweep_log(folder: Path | None, sweep: Sweep, *, resume: bool = False) -> Iterator[tuple[Known, Note]]:
    """Yield the rows of an earlier run by the number of their case, and a function that adds one.

    Both files, this log and the table of `journal`, are removed at the end, and kept after an error. Without a folder
    nothing is kept.

    Raises:
        UsageError: the folder cannot be written, or, with `resume`, does not hold this sweep.
    """
    if folder is None:
        yield {}, lambda case, row: None
        return
    path, head = folder / LOG, _head(sweep)
    known = _read(path, head) if resume else {}
    with journal(folder) as keep, ExitStack() as files:
        begun: list[IO[str]] = []

        def note(case: int, row: Row) -> None:
            with cannot_be_written(folder):
                if not begun:
                    begun.append(files.enter_context(_begun(path, head, known)))
                begun[0].write(_line(case, row))
                begun[0].flush()
            keep(row)

        for _, row in sorted(known.items()):
            keep(row)
        yield known, note
        files.close()
        path.unlink(missing_ok=True)


def _begun(path: Path, head: Mapping[str, Any], known: Known) -> IO[str]:
    """The log, open to add rows; from its replacement on, earlier rows cannot be lost."""
    lines = [json.dumps(head) + "\n", *(_line(place, row) for place, row in known.items())]
    draft = path.with_name(f".{path.name}.part")
    draft.write_text("".join(lines), encoding="utf-8")
    draft.replace(path)
    return path.open("a", encoding="utf-8")


def _line(case: int, row: Row) -> str:
    return json.dumps({"case": case, "row": row}, allow_nan=False) + "\n"


def _head(sweep: Sweep) -> dict[str, Any]:
    read = [Path(file).read_bytes() for file in sweep.imports if Path(file).is_file()]
    same = (version("hybrid-des"), sweep.document.value, sweep.axes, read)
    return {"sweep": hashlib.sha256(repr(same).encode()).hexdigest(), "cases": sweep.size}


def _read(path: Path, head: Mapping[str, Any]) -> Known:
    """The rows in a file; a last line that was cut short by a kill is left out, and cases whose worker was lost.

    Raises:
        UsageError: there is no such file, a line is wrong, or the file is that of another sweep.
    """
    try:
        first, *lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        raise UsageError(f"{path}: nothing to resume; expected the rows of an earlier sweep") from None
    begun = _parsed(first)
    if begun.keys() != head.keys():
        raise UsageError(f'{path}:1: expected the head of a log, {{"sweep": …, "cases": …}}; start without --resume')
    if begun != head:
        counts = f" of {begun['cases']} cases, not {head['cases']}" if begun["cases"] != head["cases"] else ""
        raise UsageError(f"{path}: from a different sweep{counts}; --resume needs {SAME}")
    known: dict[int, Row] = {}
    for number, line in enumerate(lines[:-1], start=2):  # a whole line has a line break
        entry = _parsed(line)
        case, row = entry.get("case"), entry.get("row")
        if type(case) is not int or not 0 <= case < head["cases"] or not isinstance(row, dict):
            raise UsageError(f"{path}:{number}: not a row of a sweep; delete this line to simulate its case again")
        if not str(row.get("error", "")).startswith(LOST):
            known[case] = row
    return known


def _parsed(line: str) -> dict[str, Any]:
    """The fields in a line; none if it is no JSON object."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
