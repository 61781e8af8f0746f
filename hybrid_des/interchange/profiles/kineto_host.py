"""Traces of PyTorch's profiler on nodes without accelerators: operators compute, gloo communicates.

A trace without kernels is read again as follows. What a thread computes are its outermost operators (`cpu_op`), in
order, as a stream; the busiest of these streams is that of the ops. Annotations `gloo:all_reduce`, `gloo:send` … are
communication, with the shapes and types of their tensors; each thread of gloo is a stream of its own. They name neither
group nor peer: with one process group in `distributedInfo` its ranks are meant. What an operator starts and another one
waits for is not recorded: edges are inferred from starts soon after ends, as between the streams of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.interchange.profiles.kineto import NONE, Communication, KinetoTrace, Numbers, input_bytes, kind_of

OPERATORS = ("cpu_op", "Operator")
ANNOTATION, PREFIX = "user_annotation", "gloo:"
NANOSECONDS = 1000  # of a µs


class HostEvent(NamedTuple):
    """An operator or a communication; times are nanoseconds."""

    start: int
    duration: int
    thread: Any
    name: str
    args: Mapping[str, Any] | None = None

    @property
    def communicates(self) -> bool:
        """Whether it is gloo's."""
        return self.args is not None


def host_events(events: Iterable[Mapping[str, Any]]) -> list[HostEvent]:
    """Outermost operators of every thread and the communication of gloo, in the order of their starts."""
    kept: list[HostEvent] = []
    for event in events:
        category, name = event.get("cat"), str(event.get("name", ""))
        gloo = category == ANNOTATION and name.startswith(PREFIX)
        if event.get("ph") != "X" or not (gloo or category in OPERATORS):
            continue
        start, took = (round(float(event.get(key, 0)) * NANOSECONDS) for key in ("ts", "dur"))
        args = (event.get("args") or {}) if gloo else None
        kept.append(HostEvent(start, took, event.get("tid", 0), name, args))
    kept.sort(key=lambda event: (event.start, -event.duration))
    return [*_outermost(kept)]


def _outermost(events: Sequence[HostEvent]) -> Iterable[HostEvent]:
    ends: dict[Any, int] = {}
    for event in events:
        if event.communicates:
            yield event
        elif event.start >= ends.get(event.thread, event.start):
            ends[event.thread] = event.start + event.duration
            yield event


def fill(trace: KinetoTrace, events: Sequence[HostEvent], groups: Mapping[str, tuple[int, ...]]) -> None:
    """Put these events into a trace, as if they were those of a device."""
    threads = list(dict.fromkeys((one.thread, one.communicates) for one in events))
    names = list(dict.fromkeys(one.name for one in events))
    stream, name = ({key: number for number, key in enumerate(keys)} for keys in (threads, names))
    trace.on_host, trace.names = True, names
    trace.start, trace.duration = (_column([getattr(one, key) for one in events]) for key in ("start", "duration"))
    trace.stream = _column([stream[one.thread, one.communicates] for one in events])
    trace.name = _column([name[one.name] for one in events])
    trace.correlation = np.full(len(events), NONE, np.int64)
    trace.launched, trace.thread = trace.start, _column([_number(one.thread) for one in events])
    members = next(iter(groups.values())) if len(groups) == 1 else ()
    group = next(iter(groups)) if len(groups) == 1 else ""
    for index, event in enumerate(events):
        if event.args is not None and (does := kind_of(event.name.removeprefix(PREFIX))) is not None:
            size = input_bytes(event.args)
            trace.communications.append(Communication(index, does, size, group, members, len(members), None))


def _number(thread: Any) -> int:
    return thread if isinstance(thread, int) else NONE


def _column(values: Sequence[int]) -> Numbers:
    return np.array(values, dtype=np.int64)
