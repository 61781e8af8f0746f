"""What the op rows of a run are, and which of them feeds which, as typed columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cluster.purposes import PURPOSES
from hybrid_des.engine.recorder import OPTIMIZER
from hybrid_des.planning.program import ASIDE, COMPUTE, Block, Program, Receive, Send

Column = NDArray[np.int64]
Columns = Mapping[str, Column]

OP_KINDS = ("F", "B", "W", "FB", "optimizer")
FORWARDS = OP_KINDS.index("F"), OP_KINDS.index("FB")
DESCRIBED = ("kind", "microbatch", "chunk", "stage", "second", "label")  # of an op
NONE = -1  # in any column: no value


class ProgramTable:
    """One entry per op of a training step, rank by rank.

    It is all that analyses and reports read of programs, so that these may come from anywhere. Optimizer steps have
    neither a number nor an entry.

    Args:
        pipeline: number of pipeline ranks.
        ops: makes the columns of ops: pipeline `rank`, `kind` (of `OP_KINDS`), `microbatch`, `chunk`, `stage`, `second`
            (the micro-batch of the backward in a fused pair) and `label` (of `labels`); `NONE` if there is none.
        messages: makes the columns of the messages that ops send, one entry each: `producer` and `consumer` (numbers of
            ops), `place` (among those that the consumer receives), `purpose` (of `PURPOSES`), `tag`, `chunk`, `bytes`.
        labels: names of ops, instead of those by kind and micro-batch; complete once `ops` are made.
        gaps: whether time passes between ops of a rank that is no waiting for its sends, as in recorded programs.
        tail: whether such time passes after the last op of a rank.
    """

    def __init__(
        self,
        pipeline: int,
        ops: Callable[[], Columns],
        messages: Callable[[], Columns],
        labels: Sequence[str] = (),
        *,
        gaps: bool = False,
        tail: bool = False,
    ) -> None:
        self.pipeline, self.labels, self.gaps, self.tail = pipeline, labels, gaps, tail
        self._ops, self._messages = ops, messages

    @cached_property
    def ops(self) -> Columns:
        """The columns of ops."""
        return self._ops()

    @cached_property
    def sizes(self) -> Column:
        """Number of ops of each pipeline rank."""
        return np.bincount(self.ops["rank"], minlength=self.pipeline)

    @property
    def first(self) -> Column:
        """The number of each pipeline rank's first op."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    @cached_property
    def messages(self) -> Columns:
        """The columns of messages, consumer by consumer."""
        columns = self._messages()
        order = np.lexsort((columns["place"], columns["consumer"]))
        return {name: column[order] for name, column in columns.items()}

    @cached_property
    def described(self) -> Columns:
        """What ops are; the last entry is the optimizer's."""
        columns = {name: np.append(self.ops[name], NONE) for name in DESCRIBED}
        columns["kind"][-1] = OP_KINDS.index("optimizer")
        return columns

    @property
    def microbatches(self) -> int:
        """Number of micro-batches per replica and training step."""
        return int(self.ops["microbatch"].max(initial=NONE)) + 1

    @cached_property
    def visits(self) -> Column:
        """For each pipeline rank, its most forwards of one micro-batch, at least one: its share of it is in so many."""
        forwards = np.flatnonzero(np.isin(self.ops["kind"], FORWARDS) & (self.ops["microbatch"] >= 0))
        key = self.ops["rank"][forwards] * (self.microbatches + 1) + self.ops["microbatch"][forwards]
        keys, counts = np.unique(key, return_counts=True)
        visits = np.ones(self.pipeline, dtype=np.int64)
        np.maximum.at(visits, keys // (self.microbatches + 1), counts)
        return visits

    @cached_property
    def chunk_of_tag(self) -> tuple[Column, Column]:
        """The tags of messages in step 0, sorted, and the chunk that sends each."""
        tags, where = np.unique(self.messages["tag"], return_index=True)
        return tags, self.messages["chunk"][where]

    def name(self, kind: int, microbatch: int, label: int = NONE) -> str:
        """The name of an op: its label, or else kind and micro-batch, such as F0."""
        if label != NONE:
            return self.labels[label]
        return OP_KINDS[kind] if microbatch == NONE else f"{OP_KINDS[kind]}{microbatch}"

    def is_like(self, other: ProgramTable) -> bool:
        """Whether another table has the same ops and messages, whatever the sizes of these."""
        tables = ({"": self.sizes}, {"": other.sizes}), (self.ops, other.ops), (self.messages, other.messages)
        return all(np.array_equal(one[name], two[name]) for one, two in tables for name in one if name != "bytes")


def table_of(programs: Sequence[Program]) -> ProgramTable:
    """The ops of programs, one for each pipeline rank, and the messages between them."""
    labels: list[str] = []
    lasting = [
        [call.number for call in program.streams.get(COMPUTE, ()) if call.block.durations and call.number != OPTIMIZER]
        for program in programs
    ]
    gaps, tail = any(ASIDE in one for one in lasting), any(one[-1:] == [ASIDE] for one in lasting)
    ops, messages = partial(_ops, programs, labels), partial(_messages, programs)
    return ProgramTable(len(programs), ops, messages, labels, gaps=gaps, tail=tail)


def _ops(programs: Sequence[Program], labels: list[str]) -> Columns:
    """The columns of ops: a fused pair is described by its forward, the input part of a backward as B."""
    known: dict[Block, tuple[int, int, int, int]] = {}
    rows = []
    for rank, call in ((rank, call) for rank, program in enumerate(programs) for call in program.rows):
        block, ops = call.block, call.ops
        if block not in known:
            first = min(range(len(ops)), key=lambda index: ops[index].kind != "F")
            labels += {block.label} - {"", *labels}
            label = labels.index(block.label) if block.label else NONE
            known[block] = first, OP_KINDS.index(call.kind), block.stages[first], label
        first, number, stage, label = known[block]
        second = ops[1 - first].microbatch if len(ops) > 1 else NONE
        rows.append((rank, number, ops[first].microbatch, ops[first].chunk, stage, second, label))
    return _columns(("rank", "kind", "microbatch", "chunk", "stage", "second", "label"), rows)


def _messages(programs: Sequence[Program]) -> Columns:
    """The columns of messages: each Send with its Receive."""
    known: dict[Block, tuple[list[Send], list[Receive]]] = {}
    sent, received = [], []
    number = 0
    for rank, program in enumerate(programs):
        for call in program.rows:
            block, ops = call.block, call.ops
            if block not in known:
                known[block] = block.every(Send), block.every(Receive)
            for send in known[block][0]:
                op, purpose = ops[send.op], PURPOSES.index(send.purpose)
                sent.append((rank, send.peer, purpose, send.tag + op.microbatch, number, op.chunk, send.message.size))
            for receive in known[block][1]:
                tag, purpose = receive.tag + ops[receive.op].microbatch, PURPOSES.index(receive.purpose)
                received.append((receive.peer, rank, purpose, tag, number, receive.place))
            number += 1
    ends = "sender", "receiver", "purpose", "tag"
    sends = _columns((*ends, "producer", "chunk", "bytes"), sent)
    receives = _columns((*ends, "consumer", "place"), received)
    left, right = (np.lexsort([one[name] for name in ends]) for one in (sends, receives))
    table = {name: sends[name][left] for name in ("purpose", "tag", "producer", "chunk", "bytes")}
    return {**table, **{name: receives[name][right] for name in ("consumer", "place")}}


def _columns(names: Sequence[str], rows: Sequence[Sequence[int]]) -> Columns:
    table = np.fromiter(chain.from_iterable(rows), np.int64, len(names) * len(rows)).reshape(-1, len(names))
    return dict(zip(names, table.T, strict=True))
