"""Ops of torch.distributed.pipelining, by the names that PyTorch's schedules give them in profiler traces.

Schedules of several stages per rank name each op `PP:<stage><F|B|I|W><micro-batch>`, such as `PP:2F0`, and messages
`PP:2RECV_F0`; GPipe names `Forward 0` and `Backward 0`, without the stage. All of them wait for an op's message within
its range. On a GPU an op begins with the first kernel launched there, and ends with the last. On the host it begins
when its message has arrived (`gloo:recv`, which begins in the range of the receive, or of GPipe's op), else with its
range; without such annotations, with the first operator. It ends where a message follows its last operator (GPipe sends
within the range), else with its range.
Names: pytorch/pytorch, torch/distributed/pipelining/schedules.py, of 2.13, whose single-stage 1F1B names nothing.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from hybrid_des.files import open_file
from hybrid_des.interchange.profiles.kineto import Annotation, KinetoTrace
from hybrid_des.interchange.profiles.kineto_ranks import SECOND, KinetoRanks
from hybrid_des.interchange.profiles.recognition import GZIP
from hybrid_des.units import format_share

if TYPE_CHECKING:
    import pandas as pd

OF_STAGE = re.compile(r"PP:(\d+)([FBIW])(\d+)")
RECEIVED = re.compile(r"PP:(\d+)RECV_([FB])(\d+)")
OF_RANK = re.compile(r"(Forward|Backward) (\d+)")
OVERLAPPED = "OVERLAP_F_B"  # a forward and a backward in one range, which does not tell them apart
IN_FILE = re.compile(rb'"(?:PP:\d+[FBIW]\d+|(?:Forward|Backward) \d+)"')  # as text of a trace
CHUNK, OVERLAP = 1 << 20, 64  # bytes read at a time, and of the end of those before
MESSAGE = "c10d::"  # operators that start a message
ARRIVING = "gloo:recv"  # the time in which a message is awaited
COLUMNS = ["step", "replica", "stage", "chunk", "kind", "microbatch", "seconds", "start_s"]


class NamedOp(NamedTuple):
    """An op; times are nanoseconds on the clock of its rank. `stage` is None if the name lacks it."""

    stage: int | None
    kind: str
    microbatch: int
    step: int
    start: int
    end: int
    whole: int  # nanoseconds of its range
    arrives: bool  # whether it is known when its message arrived, or that there was none


class NamedOps(NamedTuple):
    """The ops of all ranks: one row each, as in `read_table`, and what was inferred, one sentence each."""

    rows: pd.DataFrame
    inferred: Sequence[str]


def names_ops(path: Path) -> bool:
    """Whether a trace has such a name anywhere; its text is searched, not parsed. False if it cannot be read."""
    try:
        with open_file(path) as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            file: IO[bytes] = gzip.open(raw) if packed else raw  # type: ignore[assignment]  # noqa: SIM115 (raw is closed)
            rest = b""
            while block := file.read(CHUNK):
                if IN_FILE.search(rest + block):
                    return True
                rest = block[-OVERLAP:]
    except (OSError, ValueError, EOFError, zlib.error):
        return False
    return False


def named_ops(job: KinetoRanks) -> NamedOps | None:
    """The ops that PyTorch's schedules name; None if there are none, or not those of every stage."""
    import pandas as pd

    ranks = [list(_ops(one, job.steps)) for one in job.traces]
    if not all(ranks) or len(job.traces) < max(2, job.world):
        return None
    stages = _stages(ranks)
    if stages is None:
        return None
    places = sorted(set(stages))
    turns: Counter[tuple[int, ...]] = Counter()
    rows = []
    for rank, (ops, mine) in enumerate(zip(ranks, stages, strict=True)):
        position = turns[mine], places.index(mine)
        turns[mine] += 1
        clock = job.offsets[rank] - (job.corrections[rank] if job.traces[rank].on_host else 0)
        rows += [
            (one.step, *position, 0 if one.stage is None else mine.index(one.stage), one.kind, one.microbatch,
             (one.end - one.start) / SECOND, (one.start + clock) / SECOND)
            for one in ops
        ]  # fmt: skip
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["start_s"] -= table.start_s.min()
    return NamedOps(table.assign(row=table.index), [*_inferred([op for ops in ranks for op in ops])])


def _stages(ranks: Sequence[Sequence[NamedOp]]) -> list[tuple[int, ...]] | None:
    """The stages of every rank, in order; ranks in order are the stages if no name says. None if some are missing."""
    if all(one.stage is None for ops in ranks for one in ops):
        return [(rank,) for rank in range(len(ranks))]
    stages = [tuple(sorted({one.stage for one in ops if one.stage is not None})) for ops in ranks]
    listed = sorted(stage for mine in {*stages} for stage in mine)
    return stages if listed == list(range(len(listed))) and len({*map(len, stages)}) == 1 else None


def _ops(trace: KinetoTrace, steps: Sequence[int]) -> Iterator[NamedOp]:
    """The named ops of a rank, in the order of their starts; none if some overlap within one range."""
    marks = sorted(mark for of_thread in trace.annotations.values() for mark in of_thread)
    if any(name.startswith("PP:") and name.endswith(OVERLAPPED) for *_, name in marks):
        return
    computes = _Computation(trace)
    turns: Counter[str] = Counter()
    arrived: dict[tuple[int, str, int], int] = {}  # when the message of an op of a stage did
    for mark in marks:
        if (received := RECEIVED.fullmatch(mark[2])) is not None:
            when = computes.arrival(mark)
            if when is not None:
                arrived[int(received[1]), received[2], int(received[3])] = when
        if (op := _named(mark[2])) is None:
            continue
        step = _step_at(trace, mark[0]) if trace.steps else turns[mark[2]]
        turns[mark[2]] += 1
        if step in steps or (not trace.steps and step is not None):
            assert step is not None
            stage, kind, microbatch = op
            needed = None if stage is None else arrived.pop((stage, "F" if kind == "F" else "B", microbatch), None)
            bounds = computes.within(mark, needed if kind != "W" else None)
            yield NamedOp(*op, step, *bounds, mark[1] - mark[0], computes.knows_arrivals)


def _named(name: str) -> tuple[int | None, str, int] | None:
    """Stage, kind and micro-batch that a name says."""
    if (match := OF_STAGE.fullmatch(name)) is not None:
        return int(match[1]), match[2], int(match[3])
    match = OF_RANK.fullmatch(name)
    return None if match is None else (None, match[1][0], int(match[2]))


def _step_at(trace: KinetoTrace, time: int) -> int | None:
    return next((step for step, (start, end) in trace.steps.items() if start <= time <= end), None)


class _Computation:
    """What a rank computes, by the time of its launch."""

    def __init__(self, trace: KinetoTrace) -> None:
        message = np.array([name.startswith(MESSAGE) for name in trace.names], dtype=bool)[trace.name]
        order = np.argsort(trace.launched, kind="stable")
        computes = order[~(message | trace.communicates)[order]]
        self._launched, self._start = trace.launched[computes], trace.start[computes]
        self._end = trace.end[computes]
        self._messages = np.sort(trace.start[message])
        self._on_host = trace.on_host
        arriving = np.array([name == ARRIVING for name in trace.names], dtype=bool)[trace.name]
        self._arriving = np.sort(trace.start[arriving])
        self._arrived = trace.end[arriving][np.argsort(trace.start[arriving], kind="stable")]

    @property
    def knows_arrivals(self) -> bool:
        """Whether the trace says when messages arrived."""
        return self._on_host and len(self._arriving) > 0

    def arrival(self, mark: Annotation) -> int | None:
        """When the messages had arrived whose receives begin in a range; None if none does."""
        begin, stop = np.searchsorted(self._arriving, [mark[0], mark[1] + 1])
        return int(self._arrived[begin:stop].max()) if begin < stop else None

    def within(self, mark: Annotation, arrived: int | None = None) -> tuple[int, int]:
        """Start and end of the computation in a range, whose message may have arrived; its end, twice, if it has none.

        Args:
            mark: the range.
            arrived: when the message had arrived that the computation waited for; None: as the range says.
        """
        first, last, _ = mark
        begin, stop = np.searchsorted(self._launched, [first, last])
        if begin == stop:
            return last, last
        start, end = int(self._start[begin:stop].min()), int(self._end[begin:stop].max())
        if self.knows_arrivals:
            awaited = self.arrival(mark) if arrived is None else arrived
            start = first if awaited is None or awaited > end else max(first, awaited)
        if self._on_host:  # what no operator covers is still the op's
            later = int(np.searchsorted(self._messages, end))
            end = min(last, int(self._messages[later])) if later < len(self._messages) else last
        return start, max(start, end)


def _inferred(ops: Sequence[NamedOp]) -> Iterator[str]:
    waited = sum(one.whole - (one.end - one.start) for one in ops) / max(1, sum(one.whole for one in ops))
    how = "the arrival of the message (gloo:recv)" if ops[0].arrives else "the first computation in it"
    yield (
        "where an op begins: the range that PyTorch names holds the wait for its message; inferred from "
        f"{how}, which leaves out {format_share(waited, 0)} of the ranges"
    )
    if ops[0].stage is None:
        yield "the stage of each rank: Forward and Backward name none; inferred from the order of ranks"
    if empty := sum(one.start == one.end and one.kind == "I" for one in ops):
        yield f"{empty} backwards for inputs compute nothing: PyTorch's first stage has its whole backward in W"
