"""Lines of JSON for a trace: slices, counters, names of tracks. Times are µs with three decimals, from whole ns."""

import json
from collections.abc import Iterator

import numpy as np

from hybrid_des.timeline import Column

PICOSECONDS_PER_NANOSECOND = 1000

# names that chrome://tracing gives colours to (catapult, color_scheme.html); Perfetto colours by a name without digits
COLOURS = {
    "F": "rail_response", "B": "rail_idle", "W": "rail_load", "FB": "thread_state_uninterruptible",
    "optimizer": "black", "reduction": "rail_animation", "gather": "good", "wait": "grey",
}  # fmt: skip


def slice_line(track: str, start: int, end: int, name: str, category: str, args: str) -> str:
    """A slice on a thread, between two times in ns; `args` is the inside of a JSON object."""
    colour = f'"cname":"{COLOURS[category]}",' if category in COLOURS else ""
    return (
        f'{{"ph":"X",{track},"ts":{microseconds(start)},"dur":{microseconds(end - start)},'
        f'"name":"{name}","cat":"{category}",{colour}"args":{{{args}}}}}'
    )


def name_process(pid: int, name: str, place: int) -> Iterator[str]:
    """The name of a process and its place in the order."""
    yield _about(f'"pid":{pid}', "process_name", {"name": name})
    yield _about(f'"pid":{pid}', "process_sort_index", {"sort_index": place})


def name_thread(pid: int, tid: int, name: str) -> Iterator[str]:
    """The name of a thread; threads are shown in the order of their numbers."""
    yield _about(f'"pid":{pid},"tid":{tid}', "thread_name", {"name": name})
    yield _about(f'"pid":{pid},"tid":{tid}', "thread_sort_index", {"sort_index": tid})


def _about(owner: str, kind: str, args: dict[str, str | int]) -> str:
    return f'{{"ph":"M",{owner},"name":"{kind}","args":{json.dumps(args)}}}'


def counter(pid: int, time: int, name: str, unit: str, value: str) -> str:
    """One value of a counter, from a time in ns on."""
    args = f"{{{json.dumps(unit)}:{value}}}"
    return f'{{"ph":"C","pid":{pid},"ts":{microseconds(time)},"name":{json.dumps(name)},"args":{args}}}'


def groups(order: Column, key: Column) -> Iterator[tuple[int, Column]]:
    """Split an order sorted by a key into one group per value of the key."""
    if len(order):
        values = key[order]
        for piece in np.split(order, np.flatnonzero(np.diff(values)) + 1):
            yield int(key[piece[0]]), piece


def nanoseconds(picoseconds: Column) -> Column:
    """Round to whole nanoseconds."""
    return (picoseconds + PICOSECONDS_PER_NANOSECOND // 2) // PICOSECONDS_PER_NANOSECOND


def microseconds(ns: int) -> str:
    """Nanoseconds as µs with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"
