"""What a study has finished, a line of JSON each on disk, so that one that is stopped can be resumed.

    {"sweep": "3f2a…", "cases": 360}
    {"case": 17, "row": {"schedule.kind": "gpipe", "step_time_s": 1.435, …}}

The first line, the head, says which study it is: a digest of all that its results depend on, and how much there is to
do.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from hybrid_des.errors import UsageError


def head_of(study: str, counted: str, count: int, *depends_on: object) -> dict[str, Any]:
    """The head of a study's log, such as {"sweep": …, "cases": 360}."""
    digest = hashlib.sha256(repr((version("hybrid-des"), *depends_on)).encode()).hexdigest()
    return {study: digest, counted: count}


def line_of(entry: Mapping[str, Any]) -> str:
    """A line of a log, with its line break: a line without one was cut short by a kill."""
    return json.dumps(entry, allow_nan=False) + "\n"


def begun(path: Path, head: Mapping[str, Any], lines: Iterable[str]) -> IO[str]:
    """A log, open to add lines; from its replacement on, earlier lines cannot be lost."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text("".join([line_of(head), *lines]), encoding="utf-8")
    draft.replace(path)
    return path.open("a", encoding="utf-8")


def entries(path: Path, head: Mapping[str, Any], *, holds: str, same: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each entry of an earlier log is, and its fields (none if it is no JSON object).

    Args:
        path: the log.
        head: of the study that is to be resumed.
        holds: what the entries are, such as "rows", for messages.
        same: what the earlier study must have in common with this one, for messages.

    Raises:
        UsageError: there is no such file, or it is that of another study.
    """
    (study, _), (counted, count) = head.items()
    try:
        first, *lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        raise UsageError(f"{path}: nothing to resume; expected the {holds} of an earlier {study}") from None
    earlier = _parsed(first)
    if earlier.keys() != head.keys():
        expected = f'{{"{study}": …, "{counted}": …}}'
        raise UsageError(f"{path}:1: expected the head of a log, {expected}; start again without --resume")
    if earlier != head:
        counts = f" of {earlier[counted]} {counted}, not {count}" if earlier[counted] != count else ""
        raise UsageError(f"{path}: from a different {study}{counts}; --resume needs {same}")
    for number, line in enumerate(lines[:-1], start=2):
        yield f"{path}:{number}", _parsed(line)


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
