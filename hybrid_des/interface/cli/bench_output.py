"""Output of the command `collective`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybrid_des.analysis.collective_bench import BenchRow


WIDE = (14, 14, 8, 12, 9, 9, 13, 8, 9)  # columns that nccl-tests takes, and the choices of a library behind them
NARROW = (11, 11, 7, 10, 7, 7, 10, 7, 9)  # for terminals on which the wide ones do not fit


def columns_for(width: int | None) -> tuple[int, ...]:
    """The columns of a table that fits a width, if one is given; lines are printed one by one, before all are known."""
    return WIDE if width is None or width >= sum(WIDE) else NARROW


def head_of(name: str, about: str, sharing: str, *, chosen: bool, columns: Sequence[int] = WIDE) -> str:
    """The lines above a table; `chosen`: with algorithm, protocol and channels, which a library chooses."""
    heads = ("size", "count", "type", "time", "algbw", "busbw", *(("algo", "proto", "channels") if chosen else ()))
    units = ("(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)")
    lines = ["".join(f"{cell:>{size}}" for cell, size in zip(cells, columns, strict=False)) for cells in (heads, units)]
    return "\n".join([f"# {name}: {about}, {sharing}", "#", *(f"#{line[1:]}" for line in lines)])


def line_of(row: BenchRow, codec: str, columns: Sequence[int] = WIDE) -> str:
    """One line of a table."""
    microseconds = row.time / 10**6
    time = f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.1f}"
    chosen = [] if row.taken is None else [*row.taken, str(row.channels)]
    cells = [f"{row.size}", f"{row.elements}", codec, time, f"{row.algorithm:.2f}", f"{row.bus:.2f}", *chosen]
    first, *others = (f"{cell:>{size - bool(at)}}" for at, (cell, size) in enumerate(zip(cells, columns, strict=False)))
    return " ".join([first, *others])


def write_bench(folder: Path, about: str, rows: Sequence[BenchRow], limit: float | None, *, by_name: bool) -> None:
    """Write the table, which `measure --from` reads if it has one collective, and the picture as PNG and SVG.

    Args:
        folder: the target folder.
        about: what was measured.
        rows: rows of one collective, or of several one after the other.
        limit: limit of bus bandwidth, drawn as a line.
        by_name: whether each collective is a line of the picture; else all rows are one line.
    """
    from hybrid_des.cluster.time_table import TimeTable, write_table
    from hybrid_des.report.files.staging import write_files
    from hybrid_des.report.plots.curves import times_and_bandwidths

    names = dict.fromkeys(row.name for row in rows) if by_name else {about.partition(",")[0]: None}
    mine = {name: [row for row in rows if not by_name or row.name == name] for name in names}
    curves = {name: [(row.size, row.time, row.bus) for row in found] for name, found in mine.items()}
    figure = times_and_bandwidths(about, curves, limit)
    table = TimeTable(tuple((row.size, row.time) for row in rows))
    cells = [{name: str(cell) for name, cell in row.columns().items()} for row in rows]
    more = {name: [row[name] for row in cells] for name in [*cells[0]][2:]}
    write_files(folder, {"collective.csv": write_table(table, about, more), "collective": figure})
