"""The duration of every op of a pipeline, from any profile that says when each ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.event_dump import read_event_dump
from hybrid_des.interchange.profiles.kineto_ranks import KinetoRanks
from hybrid_des.interchange.profiles.own_ops import own_rows
from hybrid_des.interchange.profiles.recognition import (
    DUMP,
    KINETO,
    TABLE,
    WHAT,
    Profile,
    format_of,
    head_of,
    recognized,
)
from hybrid_des.workload.durations import NEEDED, read_table

if TYPE_CHECKING:
    import pandas as pd


class OpTable(NamedTuple):
    """Ops of a measured run.

    Attributes:
        name: of the run.
        source: the file or folder, for messages.
        rows: one per op, as in `workload.durations.read_table`.
        memory: GiB reserved by each pipeline rank, if known.
        skipped: steps that are left out, since training was not yet under way.
    """

    name: str
    source: str
    rows: pd.DataFrame
    memory: tuple[float, ...] | None = None
    skipped: tuple[int, ...] = ()


def has_ops(target: Path) -> bool:
    """Whether a file or a folder says whose micro-batch each op is; also if it cannot be read."""
    if not target.is_dir() and (not target.exists() or format_of(target) is None):
        return True
    profile = recognized(target)
    return profile.format in (TABLE, DUMP) or _ours(profile)


def _ours(profile: Profile) -> bool:
    return profile.format == KINETO and b'"microbatch"' in head_of(profile.files[0])  # others name no micro-batches


def read_ops(target: Path) -> OpTable:
    """The ops in a file or a folder.

    Raises:
        UsageError: it has none, or is broken; another kind of profile is called by its name.
    """
    if target.suffix in (".csv", ".parquet", ".yaml", ".yml") or not target.exists():
        return OpTable(_name(target), str(target), read_table(target))
    if not target.is_dir() and format_of(target) is None:
        return OpTable(_name(target), str(target), read_table(target))  # says what it is
    return ops_of(recognized(target))


def ops_of(profile: Profile) -> OpTable:
    """The ops in the files of a profile, with the errors of `read_ops`."""
    first = profile.files[0]
    if profile.format == DUMP:
        dump = read_event_dump(profile.files)
        return OpTable(_name(first.parent), str(first.parent), dump.table, dump.memory, dump.skipped)
    if _ours(profile):
        found = own_rows(KinetoRanks.read(profile.files))
        if found is not None:
            return OpTable(_name(first.parent), str(first.parent), found[1])
    if profile.format != TABLE:
        why = "which does not say whose micro-batch a kernel is"
        raise UsageError(
            f"{first}: {WHAT[profile.format]}, {why} (hybrid-des import reads it); "
            f"expected CSV or Parquet with {', '.join(NEEDED)}"
        )
    if len({path.stem for path in profile.files}) > 1:
        names = " and ".join(path.name for path in profile.files[:2])
        raise UsageError(f"{first.parent}: {names}: several tables; name the one that is meant")
    path = _best(profile.files)
    return OpTable(_name(path), str(path), read_table(path))


def _name(path: Path) -> str:
    return path.resolve().name.partition(".")[0] or "imported"


def _best(files: Sequence[Path]) -> Path:
    """CSV first: it needs no further package."""
    return min(files, key=lambda path: path.suffix != ".csv")
