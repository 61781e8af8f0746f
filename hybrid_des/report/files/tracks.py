"""Tracks of slices made of the rows of tables, for all traces.

Traces differ in what they call things and in their unit of time: µs with three decimals, from whole ns (`NANOSECOND`),
or whole µs (`MICROSECOND`). An event is a line of JSON: written as text, a million take 60 % of the time that `json`
takes for as many dicts.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.collective_phases import groups
from hybrid_des.planning.program_table import Column, Columns

NANOSECOND, MICROSECOND = 10**3, 10**6  # picoseconds


EVENTS_AT_ONCE = 5_000


NOTHING = np.empty(0, dtype=np.int64)


Event = str


Row = Mapping[str, Any]


# names that chrome://tracing gives colours to (catapult, color_scheme.html); Perfetto colours by a name without digits
COLOURS = {
    "F": "rail_response", "B": "rail_idle", "W": "rail_load", "FB": "thread_state_uninterruptible",
    "optimizer": "black", "reduction": "rail_animation", "gather": "good", "exchange": "bad", "wait": "grey",
}  # fmt: skip


CNAMES = {category: f'"cname":"{colour}",' for category, colour in COLOURS.items()}


def write_trace(path: Path, about: Mapping[str, Any], events: Iterable[Event]) -> None:
    """Write a compressed trace in constant memory, reproducible byte for byte.

    Args:
        path: the file.
        about: what the file says besides its events, each key on a line of its own.
        events: at least one event.
    """
    whole = json.dumps({**about, "traceEvents": []}, indent=0)
    before, after = whole[: -len("]\n}")], whole[-len("]\n}") :]
    left = iter(events)
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=5, mtime=0) as file,
    ):
        file.write(before.encode())
        separator = "\n"
        while block := list(islice(left, EVENTS_AT_ONCE)):
            file.write((separator + ",\n".join(block)).encode())
            separator = ",\n"
        file.write(f"\n{after}\n".encode())


class Rows:
    """The rows of a table of periods, by rank or another column, in the order of their slices.

    Columns `ts`, `dur` and `until`, in µs, stand for `start` and `end`; `asked`, where a table has it, is in µs too.

    Attributes:
        rows_of: rank → its rows.
    """

    def __init__(self, table: Columns, unit: int = NANOSECOND, by: str = "rank") -> None:
        start, end = whole(table["start"], unit), whole(table["end"], unit)
        times = {"ts": start, "dur": end - start, "until": end}
        if "asked" in table:
            times["asked"] = whole(table["asked"], unit)
        facts = {name: column for name, column in table.items() if name not in ("start", "end", by)}
        self._columns = {**facts, **{name: in_microseconds(column, unit) for name, column in times.items()}}
        self.rows_of = dict(groups(np.lexsort((end, start, table[by])), table[by]))

    def overlap(self, number: int) -> bool:
        """Whether some rows of a rank last at the same time."""
        begin, until = (self._columns[name][self.rows_of[number]] for name in ("ts", "until"))
        return bool(np.any(np.maximum.accumulate(until)[:-1] > begin[1:]))

    def of(self, number: int) -> Iterator[Row]:
        """The rows of a rank, as mappings."""
        mine = self.rows_of.get(number, NOTHING)
        columns = {name: column[mine].tolist() for name, column in self._columns.items()}
        return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))


def track_of(pid: int, tid: int) -> str:
    """A thread of a process, as the part of an event."""
    return f'"pid":{pid},"tid":{tid}'


def slice_of(track: str, row: Row, name: str, category: str, args: str) -> Event:
    """A slice from a row's `ts` for its `dur`; `args` is the inside of a JSON object."""
    colour = CNAMES.get(category, "")
    return (
        f'{{"ph":"X",{track},"ts":{row["ts"]},"dur":{row["dur"]},'
        f'"name":"{name}","cat":"{category}",{colour}"args":{{{args}}}}}'
    )


def about_process(pid: int, name: str, order: int) -> Iterator[Event]:
    """The name of a process, and its place in their order."""
    return about_track(f'"pid":{pid}', process_name=name, process_sort_index=order)


def about_thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    """The name of a thread; threads are shown in the order of their numbers."""
    return about_track(track_of(pid, tid), thread_name=name, thread_sort_index=tid)


def about_track(track: str, **facts: str | int) -> Iterator[Event]:
    """Facts about a process or a thread, such as `process_name` and `thread_sort_index`."""
    for name, value in facts.items():
        yield f'{{"ph":"M",{track},"name":"{name}","args":{{"{name.partition("_")[2]}":{json.dumps(value)}}}}}'


def whole(picoseconds: Column, unit: int = NANOSECOND) -> Column:
    """Round to whole units, so that adjacent periods stay adjacent."""
    return (picoseconds + unit // 2) // unit


def in_microseconds(units: Column, unit: int = NANOSECOND) -> NDArray[Any]:
    """Whole units as µs: floats of ns, or the same whole numbers."""
    return units if unit == MICROSECOND else units / (MICROSECOND // unit)
