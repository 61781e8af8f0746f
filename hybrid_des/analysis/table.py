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
COMPUTE = "compute"  # the lane of ops; every other lane is a link


def table(timeline: Timeline) -> pd.DataFrame:
    """Make the table of the contract, ordered by start, rank and lane.

    Times are seconds; `microbatch`, `chunk`, `stage`, `peer`, `bytes` and `hop` are nullable integers. Two runs
    of one scenario give the same table, byte for byte.
    """
    lanes = [COMPUTE, *sorted({channel.link for channel in timeline.channels})]
    kinds = [*OP_KINDS, *sorted({channel.kind for channel in timeline.channels})]
    return _frame(list(_blocks(timeline, lanes, kinds)), lanes, kinds)


def empty_table() -> pd.DataFrame:
    """Make the table of a run that was to record nothing: all columns and no rows."""
    return _frame([], [], [])


def ops_of(frame: pd.DataFrame) -> Columns:
    """Undo `table` for the ops of a whole or filtered table: the columns that `Timeline.op_rows` gives, without index.

    Raises:
        ValueError: a row of the compute lane has an unknown kind.
    """
    rows = frame[frame["lane"] == COMPUTE]
    kinds = np.array([OP_KINDS.index(kind) for kind in rows["kind"]], dtype=np.int64)
    names = ("step", "rank", "replica", "pipeline_rank", "microbatch", "chunk", "stage", "asked", "start", "end")
    return {"kind": kinds, **_numbers(rows, names)}


def reductions_of(frame: pd.DataFrame) -> Columns:
    """Select the messages of collectives on their first link, as columns; those of parameter servers are left out."""
    pipeline = [COMPUTE, *(purpose.name for purpose in PURPOSES)]  # a collective's messages go by its own name
    sent = ~frame["kind"].isin([*OP_KINDS, *pipeline]) & (frame["hop"] == 0) & frame["replica"].notna()
    return _numbers(frame[sent], ("rank", "replica", "pipeline_rank", "asked", "end"))


def _numbers(rows: pd.DataFrame, names: Sequence[str]) -> Columns:
    """Columns of a table as whole numbers: seconds as picoseconds, missing values as `NONE`."""
    columns = {}
    for name in names:
        if f"{name}_s" in rows:
            columns[name] = np.rint(rows[f"{name}_s"].to_numpy() * PICOSECONDS_PER_SECOND).astype(np.int64)
        else:
            columns[name] = rows[name].fillna(NONE).to_numpy(dtype=np.int64)
    return columns


def _frame(blocks: Sequence[Columns], lanes: Sequence[str], kinds: Sequence[str]) -> pd.DataFrame:
    """Join blocks of rows, sort them, and put names, seconds and missing values in place."""
    import pandas as pd

    nothing = np.empty(0, dtype=np.int64)
    columns = {name: np.concatenate([block[name] for block in blocks] or [nothing]) for name in COLUMNS}
    order = np.lexsort((columns["lane"], columns["rank"], columns["start_s"]))
    named: dict[str, Any] = {}
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
    return pd.DataFrame(named, columns=list(COLUMNS))


def _blocks(timeline: Timeline, lanes: list[str], kinds: list[str]) -> Iterator[Columns]:
    """The columns of the op rows, then those of the message rows; lanes and kinds as places in their lists."""
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
    """The columns that ops and messages share, under the names of the contract."""
    names = ("step", "rank", "replica", "pipeline_rank", "kind", "microbatch", "chunk", "stage")
    return {**{name: rows[name] for name in names}, **{f"{name}_s": rows[name] for name in ("asked", "start", "end")}}
