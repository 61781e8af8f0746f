"""`trace.json.gz`: Chrome trace events, as Perfetto and PyTorch's profiler read them; open it at https://ui.perfetto.dev.

    process of each GPU      thread "compute": one slice per op; "collectives inside ops": how long ops wait for them,
                             as if at its end; "waits": idle time by cause; "gradient reduction", "parameter
                             gathers": buckets and layers; counters for activations in flight and memory
    process of each node     one thread per link: one slice per message; counters for link use
    arrows                   from the op that produced an activation or gradient to the op that needs it

Perfetto requires: no `tid` 0 (it merges tracks); nested slices per track (async slices on links where messages
overlap); `"bp": "e"` at the end of an arrow, to bind it to the enclosing slice; the unit of a counter as name of its
series. Every slice is within 1 ns of its row and adjacent slices stay disjoint. Every row of the timeline is one slice.
GPUs precede links by `process_sort_index`; versions of Perfetto that ignore it order processes by their slices, then by
name, in which numbers are therefore padded to equal length. Events are streamed in constant memory.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_des.analysis.collective_phases import groups, phase_name, phases_of
from hybrid_des.analysis.idle import PARTS, drawn_pieces
from hybrid_des.analysis.inside_ops import AXES, drawn_inside
from hybrid_des.analysis.link_use import link_rates
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.table import COMPUTE
from hybrid_des.cluster.purposes import PURPOSES
from hybrid_des.engine.recorder import CHUNK
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column, Columns, ProgramTable
from hybrid_des.report.files.registration import output
from hybrid_des.report.files.tracks import (
    Event,
    Row,
    Rows,
    about_process,
    about_thread,
    in_microseconds,
    slice_of,
    track_of,
    whole,
    write_trace,
)
from hybrid_des.report.palette import cause_name
from hybrid_des.report.plots.curves import natural
from hybrid_des.simulation.timeline import Timeline

MESSAGE_FACTS = ("channel", "step", "microbatch", "stage", "bytes", "bucket", "part", "parts")


PLACE = ("microbatch", "chunk", "stage")


@output("trace.json.gz")
def trace_json(findings: RunAnalysis, folder: Path) -> list[str]:
    """Write the trace; for a long run, without messages and with a note."""
    scenario, timeline = findings.run.scenario, findings.run.timeline
    other = {"scenario": scenario.name, "version": scenario.version}
    write_trace(folder / "trace.json.gz", {"displayTimeUnit": "ns", "otherData": other}, events(findings))
    long = timeline.stream
    return [f"trace.json.gz and report.html leave out {len(long):,} rows of messages"] if long is not None else []


def events(findings: RunAnalysis) -> Iterator[Event]:
    """All events of a run."""
    threads = count(1)
    yield from _gpus(findings, threads)
    yield from _links(findings.run.timeline, threads)


def _gpus(findings: RunAnalysis, threads: Iterator[int]) -> Iterator[Event]:
    """Each GPU's process: ops, tails of arrows, waits, collectives, counters; then the heads of all arrows.

    Heads are last because an arrow between two ops of zero length starts and ends at the same time.
    """
    timeline = findings.run.timeline
    replica, pipeline_rank, programs = timeline.pipeline, timeline.pipeline_rank, timeline.programs
    beside, held = _beside(timeline, findings.inside), timeline.memory
    memory = dict(groups(np.lexsort((held["time"], held["rank"])), held["rank"]))
    ops = _ops(timeline)
    arrows = Arrows(programs, replicas=int(replica.max()) + 1)
    thread_of = {rank: next(threads) for rank in ops.rows_of}
    digits = len(str(timeline.layout.ranks - 1))
    for rank, tid in thread_of.items():
        pid, copy, position = rank + 1, int(replica[rank]), int(pipeline_rank[rank])
        title = f"GPU {rank:0{digits}}: replica {copy}, pipeline rank {position}"
        title += f" ({timeline.alike} identical GPUs)" if timeline.alike > 1 else ""
        yield from about_process(pid, title, copy * programs.pipeline + position)
        yield from about_thread(pid, tid, COMPUTE)
        track = track_of(pid, tid)
        for row in ops.of(rank):
            yield _op_slice(track, row, programs, many_chunks=programs.visits[position] > 1)
            yield from arrows.ends("s", row, track)
        for thread, (rows, describe) in beside.items():
            if rank in rows.rows_of:
                tid = next(threads)
                yield from about_thread(pid, tid, thread)
                track = track_of(pid, tid)
                yield from (slice_of(track, row, *describe(row)) for row in rows.of(rank))
        if rank in memory:
            mine = {name: column[memory[rank]] for name, column in held.items()}
            yield from _memory_counters(pid, mine, programs.visits[position])
    for rank, tid in thread_of.items():
        track = track_of(rank + 1, tid)
        for row in ops.of(rank):
            yield from arrows.ends("f", row, track)


def _ops(timeline: Timeline) -> Rows:
    rows = timeline.op_rows()
    middle = (whole(rows["start"]) + whole(rows["end"])) // 2
    names = ("rank", "pipeline", "step", "op", "kind", "label", *PLACE, "start", "end")
    facts = {**rows, "pipeline": timeline.pipeline[rows["rank"]]}
    return Rows({**{name: facts[name] for name in names}, "middle": in_microseconds(middle)})


def _op_slice(track: str, row: Row, programs: ProgramTable, many_chunks: bool) -> Event:
    kind, microbatch, args = row["kind"], row["microbatch"], f'"step":{row["step"]}'
    name = programs.name(kind, microbatch, row["label"])
    if microbatch != NONE:
        args += f',"microbatch":{microbatch},"chunk":{row["chunk"]},"stage":{row["stage"]}'
        name += f" chunk {row['chunk']}" if many_chunks else ""
    return slice_of(track, row, name, OP_KINDS[kind], args)


def _beside(
    timeline: Timeline, inside: Mapping[str, Column]
) -> dict[str, tuple[Rows, Callable[[Row], tuple[str, str, str]]]]:
    """The slices that a GPU's process shows besides its ops, by thread."""
    names = list(map(cause_name, PARTS))
    return {
        "collectives inside ops": (_inside(timeline, inside), _exchange),
        "waits": (Rows(drawn_pieces(timeline)), lambda row: (names[row["cause"]], "wait", "")),
        "gradient reduction": (Rows(timeline.reductions), partial(_collective, "reduction", "bucket")),
        "parameter gathers": (Rows(timeline.gathers), partial(_collective, "gather", "layer")),
    }


def _inside(timeline: Timeline, inside: Mapping[str, Column]) -> Rows:
    """The collectives inside ops, by number of axis."""
    columns = [
        np.stack([timeline.ops["rank"][rows], timeline.ops["step"][rows], np.full(len(rows), AXES.index(axis)), *times])
        for axis, rows, *times in drawn_inside(timeline, inside)
    ]
    table = np.concatenate([np.zeros((5, 0), dtype=np.int64), *columns], axis=1)
    return Rows(dict(zip(("rank", "step", "axis", "start", "end"), table, strict=True)))


def _exchange(row: Row) -> tuple[str, str, str]:
    return f"{AXES[row['axis']]} collectives", "exchange", f'"step":{row["step"]}'


def _collective(kind: str, part: str, row: Row) -> tuple[str, str, str]:
    name = f"{kind} stage {row['stage']}" + (f" {part} {row[part]}" if row[part] != NONE else "")
    return name, kind, f'"step":{row["step"]},"stage":{row["stage"]},"{part}":{row[part]}'


class Arrows:
    """Flow arrows for the messages between pipeline ranks, by the ops at which they start and end."""

    def __init__(self, programs: ProgramTable, replicas: int) -> None:
        self._replicas = replicas
        self._at: dict[tuple[str, int], list[tuple[int, str]]] = {}
        sent = (programs.messages[name].tolist() for name in ("producer", "consumer", "purpose"))
        for number, (producer, consumer, purpose) in enumerate(zip(*sent, strict=True), start=1):
            self._at.setdefault(("s", producer), []).append((number, PURPOSES[purpose].name))
            self._at.setdefault(("f", consumer), []).append((number, PURPOSES[purpose].name))
        self._count = len(programs.messages["tag"]) + 1

    def ends(self, phase: str, row: Row, track: str) -> Iterator[Event]:
        """The tails ("s") or heads ("f") in the middle of one op; numbers are unique in the trace."""
        base = (row["step"] * self._replicas + row["pipeline"]) * self._count
        bind = ',"bp":"e"' if phase == "f" else ""
        for number, kind in self._at.get((phase, row["op"]), ()):
            yield (
                f'{{"ph":"{phase}"{bind},{track},"ts":{row["middle"]},'
                f'"id":{base + number},"name":"{kind}","cat":"message"}}'
            )


def _counter(
    pid: int, title: str, times: Column, values: Iterable[Any], shown: Callable[[Any], str] = str
) -> Iterator[Event]:
    """The changes of a counter, whose title is its name and unit: "memory (GB)"."""
    name, _, unit = title.removesuffix(")").rpartition(" (")
    before = f'{{"ph":"C","pid":{pid},"name":{json.dumps(name)},"args":{{{json.dumps(unit)}:'
    previous = None
    for time, value in zip(in_microseconds(times).tolist(), values, strict=True):
        if value != previous:
            yield f'{before}{shown(value)}}},"ts":{time}}}'
        previous = value


def _memory_counters(pid: int, rows: Columns, visits: int) -> Iterator[Event]:
    """Chunks in flight and bytes held by a GPU: the last change per nanosecond."""
    time = whole(rows["time"])
    final = np.append(np.diff(time) > 0, True)
    held, in_flight = (rows[name][final].tolist() for name in ("bytes", "activations"))
    parts = CHUNK * visits
    yield from _counter(
        pid, "activations in flight (micro-batches)", time[final], in_flight, lambda value: f"{value / parts:.6g}"
    )
    yield from _counter(pid, "memory (GB)", time[final], held, lambda value: f"{value / 1e9:.6g}")


def _links(timeline: Timeline, threads: Iterator[int]) -> Iterator[Event]:
    """Each node's process: one thread per link with its messages, and counters of link use."""
    rows, channels, ranks = timeline.message_rows(), timeline.channels, timeline.layout.ranks
    if rows is None or not channels:
        return
    names = sorted(timeline.links, key=natural)
    homes = list(dict.fromkeys(map(_home, names)))
    pid_of = {home: ranks + 1 + i for i, home in enumerate(homes)}
    number = {name: i for i, name in enumerate(names)}
    link = np.array([number[name] for name in timeline.links])[timeline.of_channel["link"][rows["channel"]]]
    facts = {**rows, **phases_of(timeline)}
    sent = Rows({"link": link, **{name: facts[name] for name in ("start", "end", *MESSAGE_FACTS)}}, by="link")
    ends = [(c.kind, f'"from":{c.sender},"to":{c.receiver},"hop":{c.hop},') for c in channels]
    ids = count(1)
    for home, pid in pid_of.items():
        yield from about_process(pid, f"links of {home}", ranks + pid)
    for named in sent.rows_of:
        pid, tid = pid_of[_home(names[named])], next(threads)
        yield from about_thread(pid, tid, names[named])
        yield from _message_slices(track_of(pid, tid), sent, named, ends, ids)
    yield from _link_counters(timeline, pid_of)


def _message_slices(
    track: str, sent: Rows, link: int, ends: Sequence[tuple[str, str]], ids: Iterator[int]
) -> Iterator[Event]:
    """The messages of a link; as async slices where several share the link at the same time."""
    several = sent.overlap(link)
    for row in sent.of(link):
        kind, args = ends[row["channel"]]
        microbatch, stage, bucket = row["microbatch"], row["stage"], row["bucket"]
        args += f'"step":{row["step"]},"stage":{stage},"bytes":{row["bytes"]}'
        if bucket != NONE:
            args += f',"bucket":{bucket},"part":"{row["part"] + 1} of {row["parts"]}"'
        if microbatch != NONE:
            name = f"{kind} {microbatch}"
        else:
            name = _message_name(kind, stage, bucket, row["part"], row["parts"])
        if several:
            where, about = f'{track},"id":{next(ids)}', f'"cat":"{kind}","name":"{name}","args":{{{args}}}'
            yield f'{{"ph":"b",{where},"ts":{row["ts"]},{about}}}'
            yield f'{{"ph":"e",{where},"ts":{row["until"]},{about}}}'
        else:
            yield slice_of(track, row, name, kind, args)


@lru_cache(maxsize=1 << 14)
def _message_name(kind: str, stage: int, bucket: int, part: int, parts: int) -> str:
    """A collective's message by stage, bucket and phase: "ring stage 2 bucket 0 all-gather"."""
    where = f" bucket {bucket}" if bucket != NONE else ""
    return f"{kind} stage {stage}{where} {phase_name(kind, part, parts)}".rstrip()


def _link_counters(timeline: Timeline, pid_of: dict[str, int]) -> Iterator[Event]:
    """Changes of the use of each link, averaged over windows."""
    use = link_rates(timeline)
    if use is None:
        return
    for name, rates in zip(use.links, use.rate, strict=True):
        values = [f"{rate / 1e9:.4g}" for rate in (*rates.tolist(), 0.0)]
        yield from _counter(pid_of[_home(name)], f"use of {name} (GB/s)", whole(use.edges), values)


def _home(link: str) -> str:
    """The process that shows a link: the first part of its name, such as the node."""
    return link.split("/", 1)[0]
