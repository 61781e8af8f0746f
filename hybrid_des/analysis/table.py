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
    names, exact_columns = _Names(timeline), EXACT if exact else ()
    blocks = [_ops(timeline.op_rows())]
    if (messages := timeline.all_messages()) is not None and timeline.channels:
        blocks.append(_messages(timeline, messages, names))
    return _frame(blocks, names, exact_columns)


def pieces(timeline: Timeline, exact: bool = False) -> Iterator[pd.DataFrame]:
    """Make the table of a run whose messages are in a file, piece by piece in its order."""
    assert timeline.stream is not None
    names, order = _Names(timeline), np.argsort(timeline.ops["start"], kind="stable")
    start, first = timeline.ops["start"][order], 0
    for messages, end in timeline.stream.in_order():
        last = len(start) if end is None else int(np.searchsorted(start, end))
        ops = timeline.op_rows(order[first:last])
        yield _frame([_ops(ops), _messages(timeline, messages, names)], names, EXACT if exact else ())
        first = last


def empty_table() -> pd.DataFrame:
    """Make the table of a run with `record: none`: all columns and no rows."""
    return _frame([], None)


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


class _Names:
    """What the numbers in blocks of rows stand for.

    Attributes:
        lanes, kinds: names by number.
        channels: for each channel its sender, lane, kind, receiver and hop, one column each.
        servers: whether rows of other pieces may be a parameter server's, which has no replica and no pipeline rank.
    """

    def __init__(self, timeline: Timeline) -> None:
        channels = timeline.channels
        self.lanes = [COMPUTE, *sorted({channel.link for channel in channels})]
        self.kinds = [*OP_KINDS, *sorted({channel.kind for channel in channels})]
        lane, kind = ({name: i for i, name in enumerate(names)} for names in (self.lanes, self.kinds))
        facts = [(c.sender, lane[c.link], kind[c.kind], c.receiver, c.hop) for c in channels]
        self.channels = np.array(facts, dtype=np.int64).reshape(-1, 5).T
        self.servers = timeline.stream is not None and bool((timeline.replica == NONE).any())


def _frame(blocks: Sequence[Columns], names: _Names | None, exact: Sequence[str] = ()) -> pd.DataFrame:
    """Join and sort blocks of rows, and convert them to names, seconds and missing values."""
    import pandas as pd

    servers = names is not None and names.servers
    nothing = np.empty(0, dtype=np.int64)
    columns = {name: np.concatenate([block[name] for block in blocks] or [nothing]) for name in COLUMNS}
    order = np.lexsort((columns["lane"], columns["rank"], columns["start_s"]))
    named: dict[str, Any] = {name: columns[f"{name.removesuffix('_ps')}_s"][order] for name in exact}
    for name in COLUMNS:
        values = columns.pop(name)[order]
        if name in ("lane", "kind"):
            words = [] if names is None else names.lanes if name == "lane" else names.kinds
            named[name] = np.array(words, dtype=object)[values]
        elif name.endswith("_s"):
            named[name] = values / PICOSECONDS_PER_SECOND
        elif name in ("step", "rank") or (name in ("replica", "pipeline_rank") and not (servers or NONE in values)):
            named[name] = values
        else:
            named[name] = pd.arrays.IntegerArray(values, values == NONE)
    return pd.DataFrame(named, columns=[*COLUMNS, *exact])


def _ops(rows: Columns) -> Columns:
    """The columns of op rows, as numbers."""
    nothing = np.full(len(rows["rank"]), NONE)
    return {**_common(rows), "lane": np.zeros_like(nothing), **dict.fromkeys(("peer", "bytes", "hop"), nothing)}


def _messages(timeline: Timeline, rows: Columns, names: _Names) -> Columns:
    """The columns of message rows, as numbers."""
    sender, lane, kind, peer, hop = names.channels[:, rows["channel"]]
    places = {"replica": timeline.replica[sender], "pipeline_rank": timeline.pipeline_rank[sender]}
    facts = {**timeline.described(rows), **places, "rank": sender, "kind": kind}
    return {**_common(facts), "lane": lane, "peer": peer, "hop": hop, "bytes": rows["bytes"]}


def _common(rows: Columns) -> dict[str, Column]:
    """The columns shared by ops and messages, under their public names."""
    names = ("step", "rank", "replica", "pipeline_rank", "kind", "microbatch", "chunk", "stage")
    return {**{name: rows[name] for name in names}, **{f"{name}_s": rows[name] for name in ("asked", "start", "end")}}
