"""Traces as PyTorch's profiler writes them, for Holistic Trace Analysis and TraceLens.

One `rank-N.json.gz` per simulated rank. Kernels on stream 7 are its ops, on 20 its reductions of gradients, on 22
gathers of parameters, on 24 its pipeline messages, while they occupy their first link; the names of communication
kernels begin with `nccl`, which HTA looks for. No host is simulated: a kernel is launched when the one before it on its
stream ends, the first of a step 1 µs before it starts, and the host needs 1 µs per launch. So waiting for another GPU
is no delay of a launch, and breakdown, overlap and idle times are those of the simulation. Waits between streams and
ranks are not written, so HTA's critical path is that of one stream. Each launch is inside an operator, and an arrow
(`ac2g`) leads from it to its kernel; TraceLens links them by it.
Times are whole µs, since HTA truncates fractions; it looks for the rank line by line, with a space before it.
Programs: HTA 0.5 (github.com/facebookresearch/HolisticTraceAnalysis), TraceLens (github.com/AMD-AGI/TraceLens).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.engine.recorder import STEP_SHIFT
from hybrid_des.errors import UsageError
from hybrid_des.planning.program_table import NONE, OP_KINDS, Columns
from hybrid_des.report.files.nccl_kernels import BYTE, Kernel, NcclKernels, moved, numbered
from hybrid_des.report.files.staging import Written, write_whole
from hybrid_des.report.files.tracks import MICROSECOND, Event, Row, Rows, about_track, slice_of, track_of, write_trace
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import collected

COMPUTE, REDUCTION, GATHER, SENDS = 7, 20, 22, 24  # streams
KERNELS = {"F": "forward", "B": "backward", "W": "weight_gradient", "FB": "forward_with_backward"}
STREAMS = {COMPUTE: "ops", REDUCTION: "gradient reduction", GATHER: "parameter gathers", SENDS: "sends"}
HOST, PROCESS = 1, 10**6  # the host's thread, and its process, beside those of devices
LAUNCH = 211  # CUPTI's number of cudaLaunchKernel

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
        streams = _streams(timeline, NcclKernels(findings.run))
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


def _streams(timeline: Timeline, kernels: NcclKernels) -> Streams:
    """The rows of every stream, and what describes their kernels."""
    return {
        COMPUTE: (Rows(timeline.op_rows(), MICROSECOND), _op),
        REDUCTION: (Rows(numbered(timeline.reductions), MICROSECOND), kernels.reduction),
        GATHER: (Rows(numbered(timeline.gathers), MICROSECOND), kernels.gather),
        SENDS: (Rows(_sends(timeline), MICROSECOND), _send),
    }


def _op(row: Row) -> Kernel:
    kind = OP_KINDS[row["kind"]]
    position = {} if row["microbatch"] == NONE else {name: row[name] for name in ("microbatch", "chunk", "stage")}
    return KERNELS.get(kind, kind), position


def _sends(timeline: Timeline) -> Columns:
    """Pipeline messages on their first links, of the ranks that send them."""
    rows = timeline.messages_of(lambda channel: channel.hop == 0 and channel.stage == NONE)
    ends = np.array([(channel.sender, channel.receiver) for channel in timeline.channels] or [(0, 0)])
    sender, receiver = ends[rows["channel"]].T
    return {"rank": sender, "of": sender, "peer": receiver, "step": rows["tag"] >> STEP_SHIFT,
            **{name: rows[name] for name in ("asked", "start", "end", "bytes")}}  # fmt: skip


def _send(row: Row) -> Kernel:
    ends = [row["of"], row["peer"]]
    group = {"Process Group Name": f"rank {ends[0]} to {ends[1]}", "Group size": 2, "Dst Rank": row["peer"]}
    size = moved(row["bytes"], row["bytes"], BYTE, ends)
    return "ncclDevKernel_SendRecv", {"Collective name": "send", **group, **size}


class Launched(NamedTuple):
    """A kernel with the stream that it runs on, and when it could be launched; times are µs."""

    start: int
    stream: int
    row: Row
    latest: int


def _events(rank: int, streams: Streams, steps: Rows) -> Iterator[Event]:
    """The events of one rank: names, steps, launches and their kernels."""
    host = track_of(PROCESS + rank, HOST)
    yield from about_track(host, process_name=f"host of rank {rank}")
    for stream, name in STREAMS.items():
        yield from about_track(track_of(0, stream), thread_name=f"stream {stream} {name}")
    each = ((stream, row) for stream, (rows, _) in streams.items() for row in rows.of(rank))
    of_step = collected((row["step"], (row["ts"], stream, row)) for stream, row in each)
    number = 0
    for step in steps.of(rank):
        yield slice_of(host, step, f"ProfilerStep#{step['step']}", "user_annotation", "")
        kernels = _kernels(of_step.get(step["step"], ()), step["ts"], step["until"])
        for kernel, launch in zip(kernels, _launches(kernels, step["ts"]), strict=True):
            number += 1
            yield from _launched(host, kernel, launch, number, streams[kernel.stream][1](kernel.row))


def _kernels(rows: Sequence[tuple[int, int, Row]], begin: int, end: int) -> list[Launched]:
    """The kernels of a step, in the order in which they are launched."""
    before: dict[int, int] = {}
    kernels = []
    for start, stream, row in sorted(rows, key=lambda each: (each[0], each[2]["until"], each[1])):
        latest = min(before.get(stream, start - 1), start - 1, end - 1)
        kernels.append(Launched(start, stream, row, max(begin, latest)))
        before[stream] = row["until"]
    return sorted(kernels, key=lambda kernel: (kernel.latest, kernel.start))


def _launches(kernels: Sequence[Launched], begin: int) -> list[int]:
    """When each of some kernels is launched: no two at once, and not before a step begins."""
    times = [kernel.latest for kernel in kernels]
    for index in range(len(times) - 2, -1, -1):
        times[index] = min(times[index], times[index + 1] - 1)
    free = begin
    for index, time in enumerate(times):
        times[index] = max(time, free)
        free = times[index] + 1
    return times


def _launched(host: str, kernel: Launched, launch: int, number: int, described: Kernel) -> Iterator[Event]:
    """An operator, the launch in it, the kernel, and the arrow between these."""
    name, args = described
    device, called = track_of(0, kernel.stream), args.get("Collective name")
    taken = {"ts": launch, "dur": 1}
    yield slice_of(host, taken, name if called is None else f"c10d::{called}", "cpu_op", f'"External id":{number}')
    ids = f'"correlation":{number},"External id":{number}'
    yield slice_of(host, taken, "cudaLaunchKernel", "cuda_runtime", f'{ids},"cbid":{LAUNCH}')
    more = json.dumps({"device": 0, "stream": kernel.stream, **args})[1:-1]
    yield slice_of(device, kernel.row, name, "kernel", f"{ids},{more}")
    for phase, track, at, bind in (("s", host, launch, ""), ("f", device, kernel.start, '"bp":"e",')):
        yield f'{{"ph":"{phase}",{bind}"id":{number},{track},"ts":{at},"name":"ac2g","cat":"ac2g"}}'
