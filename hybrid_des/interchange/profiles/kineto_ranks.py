"""Profiler traces of the ranks of a job, made into execution traces: steps, collectives of all ranks, edges.

Of one rank alone, a collective's time holds its transfer and its wait. One with a single member among several traces
stays a kernel that takes its recorded time. Edges between streams come from the waits that the profiler recorded; where
it recorded none, something that starts within 60 µs of an end on another stream is taken to wait for it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.cluster.gpus import ATTENTION, MEMORY, PRODUCTS, work_of
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles import graph
from hybrid_des.interchange.profiles.kineto import NONE, UNKNOWN, Communication, KinetoTrace, Numbers
from hybrid_des.interchange.profiles.kineto_collectives import (
    UNNAMED,
    Collectives,
    Key,
    clock_offsets,
    collectives_of,
    connected,
    transfer_of,
)
from hybrid_des.interchange.profiles.kineto_reader import read_kineto
from hybrid_des.units import grouped_by

if TYPE_CHECKING:
    import pandas as pd

NEAR = 60_000  # nanoseconds: launches of kernels take some microseconds
NANOSECOND = 1000  # picoseconds
LONGEST_S = 10**5
SECOND = 10**9  # nanoseconds
MOST_NODES = 200_000  # of a rank, beyond which kernels of an op are joined
KINDS = (("B", re.compile("backward", re.IGNORECASE)), ("F", re.compile("forward", re.IGNORECASE)))


@dataclass(frozen=True)
class KinetoRanks:
    """The traces of some or all ranks of a job.

    Attributes:
        traces: by rank.
        world: number of ranks of the job, as far as it is known.
        offsets: nanoseconds to add to the times of each rank, for one clock; of them, `corrections` are not those that
            the traces say.
    """

    traces: Sequence[KinetoTrace]
    world: int
    offsets: list[int] = field(default_factory=list)
    corrections: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, files: Sequence[Path], progress: Callable[[int, int], None] | None = None) -> KinetoRanks:
        """Read the traces of ranks.

        Raises:
            UsageError: one is broken, two are of one rank, or they have no step in common.
        """
        sizes = [path.stat().st_size for path in files]
        traces = []
        for turn, path in enumerate(files):
            shown = None if progress is None else _behind(progress, sum(sizes[:turn]), sum(sizes))
            traces.append(read_kineto(path, turn, shown))
        named = {one.named for one in traces if one.world < 2}
        if len({one.rank for one in traces}) < len(named) == len(traces):
            for trace in traces:  # of processes that knew of no others
                trace.rank = trace.named
        traces.sort(key=lambda trace: trace.rank)
        for before, after in pairwise(traces):
            if before.rank == after.rank:
                other = before.path.name if before.path.parent == after.path.parent else before.path
                raise UsageError(f"{after.path}: a second trace of rank {after.rank}, beside {other}")
        job = cls(traces, max(len(traces), *map(_world, traces)))
        if not job.steps:
            pairs = ((one, two) for turn, two in enumerate(traces) for one in traces[:turn])
            apart = (pair for pair in pairs if pair[0].numbers.isdisjoint(pair[1].numbers))
            first, second = next(apart, (traces[0], traces[-1]))
            raise UsageError(f"{second.path}: {_steps(second)}; {first.path.name} has {_steps(first)}: of one run?")
        job._set_clocks()
        if job.lengths[job.chosen] > LONGEST_S:
            raise UsageError(f"{files[0]}: step {job.chosen} lasts {job.lengths[job.chosen]:.3g} s: are its times µs?")
        return job

    @cached_property
    def steps(self) -> list[int]:
        """Numbers of the steps that all traces have; 0 if they name none."""
        return sorted(set.intersection(*(one.numbers for one in self.traces)))

    @cached_property
    def outer(self) -> dict[int, tuple[int, int]]:
        """Step → first start and last end of the work of all ranks in it, on the clock of the first rank."""
        bounds = {step: [self.bounds(place, step) for place in range(len(self.traces))] for step in self.steps}
        return {step: (min(a for a, _ in each), max(b for _, b in each)) for step, each in bounds.items()}

    @cached_property
    def begins(self) -> dict[int, int]:
        """Step → when the one before it ends, and it begins, however early its first work ran.

        A host that runs ahead has work of several steps on the device at once, one that waits for data leaves it idle
        between steps: what a step takes is its distance from the one before. A step without one is left out.
        """
        ends = {step: end for step, (_, end) in self.outer.items()}
        return {step: ends[step - 1] for step in self.steps if step - 1 in ends and ends[step - 1] < ends[step]}

    @cached_property
    def lengths(self) -> dict[int, float]:
        """Step → seconds since the end of the one before; if there are no two in a row, from first to last work."""
        begins = self.begins or {step: start for step, (start, _) in self.outer.items()}
        return {step: (self.outer[step][1] - begin) / SECOND for step, begin in begins.items()}

    def bounds(self, index: int, step: int) -> tuple[int, int]:
        """First start and last end of the work of a rank in a step, on the clock of the first rank."""
        trace = self.traces[index]
        mine = trace.step == step
        shift = self.offsets[index] if self.offsets else 0
        if trace.facts and step in trace.steps:  # a trace of this program, whose steps are those of the device
            return trace.steps[step][0] + shift, trace.steps[step][1] + shift
        return int(trace.start[mine].min()) + shift, int(trace.end[mine].max()) + shift

    @cached_property
    def chosen(self) -> int:
        """The step of median length."""
        ordered = sorted(self.lengths, key=lambda step: (self.lengths[step], step))
        return ordered[(len(ordered) - 1) // 2]

    @property
    def zero(self) -> int:
        """When the chosen step begins, on the clock of the first rank."""
        return self.begins.get(self.chosen, self.outer[self.chosen][0])

    @cached_property
    def collectives(self) -> Collectives:
        """The collectives and messages of all steps, with those of their members that have a trace."""
        return collectives_of(self.traces, self.offsets)

    @cached_property
    def matched(self) -> Collectives:
        """Those of several members, in steps that all traces have."""
        return {
            key: members for key, members in self.collectives.items() if len(members) > 1 and key.step in self.steps
        }

    @property
    def gathered(self) -> Collectives:
        """The collectives among them, without messages."""
        return {key: members for key, members in self.matched.items() if key.does != graph.EXCHANGE}

    def complete(self, key: Key) -> bool:
        """Whether all members of a collective have a trace, so that its transfer is known."""
        members = self.collectives[key]
        known = members[0].communication.group_size
        return len(members) > 1 and (key.does == graph.EXCHANGE or len(members) >= known)

    @cached_property
    def clocks(self) -> dict[str, Any]:
        """How far the ends of a collective are apart, and whether that is more than its transfer."""
        together = self.gathered or self.matched
        if not together:
            return {}
        spreads = [max(m.end for m in members) - min(m.end for m in members) for members in together.values()]
        usual = median(map(transfer_of, together.values()))
        apart = any(self.corrections) or median(spreads) > max(usual, 1)
        return {"spread_s": max(spreads) / SECOND, "apart": bool(apart),
                "offsets_s": [one / SECOND for one in self.corrections]}  # fmt: skip

    def _set_clocks(self) -> None:
        """Put all ranks on one clock: as their traces say, and such that collectives end together."""
        said = [one.base - self.traces[0].base for one in self.traces]
        self.offsets.extend(said)
        ours = any(one.facts for one in self.traces)  # simulated ranks have one clock
        collectives = {} if ours else collectives_of(self.traces, said, checked=False)
        named = {key: members for key, members in collectives.items() if key.group != UNNAMED}
        self.corrections.extend(clock_offsets(named or collectives, len(said)))
        self.offsets[:] = [one + other for one, other in zip(said, self.corrections, strict=True)]
        if not self.matched:  # ranks of different groups: nothing tells their clocks
            self.corrections[:], self.offsets[:] = [0] * len(said), said
        first = self._part_bounds(0)
        for part in sorted({*self.parts} - {0} if not ours else ()):
            begin, end = self._part_bounds(part)
            if end < first[0] or begin > first[1]:  # one step is at one time
                for rank in (rank for rank, one in enumerate(self.parts) if one == part):
                    self.corrections[rank] += first[0] - begin
                    self.offsets[rank] += first[0] - begin
        for name in ("outer", "begins", "lengths", "collectives", "matched", "parts"):
            self.__dict__.pop(name, None)  # times of the ranks change

    @cached_property
    def parts(self) -> list[int]:
        """Of each rank, the first one that it shares a collective or a message with, over others between."""
        shared = {(members[0].rank, one.rank): 0 for members in self.matched.values() for one in members[1:]}
        return connected([shared], len(self.traces))[1]

    def _part_bounds(self, part: int) -> tuple[int, int]:
        bounds = [self.bounds(rank, self.steps[0]) for rank, one in enumerate(self.parts) if one == part]
        return min(start for start, _ in bounds), max(end for _, end in bounds)

    def computing(self, trace: KinetoTrace) -> Numbers:
        """The events of a trace in the chosen step that do not communicate."""
        return np.flatnonzero((trace.step == self.chosen) & ~trace.communicates)

    @property
    def communication(self) -> dict[str, float]:
        """Seconds of the chosen step in which a rank communicates, and does nothing else meanwhile, on average."""
        if not any(one.communications for one in self.traces):
            return {}
        sent = exposed = 0
        for trace in self.traces:
            mine = trace.step == self.chosen
            sent += _union(trace, np.flatnonzero(mine & trace.communicates))
            exposed += _union(trace, np.flatnonzero(mine)) - _union(trace, self.computing(trace))
        count = len(self.traces)
        return {"communication_s": sent / count / SECOND, "exposed_communication_s": exposed / count / SECOND}

    @property
    def by_rank(self) -> list[dict[str, float]]:
        """Of each rank in the chosen step: seconds of computation, of waiting in collectives, and holding others up.

        A rank that comes last to a collective holds it up by the time since the last but one came. Only collectives of
        which all members have a trace are counted.
        """
        wait, held, last = ([0] * len(self.traces) for _ in range(3))
        known = [key for key in self.gathered if key.step == self.chosen and self.complete(key)]
        for key in known:
            *_, before, latest = sorted(self.collectives[key], key=lambda member: member.start)
            held[latest.rank] += latest.start - before.start
            last[latest.rank] += 1
            for member in self.collectives[key]:
                wait[member.rank] += latest.start - member.start
        return [
            {"rank": one.rank, "compute_s": _union(one, self.computing(one)) / SECOND, "wait_s": wait[place] / SECOND,
             "held_up_s": held[place] / SECOND, "last": last[place], "collectives": len(known)}
            for place, one in enumerate(self.traces)
        ]  # fmt: skip

    @cached_property
    def kernels(self) -> dict[str, float]:
        """Shares of the time of kernels that compute, by what bounds them as their names tell."""
        times = {PRODUCTS: 0, ATTENTION: 0, MEMORY: 0, "unknown": 0}
        for trace in self.traces:
            works = [work_of(name) or "unknown" for name in trace.names]
            for event in self.computing(trace).tolist():
                times[works[int(trace.name[event])]] += int(trace.duration[event])
        whole = sum(times.values())
        return {work: time / whole for work, time in times.items()} if whole else {}

    def table(self) -> pd.DataFrame:
        """One row per collective and rank, with its bytes and start, and its transfer and wait if they are known."""
        import pandas as pd

        rows = []
        zero = min(int(one.start.min()) + shift for one, shift in zip(self.traces, self.offsets, strict=True))
        for key, members in sorted(self.collectives.items(), key=lambda entry: entry[0]):
            latest = max(member.start for member in members)
            known = self.complete(key)
            rows += [
                (*key[:3], _shown(key, member.communication), member.communication.size,
                 self.traces[member.rank].rank, (member.start - zero) / SECOND,
                 transfer_of(members) / SECOND if known else None,
                 (latest - member.start) / SECOND if known else None)
                for member in members
            ]  # fmt: skip
        names = ["step", "group", "kind", "number", "bytes", "rank", "start_s", "transfer_s", "wait_s"]
        return pd.DataFrame(rows, columns=names)

    def durations(self) -> pd.DataFrame:
        """One row per event of the device in the chosen step: `rank`, `stream`, `op`, `name`, `start_s`, `seconds`."""
        import pandas as pd

        tables = []
        for index, trace in enumerate(self.traces):
            mine = np.flatnonzero(trace.step == self.chosen)
            tables.append(pd.DataFrame({
                "rank": trace.rank, "stream": trace.stream[mine], "op": [trace.op[event] for event in mine.tolist()],
                "name": [trace.names[number] for number in trace.name[mine].tolist()],
                "start_s": (trace.start[mine] + self.offsets[index] - self.zero) / SECOND,
                "seconds": trace.duration[mine] / SECOND,
            }))  # fmt: skip
        return pd.concat(tables, ignore_index=True)

    def rank_traces(self) -> list[graph.RankTrace]:
        """The chosen step of every rank as an execution trace."""
        return [self._rank_trace(place) for place in range(len(self.traces))]

    def _rank_trace(self, index: int) -> graph.RankTrace:
        trace, groups = self.traces[index], dict[str, tuple[int, ...]]()
        mine = np.flatnonzero(trace.step == self.chosen).tolist()
        edges = edges_of(trace, mine)
        number = {event: turn for turn, event in enumerate(mine)}
        streams = streams_of(trace)
        part = self._part[index]
        spans = []
        for event in mine:
            start = (int(trace.start[event]) + self.offsets[index]) * NANOSECOND
            span = graph.Span(
                trace.names[int(trace.name[event])], streams[int(trace.stream[event])], start,
                start + int(trace.duration[event]) * NANOSECOND, [number[other] for other in edges.get(event, ())],
                place=_place(trace, event),
            )  # fmt: skip
            if event in part:
                self._collective(span, part[event], groups)
            spans.append(span)
        end = max(span.end for span in spans)
        spans = _together(spans) if len(spans) > MOST_NODES else spans
        return graph.rank_trace(str(trace.path), spans, self.zero * NANOSECOND, end, groups)

    @cached_property
    def _part(self) -> list[dict[int, Key]]:
        """Rank → event → the collective of the chosen step that it is part of."""
        parts: list[dict[int, Key]] = [{} for _ in self.traces]
        for key, members in self.collectives.items():
            if key.step == self.chosen:
                for member in members:
                    parts[member.rank][member.communication.kernel] = key
        return parts

    def group_of(self, key: Key) -> tuple[int, ...] | None:
        """The members of a collective, as places among the traces or as ranks of the job; None if they are not known.

        Of one rank, a group that the trace cuts is continued as it begins.
        """
        members = self.collectives[key]
        if key.does == UNKNOWN:
            return None
        if len(self.traces) > 1:
            return tuple(sorted(member.rank for member in members)) if len(members) > 1 else None
        first = members[0].communication
        if key.does == graph.EXCHANGE or self.world == 1 or first.group_size < 2:
            return None
        if first.group_size == self.world:
            return tuple(range(self.world))
        steps = {after - before for before, after in pairwise(first.members)}
        if len(first.members) < 2 or len(steps) > 1:
            return None
        whole = range(first.members[0], first.members[0] + first.group_size * min(steps), min(steps))
        fits = whole[-1] < self.world and not self.world % (len(whole) * whole.step)
        return tuple(whole) if fits and self.traces[0].rank in whole else None

    def _collective(self, span: graph.Span, key: Key, groups: dict[str, tuple[int, ...]]) -> None:
        """Make a span a collective, if its group is known; else it communicates for the recorded time."""
        members, ranks = self.collectives[key], self.group_of(key)
        if ranks is None:
            span.place = {**span.place, "purpose": graph.purpose_of(key.does).name}
            return
        span.kind, span.does, span.size = graph.COLLECTIVE, key.does, max(m.communication.size for m in members)
        if len(ranks) < max(len(self.traces), self.world if len(self.traces) == 1 else 0):
            span.group = f"{key.group} [{','.join(map(str, ranks))}]" if len(self.traces) > 1 else key.group
            groups[span.group] = ranks
        if len(members) > 1:
            latest, met = max(member.start for member in members), max(member.end for member in members)
            span.transfer = max(0, met - max(latest, self.zero)) * NANOSECOND
            span.met = met * NANOSECOND
            if not self.complete(key):
                span.place = {**span.place, "given": True}


def _together(spans: Sequence[graph.Span]) -> list[graph.Span]:
    """Runs of computation of a stream, without edges, as one span each: a trace of a million kernels stays small."""
    needed = {place for span in spans for place in span.after}
    joined: list[graph.Span] = []
    number: list[int] = []
    for index, span in enumerate(spans):
        last = joined[-1] if joined else None
        follows = last is not None and _kind_of(last) == _kind_of(span) == (span.stream, graph.COMPUTATION, None)
        if last is not None and follows and not span.after and index - 1 not in needed:
            last.end = max(last.end, span.end)
        else:
            joined.append(span)
        number.append(len(joined) - 1)
    for span in joined:
        span.after = [number[place] for place in span.after]
    return joined


def _kind_of(span: graph.Span) -> tuple[str, str, str | None]:
    return span.stream, span.kind, span.place.get("purpose")


def _shown(key: Key, communication: Communication) -> int:
    """The number of a collective in its group, rather than its identity."""
    sequence = communication.sequence if communication.identity == key.number else None
    return key.number if sequence is None else sequence


def _behind(progress: Callable[[int, int], None], before: int, whole: int) -> Callable[[int, int], None]:
    """The progress of one file among several."""
    return lambda done, _: progress(before + done, whole)


def _world(trace: KinetoTrace) -> int:
    """The number of ranks of the job, at least."""
    sizes = (max([one.group_size, *(member + 1 for member in one.members)]) for one in trace.communications)
    return max([trace.world, trace.rank + 1 if trace.world else 1, *sizes])


def _union(trace: KinetoTrace, events: Numbers) -> int:
    """Nanoseconds in which at least one of some events, in the order of their starts, runs."""
    if not len(events):
        return 0
    end = np.maximum.accumulate(trace.end[events])
    start = np.maximum(trace.start[events][1:], end[:-1])
    return int(trace.duration[events][0] + np.maximum(end[1:] - start, 0).sum())


def streams_of(trace: KinetoTrace) -> Mapping[int, str]:
    """Stream → its name: the one that computes most is that of the ops."""
    busy: dict[int, int] = {}
    computed = np.where(trace.communicates, 0, trace.duration)
    for stream, took in zip(trace.stream.tolist(), computed.tolist(), strict=True):
        busy[stream] = busy.get(stream, 0) + took
    most = max(busy, key=lambda stream: (busy[stream], -stream))
    return {stream: graph.COMPUTE if stream == most else f"stream {stream}" for stream in busy}


def edges_of(trace: KinetoTrace, events: Sequence[int]) -> dict[int, list[int]]:
    """Event → the events of other streams that it waits for: as recorded, else inferred."""
    of_stream = grouped_by(events, lambda event: int(trace.stream[event]))
    if trace.recorded_waits:
        return _recorded_edges(trace, of_stream)
    edges: dict[int, list[int]] = {}
    ends = {stream: np.maximum.accumulate(trace.end[mine]) for stream, mine in of_stream.items()}
    for stream, mine in of_stream.items():
        for other, theirs in of_stream.items():
            if other == stream:
                continue
            places = np.searchsorted(ends[other], trace.start[mine], side="right") - 1
            for event, position in zip(mine, places.tolist(), strict=True):
                position = min(position, bisect_left(theirs, event) - 1)  # events of no length may begin together
                if position >= 0 and trace.start[event] - ends[other][position] <= NEAR:
                    edges.setdefault(event, []).append(theirs[position])
    return edges


def _recorded_edges(trace: KinetoTrace, of_stream: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The first event that a stream launched after a wait waits for the last one launched before the record.

    Where a trace does not say which record is meant, that is the last one that ended before.
    """
    edges: dict[int, list[int]] = {}
    launches = {stream: trace.launched[list(events)].tolist() for stream, events in of_stream.items()}
    for stream, other, recorded, waited in trace.waits:
        if waited == NONE or stream not in of_stream or other not in of_stream or stream == other:
            continue
        position = bisect_left(launches[stream], waited)
        if position == len(launches[stream]):
            continue
        consumer, theirs = of_stream[stream][position], of_stream[other]
        before = bisect_right(launches[other], waited if recorded == NONE else recorded) - 1
        while recorded == NONE and before >= 0 and trace.end[theirs[before]] > trace.start[consumer]:
            before -= 1
        if before >= 0 and trace.end[theirs[before]] <= trace.start[consumer] and theirs[before] < consumer:
            edges.setdefault(consumer, []).append(theirs[before])
    return edges


def _place(trace: KinetoTrace, event: int) -> dict[str, Any]:
    """Further facts of an event: its kernel, by name and grid, and whether it belongs to a forward or a backward."""
    kind = next((kind for kind, words in KINDS if words.search(trace.op[event])), None)
    known = {} if kind is None else {"op_kind": kind, "named": True}
    return {**known, "kernel": int(trace.name[event])}


def _steps(trace: KinetoTrace) -> str:
    numbers = sorted(trace.steps)
    if not numbers:
        return "no steps"
    return f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers[0]} … {numbers[-1]}"
