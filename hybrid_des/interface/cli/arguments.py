"""Command-line arguments: a parser with one-line errors, and options shared by several commands."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hybrid_des.errors import LONGEST_SHOWN, HybridDesError, UsageError, one_line

if TYPE_CHECKING:
    from hybrid_des.scenario.definition import Scenario
    from hybrid_des.scenario.strict_yaml import Document

WRITTEN = ("out", "write", "order")  # options that name files to write
PER_CORE = 4  # most worker processes per core: more only take memory from each other


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors and preformatted descriptions."""

    def __init__(self, prog: str, **texts: Any) -> None:
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **texts)

    takes_command = False  # whether words after `--` are a command, which is no matter of this parser

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse what stands in front of a command; its words become `command`, None without it."""
        words = [*(sys.argv[1:] if args is None else args)]
        at = words.index("--") if self.takes_command and "--" in words else None
        parsed, rest = super().parse_known_args(words[:at], namespace)
        if self.takes_command:
            parsed.command = words[at + 1 :] if at is not None else None
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Raise a `UsageError` for a wrong command line."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def add_common(parser: argparse.ArgumentParser, out: str | None = None) -> None:
    """Add `--out DIR` if it is described, `--set a.b=value` and `--import FILE`."""
    if out is not None:
        add_out(parser, out)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="replace a value of the scenario, such as --set schedule.kind=gpipe",
    )
    add_import(parser)


def add_import(parser: argparse.ArgumentParser) -> None:
    """Add `--import FILE`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE",
        help="first import a Python file that registers user-defined schedules, topologies or collectives",
    )


def add_out(
    parser: argparse.ArgumentParser, description: str, metavar: str = "DIR", name: str = "--out"
) -> argparse.Action:
    """Add `--out`, or an option of another name: a folder or file to write to."""
    return parser.add_argument(name, metavar=metavar, type=as_path, help=description)


def add_jobs(parser: argparse.ArgumentParser, how_many: str) -> None:
    """Add `--jobs N`, the number of local worker processes."""
    parser.add_argument("--jobs", metavar="N", type=processes, help=f"local worker processes{how_many}")


def add_budget(parser: argparse.ArgumentParser, description: str) -> argparse.Action:
    """Add `--budget TIME`, in seconds; without it there is no limit."""
    return parser.add_argument("--budget", metavar="TIME", type=seconds, default=inf, help=description)


def add_quiet_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, `--quiet` and `--budget` of a command that simulates several times before it prints."""
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no status line")
    add_budget(parser, "end after this time, such as 60s, without a result; exit code 3")


def refuse_given(command: str, args: argparse.Namespace, options: Sequence[argparse.Action], why: str) -> None:
    """Refuse options and arguments of a command that do not fit the others: `--link` "needs --from FILE".

    Raises:
        UsageError: one of them is given.
    """
    for option in options:
        if getattr(args, option.dest) != option.default:
            name = option.option_strings[0] if option.option_strings else option.metavar
            raise UsageError(f"{command}: {name} {why}")


def import_files(files: Sequence[str], *, checked: bool = True) -> None:
    """Import user-defined plug-in files, and check their all-reduces on real numbers, unless the command does.

    Raises:
        UsageError: as `hybrid_des.registry.import_file`, or a collective does not reduce.
    """
    if not files:
        return
    from hybrid_des import collectives
    from hybrid_des.collectives.checking import unchecked
    from hybrid_des.interface.cli.output import say
    from hybrid_des.options import required_keys
    from hybrid_des.registry import import_file

    known = set(collectives.names())
    for file in files:
        import_file(file)
    for name in sorted(set(collectives.names()) - known) if checked else ():
        if required_keys(collectives.find(name).options):
            continue  # checked with the options of the scenario that uses it
        if why := unchecked(name):
            say(f"warning: collective {name}: not verified: {why}")


def whole(text: str) -> int:
    """Parse an integer as YAML writes it: Python would also accept 1_000 and digits other than 0 to 9."""
    if not re.fullmatch(r"[-+]?[0-9]{1,300}", text):
        raise argparse.ArgumentTypeError(f'expected a whole number, found "{one_line(text, LONGEST_SHOWN)}"')
    return int(text)


def one_scenario(command: str, file: str, overrides: Sequence[str]) -> Scenario:
    """Load a scenario for a command that takes one.

    Raises:
        UsageError: the file holds a sweep.
    """
    from hybrid_des.scenario.loading import scenario_of

    return scenario_of(one_document(command, file, overrides))


def one_document(command: str, file: str, overrides: Sequence[str]) -> Document:
    """Read a scenario for a command that takes one, without validation.

    Raises:
        UsageError: the file holds a sweep.
    """
    from hybrid_des.scenario.loading import read_scenario

    document = read_scenario(file, overrides)
    if document.value.get("sweep") not in (None, "none"):
        raise UsageError(
            f"{file}: a sweep of several scenarios; {command} takes one (--set sweep=none --set plot=none)"
        )
    return document


def left_out(args: argparse.Namespace) -> list[str]:
    """What the changes of a command's scenario (`--set`, `--what-if`) leave out, one sentence each.

    Of a scenario that cannot be read, nothing: the command says why.
    """
    from hybrid_des.scenario.loading import read_scenario
    from hybrid_des.scenario.shipped import located

    file, changes = getattr(args, "file", None), list(getattr(args, "set", None) or ())
    what_ifs = [[one] for one in getattr(args, "what_if", None) or ()]
    if not (changes or what_ifs) or not isinstance(file, str) or not located(file).is_file():
        return []
    notices: dict[str, None] = {}
    for what_if in ([], *what_ifs):
        try:
            notices |= dict.fromkeys(read_scenario(file, [*changes, *what_if]).notices.values())
        except HybridDesError:
            continue
    return list(notices)


def unused(args: argparse.Namespace) -> list[str]:
    """One line for each scenario of a command that leaves GPUs unused; none for commands whose file is no scenario."""
    from hybrid_des.scenario.loading import read_scenario
    from hybrid_des.scenario.shipped import located
    from hybrid_des.scenario.unused_gpus import unused_gpus

    given = vars(args)
    first, other = given.get("file") or given.get("a"), given.get("other") or given.get("b")
    shared, changes = given.get("set"), given.get("changes") or []
    if shared is None:
        return []
    warnings: dict[str, None] = {}
    for file, overrides in ((first, shared), (other or first, [*shared, *changes])):
        with suppress(HybridDesError):  # the command says what is wrong
            if isinstance(file, str) and located(file).is_file():
                warnings[unused_gpus(read_scenario(file, overrides)) or ""] = None
    return [*filter(None, warnings)]


def stand_ins(args: argparse.Namespace) -> list[str]:
    """One sentence for each argument that names a file which only the package has."""
    from hybrid_des.scenario.shipped import located

    given = [value for name, value in vars(args).items() if name not in WRITTEN]
    texts = [text for value in given for text in (value if isinstance(value, list) else [value])]
    files = [text for text in texts if isinstance(text, str | Path) and Path(text).parts[:1] == ("scenarios",)]
    missing = [file for file in files if located(file) != Path(file)]
    return [f"{file} is not in this folder; the one that comes with hybrid-des is read" for file in missing]


def distinct(names: Sequence[str], changes: Sequence[str]) -> list[str]:
    """The names of two scenarios, of which the second may be the first with changes, told apart."""
    labels = list(names)
    if len(set(labels)) < len(labels):
        labels[1] = f"{labels[1]} with {', '.join(changes)}" if changes else f"{labels[1]} (second)"
    return labels


def count(text: str) -> int:
    """Parse a positive integer."""
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {one_line(text, LONGEST_SHOWN)}")
    return number


def processes(text: str) -> int:
    """Parse a number of worker processes."""
    from hybrid_des.studies.pool import cores

    number, most = count(text), PER_CORE * cores()
    if number > most:
        shown = one_line(text, LONGEST_SHOWN)
        raise argparse.ArgumentTypeError(f"must be at most {most}, {PER_CORE} per core, not {shown}")
    return number


def seconds(text: str) -> float:
    """Parse a time such as 60s or 5 min."""
    from hybrid_des.units import parse_quantity

    try:
        seconds = float(parse_quantity(text, "time"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not seconds:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


def as_path(text: str) -> Path:
    """Parse the name of a file or folder."""
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("expected a path, found an empty string; the current folder is .")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"no file has this name: {one_line(text, LONGEST_SHOWN)}") from None
    return Path(text)
