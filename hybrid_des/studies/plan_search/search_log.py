"""The evaluations of a search on disk, so that a search that is stopped loses nothing.

    {"search": "3f2a…", "plans": 336}
    {"step": "weigh", "plan": 17, "least": 12.9, "held": 61234567890, …}
    {"step": "simulate", "plan": 17, "least": 13.1, …, "row": {…}}

The first line identifies the search: its scenario, plans, objective and limits.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.report.files.staging import cannot_be_written
from hybrid_des.studies.plan_search.evaluation import Evaluation
from hybrid_des.studies.plan_search.terms import Settings
from hybrid_des.studies.resumable_log import begun, entries, head_of, line_of
from hybrid_des.studies.sweep.axes import Case

LOG = "search.partial.jsonl"
SAME = "the same scenario, plans, objective, limits and version"
LINE = {"step", "plan", *(field.name for field in fields(Evaluation))}

Known = Mapping[tuple[str, int], Evaluation]
Note = Callable[[str, int, Evaluation], None]


class Kept(NamedTuple):
    """Where the evaluations of a search are written, if anywhere, and whether to continue from those found there."""

    folder: Path | None = None
    resume: bool = False


NOT_KEPT = Kept()


@contextlib.contextmanager
def search_log(kept: Kept, settings: Settings, cases: Sequence[Case]) -> Iterator[tuple[Known, Note]]:
    """Yield the evaluations of an earlier search, and a function that adds one; without a folder nothing is kept.

    Raises:
        UsageError: the folder cannot be written, or, with `resume`, does not hold this search.
    """
    folder, resume = kept
    if folder is None:
        yield {}, lambda step, number, evaluation: None
        return
    head = head_of("search", "plans", len(cases), settings.digest, settings.imports, settings.block, cases)
    known = _read(folder / LOG, head) if resume else {}
    with cannot_be_written(folder):
        file = begun(folder / LOG, head, (_line(*key, evaluation) for key, evaluation in known.items()))

    def note(step: str, number: int, evaluation: Evaluation) -> None:
        with cannot_be_written(folder):
            file.write(_line(step, number, evaluation))
            file.flush()

    with file:
        yield known, note


def _line(step: str, number: int, evaluation: Evaluation) -> str:
    return line_of({"step": step, "plan": number, **asdict(evaluation)})


def _read(path: Path, head: Mapping[str, Any]) -> Known:
    """The evaluations in a log.

    Raises:
        UsageError: there is no such file, an entry is wrong, or the file is that of another search.
    """
    known = {}
    for where, entry in entries(path, head, holds="evaluations", same=SAME):
        if entry.keys() != LINE:
            raise UsageError(f"{where}: not a finding of a search; delete this line to evaluate its plan again")
        step, plan = entry.pop("step"), entry.pop("plan")
        known[step, plan] = Evaluation(**entry)
    return known
