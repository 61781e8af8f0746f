"""Profiler traces of the ranks of a job, made into execution traces: steps, collectives of all ranks, clocks, edges.

A collective is matched over ranks by its number in its group, else as the n-th of its kind there in a step. Transfer is
its latest end less its latest start, a rank's wait the latest start less its own. Of one rank alone, a kernel's time is
both. Edges between streams come from the waits that the profiler recorded; where it recorded none, something that
starts within 60 µs of an end on another stream is taken to wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.graph import COLLECTIVE, COMPUTATION, COMPUTE, EVERYBODY, RankTrace
from hybrid_des.interchange.profiles.kineto import NONE, Communication, KinetoTrace, read_kineto
from hybrid_des.interchange.profiles.recorded import Span, rank_trace

if TYPE_CHECKING:
    import pandas as pd

SENDS = "send-receive"  # messages of a pipeline, whose other ends a kernel does not name
NEAR = 60_000  # nanoseconds: launches of kernels take some microseconds
NANOSECOND = 1000  # picoseconds
LONGEST_S = 10**5
SECOND = 10**9  # nanoseconds
TOGETHER = 10**7  # nanoseconds: no collective lets its members end so far apart
MOST_NODES = 200_000  # of a rank, beyond which kernels of an op are joined
ALL_TO_ALL = re.compile(r"all_?to_?all", re.IGNORECASE)
KINDS = (("B", re.compile("backward", re.IGNORECASE)), ("F", re.compile("forward", re.IGNORECASE)))
Key = tuple[int, str, str, int]  # step, group, what it does, number


class Member(NamedTuple):
    """One rank's part in a collective; times are nanoseconds."""

    rank: int
    start: int
    end: int
    communication: Communication


@dataclass(frozen=True)
class KinetoRanks:
    """The traces of some or all ranks of a job.

    Attributes:
        traces: by rank.
        world: number of ranks of the job, as far as it is known.
    """

    traces: Sequence[KinetoTrace]
    world: int
    offsets: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, files: Sequence[Path], progress: Callable[[int, int], None] | None = None) -> KinetoRanks:
        """Read the traces of ranks.

        Raises:
            UsageError: one is broken, two are of one rank, or they have no step in common.
        """
        traces = sorted((read_kineto(path, turn, progress) for turn, path in enumerate(files)), key=lambda t: t.rank)
        for before, after in pairwise(traces):
            if before.rank == after.rank:
                raise UsageError(f"{after.path}: a second trace of rank {after.rank}, beside {before.path.name}")
        found = cls(traces, max([len(traces), *(one.world for one in traces)]))
        if not found.steps:
            first, second = _apart(traces)
            raise UsageError(f"{second.path}: {_steps(second)}; {first.path.name} has {_steps(first)}: of one run?")
        found.offsets.extend(found._offsets())
        if found.spans[found.chosen] > LONGEST_S:
            raise UsageError(
                f"{files[0]}: step {found.chosen} lasts {found.spans[found.chosen]:.3g} s: are its times µs?"
            )
        return found

    @cached_property
    def steps(self) -> list[int]:
        """Numbers of the steps that all traces have; 0 if they name none."""
        common = set(np.unique(self.traces[0].step[self.traces[0].step != NONE]).tolist())
        for one in self.traces[1:]:
            common &= set(np.unique(one.step).tolist())
        return sorted(common)

    @cached_property
    def spans(self) -> dict[int, float]:
        """Step → seconds from the first to the last work of the device that it launched, over all ranks."""
        found = {}
        for step in self.steps:
            bounds = [self.bounds(place, step) for place in range(len(self.traces))]
            found[step] = (max(end for _, end in bounds) - min(start for start, _ in bounds)) / SECOND
        return found

    def bounds(self, place: int, step: int) -> tuple[int, int]:
        """First start and last end of the work of a rank in a step, on the clock of the first rank."""
        one = self.traces[place]
        mine = one.step == step
        shift = self.offsets[place] if self.offsets else 0
        if one.facts and step in one.steps:  # a trace of this program, whose steps are those of the device
            return one.steps[step][0] + shift, one.steps[step][1] + shift
        return int(one.start[mine].min()) + shift, int(one.end[mine].max()) + shift

    @cached_property
    def chosen(self) -> int:
        """The step of median length."""
        ordered = sorted(self.steps, key=lambda step: (self.spans[step], step))
        return ordered[(len(ordered) - 1) // 2]

    @cached_property
    def collectives(self) -> dict[Key, list[Member]]:
        """The collectives of all steps, with those of their members that have a trace."""
        found: dict[Key, list[Member]] = {}
        for place, one in enumerate(self.traces):
            turns: dict[tuple[int, str, str], int] = {}
            for each in one.communications:
                step, does = int(one.step[each.kernel]), does_of(one, each)
                key = step, group_of(each), does
                turn = turns[key] = turns.get(key, -1) + 1
                number = turn if each.sequence is None else each.sequence
                shift = self.offsets[place] if self.offsets else 0
                start = int(one.start[each.kernel]) + shift
                end = start + int(one.duration[each.kernel])
                found.setdefault((*key, number), []).append(Member(place, start, end, each))
        return found

    @property
    def matched(self) -> dict[Key, list[Member]]:
        """Those with several members."""
        return {
            key: members
            for key, members in self.collectives.items()
            if len(members) > 1 and key[0] in self.steps and key[2] != SENDS
        }

    @cached_property
    def clocks(self) -> dict[str, Any]:
        """How far the ends of a collective are apart, and whether that is more than its transfer."""
        if not self.matched:
            return {}
        spreads = [max(m.end for m in members) - min(m.end for m in members) for members in self.matched.values()]
        worst = max(spreads) / SECOND
        transfers = sorted(_transfer(members) for members in self.matched.values())
        apart = float(np.median(spreads)) > max(transfers[len(transfers) // 2], 1)
        return {"spread_s": worst, "apart": bool(apart or any(self.offsets)),
                "offsets_s": [shift / SECOND for shift in self.offsets]}  # fmt: skip

    def _offsets(self) -> list[int]:
        """Nanoseconds to add to the times of each rank: none, unless collectives end at quite different times."""
        found = [0] * len(self.traces)
        if any(one.facts for one in self.traces):  # simulated ranks have one clock
            return found
        ends: dict[int, list[int]] = {}
        for members in self.matched.values():
            for member in members[1:]:
                ends.setdefault(member.rank, []).append(members[0].end - member.end)
        for rank, differences in ends.items():
            middle = int(np.median(differences))
            if abs(middle) > TOGETHER:
                found[rank] = middle
        self.__dict__.pop("collectives", None)  # times of the ranks change
        return found

    def table(self) -> pd.DataFrame:
        """One row per collective and rank, with its bytes and start, and its transfer and wait if they are known."""
        import pandas as pd

        rows = []
        zero = min(int(one.start.min()) for one in self.traces)
        for (step, group, does, number), members in sorted(self.collectives.items()):
            latest = max(member.start for member in members)
            for member in members:
                known = len(members) > 1
                rows.append((
                    step, group, does, number, member.communication.size, self.traces[member.rank].rank,
                    (member.start - zero) / SECOND, _transfer(members) / SECOND if known else None,
                    (latest - member.start) / SECOND if known else None,
                ))  # fmt: skip
        names = ["step", "group", "kind", "number", "bytes", "rank", "start_s", "transfer_s", "wait_s"]
        return pd.DataFrame(rows, columns=names)

    def durations(self) -> pd.DataFrame:
        """One row per event of the device in the chosen step: `rank`, `stream`, `op`, `name`, `start_s`, `seconds`."""
        import pandas as pd

        tables = []
        zero = min(self.bounds(place, self.chosen)[0] for place in range(len(self.traces)))
        for place, one in enumerate(self.traces):
            mine = np.flatnonzero(one.step == self.chosen)
            tables.append(pd.DataFrame({
                "rank": one.rank, "stream": one.stream[mine], "op": [one.op[event] for event in mine.tolist()],
                "name": [one.names[number] for number in one.name[mine].tolist()],
                "start_s": (one.start[mine] + self.offsets[place] - zero) / SECOND,
                "seconds": one.duration[mine] / SECOND,
            }))  # fmt: skip
        return pd.concat(tables, ignore_index=True)

    def rank_traces(self) -> list[RankTrace]:
        """The chosen step of every rank as an execution trace."""
        zero = min(self.bounds(place, self.chosen)[0] for place in range(len(self.traces)))
        return [self._rank_trace(place, zero) for place in range(len(self.traces))]

    def _rank_trace(self, place: int, zero: int) -> RankTrace:
        one, groups = self.traces[place], dict[str, tuple[int, ...]]()
        mine = np.flatnonzero(one.step == self.chosen).tolist()
        joined = self._joined(one, mine)
        edges = edges_of(one, mine)
        number = {event: turn for turn, event in enumerate(mine)}
        streams = streams_of(one)
        part = {each.kernel: key for key, members in self.collectives.items() if key[0] == self.chosen
                for member in members if member.rank == place for each in (member.communication,)}  # fmt: skip
        spans = []
        for event in mine:
            start = (int(one.start[event]) + self.offsets[place]) * NANOSECOND
            span = Span(
                one.names[int(one.name[event])], streams[int(one.stream[event])], start,
                start + int(one.duration[event]) * NANOSECOND, [number[other] for other in edges.get(event, ())],
                place=_place(one, event),
            )  # fmt: skip
            if event in part and part[event][2] != SENDS:
                self._collective(span, part[event], groups)
            spans.append(span)
        end = max(span.end for span in spans)
        return rank_trace(str(one.path), _together(spans) if joined else spans, zero * NANOSECOND, end, groups)

    def _collective(self, span: Span, key: Key, groups: dict[str, tuple[int, ...]]) -> None:
        members = self.collectives[key]
        span.kind, span.does = COLLECTIVE, key[2]
        span.size = members[0].communication.size
        ranks = tuple(sorted({m.rank for other, ms in self.collectives.items() if other[1] == key[1] for m in ms}))
        if len(ranks) < len(self.traces):
            span.group = key[1] or ",".join(map(str, ranks))
            groups[span.group] = ranks
        if len(members) > 1:
            span.transfer = max(0, _transfer(members)) * NANOSECOND

    @staticmethod
    def _joined(one: KinetoTrace, mine: Sequence[int]) -> bool:
        return len(mine) > MOST_NODES


def _together(spans: Sequence[Span]) -> list[Span]:
    """Runs of computation of a stream, without edges, as one span each: a trace of a million kernels stays small."""
    needed = {place for span in spans for place in span.after}
    found: list[Span] = []
    number: list[int] = []
    for place, span in enumerate(spans):
        last = found[-1] if found else None
        follows = last is not None and (last.stream, last.kind, span.kind) == (span.stream, COMPUTATION, COMPUTATION)
        if last is not None and follows and not span.after and place - 1 not in needed:
            last.end = max(last.end, span.end)
        else:
            found.append(span)
        number.append(len(found) - 1)
    for span in found:
        span.after = [number[place] for place in span.after]
    return found


def _transfer(members: Sequence[Member]) -> int:
    """Nanoseconds from the latest start to the latest end."""
    return max(member.end for member in members) - max(member.start for member in members)


def does_of(trace: KinetoTrace, one: Communication) -> str:
    """What a kernel of communication does; sends and receives are an all-to-all where their op is one."""
    if one.does == SENDS and ALL_TO_ALL.search(trace.op[one.kernel]):
        return "all-to-all"
    return one.does


def group_of(one: Communication) -> str:
    """The name of its process group, or its ranks."""
    return one.group or ",".join(map(str, one.members)) or EVERYBODY


def streams_of(trace: KinetoTrace) -> Mapping[int, str]:
    """Stream → its name: the one that computes most is that of the ops."""
    busy: dict[int, int] = {}
    communicates = {one.kernel for one in trace.communications}
    for event, (stream, took) in enumerate(zip(trace.stream.tolist(), trace.duration.tolist(), strict=True)):
        busy[stream] = busy.get(stream, 0) + (0 if event in communicates else took)
    most = max(busy, key=lambda stream: (busy[stream], -stream))
    return {stream: COMPUTE if stream == most else f"stream {stream}" for stream in busy}


def edges_of(trace: KinetoTrace, events: Sequence[int]) -> dict[int, list[int]]:
    """Event → the events of other streams that it waits for: as recorded, else inferred."""
    of_stream: dict[int, list[int]] = {}
    for event in events:
        of_stream.setdefault(int(trace.stream[event]), []).append(event)
    if trace.waits:
        return _recorded_edges(trace, of_stream)
    found: dict[int, list[int]] = {}
    ends = {stream: np.maximum.accumulate(trace.end[mine]) for stream, mine in of_stream.items()}
    for stream, mine in of_stream.items():
        for other, theirs in of_stream.items():
            if other == stream:
                continue
            places = np.searchsorted(ends[other], trace.start[mine], side="right") - 1
            for event, place in zip(mine, places.tolist(), strict=True):
                if place >= 0 and trace.start[event] - ends[other][place] <= NEAR:
                    found.setdefault(event, []).append(theirs[place])
    return found


def _recorded_edges(trace: KinetoTrace, of_stream: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The first event that a stream launched after a wait waits for the last one launched before the record."""
    found: dict[int, list[int]] = {}
    for stream, other, recorded, waited in trace.waits:
        mine, theirs = of_stream.get(stream, ()), of_stream.get(other, ())
        if NONE in (recorded, waited):
            continue
        consumer = next((event for event in mine if trace.launched[event] >= waited), None)
        before = [event for event in theirs if NONE < trace.launched[event] <= recorded]
        if consumer is not None and before and trace.end[before[-1]] <= trace.start[consumer]:
            found.setdefault(consumer, []).append(before[-1])
    return found


def _place(trace: KinetoTrace, event: int) -> dict[str, Any]:
    """Further facts of an event: its kernel, by name and grid, and whether it belongs to a forward or a backward."""
    kind = next((kind for kind, words in KINDS if words.search(trace.op[event])), None)
    known = {} if kind is None else {"op_kind": kind, "named": True}
    return {**known, "kernel": int(trace.name[event])}


def _apart(traces: Sequence[KinetoTrace]) -> Iterator[KinetoTrace]:
    """Two traces without a common step; the same one twice if there is none."""
    steps = [set(np.unique(one.step[one.step != NONE]).tolist()) for one in traces]
    for second in range(1, len(traces)):
        for first in range(second):
            if not steps[first] & steps[second]:
                return iter((traces[first], traces[second]))
    return iter((traces[0], traces[-1]))


def _steps(trace: KinetoTrace) -> str:
    numbers = sorted(trace.steps)
    if not numbers:
        return "no steps"
    return f"step {numbers[0]}" if len(numbers) == 1 else f"steps {numbers[0]} … {numbers[-1]}"
