"""Output of the command `collective`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybrid_des.analysis.collective_bench import BenchRow


def head_of(name: str, about: str, sharing: str, *, chosen: bool) -> str:
    """The lines above a table; `chosen`: with algorithm, protocol and channels, which a library chooses."""
    more = f"{'algo':>13}{'proto':>8}{'channels':>9}" if chosen else ""
    return (
        f"# {name}: {about}, {sharing}\n#\n"
        f"#{'size':>13}{'count':>14}{'type':>8}{'time':>12}{'algbw':>9}{'busbw':>9}{more}\n"
        f"#{'(B)':>13}{'(elements)':>14}{'':>8}{'(us)':>12}{'(GB/s)':>9}{'(GB/s)':>9}"
    )


def line_of(row: BenchRow, codec: str) -> str:
    """One line of a table."""
    microseconds = row.time / 10**6
    time = f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.1f}"
    chosen = "" if row.taken is None else f" {row.taken[0]:>12} {row.taken[1]:>7} {row.channels:>8}"
    return f"{row.size:>14} {row.elements:>13} {codec:>7} {time:>11} {row.algorithm:>8.2f} {row.bus:>8.2f}{chosen}"


def write_bench(folder: Path, about: str, rows: Sequence[BenchRow], limit: float | None, *, by_name: bool) -> None:
    """Write the table, which `calibrate` reads if it has one collective, and the picture as PNG and SVG.

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
