"""Traces as PyTorch's profiler writes them, for Holistic Trace Analysis (HTA 0.5; github.com/facebookresearch/HTA).

One `rank-N.json.gz` per simulated rank. Kernels on stream 7 are its ops, on 20 its reductions of gradients, on 22
gathers of parameters, on 24 its pipeline messages, while they occupy their first link; the names of communication
kernels begin with `nccl`, which HTA looks for. No host is simulated: a step's kernels are launched at its start, one
per µs. So HTA's breakdown, overlap and idle times are those of the simulation, launch delays are meaningless, and its
critical path covers one rank.
Times are whole µs, since HTA truncates fractions.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybrid_des import collectives
from hybrid_des.analysis.metrics import Findings
from hybrid_des.engine.recorder import STEP_SHIFT
from hybrid_des.errors import UsageError
from hybrid_des.report.files import Written, write_whole
from hybrid_des.report.trace_events import groups
from hybrid_des.timeline import NONE, OP_KINDS, Column, Columns, Timeline

COMPUTE, REDUCTION, GATHER, SENDS = 7, 20, 22, 24  # streams
KERNELS = {"F": "forward", "B": "backward", "W": "weight_gradient", "FB": "forward_with_backward"}
COLLECTIVES = {"all-reduce": "AllReduce", "reduce-scatter": "ReduceScatter", "all-gather": "AllGather"}
STREAMS = {COMPUTE: "ops", REDUCTION: "gradient reduction", GATHER: "parameter gathers", SENDS: "sends"}
HOST = 1  # the host's thread
LAUNCH = 211  # CUPTI's number of cudaLaunchKernel
PICOSECONDS_PER_US = 10**6


class Launched(NamedTuple):
    """A kernel of a rank: training step, times in µs, stream, name and further arguments."""

    step: int
    asked: int
    start: int
    end: int
    stream: int
    name: str
    args: dict[str, Any]


def write_kineto(findings: Findings, folder: str | Path) -> Written:
    """Write a trace per simulated rank into a folder, created if missing, and remove those of other ranks.

    Raises:
        UsageError: the run kept no rows, or the folder cannot be written.
    """
    timeline, scenario = findings.run.timeline, findings.run.scenario
    if scenario.record == "none":
        raise UsageError("a trace for HTA needs recorded rows: record: all or compute, not none")
    old = [path.name for path in Path(folder).glob("rank-*.json.gz")]

    def fill(workshop: Path) -> None:
        kernels = _kernels(timeline, findings.run.algorithm)
        gpu = scenario.cluster.kinds[0].gpu.name
        for rank in np.unique(timeline.steps["rank"]).tolist():
            about = _about(rank, timeline.layout.ranks, gpu)
            with (
                (workshop / f"rank-{rank}.json.gz").open("wb") as raw,
                gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=5, mtime=0) as file,
            ):
                lines = ",\n".join(_events(rank, kernels.get(rank, []), timeline))
                file.write(f"{about}\n{lines}\n]}}\n".encode())

    return write_whole(folder, fill, replaces=old)


def _about(rank: int, ranks: int, gpu: str) -> str:
    """The head of a file; HTA looks for the rank line by line, with a space before it."""
    distributed = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return (
        f'{{"schemaVersion": 1,\n"deviceProperties": [{json.dumps({"id": 0, "name": gpu})}],\n'
        f'"distributedInfo": {json.dumps(distributed)},\n"displayTimeUnit": "ms",\n"traceEvents": ['
    )


def _kernels(timeline: Timeline, algorithm: str) -> dict[int, list[Launched]]:
    """The kernels of every rank, in the order in which they asked to start."""
    found: dict[int, list[Launched]] = {}
    does = collectives.find(algorithm).facts["does"] if algorithm in collectives.names() else "all-reduce"
    sharers = {int(stage): len(np.unique(timeline.reductions["rank"][timeline.reductions["stage"] == stage]))
               for stage in np.unique(timeline.reductions["stage"])}  # fmt: skip
    for rows, describe in (
        (timeline.op_rows(), _op),
        (timeline.reductions, lambda row: _collective(row, REDUCTION, COLLECTIVES.get(does, "AllReduce"), sharers)),
        (timeline.gathers, lambda row: _collective(row, GATHER, "AllGather", sharers)),
        (_sends(timeline), _send),
    ):
        times = {name: _whole(rows[name if name in rows else "start"]) for name in ("asked", "start", "end")}
        facts = {**rows, **times}
        for rank, mine in groups(np.argsort(rows["rank"], kind="stable"), rows["rank"]):
            columns = {name: column[mine].tolist() for name, column in facts.items()}
            for values in zip(*columns.values(), strict=True):
                row = dict(zip(columns, values, strict=True))
                found.setdefault(rank, []).append(
                    Launched(row["step"], row["asked"], row["start"], row["end"], *describe(row))
                )
    for kernels in found.values():
        kernels.sort(key=lambda kernel: kernel[:5])
    return found


def _op(row: Mapping[str, int]) -> tuple[int, str, dict[str, Any]]:
    kind = OP_KINDS[row["kind"]]
    place = {} if row["microbatch"] == NONE else {name: row[name] for name in ("microbatch", "chunk", "stage")}
    return COMPUTE, KERNELS.get(kind, kind), place


def _collective(
    row: Mapping[str, int], stream: int, name: str, sharers: Mapping[int, int]
) -> tuple[int, str, dict[str, Any]]:
    size = sharers.get(row["stage"], 0)
    args = {"Collective name": name.lower(), "Group size": size, "stage": row["stage"]}
    return stream, f"ncclDevKernel_{name}_Sum" if name != "AllGather" else "ncclDevKernel_AllGather", args


def _sends(timeline: Timeline) -> Columns:
    """Pipeline messages on their first links, of the ranks that send them."""
    rows = timeline.messages_of(lambda channel: channel.hop == 0 and channel.stage == NONE)
    ends = np.array([(channel.sender, channel.receiver) for channel in timeline.channels] or [(0, 0)])
    sender, receiver = ends[rows["channel"]].T
    return {"rank": sender, "peer": receiver, "step": rows["tag"] >> STEP_SHIFT,
            **{name: rows[name] for name in ("asked", "start", "end", "bytes")}}  # fmt: skip


def _send(row: Mapping[str, int]) -> tuple[int, str, dict[str, Any]]:
    args = {"Collective name": "send", "In msg nelems": row["bytes"], "dtype": "Byte", "Group size": 2}
    return SENDS, "ncclDevKernel_SendRecv", {**args, "peer": row["peer"]}


def _events(rank: int, kernels: list[Launched], timeline: Timeline) -> Iterator[str]:
    """The events of one rank: names, steps, launches and their kernels."""
    process = f'"pid":{rank},"tid":{HOST}'
    yield f'{{"ph":"M",{process},"name":"process_name","args":{{"name":"host of rank {rank}"}}}}'
    for stream, name in STREAMS.items():
        yield f'{{"ph":"M","pid":0,"tid":{stream},"name":"thread_name","args":{{"name":"stream {stream} {name}"}}}}'
    steps = timeline.steps
    mine = np.flatnonzero(steps["rank"] == rank)
    begins, ends = (_whole(steps[name][mine]).tolist() for name in ("begin", "end"))
    begin_of = dict(zip(steps["step"][mine].tolist(), begins, strict=True))
    for (step, begin), end in zip(begin_of.items(), ends, strict=True):
        yield _slice(process, begin, end, f"ProfilerStep#{step}", "user_annotation", {})
    free = 0
    for number, kernel in enumerate(kernels, start=1):
        begin = max(begin_of[kernel.step], free)  # one launch after the other
        free = begin + 1
        ids = {"correlation": number, "External id": number}
        yield _slice(process, begin, free, "cudaLaunchKernel", "cuda_runtime", {**ids, "cbid": LAUNCH})
        args = {"device": 0, "stream": kernel.stream, **ids, **kernel.args}
        yield _slice(f'"pid":0,"tid":{kernel.stream}', kernel.start, kernel.end, kernel.name, "kernel", args)


def _slice(track: str, start: int, end: int, name: str, category: str, args: Mapping[str, Any]) -> str:
    about = f'"name":{json.dumps(name)},"cat":"{category}","args":{json.dumps(args)}'
    return f'{{"ph":"X",{track},"ts":{start},"dur":{end - start},{about}}}'


def _whole(picoseconds: Column) -> Column:
    """Round to whole µs, so that adjacent periods stay adjacent."""
    return (picoseconds + PICOSECONDS_PER_US // 2) // PICOSECONDS_PER_US
