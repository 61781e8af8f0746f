"""The record of a running simulation: rows of whole numbers in flat arrays, eight bytes per number.

Times are picoseconds. Tables with names and seconds are made from these rows afterwards (`analysis`).
"""

from array import array
from collections.abc import Callable
from struct import Struct, error
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import SimulationError

OP_COLUMNS = ("step", "rank", "index", "asked", "start", "end", "released")


MESSAGE_COLUMNS = ("channel", "tag", "asked", "start", "end", "bytes")


STEP_COLUMNS = ("step", "rank", "begin", "sent", "reduced", "end")


REDUCTION_COLUMNS = ("step", "rank", "stage", "bucket", "start", "end")


GATHER_COLUMNS = ("step", "rank", "stage", "layer", "start", "end")


WAIT_COLUMNS = ("step", "rank", "purpose", "place", "start", "end")


EXCHANGE_COLUMNS = ("step", "rank", "purpose", "start", "free", "end")


MEMORY_COLUMNS = ("rank", "time", "bytes", "activations")


CHUNK = 1_000_000  # the column `activations` counts these parts of a chunk


NO_ROWS = np.empty(0, dtype=np.int64)


OPTIMIZER = -1  # `index` of an optimizer row; every other one counts the steps of the rank's program


BEFORE, INSIDE, AFTER = range(3)  # `place` of a wait: before an op starts, between its parts, after the optimizer


# A tag is the step and, below it, the stage and micro-batch of a pipeline message; 0 for a collective's messages.
STEP_SHIFT = 40


STAGE_SHIFT = 20


FIELD = (1 << STAGE_SHIFT) - 1


def pipeline_tag(step: int, stage: int, microbatch: int) -> int:
    """The tag of the message that a stage sends for a micro-batch."""
    return step << STEP_SHIFT | stage << STAGE_SHIFT | microbatch


LAST_TIME = 2**63 - 1  # picoseconds; the most that a column holds


class TimeRangeError(SimulationError):
    """Simulated time has passed the last picosecond that a row holds."""

    def __init__(self, message: str = "simulated time passes 106 days, more than 64 bits of picoseconds hold") -> None:
        super().__init__(message)


class Rows:
    """A table of whole numbers that grows row by row.

    Where rows are many, `write(pack(…))` does what `add((…))` does in less than half the time; `pack` then needs
    the `except struct.error` of `add`.

    Attributes:
        columns, width: names and number of the columns.
        numbers: those of the rows in memory, row by row.
        moved: number of the rows that are not.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns, self.width = columns, len(columns)
        self.numbers, self.moved = array("q"), 0
        self.pack = Struct(f"{len(columns)}q").pack
        self.write: Callable[[bytes], None] = self.numbers.frombytes

    def add(self, row: tuple[int, ...]) -> None:
        """Append one row.

        Raises:
            TimeRangeError: a number is beyond 64 bits.
        """
        try:
            self.write(self.pack(*row))
        except error as refusal:
            raise out_of_range(refusal, max(row)) from None

    def __len__(self) -> int:
        return self.moved + len(self.numbers) // self.width

    def table(self) -> dict[str, NDArray[np.int64]]:
        """The columns as int64 arrays, in the order in which the rows were added (views, not copies)."""
        if not self.numbers:
            return dict.fromkeys(self.columns, NO_ROWS)
        rows = np.ndarray((len(self), len(self.columns)), np.int64, self.numbers)
        return dict(zip(self.columns, rows.T, strict=True))

    def spill(self) -> None:
        """Move rows out of memory if they are many; to be called periodically."""

    def mapped(self) -> dict[str, NDArray[np.int64]]:
        """The same as `table`; what is not in memory is read where it is looked at."""
        return self.table()

    def let_go(self) -> None:
        """Free the memory of what was read of `mapped` columns, which is read again when it is looked at."""


class Recorder:
    """All rows of one run.

    Attributes:
        ops: one row per step of a rank's program and per optimizer step; `index` is its place in the program,
            `released` the place among its inputs of the message that it waited for last, −1 where it waited for none.
        messages: one row per message and link; `start` to `end` is the time that it occupies the link. None where
            the scenario records no messages.
        steps: one row per training step and rank; `sent` is when it was free after its last op (its sends complete,
            if it waits for them), `reduced` the end of its last gradient reduction (`sent`, where it has none).
        reductions: one row per bucket of gradients and rank: when the rank began and finished reducing it.
        gathers: one row per all-gather of parameters and rank: when the rank began and finished it; `layer` is the
            place in its stage of the layer gathered, −1 for the whole stage.
        waits: one row per period in which a rank's compute stream waited for a collective, apart from those between
            `sent` and `reduced`: `purpose` is its place among `PURPOSES`, `place` is BEFORE, INSIDE or AFTER.
        exchanges: one row per collective inside an op, by messages, and rank: the rank computes from `start` to `free`,
            and waits to `end`; `purpose` as in `waits`.
        memory: one row per change in a GPU's memory.
        channels: the `hybrid_des.cluster.channel.Channel`s that `messages.channel` numbers.
        further: tables beside these of what was recorded with the messages.
        detailed: whether there are rows of ops and memory, which are read only after a run.
    """

    def __init__(self, messages: Rows | None = None, *, detailed: bool = True) -> None:
        self.detailed = detailed
        self.ops = Rows(OP_COLUMNS)
        self.messages = messages
        self.steps = Rows(STEP_COLUMNS)
        self.reductions = Rows(REDUCTION_COLUMNS)
        self.gathers = Rows(GATHER_COLUMNS)
        self.waits = Rows(WAIT_COLUMNS)
        self.exchanges = Rows(EXCHANGE_COLUMNS)
        self.memory = Rows(MEMORY_COLUMNS)
        self.channels: list[Any] = []
        self.further: list[Rows] = []

    @property
    def growing(self) -> list[Rows]:
        """Tables that may outgrow the memory."""
        return [] if self.messages is None else [self.messages, *self.further]

    def channel(self, channel: Any) -> int:
        """Register a channel and return its number."""
        self.channels.append(channel)
        return len(self.channels) - 1


def out_of_range(refusal: error, latest: int) -> Exception:
    """The error to raise for a row that could not be packed: `TimeRangeError` if its latest time is out of range."""
    return TimeRangeError() if latest > LAST_TIME else refusal


TIMES = {"asked", "start", "end", "begin", "sent", "reduced", "free", "time"}  # columns of times


def move(recorder: Recorder, causes: Any, by: int) -> None:
    """Add picoseconds to all times of a record in memory, and to those of the causes of its run, if any."""
    if not by:
        return
    if causes is not None:
        causes.later += by
    for table in [one.table() for one in vars(recorder).values() if isinstance(one, Rows)]:
        for name in TIMES & table.keys():
            if len(table[name]):
                table[name] += by  # a view of the rows
