"""What a report says of sizes beyond those of a table of measured times, whose times are extrapolated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hybrid_des.cluster.time_table import TableBandwidth, TimeTable
from hybrid_des.simulation.outcome import Run


def extrapolated(run: Run) -> list[str]:
    """A line for each table that was asked for a size beyond the measured ones; messages count if they are recorded."""
    return [line for table, sizes in _asked(run).items() if (line := _line(table, sizes))]


def _asked(run: Run) -> dict[TimeTable, set[int]]:
    """The tables of a run with the sizes of buckets, or of messages on their links."""
    asked: dict[TimeTable, set[int]] = {}
    for table, sizes in (*_reduced(run), *_sent(run)):
        asked.setdefault(table, set()).update(sizes)
    return asked


def _reduced(run: Run) -> Iterator[tuple[TimeTable, Iterable[int]]]:
    if run.scenario.gradients.algorithm == "measured":
        reductions = run.parts.reductions
        table = getattr(reductions.options, "table", None)
        if isinstance(table, TimeTable):
            yield table, (size.bytes for _, group in reductions.processes for size in reductions.buffers_of(group))


def _sent(run: Run) -> Iterator[tuple[TimeTable, Iterable[int]]]:
    timeline, links = run.timeline, run.fabric.links if run.fabric else {}
    bandwidths = {number: links[name].bandwidth for number, name in enumerate(timeline.links) if name in links}
    tables = {number: one.table for number, one in bandwidths.items() if isinstance(one, TableBandwidth)}
    if not tables or timeline.messages is None:
        return
    rows = timeline.messages_of(lambda channel: True)
    link = timeline.of_channel["link"][rows["channel"]]
    for number, table in tables.items():
        yield table, np.unique(rows["bytes"][link == number]).tolist()


def _line(table: TimeTable, sizes: Iterable[int]) -> str:
    known = {size for size in sizes if size > 0}
    beyond = {size for size in known if not table.covers(size)}
    if not beyond:
        return ""
    many = f"{len(beyond)} of {len(known)} sizes" if len(known) > 1 else "the only size"
    return f"{table.extent}; {many} in use {'is' if len(beyond) == 1 else 'are'} extrapolated"
