"""What went wrong, for programs: the parts of an error's lines."""

from __future__ import annotations

import re
from typing import Any

_LINE = re.compile(
    r"(?:--set (?P<set>[^=]+=.*?)|(?P<file>.+?):(?P<line>\d+)|(?P<whole>.+?\.[A-Za-z]\w*)): "
    r"(?:(?P<path>[A-Za-z_]\w*(?:[.\[]\w[\w.\]-]*)*): )?(?P<what>.+)"
)
_WANTED = re.compile(r"expected (?P<expected>.+?)(?:, found (?P<found>.+))?$|must be (?P<must>.+?), not (?P<given>.+)$")


def error_document(error: Exception, message: str, exit_code: int) -> dict[str, Any]:
    """An error for programs, as `error` of what `--json` prints: `problems` has an entry per line of the message."""
    return {
        "message": message,
        "kind": type(error).__name__,
        "exit_code": exit_code,
        "problems": problems_of(message),
    }


def problems_of(message: str) -> list[dict[str, str | int]]:
    """The problems of an error, one per line: `message` and, where the line has them, its parts.

    `file`, `line`, or the `set` that caused it; `path` of the key; `expected` and `found`.

    Example:
        >>> problems_of("a.yaml:3: steps: must be at least 1, not -1")[0]["expected"]
        'at least 1'
    """
    return [_problem(line) for line in message.splitlines()]


def _problem(line: str) -> dict[str, str | int]:
    parts: dict[str, str | int] = {"message": line}
    match = _LINE.fullmatch(line)
    if match is None:
        return parts
    parts |= {name: text for name in ("set", "file", "path") if (text := match[name])}
    if match["whole"]:
        parts["file"] = match["whole"]
    if match["line"]:
        parts["line"] = int(match["line"])
    if wanted := _WANTED.search(match["what"]):
        values = {"expected": wanted["expected"] or wanted["must"], "found": wanted["found"] or wanted["given"]}
        parts |= {name: text for name, text in values.items() if text}
    return parts
