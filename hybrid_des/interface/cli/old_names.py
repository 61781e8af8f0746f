"""Old names of commands and options: each works for one minor version, with a hint at what takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.output import say

if TYPE_CHECKING:
    from argparse import Namespace

UNTIL = "0.4"


class OldName(NamedTuple):
    """An old name of a command.

    Attributes:
        old: the old name.
        now: what takes its place, as one types it.
        command: the command whose options it takes.
        adapt: makes of its arguments those of the new form. Default: they are those of the command.
    """

    old: str
    now: str
    command: str
    adapt: Callable[[Namespace], Any] = lambda args: None


def hint(old: str, now: str) -> None:
    """Say what takes the place of an old name."""
    say(f"`{old}` is now `{now}`; the old name works until {UNTIL}")


def _list(args: Namespace) -> None:
    if args.name is not None:
        raise UsageError(f"scenarios: unrecognized arguments: {args.name}")


def _schema(args: Namespace) -> None:
    args.schema = True


def _verify(args: Namespace) -> None:
    args.file, args.name = _required("verify: SCENARIO", args.name), None


def _calibrate(args: Namespace) -> None:
    args.source, args.modules = _required("calibrate: FILE", args.modules), None


def _required(what: str, value: str | None) -> str:
    if value is None:
        raise UsageError(f"{what} is required")
    return value


def find(name: str, arguments: Sequence[str]) -> OldName | None:
    """What an old name stands for, given its arguments; None if it is none."""
    return OLD.get(f"{name} --from-profile") if "--from-profile" in arguments else OLD.get(name)


OLD = {
    name.old: name
    for name in (
        OldName("calibrate", "measure --from", "measure", _calibrate),
        OldName("calibrate --from-profile", "import", "_calibrate_profile"),
        OldName("flags", "export", "export"),
        OldName("replay", "import", "_replay"),
        OldName("scenarios", "init", "init", _list),
        OldName("schema", "docs --schema", "docs", _schema),
        OldName("verify", "schedules --verify", "schedules", _verify),
    )
}
