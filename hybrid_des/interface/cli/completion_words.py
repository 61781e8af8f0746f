"""What the shell offers for each argument: files by pattern, and names of GPUs, schedules and other plug-ins."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import shtab

SCENARIOS = shtab.glob("*.yaml", "*.yml")
SCENARIO_METAVARS = ("SCENARIO", "CORPUS", "A", "B", "OTHER")
PATH_METAVARS = ("FILE", "DIR", "DIR|FILE", "LOG", "LINE", "MODEL", "SOURCE")
SCENARIO_DESTS = ("file", "scenario")


def describe(parser: argparse.ArgumentParser, command: str = "") -> None:
    """Say what each argument of a command takes, for `shtab`: its choices, or a kind of file.

    Args:
        parser: of the command; it is changed.
        command: its name; empty for `hybrid-des FILE`.
    """
    for action in parser._actions:
        names = _names(command, action)
        if names is not None:
            action.choices = names()
        elif (pattern := _pattern(action)) is not None:
            action.complete = pattern  # type: ignore[attr-defined]


def _names(command: str, action: argparse.Action) -> Callable[[], Sequence[str]] | None:
    """The names that an argument takes, if they are known: those of the package and of installed plug-ins."""
    by_argument: dict[tuple[str, str], Callable[[], Sequence[str]]] = {
        ("collective", "name"): _collectives, ("collective", "codec"): _codecs, ("docs", "page"): _pages,
        ("gpus", "name"): _gpus, ("models", "name"): _models, ("init", "name"): _shipped,
        ("schedules", "name"): _schedules, ("import", "schedule"): _schedules,
        ("collective", "servers_on"): lambda: ["ranks", "hosts"],
    }  # fmt: skip
    return _gpus if action.dest == "gpu" else by_argument.get((command, action.dest))


def _pattern(action: argparse.Action) -> shtab.CompleteType | None:
    """The files that an argument takes; None if it takes none, or has choices."""
    if action.choices or action.nargs == 0:
        return None
    if action.dest == "imports":
        return shtab.glob("*.py")
    if action.metavar in SCENARIO_METAVARS or (action.metavar == "FILE" and action.dest in SCENARIO_DESTS):
        return SCENARIOS
    if action.metavar == "DIR":
        return shtab.DIRECTORY
    return shtab.FILE if action.metavar in PATH_METAVARS else None


def _gpus() -> Sequence[str]:
    from hybrid_des.cluster import gpus

    return gpus.names()


def _models() -> Sequence[str]:
    from hybrid_des.workload.models import catalogue

    return catalogue.names()


def _schedules() -> Sequence[str]:
    from hybrid_des.pipeline import schedules

    return schedules.names()


def _collectives() -> Sequence[str]:
    from hybrid_des import collectives

    return collectives.names()


def _codecs() -> Sequence[str]:
    from hybrid_des.collectives import codecs

    return codecs.names()


def _shipped() -> Sequence[str]:
    from hybrid_des.scenario.shipped import shipped

    return sorted(shipped())


def _pages() -> Sequence[str]:
    from hybrid_des.interface.cli.commands.docs import pages

    return sorted(pages())
