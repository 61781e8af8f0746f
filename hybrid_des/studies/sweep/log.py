"""The rows of a sweep on disk, so that a sweep that is stopped can be resumed.

    {"sweep": "3f2a…", "cases": 360}
    {"case": 17, "row": {"schedule.kind": "gpipe", "step_time_s": 1.435, …}}

The first line identifies the sweep: its scenario, cases, plug-ins and version. Unlike `sweep.partial.csv`, which is for
readers, a row keeps its types and its mappings here.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from hybrid_des.errors import UsageError
from hybrid_des.report.files.staging import cannot_be_written
from hybrid_des.studies.pool import LOST
from hybrid_des.studies.resumable_log import begun, entries, head_of, line_of
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
        file: list[IO[str]] = []

        def note(case: int, row: Row) -> None:
            with cannot_be_written(folder):
                if not file:
                    lines = (_line(*finished) for finished in known.items())
                    file.append(files.enter_context(begun(path, head, lines)))
                file[0].write(_line(case, row))
                file[0].flush()
            keep(row)

        for _, row in sorted(known.items()):
            keep(row)
        yield known, note
        files.close()
        path.unlink(missing_ok=True)


def _line(case: int, row: Row) -> str:
    return line_of({"case": case, "row": row})


def _head(sweep: Sweep) -> dict[str, Any]:
    read = [Path(file).read_bytes() for file in sweep.imports if Path(file).is_file()]
    return head_of("sweep", "cases", sweep.size, sweep.document.value, sweep.axes, read)


def _read(path: Path, head: Mapping[str, Any]) -> Known:
    """The rows in a log, without those of cases whose worker was lost.

    Raises:
        UsageError: there is no such file, an entry is wrong, or the file is that of another sweep.
    """
    known: dict[int, Row] = {}
    for where, entry in entries(path, head, holds="rows", same=SAME):
        case, row = entry.get("case"), entry.get("row")
        if type(case) is not int or not 0 <= case < head["cases"] or not isinstance(row, dict):
            raise UsageError(f"{where}: not a row of a sweep; delete this line to simulate its case again")
        if not str(row.get("error", "")).startswith(LOST):
            known[case] = row
    return known
