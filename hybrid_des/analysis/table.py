"""The timeline as a DataFrame: one row per op, and one per message and link it passes, with names and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.network.purpose import PURPOSES
from hybrid_des.timeline import NONE, OP_KINDS, Column, Columns, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "step", "rank", "replica", "pipeline_rank", "lane", "kind", "microbatch", "chunk", "stage",
    "asked_s", "start_s", "end_s", "peer", "bytes", "hop",
)  # fmt: skip
EXACT = ("asked_ps", "start_ps", "end_ps")  # whole picoseconds: a float of seconds loses some beyond 4,500 s
COMPUTE = "compute"  # the lane of ops; every other lane is a link


def table(timeline: Timeline, exact: bool = False) -> pd.DataFrame:
    """Make the public table, ordered by start, rank and lane.

    Times are seconds, with `exact` also whole picoseconds in three more columns; `microbatch`, `chunk`, `stage`,
    `peer`, `bytes` and `hop` are nullable integers. The table is reproducible byte for byte.
    """
    lanes = [COMPUTE, *sorted({channel.link for channel in timeline.channels})]
    kinds = [*OP_KINDS, *sorted({channel.kind for channel in timeline.channels})]
    return _frame(list(_blocks(timeline, lanes, kinds)), lanes, kinds, EXACT if exact else ())


def empty_table() -> pd.DataFrame:
    """Make the table of a run with `record: none`: all columns and no rows."""
    return _frame([], [], [])


def ops_of(frame: pd.DataFrame) -> Columns:
    """Recover the op columns of `Timeline.op_rows`, without index, from a whole or filtered table.

    Raises:
        ValueError: a row of the compute lane has an unknown kind.
    """
    rows = frame[frame["lane"] == COMPUTE]
    kinds = np.array([OP_KINDS.index(kind) for kind in rows["kind"]], dtype=np.int64)
    names = ("step", "rank", "replica", "pipeline_rank", "microbatch", "chunk", "stage", "asked", "start", "end")
    return {"kind": kinds, **_numbers(rows, names)}


def reductions_of(frame: pd.DataFrame) -> Columns:
    """Select the messages of collectives on their first link, as columns, without those sent by parameter servers."""
    pipeline = [COMPUTE, *(purpose.name for purpose in PURPOSES)]  # messages of a collective have its name
    sent = ~frame["kind"].isin([*OP_KINDS, *pipeline]) & (frame["hop"] == 0) & frame["replica"].notna()
    return _numbers(frame[sent], ("rank", "replica", "pipeline_rank", "asked", "end"))


def _numbers(rows: pd.DataFrame, names: Sequence[str]) -> Columns:
    """Columns of a table as integers: seconds as picoseconds, unless it has those; missing values as `NONE`."""
    columns = {}
    for name in names:
        if f"{name}_ps" in rows:
            columns[name] = rows[f"{name}_ps"].to_numpy(dtype=np.int64)
        elif f"{name}_s" in rows:
            columns[name] = np.rint(rows[f"{name}_s"].to_numpy() * PICOSECONDS_PER_SECOND).astype(np.int64)
        else:
            columns[name] = rows[name].fillna(NONE).to_numpy(dtype=np.int64)
    return columns


def _frame(
    blocks: Sequence[Columns], lanes: Sequence[str], kinds: Sequence[str], exact: Sequence[str] = ()
) -> pd.DataFrame:
    """Join and sort blocks of rows, and convert them to names, seconds and missing values."""
    import pandas as pd

    nothing = np.empty(0, dtype=np.int64)
    columns = {name: np.concatenate([block[name] for block in blocks] or [nothing]) for name in COLUMNS}
    order = np.lexsort((columns["lane"], columns["rank"], columns["start_s"]))
    named: dict[str, Any] = {name: columns[f"{name.removesuffix('_ps')}_s"][order] for name in exact}
    for name in COLUMNS:
        values = columns.pop(name)[order]
        if name in ("lane", "kind"):
            named[name] = np.array(lanes if name == "lane" else kinds, dtype=object)[values]
        elif name.endswith("_s"):
            named[name] = values / PICOSECONDS_PER_SECOND
        elif name in ("step", "rank") or (name in ("replica", "pipeline_rank") and not (values == NONE).any()):
            named[name] = values
        else:
            named[name] = pd.arrays.IntegerArray(values, values == NONE)
    return pd.DataFrame(named, columns=[*COLUMNS, *exact])


def _blocks(timeline: Timeline, lanes: list[str], kinds: list[str]) -> Iterator[Columns]:
    """The columns of the op rows, then those of the message rows; lanes and kinds as indices into their lists."""
    ops = timeline.op_rows()
    nothing = np.full(len(ops["rank"]), NONE)
    yield {**_common(ops), "lane": np.zeros_like(nothing), **dict.fromkeys(("peer", "bytes", "hop"), nothing)}
    messages = timeline.message_rows()
    if messages is None or not timeline.channels:
        return
    lane, kind = {name: i for i, name in enumerate(lanes)}, {name: i for i, name in enumerate(kinds)}
    facts = [(c.sender, lane[c.link], kind[c.kind], c.receiver, c.hop) for c in timeline.channels]
    sender, lane_of, kind_of, peer, hop = np.array(facts)[messages["channel"]].T
    places = {"rank": sender, "replica": timeline.replica[sender], "pipeline_rank": timeline.pipeline_rank[sender]}
    yield {**_common({**messages, **places, "kind": kind_of}), "lane": lane_of, "peer": peer, "hop": hop,
           "bytes": messages["bytes"]}  # fmt: skip


def _common(rows: Columns) -> dict[str, Column]:
    """The columns shared by ops and messages, under their public names."""
    names = ("step", "rank", "replica", "pipeline_rank", "kind", "microbatch", "chunk", "stage")
    return {**{name: rows[name] for name in names}, **{f"{name}_s": rows[name] for name in ("asked", "start", "end")}}
