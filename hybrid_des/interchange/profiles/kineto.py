"""Traces of PyTorch's profiler (Kineto): a JSON file per rank, read event by event, so that memory stays small.

A kernel belongs to the runtime call with its correlation number, the call to the innermost annotation that contains it:
on its own thread, else (the autograd thread) on the main one. A step is `ProfilerStep#k`, by the time of the launch.
Communication is told by names of kernels; its bytes, group and order come from NCCL's arguments.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.recognition import GZIP, head_of
from hybrid_des.reading import open_file

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}
ANNOTATION, SYNC = "user_annotation", "cuda_sync"
STEP = re.compile(r"ProfilerStep#(\d+)")
NCCL = re.compile(r"^nccl(?:Dev)?Kernel_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|Generic)")
DEEP_EP = re.compile(r"deep_ep|::ep::(?:internode|intranode)::(?:dispatch|combine|notify)|::(?:dispatch|combine)<")
DOES = {
    "AllReduce": "all-reduce", "AllGather": "all-gather", "ReduceScatter": "reduce-scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "SendRecv": "send-receive", "Generic": "all-to-all",
}  # fmt: skip
NAMED = {  # values of "Collective name"
    "allreduce": "all-reduce", "_allgather_base": "all-gather", "allgather": "all-gather", "all_gather": "all-gather",
    "_reduce_scatter_base": "reduce-scatter", "reduce_scatter": "reduce-scatter", "broadcast": "broadcast",
    "alltoall": "all-to-all", "alltoallv": "all-to-all", "all_to_all": "all-to-all", "all_to_allv": "all-to-all",
    "reduce": "reduce", "send": "send-receive", "recv": "send-receive",
}  # fmt: skip
BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "byte": 1, "char": 1,
    "int8": 1, "uint8": 1, "short": 2, "int": 4, "int32": 4, "long": 8, "int64": 8, "bool": 1, "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}  # fmt: skip
PRODUCTS = {  # operators whose arithmetic follows from the shapes of their inputs
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product_flash_attention",
    "aten::_flash_attention_forward", "aten::_scaled_dot_product_cudnn_attention",
}  # fmt: skip
MEMBERS = re.compile(r"\d+")
CHUNK = 1 << 20  # bytes read at a time
SHOWN_EVERY = 1 << 14  # events
NONE = -1
LONGEST_US = 1e10  # of an event: three hours
Numbers = NDArray[np.int64]


class Communication(NamedTuple):
    """A kernel of communication.

    Attributes:
        kernel: its number among the device's events.
        does: what it does, such as all-reduce.
        size: bytes of this rank's input; 0 if they are not known.
        group: the name of its process group; empty if it is not known.
        members: global ranks of the group, as far as the trace lists them.
        group_size: number of members; 0 if it is not known.
        sequence: its number within the group, if the trace says.
    """

    kernel: int
    does: str
    size: int
    group: str
    members: tuple[int, ...]
    group_size: int
    sequence: int | None


class Product(NamedTuple):
    """A call of an operator of `PRODUCTS`.

    Attributes:
        external: number that its kernels name too.
        shapes, types: of its inputs, as recorded with `record_shapes`.
    """

    external: int
    name: str
    shapes: Sequence[Sequence[int]]
    types: Sequence[str]


class StreamWait(NamedTuple):
    """A wait of a stream for an event of another one; times are those of the calls, `NONE` if they are not known."""

    stream: int
    other: int
    recorded: int
    waited: int


@dataclass
class KinetoTrace:
    """The trace of one rank; times are nanoseconds.

    Attributes:
        path: its file.
        rank: its global rank.
        world: number of ranks of the job; 0 if it is not known.
        start, duration, stream, correlation, name: of the device's events, in the order of their starts; names are
            numbers of `names`, one per name and grid.
        launched, thread: of these, when and on which thread they were launched; `NONE` if that is not known.
        annotations: thread → (start, end, name) of annotations, in the order of their starts.
        communications: kernels of communication.
        steps: number of each step → its start and end on the host.
        waits: waits of streams for events of other streams.
        facts: kernel → what it computes, in traces of this program.
        products: operators with shapes, and, if there are any, `external`: number → nanoseconds of its kernels.
        device: name of the GPU.
    """

    path: Path
    rank: int
    world: int
    names: list[str] = field(default_factory=list)
    start: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    duration: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    stream: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    correlation: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    name: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    launched: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    thread: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    annotations: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    communications: list[Communication] = field(default_factory=list)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    main: int = NONE
    waits: list[StreamWait] = field(default_factory=list)
    facts: dict[int, Mapping[str, int]] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)
    external: dict[int, int] = field(default_factory=dict)
    device: str = ""

    @property
    def end(self) -> Numbers:
        """When each of the device's events ends."""
        return self.start + self.duration

    @cached_property
    def op(self) -> list[str]:
        """The annotation that each of the device's events belongs to; empty if there is none."""
        found = [""] * len(self.start)
        for thread in np.unique(self.thread[self.launched != NONE]).tolist():
            mine = np.flatnonzero((self.thread == thread) & (self.launched != NONE))
            own = self._innermost(mine, self.annotations.get(thread, ()))
            rest = [number for number, name in zip(mine.tolist(), own, strict=True) if not name]
            for number, name in zip(mine.tolist(), own, strict=True):
                found[number] = name
            if thread != self.main:
                others = self._innermost(np.array(rest, dtype=np.int64), self.annotations.get(self.main, ()))
                for number, name in zip(rest, others, strict=True):
                    found[number] = name
        return found

    def _innermost(self, events: Numbers, annotations: Sequence[tuple[int, int, str]]) -> list[str]:
        """The innermost annotation that contains the launch of each event, steps left out."""
        order = np.argsort(self.launched[events], kind="stable")
        found = [""] * len(events)
        open_ones: list[tuple[int, str]] = []
        at = 0
        for place in order.tolist():
            time = int(self.launched[events[place]])
            while at < len(annotations) and annotations[at][0] <= time:
                _, end, name = annotations[at]
                open_ones.append((end, name))
                at += 1
            while open_ones and open_ones[-1][0] < time:
                open_ones.pop()
            found[place] = next((name for end, name in reversed(open_ones) if end >= time), "")
        return found

    @cached_property
    def step(self) -> Numbers:
        """The step of each of the device's events, by its launch; `NONE` if there is none."""
        found = np.full(len(self.start), NONE, dtype=np.int64)
        if not self.steps:
            return np.zeros_like(found)
        numbers = sorted(self.steps, key=lambda number: self.steps[number][0])
        starts = [self.steps[number][0] for number in numbers]
        for place, time in enumerate(self.launched.tolist()):
            turn = bisect_right(starts, time) - 1
            if time != NONE and turn >= 0 and time <= self.steps[numbers[turn]][1]:
                found[place] = numbers[turn]
        return found

    @property
    def linked(self) -> float:
        """Percentage of the device's events whose op is known."""
        return 100 * sum(map(bool, self.op)) / len(self.op) if self.op else 0.0


def read_kineto(path: Path, turn: int, progress: Callable[[int, int], None] | None = None) -> KinetoTrace:
    """Read the trace of a rank; `turn` is its rank if it does not say.

    Raises:
        UsageError: the file is cut or is no such trace, or an event has no place in time.
    """
    reader = _Reader(path, turn)
    try:
        for number, event in enumerate(_events(path, progress)):
            try:
                reader.take(number, event)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise UsageError(f"{path}: event {number}: {str(error).splitlines()[0]}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: not a whole file: {error}") from None
    return reader.trace()


def _events(path: Path, progress: Callable[[int, int], None] | None) -> Iterator[dict[str, Any]]:
    """The events of a file, one by one.

    Raises:
        UsageError: it is not JSON, or ends too early.
    """
    import ijson

    head = head_of(path).lstrip(b" \t\r\n\xef\xbb\xbf")
    prefix = "item" if head.startswith(b"[") else "traceEvents.item"
    whole = path.stat().st_size
    with open_file(path) as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        file: IO[bytes] = gzip.open(raw) if packed else raw  # type: ignore[assignment]  # noqa: SIM115 (raw is closed)
        found = ijson.items(file, prefix, use_float=True, buf_size=CHUNK)
        number = 0
        while True:
            try:
                event = next(found)
            except StopIteration:
                return
            except (ijson.JSONError, ValueError) as error:
                reason = str(error).split("\n", 1)[0].strip()
                raise UsageError(f"{path}: not whole JSON: {reason} (after {number} events)") from None
            number += 1
            if progress is not None and number % SHOWN_EVERY == 0:
                progress(raw.tell(), whole)
            if isinstance(event, dict):
                yield event


def _about(path: Path) -> Mapping[str, Any]:
    """What a trace says about the job, before its events."""
    text = head_of(path).decode("utf-8", "replace")
    place = text.find('"distributedInfo"')
    if place < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text, text.index("{", place))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _device(path: Path) -> str:
    """The name of the GPU, before the events."""
    match = re.search(rb'"deviceProperties".{0,400}?"name"\s*:\s*"([^"]{1,100})"', head_of(path), re.DOTALL)
    return match[1].decode("utf-8", "replace") if match else ""


class _Reader:
    """Collects the events of a trace in arrays."""

    def __init__(self, path: Path, turn: int) -> None:
        about = _about(path)
        self._trace = KinetoTrace(path, int(about.get("rank", turn)), int(about.get("world_size", 0)))
        self._trace.device = _device(path)
        self._numbers: dict[tuple[str, str], int] = {}  # kernels by name and grid: others are of other sizes
        self._device = [array("q") for _ in range(5)]
        self._launches = [array("q") for _ in range(3)]  # correlation, time, thread
        self._sync: list[tuple[int, int, int, int]] = []  # stream, other, correlations of the record and the wait

    def take(self, number: int, event: Mapping[str, Any]) -> None:
        """Take one event."""
        category = event.get("cat")
        if category in DEVICE:
            self._take_kernel(number, event)
        elif category in LAUNCHES:
            correlation = event.get("args", {}).get("correlation")
            if correlation is not None:
                for column, value in zip(
                    self._launches, (int(correlation), self._time(event, number), _thread(event)), strict=True
                ):
                    column.append(value)
        elif category == ANNOTATION and event.get("ph") == "X":
            self._take_annotation(number, event)
        elif category == "cpu_op" and event.get("name") in PRODUCTS:
            self._take_product(event)
        elif category == SYNC:
            args = event.get("args") or {}
            names = "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "correlation"
            stream, other, record, wait = (int(args.get(name, NONE)) for name in names)
            if other >= 0:
                self._sync.append((stream, other, record, wait))

    def _time(self, event: Mapping[str, Any], number: int, key: str = "ts") -> int:
        value = event.get(key, 0)
        if not isinstance(value, int | float) or value != value or (key == "dur" and not 0 <= value < LONGEST_US):
            what = f"{event.get('name', 'an event')!s:.60}"
            raise UsageError(f"{self._trace.path}: event {number} ({what}): {key}: {value} µs; expected at least 0")
        return round(value * 1000)

    def _take_kernel(self, number: int, event: Mapping[str, Any]) -> None:
        args = event.get("args") or {}
        name = str(event.get("name", ""))
        stream = args.get("stream", event.get("tid", 0))
        kind = self._numbers.setdefault((name, str(args.get("grid"))), len(self._numbers))
        values = (
            self._time(event, number), self._time(event, number, "dur"), stream if isinstance(stream, int) else 0,
            int(args.get("correlation", NONE)), kind,
        )  # fmt: skip
        kernel = len(self._device[0])
        for column, value in zip(self._device, values, strict=True):
            column.append(value)
        if event["cat"] != "kernel":
            return
        if isinstance(external := args.get("External id"), int):
            self._trace.external[external] = self._trace.external.get(external, 0) + values[1]
        if (found := _communication(kernel, name, args)) is not None:
            self._trace.communications.append(found)
        elif "microbatch" in args:
            self._trace.facts[kernel] = {key: int(args[key]) for key in ("microbatch", "chunk", "stage") if key in args}

    def _take_product(self, event: Mapping[str, Any]) -> None:
        args = event.get("args") or {}
        shapes, types, external = (args.get(key) for key in ("Input Dims", "Input type", "External id"))
        if isinstance(shapes, list) and isinstance(types, list) and isinstance(external, int):
            self._trace.products.append(Product(external, str(event["name"]), shapes, types))

    def _take_annotation(self, number: int, event: Mapping[str, Any]) -> None:
        start, thread, name = self._time(event, number), _thread(event), str(event.get("name", ""))
        end = start + self._time(event, number, "dur")
        if (step := STEP.fullmatch(name)) is not None:
            self._trace.steps[int(step[1])] = start, end
            self._trace.main = thread
        else:
            self._trace.annotations.setdefault(thread, []).append((start, end, name))

    def trace(self) -> KinetoTrace:
        """The trace, in the order of starts.

        Raises:
            UsageError: nothing ran on a device.
        """
        trace = self._trace
        if not self._device[0]:
            raise UsageError(f"{trace.path}: a profiler trace without kernels: profile with ProfilerActivity.CUDA")
        columns = [np.array(column, dtype=np.int64) for column in self._device]
        order = np.lexsort((columns[2], columns[0]))
        trace.start, trace.duration, trace.stream, trace.correlation, trace.name = (one[order] for one in columns)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        trace.communications = sorted(
            (one._replace(kernel=int(place[one.kernel])) for one in trace.communications), key=lambda one: one.kernel
        )
        trace.facts = {int(place[kernel]): facts for kernel, facts in trace.facts.items()}
        trace.names = [name for name, _ in self._numbers]
        for of_thread in trace.annotations.values():
            of_thread.sort(key=lambda one: (one[0], -one[1]))
        self._link()
        return trace

    def _link(self) -> None:
        """Find the launch of every event, by its correlation number."""
        trace = self._trace
        trace.launched, trace.thread = (np.full(len(trace.start), NONE, dtype=np.int64) for _ in range(2))
        if not self._launches[0]:
            return
        correlation, time, thread = (np.array(column, dtype=np.int64) for column in self._launches)
        order = np.argsort(correlation, kind="stable")
        at = np.minimum(np.searchsorted(correlation[order], trace.correlation), len(order) - 1)
        known = (correlation[order][at] == trace.correlation) & (trace.correlation != NONE)
        trace.launched[known] = time[order][at][known]
        trace.thread[known] = thread[order][at][known]
        wanted = {one for _, _, *calls in self._sync for one in calls}
        when = {one: int(at) for one, at in zip(correlation.tolist(), time.tolist(), strict=True) if one in wanted}
        trace.waits = [
            StreamWait(stream, other, when.get(record, NONE), when.get(wait, NONE))
            for stream, other, record, wait in self._sync
        ]


def _thread(event: Mapping[str, Any]) -> int:
    thread = event.get("tid", 0)
    return thread if isinstance(thread, int) else hash(str(thread)) >> 8


def _communication(kernel: int, name: str, args: Mapping[str, Any]) -> Communication | None:
    match = NCCL.match(name)
    if match is None and DEEP_EP.search(name) is None:
        return None
    does = DOES[match[1]] if match is not None else "all-to-all"
    called = str(args.get("Collective name", "")).lower()
    if match is None or match[1] in ("Generic", "SendRecv"):
        does = NAMED.get(called, does)
    listed = tuple(map(int, MEMBERS.findall(str(args.get("Process Group Ranks", "")))))
    count, width = args.get("In msg nelems"), BYTES.get(str(args.get("dtype", "")).lower(), 0)
    size = int(count) * width if isinstance(count, int | float) and count > 0 else 0
    group = args.get("Process Group Name", args.get("Process Group Description", ""))
    sequence = args.get("Seq")
    return Communication(
        kernel, does, size, str(group), listed, int(args.get("Group size", 0) or 0),
        int(sequence) if isinstance(sequence, int) else None,
    )  # fmt: skip
