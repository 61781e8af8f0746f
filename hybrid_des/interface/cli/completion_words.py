"""What the shell offers for each argument: files by pattern, and names of GPUs, schedules and other plug-ins."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import shtab

from hybrid_des import collectives
from hybrid_des.cluster import gpus
from hybrid_des.collectives import codecs
from hybrid_des.interface.cli.commands.docs import pages
from hybrid_des.pipeline import schedules
from hybrid_des.scenario.shipped import shipped
from hybrid_des.workload.models import catalogue

SCENARIOS = shtab.glob("*.yaml", "*.yml")
SCENARIO_METAVARS = ("SCENARIO", "CORPUS", "A", "B", "OTHER")
PATH_METAVARS = ("FILE", "DIR", "DIR|FILE", "LOG", "LINE", "MODEL", "SOURCE")
SCENARIO_DESTS = ("file", "scenario")
NAMES: dict[tuple[str, str], Callable[[], Sequence[str]]] = {  # of arguments; those of installed plug-ins too
    ("collective", "name"): collectives.names, ("collective", "codec"): codecs.names,
    ("collective", "servers_on"): lambda: ["ranks", "hosts"], ("docs", "page"): lambda: sorted(pages()),
    ("gpus", "name"): gpus.names, ("models", "name"): catalogue.names, ("init", "name"): lambda: sorted(shipped()),
    ("schedules", "name"): schedules.names, ("import", "schedule"): schedules.names,
}  # fmt: skip


def describe(parser: argparse.ArgumentParser, command: str = "") -> None:
    """Say what each argument of a command takes, for `shtab`: its choices, or a kind of file.

    Args:
        parser: of the command; it is changed.
        command: its name; empty for `hybrid-des FILE`.
    """
    for action in parser._actions:
        names = gpus.names if action.dest == "gpu" else NAMES.get((command, action.dest))
        if names is not None:
            action.choices = names()
        elif (pattern := _pattern(action)) is not None:
            action.complete = pattern  # type: ignore[attr-defined]


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
