"""Traces as PyTorch's profiler writes them, for Holistic Trace Analysis (HTA 0.5; github.com/facebookresearch/HTA).

One `rank-N.json.gz` per simulated rank. Kernels on stream 7 are its ops, on 20 its reductions of gradients, on 22
gathers of parameters, on 24 its pipeline messages, while they occupy their first link; the names of communication
kernels begin with `nccl`, which HTA looks for. No host is simulated: a step's kernels are launched at its start, one
per µs. So HTA's breakdown, overlap and idle times are those of the simulation, launch delays are meaningless, and its
critical path covers one rank.
Times are whole µs, since HTA truncates fractions; it looks for the rank line by line, with a space before it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_des import collectives
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.engine.recorder import STEP_SHIFT
from hybrid_des.errors import UsageError
from hybrid_des.report.files.staging import Written, write_whole
from hybrid_des.report.files.tracks import MICROSECOND, Event, Row, Rows, about_track, slice_of, track_of, write_trace
from hybrid_des.simulation.planning.program_table import NONE, OP_KINDS, Columns
from hybrid_des.simulation.timeline import Timeline

COMPUTE, REDUCTION, GATHER, SENDS = 7, 20, 22, 24  # streams
KERNELS = {"F": "forward", "B": "backward", "W": "weight_gradient", "FB": "forward_with_backward"}
COLLECTIVES = {"all-reduce": "AllReduce", "reduce-scatter": "ReduceScatter", "all-gather": "AllGather"}
STREAMS = {COMPUTE: "ops", REDUCTION: "gradient reduction", GATHER: "parameter gathers", SENDS: "sends"}
HOST = 1  # the host's thread
LAUNCH = 211  # CUPTI's number of cudaLaunchKernel

Kernel = tuple[str, dict[str, Any]]  # name and arguments
Streams = Mapping[int, tuple[Rows, Callable[[Row], Kernel]]]


def write_kineto(findings: RunAnalysis, folder: str | Path) -> Written:
    """Write a trace per simulated rank into a folder, created if missing, and remove those of other ranks.

    Raises:
        UsageError: the run kept no rows, or the folder cannot be written.
    """
    timeline, scenario = findings.run.timeline, findings.run.scenario
    if scenario.record == "none":
        raise UsageError("a trace for HTA needs recorded rows: record: all or compute, not none")
    old = [path.name for path in Path(folder).glob("rank-*.json.gz")]

    def fill(folder: Path) -> None:
        streams = _streams(timeline, findings.run.algorithm)
        steps = Rows({**timeline.steps, "start": timeline.steps["begin"]}, MICROSECOND)
        for rank in steps.rows_of:
            about = {
                "schemaVersion": 1,
                "deviceProperties": [{"id": 0, "name": scenario.cluster.kinds[0].gpu.name}],
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": timeline.layout.ranks},
                "displayTimeUnit": "ms",
            }
            write_trace(folder / f"rank-{rank}.json.gz", about, _events(rank, streams, steps))

    return write_whole(folder, fill, replaces=old)


def _streams(timeline: Timeline, algorithm: str) -> Streams:
    """The rows of every stream, and what describes their kernels."""
    does = collectives.find(algorithm).facts["does"] if algorithm in collectives.names() else "all-reduce"
    reduction = COLLECTIVES.get(does, "AllReduce")
    sizes = {int(stage): len(np.unique(timeline.reductions["rank"][timeline.reductions["stage"] == stage]))
             for stage in np.unique(timeline.reductions["stage"])}  # fmt: skip
    gather = "ncclDevKernel_AllGather"
    return {
        COMPUTE: (Rows(timeline.op_rows(), MICROSECOND), _op),
        REDUCTION: (
            Rows(timeline.reductions, MICROSECOND),
            partial(_collective, gather if reduction == "AllGather" else f"ncclDevKernel_{reduction}_Sum", sizes),
        ),
        GATHER: (Rows(timeline.gathers, MICROSECOND), partial(_collective, gather, sizes)),
        SENDS: (Rows(_sends(timeline), MICROSECOND), _send),
    }


def _op(row: Row) -> Kernel:
    kind = OP_KINDS[row["kind"]]
    position = {} if row["microbatch"] == NONE else {name: row[name] for name in ("microbatch", "chunk", "stage")}
    return KERNELS.get(kind, kind), position


def _collective(name: str, sizes: Mapping[int, int], row: Row) -> Kernel:
    does = name.split("_")[1].lower()
    group = {"Group size": sizes.get(row["stage"], 0), "Process Group Name": f"stage {row['stage']}"}
    return name, {"Collective name": does, **group, "stage": row["stage"]}


def _sends(timeline: Timeline) -> Columns:
    """Pipeline messages on their first links, of the ranks that send them."""
    rows = timeline.messages_of(lambda channel: channel.hop == 0 and channel.stage == NONE)
    ends = np.array([(channel.sender, channel.receiver) for channel in timeline.channels] or [(0, 0)])
    sender, receiver = ends[rows["channel"]].T
    return {"rank": sender, "peer": receiver, "step": rows["tag"] >> STEP_SHIFT,
            **{name: rows[name] for name in ("asked", "start", "end", "bytes")}}  # fmt: skip


def _send(row: Row) -> Kernel:
    args = {"Collective name": "send", "In msg nelems": row["bytes"], "dtype": "Byte", "Group size": 2}
    return "ncclDevKernel_SendRecv", {**args, "peer": row["peer"]}


def _events(rank: int, streams: Streams, steps: Rows) -> Iterator[Event]:
    """The events of one rank: names, steps, launches and their kernels, in the order in which they asked to start."""
    host = track_of(rank, HOST)
    yield from about_track(host, process_name=f"host of rank {rank}")
    for stream, name in STREAMS.items():
        yield from about_track(track_of(0, stream), thread_name=f"stream {stream} {name}")
    begin_of = {}
    for row in steps.of(rank):
        begin_of[row["step"]] = row["ts"]
        yield slice_of(host, row, f"ProfilerStep#{row['step']}", "user_annotation", "")
    kernels = [
        (row["step"], row.get("asked", row["ts"]), row["ts"], row["until"], stream, row)
        for stream, (rows, _) in streams.items()
        for row in rows.of(rank)
    ]
    free = 0
    for number, (step, *_, stream, row) in enumerate(sorted(kernels, key=lambda kernel: kernel[:5]), start=1):
        begin = max(begin_of[step], free)  # one launch after the other
        free = begin + 1
        ids = f'"correlation":{number},"External id":{number}'
        launch = {"ts": begin, "dur": 1}
        yield slice_of(host, launch, "cudaLaunchKernel", "cuda_runtime", f'{ids},"cbid":{LAUNCH}')
        name, args = streams[stream][1](row)
        more = json.dumps({"device": 0, "stream": stream, **args})[1:-1]
        yield slice_of(track_of(0, stream), row, name, "kernel", f"{ids},{more}")
