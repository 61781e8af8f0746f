"""The timeline as a DataFrame: one row per op, and one per message and link it passes, with names and seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from hybrid_des.engine.recorder import MESSAGE_COLUMNS
from hybrid_des.network.mailbox import PURPOSES, Channel
from hybrid_des.timeline import NONE, OP_KINDS, Column, Columns, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow


COLUMNS = (
    "step", "rank", "replica", "pipeline_rank", "lane", "kind", "microbatch", "chunk", "stage",
    "asked_s", "start_s", "end_s", "peer", "bytes", "hop",
)  # fmt: skip
EXACT = ("asked_ps", "start_ps", "end_ps")  # whole picoseconds: a float of seconds loses some beyond 4,500 s
COMPUTE = "compute"  # the lane of ops; every other lane is a link
PIECE = 2**16  # rows, of a run whose messages are in memory
SECONDS = ("asked_s", "start_s", "end_s")
COUNTED = ("step", "rank")  # never missing
PLACES = ("replica", "pipeline_rank")  # missing for parameter servers


def table(timeline: Timeline, exact: bool = False) -> pd.DataFrame:
    """Make the public table, ordered by start, rank and lane.

    Times are seconds, with `exact` also whole picoseconds in three more columns; `microbatch`, `chunk`, `stage`,
    `peer`, `bytes` and `hop` are nullable integers. The table is reproducible byte for byte.
    """
    names = RowNames.of(timeline)
    return _frame(_rows(timeline, names, timeline.op_rows(), timeline.all_messages()), names, EXACT if exact else ())


def frames(timeline: Timeline) -> Iterator[pd.DataFrame]:
    """Make the table in pieces, so that a long one is never in memory as a whole."""
    names = RowNames.of(timeline)
    return (_frame(piece, names) for piece in pieces(timeline, names))


def pieces(timeline: Timeline, names: RowNames) -> Iterator[Columns]:
    """The rows as numbers, piece by piece in the order of the table."""
    ops = timeline.ops["start"]
    if timeline.stream is not None:
        order, first = np.argsort(ops, kind="stable"), 0
        ops = ops[order]
        for messages, end in timeline.stream.in_order():
            last = len(ops) if end is None else int(np.searchsorted(ops, end))
            yield _rows(timeline, names, timeline.op_rows(order[first:last]), messages)
            first = last
        return
    sent = timeline.messages or dict.fromkeys(MESSAGE_COLUMNS, ops[:0])
    sender, link = (timeline.of_channel[name][sent["channel"]] for name in ("sender", "link"))
    keys = (np.zeros_like(ops), 1 + link), (timeline.ops["rank"], sender), (ops, sent["start"])
    order = np.lexsort([np.concatenate(key) for key in keys])
    for first in range(0, max(len(order), 1), PIECE):
        rows = np.sort(order[first : first + PIECE])
        own, others = rows[rows < len(ops)], rows[rows >= len(ops)] - len(ops)
        messages = {name: column[others] for name, column in sent.items()}
        yield _rows(timeline, names, timeline.op_rows(own), messages)


def empty_table() -> pd.DataFrame:
    """Make the table of a run with `record: none`: all columns and no rows."""
    return _frame(dict.fromkeys(COLUMNS, np.empty(0, dtype=np.int64)), RowNames(()))


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


class RowNames:
    """What the numbers in rows stand for.

    Attributes:
        words: for each column of names, the names by number.
        kinds: for each channel the number of its kind; lanes are numbered as links, from 1.
        servers: whether some rows are a parameter server's, which has no replica and no pipeline rank.
    """

    def __init__(self, channels: Sequence[Channel], servers: bool = False) -> None:
        lanes = [COMPUTE, *sorted({channel.link for channel in channels})]
        kinds = [*OP_KINDS, *sorted({channel.kind for channel in channels})]
        self.words = {"lane": lanes, "kind": kinds}
        number = {name: i for i, name in enumerate(kinds)}
        self.kinds = np.array([number[channel.kind] for channel in channels], dtype=np.int64)
        self.servers = servers

    @classmethod
    def of(cls, timeline: Timeline) -> RowNames:
        """The names of a whole run, however its rows are divided."""
        recorded = timeline.messages is not None or timeline.stream is not None
        return cls(timeline.channels, recorded and bool((timeline.replica == NONE).any()))


def _rows(timeline: Timeline, names: RowNames, ops: Columns, messages: Columns | None) -> Columns:
    """The table of some ops and messages, as numbers in its order."""
    blocks = [_ops(ops)]
    if messages is not None and timeline.channels:
        blocks.append(_messages(timeline, messages, names))
    order = np.lexsort([np.concatenate([block[key] for block in blocks]) for key in ("lane", "rank", "start_s")])
    return {name: np.concatenate([block[name] for block in blocks])[order] for name in COLUMNS}


def _frame(columns: Columns, names: RowNames, exact: Sequence[str] = ()) -> pd.DataFrame:
    """Convert numbers to names, seconds and missing values."""
    import pandas as pd

    named: dict[str, Any] = {}
    for name in (*COLUMNS, *exact):
        values = columns[source(name)]
        if name in names.words:
            named[name] = np.array(names.words[name], dtype=object)[values]
        elif name in SECONDS:
            named[name] = values / PICOSECONDS_PER_SECOND
        elif name in COUNTED or name in exact or (name in PLACES and not (names.servers or NONE in values)):
            named[name] = values
        else:
            named[name] = pd.arrays.IntegerArray(values, values == NONE)
    return pd.DataFrame(named, columns=[*COLUMNS, *exact])


def source(name: str) -> str:
    """The column of picoseconds that a column is made from."""
    return f"{name.removesuffix('_ps')}_s" if name in EXACT else name


def _ops(rows: Columns) -> Columns:
    """The columns of op rows, as numbers."""
    nothing = np.full(len(rows["rank"]), NONE)
    return {**_common(rows), "lane": np.zeros_like(nothing), **dict.fromkeys(("peer", "bytes", "hop"), nothing)}


def _messages(timeline: Timeline, rows: Columns, names: RowNames) -> Columns:
    """The columns of message rows, as numbers."""
    channel, of = rows["channel"], timeline.of_channel
    sender = of["sender"][channel]
    places = {"replica": timeline.replica[sender], "pipeline_rank": timeline.pipeline_rank[sender]}
    facts = {**timeline.described(rows), **places, "rank": sender, "kind": names.kinds[channel]}
    others = {"lane": 1 + of["link"][channel], "peer": of["receiver"][channel], "hop": of["hop"][channel]}
    return {**_common(facts), **others, "bytes": rows["bytes"]}


def _common(rows: Columns) -> dict[str, Column]:
    """The columns shared by ops and messages, under their public names."""
    names = ("step", "rank", "replica", "pipeline_rank", "kind", "microbatch", "chunk", "stage")
    return {**{name: rows[name] for name in names}, **{f"{name}_s": rows[name] for name in ("asked", "start", "end")}}


# The timeline as Arrow tables, made without pandas, which reads them back as the DataFrame of `analysis.table`.
#
# A long run is converted in small pieces; importing pandas would take much more memory than they do.


ALL = (*COLUMNS, *EXACT)


def arrow_tables(timeline: Timeline) -> Iterator[pyarrow.Table]:
    """Make the table with picoseconds, piece by piece."""
    import pyarrow

    names = RowNames.of(timeline)
    schema, words = _schema(names), {name: _texts(words) for name, words in names.words.items()}
    for columns in pieces(timeline, names):
        arrays = []
        for name in ALL:
            values = columns[source(name)]
            if name in words:
                arrays.append(words[name].take(_array(values)))
            elif name in SECONDS:
                arrays.append(_array(values / PICOSECONDS_PER_SECOND))
            else:
                arrays.append(_array(values, missing=_nullable(name, names)))
        yield pyarrow.table(arrays, schema=schema)


def _array(values: NDArray[Any], *, missing: bool = False) -> pyarrow.Array:
    """An array that shares memory with `values`, optionally with missing ones; `pyarrow.array` would import pandas."""
    import pyarrow

    valid = pyarrow.py_buffer(np.packbits(values != NONE, bitorder="little")) if missing else None
    kind = pyarrow.from_numpy_dtype(values.dtype)
    return pyarrow.Array.from_buffers(kind, len(values), [valid, pyarrow.py_buffer(values)])


def _texts(words: Sequence[str]) -> pyarrow.Array:
    import pyarrow

    coded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, coded)]).astype(np.int32)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(coded))]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(coded), buffers)


def _nullable(name: str, names: RowNames) -> bool:
    whole = name in COUNTED or name in EXACT or name in SECONDS or name in names.words
    return names.servers if name in PLACES else not whole


def _schema(names: RowNames) -> pyarrow.Schema:
    """Types of the columns, and the metadata that pandas expects.

    Source: pandas developer guide, "Storing pandas DataFrame objects in Apache Parquet format".
    """
    import pyarrow

    types = {name: "string" if name in names.words else "float64" if name in SECONDS else "int64" for name in ALL}
    told = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": {"string": "unicode"}.get(kind, kind),
            "numpy_type": "Int64" if _nullable(name, names) else {"string": "object"}.get(kind, kind),
            "metadata": None,
        }
        for name, kind in types.items()
    ]
    metadata = {"index_columns": [], "column_indexes": [], "columns": told, "pandas_version": "2.0.0"}
    fields = [(name, pyarrow.type_for_alias(kind)) for name, kind in types.items()]
    return pyarrow.schema(fields, {"pandas": json.dumps(metadata)})


# CSV files that are safe to open in a spreadsheet: a text in them is never calculated as a formula.
#
# A name such as `=1+1` is written as `'=1+1`, as the OWASP guide on CSV injection recommends; numbers stay as they are.


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how cells begin that spreadsheets calculate
TEXT = "'"  # before such a cell makes it a text


def safe_cell(cell: Any) -> Any:
    """The cell; a text that a spreadsheet would calculate gets an apostrophe in front."""
    return TEXT + cell if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def read_cell(cell: Any) -> Any:
    """The cell that `safe_cell` wrote."""
    return cell[1:] if isinstance(cell, str) and cell[:1] == TEXT and cell[1:].startswith(FORMULA) else cell


@overload
def write_csv(table: pd.DataFrame, file: None = None, *, header: bool = True) -> str: ...
@overload
def write_csv(table: pd.DataFrame, file: Path | IO[str], *, header: bool = True) -> None: ...
def write_csv(table: pd.DataFrame, file: Path | IO[str] | None = None, *, header: bool = True) -> str | None:
    """Write a table as CSV, missing values as empty cells; without a file, return the text."""
    import pandas as pd

    safe = {}
    for name, column in table.items():
        texts = () if pd.api.types.is_numeric_dtype(column) else column.unique()  # few: a timeline repeats its names
        if any(safe_cell(text) is not text for text in texts):
            safe[str(name)] = pd.Series(map(safe_cell, column), table.index, object)
    return table.assign(**safe).to_csv(file, header=header, index=False, lineterminator="\n")


# The rows of two timelines side by side, matched by identity, and what differs between them.


KEY = ["step", "rank", "lane", "kind", "microbatch", "chunk", "stage", "peer", "hop"]


def matched(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Match the rows of two timelines by step, rank, kind, micro-batch, chunk and stage.

    Messages are also matched by peer, link and hop; those that agree in all of these, such as those of a collective, in
    order of start. Rows of one side only are kept. Columns `took_a`, `took_b`, `start_a`, `start_b` are picoseconds,
    missing if a side has no such row; `_merge` says which sides have it.
    """
    return _keyed(one).merge(_keyed(other), how="outer", on=[*KEY, "repeat"], suffixes=("_a", "_b"), indicator=True)


def _keyed(rows: pd.DataFrame) -> pd.DataFrame:
    keyed = rows[KEY].copy()
    for name in ("microbatch", "chunk", "stage", "peer", "hop"):
        keyed[name] = keyed[name].astype("Int64").fillna(-1).astype("int64")
    keyed["took"] = rows["end_ps"] - rows["start_ps"]
    keyed["start"] = rows["start_ps"]
    keyed = keyed.sort_values("start", kind="stable")
    keyed["repeat"] = keyed.groupby(KEY, sort=False).cumcount()
    return keyed


def changes(pairs: pd.DataFrame, by: Sequence[str], lane: str) -> list[dict[str, Any]]:
    """Changes of the durations of rows, summed by some columns, the largest change first.

    Args:
        pairs: the result of `matched`.
        by: columns to group by.
        lane: "compute" for ops, "links" for messages.
    """
    both = pairs[pairs["_merge"] == "both"]
    mine = both[(both["lane"] == COMPUTE) == (lane == COMPUTE)]
    mine = mine.assign(change=(mine["took_b"] - mine["took_a"]).astype("int64"))
    mine = mine[mine["change"] != 0]
    if not len(mine):
        return []
    sums = mine.groupby(list(by))["change"].agg(["sum", "count"]).reset_index()
    sums = sums.iloc[sums["sum"].abs().sort_values(ascending=False, kind="stable").index]
    return [
        {**{name: row[name] for name in by}, "rows": row["count"],
         "change_s": row["sum"] / PICOSECONDS_PER_SECOND}
        for row in sums.to_dict("records")
    ]  # fmt: skip


def unmatched(pairs: pd.DataFrame) -> dict[str, int]:
    """Numbers of ops and messages that only one side has."""
    compute = pairs["lane"] == COMPUTE
    return {
        f"{what}_only_in_{side}": int(((pairs["_merge"] == word) & chosen).sum())
        for what, chosen in (("ops", compute), ("messages", ~compute))
        for side, word in (("a", "left_only"), ("b", "right_only"))
    }


def first_difference(pairs: pd.DataFrame) -> dict[str, Any] | None:
    """The first row, in A's time, where a rank or link does something else in B; None if the orders are the same."""
    both = pairs[pairs["_merge"] == "both"].copy()
    ops = both["lane"] == COMPUTE
    both["place"] = both["lane"].where(~ops, "rank " + both["rank"].astype(str))
    for side in "ab":
        both = both.sort_values(f"start_{side}", kind="stable")
        both[f"turn_{side}"] = both.groupby("place").cumcount()
    other = both[both["turn_a"] != both["turn_b"]]
    other = other[other.groupby("place")["took_a"].transform("max") > 0]
    if not len(other):
        return None
    first = other.sort_values(["start_a", "place"], kind="stable").iloc[0]
    instead = both[(both["place"] == first["place"]) & (both["turn_b"] == first["turn_a"])].iloc[0]
    return {
        "place": str(first["place"]),
        "at_s": int(first["start_a"]) / PICOSECONDS_PER_SECOND,
        "in_a": _name(first),
        "in_b": _name(instead),
    }


def _name(row: pd.Series[Any]) -> str:
    number = "" if row["microbatch"] < 0 else str(int(row["microbatch"]))
    ends = f" {int(row['rank'])}>{int(row['peer'])}" if row["peer"] >= 0 else f"@{int(row['rank'])}"
    return f"{row['kind']}{number}{ends}"
