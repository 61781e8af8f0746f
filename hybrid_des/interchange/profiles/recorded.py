"""What ran when on a rank, as an execution trace that takes the recorded time: order, edges, and the gaps between.

Work of a stream keeps its order; where kernels of a stream overlap, the later one takes what is left of it. Where
something starts later than what it follows ends in the simulation, a gap keeps the time: the host launched it late, or
it waited for something that the profile does not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_des.interchange.profiles.graph import COMPUTATION, COMPUTE, EVERYBODY, Node, RankTrace

GAP = "gap"


@dataclass(slots=True)
class Span:
    """Something that ran on a rank; times are picoseconds.

    Attributes:
        stream: what orders it.
        after: places, among all spans of the rank, of those on other streams that it waits for.
        kind, does, group, size, transfer: of a node; `transfer` is the time of a collective without waiting.
        met: when the last member of a collective has ended, if others have a trace.
        place: further facts of the node.
    """

    name: str
    stream: str
    start: int
    end: int
    after: Sequence[int] = ()
    kind: str = COMPUTATION
    does: str = ""
    group: str = EVERYBODY
    size: int = 0
    transfer: int | None = None
    met: int | None = None
    place: Mapping[str, Any] = field(default_factory=dict)


def rank_trace(
    source: str, spans: Sequence[Span], zero: int, end: int, groups: Mapping[str, tuple[int, ...]] | None = None
) -> RankTrace:
    """The trace of spans in the order of their starts; it begins at `zero` and lasts until `end`."""
    nodes: list[Node] = []
    ids: list[int] = []
    done: list[int] = []  # when each span ends in a simulation of these nodes
    ends: dict[str, int] = {}
    busy: dict[str, int] = {}  # the same of streams, as recorded
    for span in spans:
        ready = max([ends.get(span.stream, zero), *(done[place] for place in span.after)])
        needs = tuple(ids[place] for place in span.after)
        if span.start > ready:
            nodes.append(_gap(len(nodes), span.stream, span.start - ready, needs))
            ready, needs = span.start, ()
        begin = max(span.start, busy.get(span.stream, span.start))  # kernels of a stream may overlap
        duration = max(0, span.end - begin) if span.transfer is None else span.transfer
        node = Node(
            len(nodes), span.name, span.kind, duration, needs, span.stream, span.size, does=span.does, group=span.group,
            start=begin - zero, place=span.place,
        )  # fmt: skip
        ids.append(node.id)
        nodes.append(node)
        done.append(ready + duration if span.met is None else max(ready + duration, span.met))
        ends[span.stream], busy[span.stream] = done[-1], max(span.end, begin)
    last = _latest(ends.items())
    if COMPUTE in ends and end > ends[COMPUTE] and (last is None or end > last[1] or last[0] == COMPUTE):
        nodes.append(_gap(len(nodes), COMPUTE, end - ends[COMPUTE], ()))
    return RankTrace(source, nodes, groups or {})


def _latest(ends: Iterable[tuple[str, int]]) -> tuple[str, int] | None:
    return max(ends, key=lambda one: one[1], default=None)


def _gap(number: int, stream: str, duration: int, needs: tuple[int, ...]) -> Node:
    return Node(number, GAP, COMPUTATION, duration, needs, stream, place={GAP: True})
