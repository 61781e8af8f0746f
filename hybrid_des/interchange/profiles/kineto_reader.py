"""Traces of PyTorch's profiler (Kineto): a JSON file per rank, read event by event, so that memory stays small.

Categories are those of libkineto (`kernel`, `gpu_memcpy`, `cuda_runtime` …; before PyTorch 1.12 `Kernel`, `Runtime`,
`Operator`), on CUDA and ROCm alike. What a trace says of its job (`distributedInfo`, `baseTimeNanoseconds`) stands
before or after its events. Format: pytorch/kineto, libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from hybrid_des.errors import UsageError
from hybrid_des.files import open_file
from hybrid_des.interchange.profiles import kineto
from hybrid_des.interchange.profiles.graph import EXCHANGE
from hybrid_des.interchange.profiles.json_events import events_of
from hybrid_des.interchange.profiles.kineto_host import HostEvent, fill, host_events
from hybrid_des.interchange.profiles.recognition import GZIP, HEAD, head_of
from hybrid_des.units import collected

DEVICE = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
KERNELS = {"kernel", "Kernel"}
OPERATORS = {"cpu_op", "Operator"}
ANNOTATION, ON_DEVICE, SYNC, LINK = "user_annotation", "gpu_user_annotation", "cuda_sync", "fwdbwd"
BACKWARD = "autograd::engine::evaluate_function"
STEP = re.compile(r"ProfilerStep#(\d+)")
PRODUCTS = {  # operators whose arithmetic follows from the shapes of their inputs
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product_flash_attention",
    "aten::_flash_attention_forward", "aten::_scaled_dot_product_cudnn_attention",
}  # fmt: skip
NAMED_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
FACT = re.compile(r'"(rank|world_size)"\s*:\s*(\d+)')
BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
NCCL = re.compile(rb'"backend"\s*:\s*"nccl"')
GPU = re.compile(rb'"deviceProperties".{0,400}?"name"\s*:\s*"([^"]{1,100})"', re.DOTALL)
SHOWN_EVERY = 1 << 14  # events
LONGEST_US = 1e10  # of an event: three hours
LATEST_US = 7.3e15  # since 1970
LARGEST = 1 << 62
FURTHER = 1 << 40  # from the streams of one GPU to those of the next
NAMED = 1 << 39  # from the numbered streams of a GPU to those with names


def read_kineto(path: Path, turn: int, progress: Callable[[int, int], None] | None = None) -> kineto.KinetoTrace:
    """Read the trace of a rank; `turn` is its rank if neither the trace nor its name says.

    Raises:
        UsageError: the file is cut or is no such trace, or an event has no place in time.
    """
    reader = _Reader(path)
    ends = _Ends()
    try:
        for number, event in enumerate(_events(path, ends, progress)):
            try:
                reader.take(number, event)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise UsageError(f"{path}: event {number}: {str(error).splitlines()[0]}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: not a whole file: {error}") from None
    named = NAMED_RANK.search(path.name)
    host = [] if reader.has_kernels else host_events(_events(path, _Ends(), None))
    trace = reader.trace(head_of(path), ends.last, int(named[1]) if named else turn, host)
    trace.named = int(named[1]) if named else kineto.NONE
    return trace


class _Ends:
    """A file that keeps the last bytes that were read."""

    def __init__(self) -> None:
        self.last = b""
        self._file: IO[bytes] | None = None

    def of(self, file: IO[bytes]) -> _Ends:
        """Read from this file."""
        self._file = file
        return self

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes."""
        assert self._file is not None
        data = self._file.read(size)
        self.last = (self.last + data)[-HEAD:] if len(data) < HEAD else data[-HEAD:]
        return data


def _events(path: Path, ends: _Ends, progress: Callable[[int, int], None] | None) -> Iterator[dict[str, Any]]:
    """The events of a file, one by one.

    Raises:
        UsageError: it is not JSON, or ends too early.
    """
    whole = path.stat().st_size
    with open_file(path) as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        file: IO[bytes] = gzip.open(raw) if packed else raw  # type: ignore[assignment]  # noqa: SIM115 (raw is closed)
        items, number = events_of(ends.of(file)), 0
        while True:
            try:
                event = next(items)
            except StopIteration:
                return
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{path}: not whole JSON: {error} (after {number} events)") from None
            number += 1
            if progress is not None and number % SHOWN_EVERY == 0:
                progress(raw.tell(), whole)
            if isinstance(event, dict):
                yield event


def _job(text: bytes) -> tuple[dict[str, int], dict[str, tuple[int, ...]]] | None:
    """Rank and number of ranks, and the ranks of process groups, as far as a part of a trace holds them."""
    start = text.find(b'"distributedInfo"')
    if start < 0:
        return None
    said = text[start:].decode("utf-8", "replace")
    facts = {key: int(value) for key, value in reversed(FACT.findall(said[: HEAD // 16]))}
    try:
        info, _ = json.JSONDecoder().raw_decode(said, said.index("{"))
        groups = {str(one["pg_name"]): tuple(map(int, one["ranks"])) for one in info.get("pg_config") or ()}
    except (ValueError, KeyError, TypeError, AttributeError):  # cut, or of another version
        groups = {}
    return facts, groups


class _Reader:
    """Collects the events of a trace in arrays."""

    def __init__(self, path: Path) -> None:
        self._trace = kineto.KinetoTrace(path, 0, 0)
        self._numbers: dict[tuple[str, str], int] = {}  # kernels by name and grid: others are of other sizes
        self._device = [array("q") for _ in range(5)]
        self._launches = [array("q") for _ in range(3)]  # correlation, time, thread
        self._calls = 0  # that launched kernels
        self._sync: list[tuple[int, int, int, int]] = []  # stream, other, correlations of the record and the wait
        self._devices: dict[Any, int] = {}
        self._streams: dict[str, int] = {}  # those with names, in the order in which the file mentions them
        self._threads: dict[str, int] = {}  # the same of threads
        self._named: dict[int, tuple[str, Mapping[str, Any]]] = {}  # kernels of communication: name, arguments
        self._operators: dict[int, tuple[int, int, Mapping[str, Any]]] = {}  # of communication, by external number
        self._links: list[tuple[int, int, bool]] = []  # time, thread, whether of a forward
        self._device_steps: dict[int, tuple[int, int]] = {}  # number of each step → its start and end on the device
        self._backwards: list[tuple[int, int, int]] = []  # time, end, thread

    @property
    def has_kernels(self) -> bool:
        """Whether anything ran on a device."""
        return bool(self._device[0])

    def take(self, number: int, event: Mapping[str, Any]) -> None:
        """Take one event."""
        category = event.get("cat")
        if category in DEVICE:
            self._take_kernel(number, event)
        elif category in OPERATORS:
            self._take_operator(number, event)
        elif not isinstance(category, str):
            return
        elif category.lower().endswith(("runtime", "driver")):
            self._take_launch(number, event)
        elif category == ANNOTATION and event.get("ph") == "X":
            self._take_annotation(number, event)
        elif category == LINK:
            self._links.append((self._time(event, number), self._thread(event), event.get("ph") == "s"))
        elif category == SYNC:
            self._take_sync(event)
        elif category == ON_DEVICE and (step := STEP.fullmatch(str(event.get("name", "")))) is not None:
            start, end = self._interval(number, event)
            before = self._device_steps.get(int(step[1]), (start, end))
            self._device_steps[int(step[1])] = min(start, before[0]), max(end, before[1])

    def _time(self, event: Mapping[str, Any], number: int, key: str = "ts") -> int:
        given = event.get(key, 0)
        value = float(given) if isinstance(given, str) else given
        if not isinstance(value, int | float) or value != value or (key == "dur" and not 0 <= value < LONGEST_US):
            what = f"{event.get('name', 'an event')!s:.60}"
            raise UsageError(f"{self._trace.path}: event {number} ({what}): {key}: {value} µs; expected at least 0")
        if abs(value) > LATEST_US:
            what = f"{event.get('name', 'an event')!s:.60}"
            told = f"{key}: {value:g} µs, beyond the year 2200: are its times nanoseconds? expected µs"
            raise UsageError(f"{self._trace.path}: event {number} ({what}): {told}")
        return round(value * 1000)

    def _interval(self, number: int, event: Mapping[str, Any]) -> tuple[int, int]:
        """When an event starts and ends."""
        start = self._time(event, number)
        return start, start + self._time(event, number, "dur")

    def _take_kernel(self, number: int, event: Mapping[str, Any]) -> None:
        args = event.get("args") or {}
        name = str(event.get("name", ""))
        stream = self._stream(args.get("stream", event.get("tid")), args.get("device", event.get("pid")))
        kind = self._numbers.setdefault((name, str(args.get("grid", args.get("bytes")))), len(self._numbers))
        kernel, (start, end) = len(self._device[0]), self._interval(number, event)
        _append(self._device, start, end - start, stream, int(args.get("correlation", kineto.NONE)), kind)
        if event["cat"] not in KERNELS:
            return
        if kineto.communication(kernel, name, args) is not None:
            self._named[kernel] = name, args
        elif "microbatch" in args:
            self._trace.facts[kernel] = {key: int(args[key]) for key in ("microbatch", "chunk", "stage") if key in args}

    def _stream(self, stream: Any, device: Any) -> int:
        """The number of a stream; those of further GPUs of a process are far apart."""
        turn = 0 if device is None else self._devices.setdefault(device, len(self._devices))
        if not isinstance(stream, int) or abs(stream) >= NAMED:
            stream = NAMED + self._streams.setdefault(str(stream), len(self._streams))
        return int(stream) + turn * FURTHER

    def _thread(self, event: Mapping[str, Any]) -> int:
        """The number of the thread of an event."""
        thread = event.get("tid", 0)
        if not isinstance(thread, int):
            thread = LARGEST + self._threads.setdefault(str(thread), len(self._threads))
        return int(thread)

    def _take_launch(self, number: int, event: Mapping[str, Any]) -> None:
        correlation = (event.get("args") or {}).get("correlation")
        self._calls += "Launch" in str(event.get("name", ""))
        if correlation is not None:
            _append(self._launches, int(correlation), self._time(event, number), self._thread(event))

    def _take_sync(self, event: Mapping[str, Any]) -> None:
        args = event.get("args") or {}
        device = args.get("device", event.get("pid"))
        names = "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "correlation"
        stream, other, record, wait = (int(args.get(name, kineto.NONE)) for name in names)
        if other >= 0 and 0 <= stream < FURTHER:
            self._sync.append((self._stream(stream, device), self._stream(other, device), record, wait))

    def _take_operator(self, number: int, event: Mapping[str, Any]) -> None:
        name = str(event.get("name", ""))
        if STEP.fullmatch(name) is not None:  # an annotation before PyTorch 1.12
            self._take_annotation(number, event)
        elif name.startswith(BACKWARD):
            self._backwards.append((*self._interval(number, event), self._thread(event)))
        elif name in PRODUCTS or name == kineto.OPERATOR:
            args = event.get("args") or {}
            shapes, types, external = (args.get(key) for key in ("Input Dims", "Input type", "External id"))
            start, end = self._interval(number, event)
            if name == kineto.OPERATOR and isinstance(external, int):
                self._operators[external] = start, end, args
            elif isinstance(shapes, list) and isinstance(types, list):
                self._trace.products.append(kineto.Product(name, shapes, types, self._thread(event), start, end))

    def _take_annotation(self, number: int, event: Mapping[str, Any]) -> None:
        (start, end), thread, name = self._interval(number, event), self._thread(event), str(event.get("name", ""))
        if (step := STEP.fullmatch(name)) is not None:
            self._trace.steps[int(step[1])] = start, end
            self._trace.main = thread
        else:
            self._trace.annotations.setdefault(thread, []).append((start, end, name))
            if name.startswith(kineto.PREFIX):
                args = event.get("args") or {}
                self._trace.collectives.setdefault(thread, []).append((start, end, name, kineto.input_bytes(args)))

    def trace(self, head: bytes, tail: bytes, turn: int, host: Sequence[HostEvent] = ()) -> kineto.KinetoTrace:
        """The trace, in the order of starts, with what its head and tail say.

        Args:
            head: the first bytes of its file.
            tail: the last ones.
            turn: its rank if they do not say.
            host: what the host did, of a trace without kernels.

        Raises:
            UsageError: nothing ran on a device, though kernels were launched, or no operators on the host either.
        """
        trace = self._trace
        self._check_work(head, tail, host)
        facts, groups = _job(head) or _job(tail) or ({}, {})
        trace.rank, trace.world = facts.get("rank", turn), facts.get("world_size", 0)
        trace.base = next((int(match[1]) for text in (head, tail) if (match := BASE.search(text))), 0)
        gpu = GPU.search(head) or GPU.search(tail)
        trace.device = gpu[1].decode("utf-8", "replace") if gpu else ""
        if host:
            fill(trace, host, groups)
        row_of = np.empty(0, np.int64) if host else self._in_order()
        for of_thread in trace.annotations.values():
            of_thread.sort(key=lambda entry: (entry[0], -entry[1]))
        for named in trace.collectives.values():
            named.sort()
        if not host:
            self._link()
        if trace.main == kineto.NONE and trace.annotations:
            trace.main = max(trace.annotations, key=lambda thread: len(trace.annotations[thread]))
        trace.passes = self._passes()
        for kernel, (name, args) in sorted(self._named.items(), key=lambda entry: int(row_of[entry[0]])):
            trace.communications.append(self._communication(int(row_of[kernel]), name, args, groups))
        return trace

    def _check_work(self, head: bytes, tail: bytes, host: Sequence[HostEvent]) -> None:
        """Refuse a trace of a GPU without its kernels: what the host did meanwhile is not the step."""
        if self._device[0]:
            return
        on_gpu = any(NCCL.search(text) for text in (head, tail)) and not any(one.communicates for one in host)
        if self._calls or (host and on_gpu):
            count = f"{self._calls} kernels were launched" if self._calls else "the job ran on GPUs (NCCL)"
            raise UsageError(f"{self._trace.path}: {count}, but none was recorded: profile with ProfilerActivity.CUDA")
        if not host:
            wanted = "profile with ProfilerActivity.CUDA, or on a CPU with ProfilerActivity.CPU"
            raise UsageError(f"{self._trace.path}: a profiler trace without kernels and operators: {wanted}")

    def _in_order(self) -> kineto.Numbers:
        """Put the device's events into the order of their starts; the place of each."""
        trace = self._trace
        columns = [np.array(column, dtype=np.int64) for column in self._device]
        order = np.lexsort((columns[2], columns[1], columns[0]))  # events of no length before those they hold up
        trace.start, trace.duration, trace.stream, trace.correlation, trace.name = (one[order] for one in columns)
        row_of = np.empty_like(order)
        row_of[order] = np.arange(len(order))
        trace.facts = {int(row_of[kernel]): facts for kernel, facts in trace.facts.items()}
        trace.names = [name for name, _ in self._numbers]
        return row_of

    def _link(self) -> None:
        """Find the launch of every event, by its correlation number; without launches, steps are the device's."""
        trace = self._trace
        trace.launched, trace.thread = (np.full(len(trace.start), kineto.NONE, dtype=np.int64) for _ in range(2))
        if self._launches[0]:
            correlation, time, thread = (np.array(column, dtype=np.int64) for column in self._launches)
            order = np.argsort(correlation, kind="stable")
            at = np.minimum(np.searchsorted(correlation[order], trace.correlation), len(order) - 1)
            known = (correlation[order][at] == trace.correlation) & (trace.correlation != kineto.NONE)
            trace.launched[known] = time[order][at][known]
            trace.thread[known] = thread[order][at][known]
            wanted = {one for _, _, *calls in self._sync for one in calls}
            when = {one: int(at) for one, at in zip(correlation.tolist(), time.tolist(), strict=True) if one in wanted}
            trace.waits = [
                kineto.StreamWait(stream, other, when.get(record, kineto.NONE), when.get(wait, kineto.NONE))
                for stream, other, record, wait in self._sync
            ]
        if not (trace.launched != kineto.NONE).any() and (self._device_steps or trace.steps):
            trace.steps, trace.on_device = self._device_steps or trace.steps, True

    def _passes(self) -> dict[int, list[kineto.Annotation]]:
        """Forwards and backwards by thread: from the first to the last link of a run of links of one kind."""
        passes: dict[int, list[kineto.Annotation]] = {}
        engine = collected((thread, (start, end)) for start, end, thread in sorted(self._backwards))
        links = [one for one in sorted(self._links) if not (one[2] and _inside(engine.get(one[1], ()), one[0]))]
        runs = [list(run) for _, run in groupby(links, key=lambda link: link[2])]  # recomputed forwards left out
        for run, after in pairwise([*runs, []]):
            begin, thread, forward = run[0]
            limit = after[0][0] if after else LARGEST
            end = limit - 1 if forward and after else run[-1][0]
            if not forward:
                mine = [one for one in engine.get(thread, ()) if one[1] >= begin and one[0] < limit]
                begin, end = min([begin, *(first for first, _ in mine)]), max([end, *(last for _, last in mine)])
            passes.setdefault(thread, []).append((begin, end, "forward" if forward else "backward"))
        return passes

    def _communication(
        self, kernel: int, name: str, args: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]
    ) -> kineto.Communication:
        """The communication of a kernel; what its arguments lack, from its operator, its annotation and the job."""
        trace = self._trace
        launched, thread = int(trace.launched[kernel]), int(trace.thread[kernel])
        begin, end, said = self._operators.get(args.get("External id", kineto.NONE), (0, -1, {}))
        if "Collective name" not in args and begin <= launched <= end:
            args = {**args, **said}
        call = kineto.communication(kernel, name, args)
        assert call is not None
        if call.does in (kineto.UNKNOWN, EXCHANGE) or not call.size:
            around = trace.collectives.get(thread, [])
            index = bisect_right(around, launched, key=lambda each: each[0]) - 1
            if launched != kineto.NONE and index >= 0 and launched <= around[index][1]:
                _, _, called, size = around[index]
                does = kineto.kind_of(called) or call.does
                call = call._replace(
                    does=does if call.does in (kineto.UNKNOWN, EXCHANGE) else call.does, size=call.size or size
                )
        ranks = groups.get(str(args.get("Process Group Name", "")), ())
        if len(ranks) > len(call.members):
            call = call._replace(members=ranks, group_size=call.group_size or len(ranks))
        return call


def _inside(intervals: Sequence[tuple[int, int]], time: int) -> bool:
    """Whether a time is in one of some sorted intervals."""
    index = bisect_right(intervals, (time, LARGEST)) - 1
    return index >= 0 and time <= intervals[index][1]


def _append(columns: Sequence[array[int]], *values: int) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)
