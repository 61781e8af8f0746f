"""The timeline as a DataFrame: one row per op, and one per message and link it passes, with names and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.purposes import PURPOSES
from hybrid_des.engine.recorder import MESSAGE_COLUMNS
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column, Columns
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "step", "rank", "replica", "pipeline_rank", "lane", "kind", "microbatch", "chunk", "stage",
    "asked_s", "start_s", "end_s", "peer", "bytes", "hop", "arrived_s",
)  # fmt: skip


ARRIVED = "arrived_s"  # of a message, on its last link; of the last op of a rank, when its step is over


EXACT = ("asked_ps", "start_ps", "end_ps")  # whole picoseconds: a float of seconds loses some beyond 4,500 s


COMPUTE = "compute"  # the lane of ops; every other lane is a link


PIECE = 2**16  # rows, of a run whose messages are in memory


SECONDS = ("asked_s", "start_s", "end_s", ARRIVED)


COUNTED = ("step", "rank")  # never missing


PLACES = ("replica", "pipeline_rank")  # missing for parameter servers


class Arrivals:
    """The arrivals of a run's messages.

    The n-th message of a flow is the n-th on each of its links; rows of messages that are still on their way are kept.

    Args:
        timeline: the run.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        flow = timeline.of_channel["flow"]
        self._links = np.bincount(flow, minlength=len(flow))[flow] if len(flow) else flow  # of its route, by channel
        self._kept: Columns = {}

    def of(self, messages: Columns) -> Column:
        """For each row, on its last link, when the message arrives; `NONE` on links before, and if latencies vary.

        Args:
            messages: the next rows, by start or as they were recorded.
        """
        if self._timeline.latencies_vary or not len(messages["channel"]):
            return np.full(len(messages["channel"]), NONE, dtype=np.int64)
        kept = self._kept or {name: column[:0] for name, column in messages.items()}
        rows = {name: np.concatenate([kept[name], column]) for name, column in messages.items()}
        table = self._timeline.routed(rows)
        reached = (table != NONE).sum(axis=1)
        there = reached == self._links[rows["channel"][table[:, 0]]]
        arrived, ended = np.full(len(rows["channel"]), NONE, dtype=np.int64), table[there]
        last = ended[np.arange(len(ended)), reached[there] - 1]
        arrived[last] = self._timeline.arrival(rows, ended)
        waiting = np.sort(table[~there], axis=None)
        self._kept = {name: column[waiting[waiting != NONE]] for name, column in rows.items()}
        return arrived[len(kept["channel"]) :]


def table(timeline: Timeline, exact: bool = False) -> pd.DataFrame:
    """Make the public table, ordered by start, rank and lane.

    Times are seconds, with `exact` also whole picoseconds in three more columns; `microbatch`, `chunk`, `stage`,
    `peer`, `bytes` and `hop` are nullable integers, missing times are NaN. The table is reproducible byte for byte.
    """
    names, messages = RowNames.of(timeline), timeline.all_messages()
    if messages is not None:
        messages = {**messages, ARRIVED: Arrivals(timeline).of(messages)}
    ops = {**timeline.op_rows(), ARRIVED: _ends_of_steps(timeline)}
    return _frame(_rows(timeline, names, ops, messages), names, EXACT if exact else ())


def frames(timeline: Timeline) -> Iterator[pd.DataFrame]:
    """Make the table in pieces, so that a long one is never in memory as a whole."""
    names = RowNames.of(timeline)
    return (_frame(piece, names) for piece in pieces(timeline, names))


def pieces(timeline: Timeline, names: RowNames) -> Iterator[Columns]:
    """The rows as numbers, piece by piece in the order of the table."""
    ops, over, arrivals = timeline.ops["start"], _ends_of_steps(timeline), Arrivals(timeline)

    def of_ops(rows: Column) -> Columns:
        return {**timeline.op_rows(rows), ARRIVED: over[rows]}

    if timeline.stream is not None:
        order, first = np.argsort(ops, kind="stable"), 0
        ops = ops[order]
        for messages, end in timeline.stream.in_order():
            last = len(ops) if end is None else int(np.searchsorted(ops, end))
            messages = {**messages, ARRIVED: arrivals.of(messages)}
            yield _rows(timeline, names, of_ops(order[first:last]), messages)
            first = last
        return
    sent = timeline.messages or dict.fromkeys(MESSAGE_COLUMNS, ops[:0])
    sent = {**sent, ARRIVED: arrivals.of(sent)}
    sender, link = (timeline.of_channel[name][sent["channel"]] for name in ("sender", "link"))
    keys = (np.zeros_like(ops), 1 + link), (timeline.ops["rank"], sender), (ops, sent["start"])
    order = np.lexsort([np.concatenate(key) for key in keys])
    for first in range(0, max(len(order), 1), PIECE):
        rows = np.sort(order[first : first + PIECE])
        own, others = rows[rows < len(ops)], rows[rows >= len(ops)] - len(ops)
        messages = {name: column[others] for name, column in sent.items()}
        yield _rows(timeline, names, of_ops(own), messages)


def _ends_of_steps(timeline: Timeline) -> Column:
    """For the last op of every rank in a step, when that rank's step is over; `NONE` for other ops."""
    ops, steps, ranks = timeline.ops, timeline.steps, len(timeline.replica)
    over = np.full(len(ops["rank"]), NONE, dtype=np.int64)
    own, known = (table["step"] * ranks + table["rank"] for table in (ops, steps))
    order, by_rank = np.lexsort([ops["end"], own]), np.argsort(known)
    last = order[np.flatnonzero(np.diff(own[order], append=-1))]
    if len(known):
        over[last] = steps["end"][by_rank][np.searchsorted(known[by_rank], own[last])]
    return over


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
            named[name] = seconds(values)
        elif name in COUNTED or name in exact or (name in PLACES and not (names.servers or NONE in values)):
            named[name] = values
        else:
            named[name] = pd.arrays.IntegerArray(values, values == NONE)
    return pd.DataFrame(named, columns=[*COLUMNS, *exact])


def seconds(picoseconds: Column) -> NDArray[np.float64]:
    """Times in seconds; NaN for `NONE`."""
    return np.where(picoseconds == NONE, np.nan, picoseconds / PICOSECONDS_PER_SECOND)


def source(name: str) -> str:
    """The column of picoseconds that a column is made from."""
    return f"{name.removesuffix('_ps')}_s" if name in EXACT else name


def _ops(rows: Columns) -> Columns:
    """The columns of op rows, as numbers."""
    nothing = np.full(len(rows["rank"]), NONE)
    others = dict.fromkeys(("peer", "bytes", "hop"), nothing)
    return {**_common(rows), "lane": np.zeros_like(nothing), **others, ARRIVED: rows[ARRIVED]}


def _messages(timeline: Timeline, rows: Columns, names: RowNames) -> Columns:
    """The columns of message rows, as numbers."""
    channel, of = rows["channel"], timeline.of_channel
    sender = of["sender"][channel]
    places = {"replica": timeline.replica[sender], "pipeline_rank": timeline.pipeline_rank[sender]}
    facts = {**timeline.described(rows), **places, "rank": sender, "kind": names.kinds[channel]}
    others = {"lane": 1 + of["link"][channel], "peer": of["receiver"][channel], "hop": of["hop"][channel]}
    return {**_common(facts), **others, "bytes": rows["bytes"], ARRIVED: rows[ARRIVED]}


def _common(rows: Columns) -> dict[str, Column]:
    """The columns shared by ops and messages, under their public names."""
    names = ("step", "rank", "replica", "pipeline_rank", "kind", "microbatch", "chunk", "stage")
    return {**{name: rows[name] for name in names}, **{f"{name}_s": rows[name] for name in ("asked", "start", "end")}}
