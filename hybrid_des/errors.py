"""Errors raised deliberately, their exit codes, and text made safe for a terminal.

A message is one line (for an impossible order, followed by a grid; for a deadlock, one line per rank): what is wrong,
where, and what would be right. It contains printable characters only, in quoted text too.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

LONGEST_LINE = 400  # characters
LONGEST_SHOWN = 40  # of quoted text in a message
MOST_LINES = 39  # of a message with a grid
MOST_PROBLEMS = 20  # of a scenario in a message
CLOSE = 0.8  # how similar names are that differ by a typo

_BREAK = re.compile(r"\s*[^\S ]\s*")  # whitespace other than plain spaces


def one_line(text: str, longest: int = LONGEST_LINE, tail: int = 0) -> str:
    """Make a text safe for a terminal: one line of printable characters, cut before its last `tail` if too long."""
    if len(text) > 8 * LONGEST_LINE:
        text = text[: 4 * LONGEST_LINE] + text[-4 * LONGEST_LINE :]
    spaced = _BREAK.sub(" ", text.strip("\r\n"))
    line = printable(spaced)
    return line if len(line) <= longest else f"{line[: longest - tail - 1]}…{line[len(line) - tail :]}"


def printable(text: str) -> str:
    """The text with a replacement character for each one that is neither printable nor a line break."""
    return "".join(one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in text)


def few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def unknown(name: str, known: Iterable[str], what: str = "") -> str:
    """The message for an unknown name (of `what`), with similar known names or, if there are none, all of them."""
    choices = sorted(known)
    near = _similar(name.lower(), choices)
    hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(choices)}"
    return f'unknown {f"{what} " if what else ""}"{one_line(name, LONGEST_SHOWN)}"; {hint}'


def misspelled(name: str, known: Iterable[str]) -> bool:
    """Whether a name differs from a known one by a typo."""
    import difflib  # needed only for errors

    return bool(difflib.get_close_matches(name.lower(), [one.lower() for one in known], n=1, cutoff=CLOSE))


def beside(path: str | Path) -> str:
    """The end of a message about a file that does not exist: one of a similar name in its folder, if there is one."""
    import difflib  # needed only for errors

    path = Path(path)
    try:
        names = [other.name for other in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f'; did you mean "{path.parent / near[0]}"?' if near else ""


def installing(extra: str) -> str:
    """The command that adds an extra to this installation: from the folder, address or index that it came from.

    The origin of an installation is in its `direct_url.json` (PEP 610); a package from an index has none.
    """
    import json  # needed only for errors
    import shlex
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(metadata.distribution("hybrid-des").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:  # run from a folder that is not installed
        origin = {"url": Path(__file__).resolve().parents[1].as_uri(), "dir_info": {}}
    url = origin.get("url", "")
    if "dir_info" in origin:
        folder, editable = unquote(urlsplit(url).path), origin["dir_info"].get("editable", False)
        return f"pip install {'-e ' if editable else ''}{shlex.quote(f'{folder}[{extra}]')}"
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"pip install 'hybrid-des[{extra}]{f' @ {url}' if url else ''}'"


def _similar(name: str, choices: Iterable[str]) -> list[str]:
    """Similar choices, quoted, case ignored: one that differs by a typo, else all that start with or contain `name`."""
    import difflib  # needed only for errors

    by_lower = {choice.lower(): f'"{choice}"' for choice in choices}

    def closest(cutoff: float) -> list[str]:
        return [by_lower[one] for one in difflib.get_close_matches(name, by_lower, n=1, cutoff=cutoff)]

    begin = [quoted for lower, quoted in by_lower.items() if name and lower.startswith(name)]
    contain = [quoted for lower, quoted in by_lower.items() if len(name) > 2 and name in lower]
    return closest(CLOSE) or begin or contain or closest(0.5)


def _message(text: str) -> str:
    """One line of a message; if it is cut, its end is kept, which says what would be right."""
    return one_line(text, tail=LONGEST_LINE // 3)


def _few(lines: Iterable[str], most: int, what: str) -> str:
    """The lines of a message; if more than `most`, the first ones and the number of the rest."""
    safe = list(map(_message, lines))
    if len(safe) <= most:
        return "\n".join(safe)
    return "\n".join([*safe[: most - 1], f"… and {len(safe) - most + 1} more {what}"])


class HybridDesError(Exception):
    """Base of all errors a user can cause; `exit_code` is the exit status of the command line."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(_message(message))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructor, so that any subclass can return from a worker process."""
        return _same, (type(self), self.args, self.__dict__)


def _same(kind: type[HybridDesError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HybridDesError:
    error = kind.__new__(kind, *args)
    error.__dict__ |= attributes
    return error


Error = HybridDesError  # its public name: `hybrid_des.Error`


class _Drawn(HybridDesError):
    """An error with more than one line, such as a grid."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, _few(message.split("\n"), MOST_LINES, "lines"))


class UsageError(HybridDesError):
    """A command or a function argument is wrong."""


class ScenarioError(HybridDesError):
    """A scenario is wrong; `problems` holds one line per problem, the message the first of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(_message, problems))
        Exception.__init__(self, _few(self.problems, MOST_PROBLEMS, "problems"))


class Refusal(HybridDesError):
    """A schedule, collective or topology does not support the requested sizes; the message says which it supports."""


class OptionRefusal(Refusal):
    """An option does not fit the others, or the cluster; `option` and `at` give its path and list positions."""

    def __init__(self, option: str, message: str, *at: int) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option
        self.message = message
        self.at = at


class NoRoomError(Refusal):
    """The GPUs of a loop's engines, or of its trainer, have no room for what they have to hold."""


class TooLongError(HybridDesError):
    """A transfer takes implausibly long; the message names the unit that may have been forgotten."""


class PlanError(_Drawn):
    """An order of ops is impossible: an op is missing, duplicated, misplaced or part of a circular wait."""


class SimulationError(_Drawn):
    """The scenario is well-formed, but its simulation failed."""

    exit_code = 1


class DeadlockError(SimulationError):
    """Processes are stuck; the message names each stuck rank, its current op and what it waits for."""


class CircularOrderError(PlanError, DeadlockError):
    """A deadlock detected from the order alone, before simulation."""


class OutOfMemoryError(SimulationError):
    """A GPU exceeds its memory and the scenario says `on_oom: error`."""


class NumericsError(SimulationError):
    """A payload contains NaN or infinity, or a verified schedule differs from serial training."""
