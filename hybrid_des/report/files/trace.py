"""`trace.json.gz`: Chrome trace events; open it at https://ui.perfetto.dev.

    process of each GPU      thread "compute": one slice per op; "waits": idle time by cause; "gradient reduction" and
                             "parameter gathers": buckets and layers; counters for activations in flight and memory
    process of each node     one thread per link: one slice per message; counters for link use
    arrows                   from the op that produced an activation or gradient to the op that needs it

Perfetto requires: no `tid` 0 (it merges tracks); nested slices per track (async slices on links where messages
overlap); `"bp": "e"` at the end of an arrow, to bind it to the enclosing slice; the unit of a counter as name of its
series. Every slice is within 1 ns of its row and adjacent slices stay disjoint. Every row of the timeline is one slice.
GPUs precede links by `process_sort_index`; versions of Perfetto that ignore it order processes by their slices, then by
name, in which numbers are therefore padded to equal length. Lines are streamed in constant memory.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import count, islice
from pathlib import Path

import numpy as np

from hybrid_des.analysis.idle import CAUSES, idle_pieces
from hybrid_des.analysis.link_use import link_rates
from hybrid_des.analysis.metrics import Findings
from hybrid_des.analysis.phases import phase_name, phases_of
from hybrid_des.analysis.table import COMPUTE
from hybrid_des.engine.recorder import CHUNK
from hybrid_des.network.purpose import PURPOSES
from hybrid_des.report.files import output
from hybrid_des.report.plots.curves import natural
from hybrid_des.report.shares import CAUSES as CAUSE_NAMES
from hybrid_des.report.trace_events import (
    counter,
    groups,
    microseconds,
    name_process,
    name_thread,
    nanoseconds,
    slice_line,
)
from hybrid_des.timeline import NONE, OP_KINDS, Column, ProgramTable, Timeline

LINES_AT_ONCE = 10_000

MESSAGE_FACTS = ("channel", "step", "microbatch", "stage", "bytes", "bucket", "part", "parts")
Slice = tuple[int, int, str, str, str]  # start and end in ns, name, category, arguments


@output("trace.json.gz")
def trace_json(findings: Findings, folder: Path) -> list[str]:
    """Write the trace line by line, reproducible byte for byte; for a long run, without messages and with a note."""
    scenario = findings.run.scenario
    about = {"scenario": scenario.name, "version": scenario.version}
    with (
        (folder / "trace.json.gz").open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=5, mtime=0) as file,
    ):
        file.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n'.encode())
        lines = events(findings.run.timeline)
        file.write(next(lines).encode())
        while block := list(islice(lines, LINES_AT_ONCE)):
            file.write((",\n" + ",\n".join(block)).encode())
        file.write(b"\n]}\n")
    long = findings.run.timeline.stream
    return [f"trace.json.gz and report.html leave out {len(long):,} rows of messages"] if long is not None else []


def events(timeline: Timeline) -> Iterator[str]:
    """All events of a timeline, each as a line of JSON."""
    threads = count(1)
    yield from _gpus(timeline, threads)
    yield from _links(timeline, threads)


def _gpus(timeline: Timeline, threads: Iterator[int]) -> Iterator[str]:
    """Each GPU's process: ops, tails of arrows, waits, collectives, counters; then the heads of all arrows.

    Heads are last because an arrow between two ops of zero length starts and ends at the same time.
    """
    replica, pipeline_rank, programs = timeline.pipeline, timeline.pipeline_rank, timeline.programs
    beside, memory = _beside(timeline), _rows_of_memory(timeline)
    ops = timeline.ops
    ranks = list(groups(np.lexsort((nanoseconds(ops["end"]), nanoseconds(ops["start"]), ops["rank"])), ops["rank"]))
    arrows = Arrows(programs, replicas=int(replica.max()) + 1)
    tracks = {rank: (rank + 1, next(threads)) for rank, _ in ranks}
    digits = len(str(timeline.layout.ranks - 1))
    for rank, mine in ranks:
        (pid, tid), copy, place = tracks[rank], int(replica[rank]), int(pipeline_rank[rank])
        title = f"GPU {rank:0{digits}}: replica {copy}, pipeline rank {place}"
        title += f" ({timeline.alike} identical GPUs)" if timeline.alike > 1 else ""
        yield from name_process(pid, title, copy * programs.pipeline + place)
        yield from name_thread(pid, tid, COMPUTE)
        for row in _facts(timeline, mine):
            yield _op_slice(pid, tid, row, programs, many_chunks=programs.visits[place] > 1)
            yield from arrows.ends("s", copy, row, f'"pid":{pid},"tid":{tid}')
        for thread, slices in beside.items():
            if rank in slices.rows_of:
                tid = next(threads)
                yield from name_thread(pid, tid, thread)
                yield from (slice_line(f'"pid":{pid},"tid":{tid}', *about) for about in slices.of(rank))
        if rank in memory:
            yield from _memory_counters(pid, _changes(timeline, memory[rank]), programs.visits[place])
    for rank, mine in ranks:
        (pid, tid), copy = tracks[rank], int(replica[rank])
        for row in _facts(timeline, mine):
            yield from arrows.ends("f", copy, row, f'"pid":{pid},"tid":{tid}')


def _facts(timeline: Timeline, ops: Column) -> Iterator[tuple[int, ...]]:
    """Step, number, start, end (nanoseconds), kind, micro-batch, chunk, stage and label of some op rows."""
    rows = timeline.op_rows(ops)
    rows = {**rows, **{name: nanoseconds(rows[name]) for name in ("start", "end")}}
    names = ("step", "op", "start", "end", "kind", "microbatch", "chunk", "stage", "label")
    return zip(*(rows[name].tolist() for name in names), strict=True)


def _op_slice(pid: int, tid: int, row: tuple[int, ...], programs: ProgramTable, *, many_chunks: bool) -> str:
    step, _, start, end, kind, microbatch, chunk, stage, label = row
    args = f'"step":{step}'
    name = programs.name(kind, microbatch, label)
    if microbatch != NONE:
        args += f',"microbatch":{microbatch},"chunk":{chunk},"stage":{stage}'
        name += f" chunk {chunk}" if many_chunks else ""
    return slice_line(f'"pid":{pid},"tid":{tid}', start, end, name, OP_KINDS[kind], args)


class Slices:
    """The slices of a table of periods, made rank by rank.

    Attributes:
        rows_of: rank → its rows, in the order of their slices.
    """

    def __init__(
        self, table: Mapping[str, Column], describe: Callable[[Mapping[str, int]], tuple[str, str, str]]
    ) -> None:
        """Sort the rows; `describe` gives a row's name, category and arguments."""
        self._columns = {**table, "start": nanoseconds(table["start"]), "end": nanoseconds(table["end"])}
        self._describe = describe
        order = np.lexsort((self._columns["end"], self._columns["start"], table["rank"]))
        self.rows_of = dict(groups(order, table["rank"]))

    def of(self, rank: int) -> Iterator[Slice]:
        """The slices of a rank: start, end, name, category and arguments."""
        columns = {name: column[self.rows_of[rank]].tolist() for name, column in self._columns.items()}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            yield row["start"], row["end"], *self._describe(row)


def _beside(timeline: Timeline) -> dict[str, Slices]:
    """The slices that a GPU's process shows besides its ops, by thread."""
    names = [CAUSE_NAMES.get(cause, cause.replace("_", " ")) for cause in CAUSES]
    reduction, gather = partial(_collective, "reduction", "bucket"), partial(_collective, "gather", "layer")
    return {
        "waits": Slices(idle_pieces(timeline), lambda row: (names[row["cause"]], "wait", "")),
        "gradient reduction": Slices(timeline.reductions, reduction),
        "parameter gathers": Slices(timeline.gathers, gather),
    }


def _collective(kind: str, part: str, row: Mapping[str, int]) -> tuple[str, str, str]:
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

    def ends(self, phase: str, replica: int, row: tuple[int, ...], track: str) -> Iterator[str]:
        """The tails ("s") or heads ("f") in the middle of one op; numbers are unique in the trace."""
        step, op, start, end = row[:4]
        base = (step * self._replicas + replica) * self._count
        bind = ',"bp":"e"' if phase == "f" else ""
        for number, kind in self._at.get((phase, op), ()):
            yield (
                f'{{"ph":"{phase}"{bind},{track},"ts":{microseconds((start + end) // 2)},'
                f'"id":{base + number},"name":"{kind}","cat":"message"}}'
            )


def _rows_of_memory(timeline: Timeline) -> dict[int, Column]:
    """Rank → its rows of memory, by time."""
    table = timeline.memory
    return dict(groups(np.lexsort((table["time"], table["rank"])), table["rank"]))


def _changes(timeline: Timeline, mine: Column) -> tuple[Column, ...]:
    """Time in ns, bytes and parts of chunks in flight of some rows; only the last change per nanosecond."""
    time, *others = (timeline.memory[name][mine] for name in ("time", "bytes", "activations"))
    time = nanoseconds(time)
    final = np.append(np.diff(time) > 0, True)
    return tuple(column[final] for column in (time, *others))


def _memory_counters(pid: int, changes: Iterable[Iterable[int]], visits: int) -> Iterator[str]:
    previous = (-1, -1)
    for now, size, parts in zip(*changes, strict=True):
        if parts != previous[1]:
            yield counter(pid, int(now), "activations in flight", "micro-batches", f"{parts / (CHUNK * visits):.6g}")
        if size != previous[0]:
            yield counter(pid, int(now), "memory", "GB", f"{size / 1e9:.6g}")
        previous = (size, parts)


def _links(timeline: Timeline, threads: Iterator[int]) -> Iterator[str]:
    """Each node's process: one thread per link with its messages, and counters of link use."""
    rows, channels, ranks = timeline.message_rows(), timeline.channels, timeline.layout.ranks
    if rows is None or not channels:
        return
    names = sorted(timeline.links, key=natural)
    homes = list(dict.fromkeys(map(_home, names)))
    pid_of = {home: ranks + 1 + i for i, home in enumerate(homes)}
    number = {name: i for i, name in enumerate(names)}
    link = np.array([number[name] for name in timeline.links])[timeline.of_channel["link"][rows["channel"]]]
    start, end = nanoseconds(rows["start"]), nanoseconds(rows["end"])
    facts = {**rows, **phases_of(timeline)}
    columns = (start, end, *(facts[name] for name in MESSAGE_FACTS))
    heads = [  # of all slices of a channel: kind, category and first arguments
        (c.kind, f'"cat":"{c.kind}"', f'"args":{{"from":{c.sender},"to":{c.receiver},"hop":{c.hop},') for c in channels
    ]
    ids = count(1)
    for home, pid in pid_of.items():
        yield from name_process(pid, f"links of {home}", ranks + pid)
    for place, mine in groups(np.lexsort((end, start, link)), link):
        pid, tid = pid_of[_home(names[place])], next(threads)
        yield from name_thread(pid, tid, names[place])
        slices = zip(*(column[mine].tolist() for column in columns), strict=True)
        overlap = np.any(np.maximum.accumulate(end[mine])[:-1] > start[mine][1:])
        yield from _message_slices(f'"pid":{pid},"tid":{tid}', slices, heads, ids if overlap else None)
    yield from _link_counters(timeline, pid_of)


def _message_slices(
    track: str, slices: Iterable[tuple[int, ...]], heads: list[tuple[str, str, str]], ids: Iterator[int] | None
) -> Iterator[str]:
    """The messages of a link; with `ids` as async slices, since several share the link at the same time."""
    for start, end, channel, step, microbatch, stage, size, bucket, part, parts in slices:
        kind, category, args = heads[channel]
        name = f"{kind} {microbatch}" if microbatch != NONE else _message_name(kind, stage, bucket, part, parts)
        place = f',"bucket":{bucket},"part":"{part + 1} of {parts}"' if bucket != NONE else ""
        about = f'{category},"name":"{name}",{args}"step":{step},"stage":{stage},"bytes":{size}{place}}}}}'
        if ids is None:
            yield f'{{"ph":"X",{track},"ts":{microseconds(start)},"dur":{microseconds(end - start)},{about}'
        else:
            where = f'{track},"id":{next(ids)}'
            yield f'{{"ph":"b",{where},"ts":{microseconds(start)},{about}'
            yield f'{{"ph":"e",{where},"ts":{microseconds(end)},{about}'


@cache
def _message_name(kind: str, stage: int, bucket: int, part: int, parts: int) -> str:
    """A collective's message by stage, bucket and phase: "ring stage 2 bucket 0 all-gather"."""
    where = f" bucket {bucket}" if bucket != NONE else ""
    return f"{kind} stage {stage}{where} {phase_name(kind, part, parts)}".rstrip()


def _link_counters(timeline: Timeline, pid_of: dict[str, int]) -> Iterator[str]:
    """Changes of the use of each link, averaged over windows."""
    use = link_rates(timeline)
    if use is None:
        return
    times = nanoseconds(use.edges).tolist()
    for name, rates in zip(use.links, use.rate, strict=True):
        pid, previous = pid_of[_home(name)], ""
        for time, rate in zip(times, [*rates.tolist(), 0.0], strict=True):
            value = f"{rate / 1e9:.4g}"
            if value != previous:
                yield counter(pid, time, f"use of {name}", "GB/s", value)
            previous = value


def _home(link: str) -> str:
    """The process that shows a link: the first part of its name, such as the node."""
    return link.split("/", 1)[0]
