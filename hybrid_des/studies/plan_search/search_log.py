"""The evaluations of a search on disk, a line of JSON each, so that a search that is stopped loses nothing.

    {"search": "3f2a…", "plans": 336}
    {"step": "weigh", "plan": 17, "least": 12.9, "held": 61234567890, …}
    {"step": "simulate", "plan": 17, "least": 13.1, …, "row": {…}}

The first line identifies the search: its scenario, plans, objective and limits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hybrid_des.errors import UsageError
from hybrid_des.report.files.staging import cannot_be_written
from hybrid_des.studies.plan_search.evaluation import Evaluation
from hybrid_des.studies.plan_search.terms import Settings
from hybrid_des.studies.sweep.axes import Case

LOG = "search.partial.jsonl"


SAME = "the same scenario, plans, objective, limits and version"


LINE = {"step", "plan", *(field.name for field in fields(Evaluation))}


Known = Mapping[tuple[str, int], Evaluation]


Note = Callable[[str, int, Evaluation], None]


@contextlib.contextmanager
def search_log(
    folder: Path | None, settings: Settings, cases: Sequence[Case], *, resume: bool
) -> Iterator[tuple[Known, Note]]:
    """Yield the evaluations of an earlier search, and a function that adds one; without a folder nothing is kept.

    Raises:
        UsageError: the folder cannot be written, or, with `resume`, does not hold this search.
    """
    if folder is None:
        yield {}, lambda step, number, evaluation: None
        return
    path, head = folder / LOG, _head(settings, cases)
    known = _read(path, head) if resume else {}
    lines = [json.dumps(head), *(_line(step, number, found) for (step, number), found in known.items())]
    with cannot_be_written(folder):
        draft = path.with_name(f".{path.name}.part")
        draft.write_text("\n".join([*lines, ""]), encoding="utf-8")
        draft.replace(path)  # from here on, earlier evaluations cannot be lost
        file = path.open("a", encoding="utf-8")

    def note(step: str, number: int, evaluation: Evaluation) -> None:
        with cannot_be_written(folder):
            file.write(_line(step, number, evaluation) + "\n")
            file.flush()

    with file:
        yield known, note


def _line(step: str, number: int, evaluation: Evaluation) -> str:
    return json.dumps({"step": step, "plan": number, **asdict(evaluation)}, allow_nan=False)


def _head(settings: Settings, cases: Sequence[Case]) -> dict[str, Any]:
    same = (version("hybrid-des"), settings.digest, settings.imports, settings.block, cases)
    return {"search": hashlib.sha256(repr(same).encode()).hexdigest(), "plans": len(cases)}


def _read(path: Path, head: Mapping[str, Any]) -> Known:
    """The evaluations in a file; a last line that was cut short by a kill is left out.

    Raises:
        UsageError: there is no such file, a line is wrong, or the file is that of another search.
    """
    try:
        first, *lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        raise UsageError(f"{path}: nothing to resume; expected the log of an earlier search") from None
    begun = _parsed(first)
    if begun.keys() != head.keys():
        raise UsageError(
            f'{path}:1: expected the head of a log, {{"search": …, "plans": …}}; start again without --resume'
        )
    if begun != head:
        counts = f" of {begun['plans']} plans, not {head['plans']}" if begun["plans"] != head["plans"] else ""
        raise UsageError(f"{path}: from a different search{counts}; --resume needs {SAME}")
    known = {}
    for number, line in enumerate(lines[:-1], start=2):  # a whole line has a line break
        entry = _parsed(line)
        if entry.keys() != LINE:
            raise UsageError(f"{path}:{number}: not a finding of a search; delete this line to appraise its plan again")
        step, plan = entry.pop("step"), entry.pop("plan")
        known[step, plan] = Evaluation(**entry)
    return known


def _parsed(line: str) -> dict[str, Any]:
    """The fields in a line; none if it is no JSON object."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
