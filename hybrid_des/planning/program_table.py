"""What the op rows of a run are, and which of them feeds which, as typed columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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
