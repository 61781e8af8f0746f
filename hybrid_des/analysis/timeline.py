"""The timeline: one row per op, and one per message and link it passes, with names and seconds.

`Ops` and `Messages` are the same rows as arrays of whole numbers, for what draws or streams them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.metrics import places
from hybrid_des.engine.recorder import FIELD, MESSAGE_COLUMNS, OP_COLUMNS, OPTIMIZER, STAGE_SHIFT, STEP_SHIFT
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from hybrid_des.pipeline.plan import Action, Plan
    from hybrid_des.simulation.run import Run

    Numbers = NDArray[np.int64]

COLUMNS = (
    "step", "rank", "replica", "pipeline_rank", "lane", "kind", "microbatch", "chunk", "stage",
    "asked_s", "start_s", "end_s", "peer", "bytes", "hop",
)  # fmt: skip
COMPUTE = "compute"  # the lane of ops; every other lane is a link
OP_KINDS = ("F", "B", "W", "FB", "optimizer")
NONE = -1  # in a column of whole numbers: no value
NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Ops:
    """The op rows of a run, in picoseconds; `kind` counts `OP_KINDS`, NONE stands where a value is missing."""

    step: Numbers
    rank: Numbers
    kind: Numbers
    microbatch: Numbers
    chunk: Numbers
    stage: Numbers
    asked: Numbers
    start: Numbers
    end: Numbers


@dataclass(frozen=True)
class Messages:
    """The message rows of a run, one per link passed, in picoseconds; `channel` counts `trace.channels`."""

    step: Numbers
    channel: Numbers
    microbatch: Numbers
    chunk: Numbers
    stage: Numbers
    asked: Numbers
    start: Numbers
    end: Numbers
    bytes: Numbers


def op_rows(run: Run) -> Ops:
    """All op rows in the order in which they were recorded."""
    table = run.trace.ops.table()
    _, pipeline_rank = places(run)
    rows, first = _describe_programs(run.plan)
    index = table["index"]
    described = rows[np.where(index == OPTIMIZER, len(rows) - 1, first[pipeline_rank[table["rank"]]] + index)]
    kind, microbatch, chunk, stage = described.T
    named = {name: table[name] for name in OP_COLUMNS if name not in ("index", "released")}
    return Ops(kind=kind, microbatch=microbatch, chunk=chunk, stage=stage, **named)


def message_rows(run: Run) -> Messages | None:
    """All message rows in the order in which they were recorded, or None where the scenario keeps none."""
    if run.trace.messages is None:
        return None
    table = run.trace.messages.table()
    channels, tag = run.trace.channels, table["tag"]
    channel = table["channel"]
    stage = np.array([c.stage for c in channels] or [NONE])[channel]
    chunk = np.array([c.chunk for c in channels] or [NONE])[channel]
    microbatch = np.full(len(tag), NONE, dtype=np.int64)
    pipeline = np.flatnonzero(stage == NONE)  # their tags say the stage and the micro-batch
    microbatch[pipeline] = tag[pipeline] & FIELD
    stage[pipeline] = (tag[pipeline] >> STAGE_SHIFT) & FIELD
    chunks = np.array([[place[1] for place in path] for path in run.plan.paths])
    path_of = np.array(run.plan.path_of)
    chunk[pipeline] = chunks[path_of[microbatch[pipeline]], stage[pipeline]]
    named = {name: table[name] for name in MESSAGE_COLUMNS if name != "tag"}
    return Messages(step=tag >> STEP_SHIFT, microbatch=microbatch, chunk=chunk, stage=stage, **named)


def timeline(run: Run) -> pd.DataFrame:
    """Make the table of the contract, ordered by start, rank and lane; without rows under `record: none`.

    Times are seconds; `microbatch`, `chunk`, `stage`, `peer`, `bytes` and `hop` are nullable whole numbers. Two runs
    of one scenario give the same table, byte for byte.
    """
    import pandas as pd

    lanes = [COMPUTE, *sorted({channel.link for channel in run.trace.channels})]
    kinds = [*OP_KINDS, *sorted({channel.kind for channel in run.trace.channels})]
    blocks = list(_blocks(run, lanes, kinds)) if run.scenario.record != "none" else []
    columns = {name: np.concatenate([block[name] for block in blocks] or [NO_ROWS]) for name in COLUMNS}
    order = np.lexsort((columns["lane"], columns["rank"], columns["start_s"]))
    table: dict[str, Any] = {}
    for name in COLUMNS:
        values = columns.pop(name)[order]
        if name in ("lane", "kind"):
            table[name] = np.array(lanes if name == "lane" else kinds, dtype=object)[values]
        elif name.endswith("_s"):
            table[name] = values / PICOSECONDS_PER_SECOND
        elif name in ("step", "rank") or (name in ("replica", "pipeline_rank") and not (values == NONE).any()):
            table[name] = values
        else:
            table[name] = pd.arrays.IntegerArray(values, values == NONE)
    return pd.DataFrame(table, columns=list(COLUMNS))


def _blocks(run: Run, lanes: list[str], kinds: list[str]) -> Iterator[dict[str, Numbers]]:
    """The columns of the op rows, then those of the message rows: whole numbers, names by their place in a list."""
    replica, pipeline_rank = places(run)
    ops = op_rows(run)
    nothing = np.full(len(ops.rank), NONE)
    yield {
        **_common(ops, ops.rank, replica, pipeline_rank),
        "lane": np.zeros_like(nothing),
        "kind": ops.kind,
        **dict.fromkeys(("peer", "bytes", "hop"), nothing),
    }
    messages = message_rows(run)
    if messages is None or not run.trace.channels:
        return
    lane, kind = {name: i for i, name in enumerate(lanes)}, {name: i for i, name in enumerate(kinds)}
    facts = [(c.sender, lane[c.link], kind[c.kind], c.receiver, c.hop) for c in run.trace.channels]
    sender, lane_of, kind_of, peer, hop = np.array(facts)[messages.channel].T
    yield {
        **_common(messages, sender, replica, pipeline_rank),
        "lane": lane_of,
        "kind": kind_of,
        "peer": peer,
        "bytes": messages.bytes,
        "hop": hop,
    }


def _common(rows: Ops | Messages, rank: Numbers, replica: Numbers, pipeline_rank: Numbers) -> dict[str, Numbers]:
    return {
        "step": rows.step,
        "rank": rank,
        "replica": replica[rank],
        "pipeline_rank": pipeline_rank[rank],
        "microbatch": rows.microbatch,
        "chunk": rows.chunk,
        "stage": rows.stage,
        "asked_s": rows.asked,
        "start_s": rows.start,
        "end_s": rows.end,
    }


def _describe_programs(plan: Plan) -> tuple[Numbers, Numbers]:
    """Kind, micro-batch, chunk and stage of every step, rank by rank, and where each rank's begin; last the optimizer.

    A fused pair goes by its forward; the input part of a split backward shows as B.
    """
    rows: list[tuple[int, int, int, int]] = []
    first = []
    for rank, program in enumerate(plan.programs):
        first.append(len(rows))
        rows += [_describe(plan, rank, step) for step in program]
    rows.append((OP_KINDS.index("optimizer"), NONE, NONE, NONE))
    return np.array(rows, dtype=np.int64), np.array(first, dtype=np.int64)


def _describe(plan: Plan, rank: int, step: Action) -> tuple[int, int, int, int]:
    op = min(step, key=lambda op: op.kind != "F")
    kind = "FB" if len(step) == 2 else "B" if op.kind == "I" else op.kind
    return OP_KINDS.index(kind), op.microbatch, op.chunk, plan.stage_of[rank, op.chunk]
