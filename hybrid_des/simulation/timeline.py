"""The record of a run, as typed columns: the only input of analyses and reports.

Every column is an int64 array, times are picoseconds. Rows are in the order in which they were recorded; an analysis
that needs another order sorts them. Tables with names and seconds are made from these columns (`analysis.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.rate import rate_of
from hybrid_des.engine.long_rows import LongRows
from hybrid_des.engine.recorder import (
    EXCHANGE_COLUMNS,
    FIELD,
    GATHER_COLUMNS,
    MESSAGE_COLUMNS,
    OPTIMIZER,
    STAGE_SHIFT,
    STEP_SHIFT,
    WAIT_COLUMNS,
    Recorder,
)
from hybrid_des.layout import Layout
from hybrid_des.planning.program_table import NONE, Column, Columns, ProgramTable

CHANNEL_COLUMNS = ("sender", "receiver", "stage", "chunk", "hop", "latency")  # of a `Channel`
MOST_WHOLE = 2**21  # message rows that are read in one piece
SMALL = 2**15  # numbers below are sorted digit by digit


@dataclass(frozen=True)
class Timeline:
    """The rows of a run, and the facts needed to read them.

    Attributes:
        layout: the replica and pipeline rank of each global rank.
        programs: the ops of the pipeline ranks, and the messages between them.
        channels: the list that `messages["channel"]` indexes.
        ops: one row per op and optimizer step: `step`, `rank`, `index` (of the op in its program; `OPTIMIZER`),
            `asked`, `start`, `end`, `released`.
        messages: one row per message and link: `channel`, `tag` (training step, and stage and micro-batch of a pipeline
            message), `asked`, `start`, `end`, `bytes`; None if the run kept no messages, or too many.
        steps: one row per training step and rank: `step`, `rank`, `begin`, `sent`, `reduced`, `end`.
        reductions: one row per bucket and rank: `step`, `rank`, `stage`, `bucket`, `start`, `end`.
        memory: one row per change of a GPU's memory: `rank`, `time`, `bytes`, `activations` (in
            parts of a chunk, `CHUNK` parts per chunk).
        gathers: one row per all-gather of parameters and rank: `step`, `rank`, `stage`, `layer`, `start`, `end`.
        waits: one row per period in which ops wait for a collective: `step`, `rank`, `purpose` (of `PURPOSES`),
            `place` (`BEFORE` an op, `INSIDE`, `AFTER` the optimizer), `start`, `end`.
        exchanges: one row per rank and collective by messages inside ops: `step`, `rank`, `purpose`, `start`, `free`
            (the rank has nothing left to compute meanwhile), `end`.
        latencies_vary: whether the latency of a link changes during the run, so that `arrival` is not known.
        fair: whether a message occupies all links of its route together, as under `fair`.
        alike: number of ranks with the same behaviour that each of these stands for, itself included.
        stream: the message rows if there are too many for `messages`; `message_pieces` and `messages_of` read both.

    Further columns are kept and ignored.
    """

    layout: Layout
    programs: ProgramTable
    channels: Sequence[Channel]
    ops: Columns
    messages: Columns | None
    steps: Columns
    reductions: Columns
    memory: Columns
    gathers: Columns = field(default_factory=lambda: _empty(GATHER_COLUMNS))
    waits: Columns = field(default_factory=lambda: _empty(WAIT_COLUMNS))
    exchanges: Columns = field(default_factory=lambda: _empty(EXCHANGE_COLUMNS))
    alike: int = 1
    fair: bool = False
    stream: LongRows | None = None
    latencies_vary: bool = False

    @classmethod
    def of(
        cls,
        recorder: Recorder,
        programs: ProgramTable,
        layout: Layout,
        alike: int = 1,
        fair: bool = False,
        *,
        whole: bool = False,
        latencies_vary: bool = False,
    ) -> Timeline:
        """Take over what was recorded, without copying it; `whole`: message rows are not streamed, however many."""
        rows = recorder.messages
        long = isinstance(rows, LongRows) and rows.in_file and len(rows) > MOST_WHOLE
        stream = rows if isinstance(rows, LongRows) and long and not whole else None
        messages = None if rows is None or stream else rows.mapped()
        for table in recorder.further:
            table.mapped()  # the last rows are in their files before copies of this process share these
        names = ("ops", "steps", "reductions", "memory", "gathers", "waits", "exchanges")
        tables = {name: getattr(recorder, name).table() for name in names}
        return cls(
            layout, programs, recorder.channels, messages=messages, alike=alike, fair=fair, stream=stream,
            latencies_vary=latencies_vary, **tables,
        )  # fmt: skip

    @property
    def duration(self) -> int:
        """When the last step ended."""
        return int(self.steps["end"].max(initial=0))

    @cached_property
    def replica(self) -> Column:
        """The replica of every global rank; `NONE` for parameter servers, which follow the ranks."""
        return self._place(self.layout.along("data"))

    @cached_property
    def pipeline(self) -> Column:
        """The pipeline of every global rank, in the order of `Layout.pipelines`; `NONE` for those without rows."""
        numbers = self._place(self.layout.pipelines)
        pipelines = np.full(len(numbers), NONE)
        ranks = np.unique(self.steps["rank"])
        pipelines[ranks] = np.unique(numbers[ranks], return_inverse=True)[1].reshape(-1)
        return pipelines

    @cached_property
    def pipeline_rank(self) -> Column:
        """The pipeline rank of every global rank; `NONE` for parameter servers, which follow the ranks."""
        return self._place(self.layout.along("pipeline"))

    def op_rows(self, rows: Column | None = None) -> Columns:
        """Return op rows with `replica`, `pipeline_rank`, `op` (its number in `programs`), and the columns of that.

        All rows in order, or those at the given indices. A fused pair is described by its forward; the
        input part of a split backward shows as B.
        """
        ops = self.ops if rows is None else {name: column[rows] for name, column in self.ops.items()}
        pipeline_rank = self.pipeline_rank[ops["rank"]]
        entry = np.where(ops["index"] == OPTIMIZER, NONE, self.programs.first[pipeline_rank] + ops["index"])
        facts = {name: column[entry] for name, column in self.programs.described.items()}
        return {**ops, "replica": self.replica[ops["rank"]], "pipeline_rank": pipeline_rank, "op": entry, **facts}

    def messages_of(self, wanted: Callable[[Channel], bool]) -> Columns:
        """Select the message rows of some channels; empty columns if the run kept no messages."""
        pieces = list(self.message_pieces(wanted)) or [_empty(MESSAGE_COLUMNS)]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in MESSAGE_COLUMNS}

    def message_pieces(self, wanted: Callable[[Channel], bool]) -> Iterator[Columns]:
        """The message rows of some channels, in pieces that each fit into memory; none if the run kept none."""
        chosen = np.array([wanted(channel) for channel in self.channels], dtype=bool)
        kept = [] if self.messages is None else [self.messages]
        for piece in kept if self.stream is None else self.stream.pieces():
            mine = chosen[piece["channel"]]
            yield {name: column[mine] for name, column in piece.items()}

    def all_messages(self) -> Columns | None:
        """The message rows, read into memory from a file if necessary; None if the run kept no messages."""
        return self.messages if self.stream is None else self.stream.table()

    def message_rows(self) -> Columns | None:
        """Return the message rows, `described`; None if the run kept no messages, or too many."""
        return None if self.messages is None else self.described(self.messages)

    def described(self, messages: Columns) -> Columns:
        """Return message rows with added columns `step`, `microbatch`, `chunk` and `stage`."""
        channel, tag = messages["channel"], messages["tag"]
        stage, chunk = (self.of_channel[name][channel] for name in ("stage", "chunk"))
        microbatch = np.full(len(tag), NONE, dtype=np.int64)
        pipeline = np.flatnonzero(stage == NONE)  # their tags hold the stage and the micro-batch
        microbatch[pipeline] = tag[pipeline] & FIELD
        stage[pipeline] = (tag[pipeline] >> STAGE_SHIFT) & FIELD
        tags, chunks = self.programs.chunk_of_tag
        sent = tag[pipeline] & (1 << STEP_SHIFT) - 1
        index = np.minimum(np.searchsorted(tags, sent), max(len(tags) - 1, 0))
        if len(tags):  # messages that no op sends, such as those of a further stream, have no chunk
            chunk[pipeline] = np.where(tags[index] == sent, chunks[index], NONE)
        return {**messages, "step": tag >> STEP_SHIFT, "microbatch": microbatch, "chunk": chunk, "stage": stage}

    @cached_property
    def links(self) -> tuple[str, ...]:
        """The names of the links that carried messages, sorted."""
        return tuple(sorted({channel.link for channel in self.channels}))

    @cached_property
    def of_channel(self) -> Columns:
        """By channel: its `link` (of `links`), `flow` (the channel of the flow's first link), ends, `hop` and so on."""
        number, names = {name: i for i, name in enumerate(self.links)}, CHANNEL_COLUMNS
        facts = (fact for c in self.channels for fact in (number[c.link], *(getattr(c, name) for name in names)))
        table = np.fromiter(facts, np.int64).reshape(-1, 1 + len(names)).T
        columns = dict(zip(("link", *names), table, strict=True))
        return {**columns, "flow": np.arange(table.shape[1]) - columns["hop"]}  # a flow's channels are consecutive

    def routed(self, messages: Columns) -> Column:
        """Message × link: the rows of each message, flow by flow in order; `NONE` where its route is shorter."""
        channel, facts = messages["channel"], self.of_channel
        sent = np.where(facts["hop"] == 0, np.bincount(channel, minlength=len(facts["hop"])), 0)
        order = in_order(channel)
        of = channel[order]
        turn = np.arange(len(of)) - np.searchsorted(
            of, of
        )  # the n-th message of a flow is the n-th on each of its links
        rows = np.full((int(sent.sum()), int(facts["hop"].max(initial=0)) + 1), NONE)
        rows[(np.cumsum(sent) - sent)[facts["flow"][of]] + turn, facts["hop"][of]] = order
        return rows

    def arrival(self, messages: Columns, rows: Column) -> Column:
        """When each message arrives, if latencies do not vary: the formula of `cluster.sharing.fifo`, or of `fair`.

        Args:
            messages: rows of messages.
            rows: message × link, as from `routed`.
        """
        there, each, last = rows >= 0, np.arange(len(rows)), (rows >= 0).sum(axis=1) - 1
        asked, end = messages["asked"][rows[each, last]], messages["end"][rows[each, last]]
        latency = np.where(there, self.of_channel["latency"][messages["channel"][rows]], 0)
        if self.fair:
            return np.asarray(end + latency.sum(axis=1))
        took = np.where(there, messages["end"][rows] - messages["start"][rows], 0)
        took[each, last] = 0  # the tail is as far behind the head as on the slowest link before
        took[:, 0] = np.maximum(took[:, 0], self.paced(messages, rows[:, 0]))
        return np.asarray(np.maximum(end, asked + took.max(axis=1)) + latency[each, last])

    def paced(self, messages: Columns, rows: Column) -> Column:
        """The least time of each message by the pace of its flow, given its row on the first link; 0 without one."""
        paces = [channel.pace.bandwidth if channel.pace else None for channel in self.channels]
        times, channel = np.zeros(len(rows), dtype=np.int64), messages["channel"][rows]
        for bandwidth in {pace for pace in paces if pace is not None}:
            rate = rate_of(bandwidth)
            mine = np.flatnonzero(np.array([pace == bandwidth for pace in paces])[channel])
            sizes, places = np.unique(messages["bytes"][rows[mine]], return_inverse=True)
            times[mine] = np.array([rate[size] for size in sizes.tolist()], dtype=np.int64)[places.reshape(-1)]
        return times

    def _place(self, of_ranks: Column) -> Column:
        servers = max((channel.sender + 1 - self.layout.ranks for channel in self.channels), default=0)
        return np.pad(of_ranks, (0, max(servers, 0)), constant_values=NONE)


def in_order(numbers: Column) -> Column:
    """The places of numbers in their order, equal ones as they are; in linear time if they are small."""
    small = numbers.size and numbers.min() >= 0 and numbers.max() < SMALL
    return np.argsort(numbers.astype(np.int16) if small else numbers, kind="stable")


def _empty(names: Sequence[str]) -> Columns:
    return dict.fromkeys(names, np.empty(0, dtype=np.int64))
