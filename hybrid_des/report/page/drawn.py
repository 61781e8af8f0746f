"""Lanes and bars of a page: a lane per rank and per link, identical ones only once.

Pipelines whose ops, waits and memory are the same to the picosecond are drawn once, and so are links that carry the
same messages at the same times. If a page cannot hold all messages, those of the busiest links are drawn.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from hybrid_des.analysis.inside_ops import AXES, drawn_inside
from hybrid_des.analysis.reasons import Reasons
from hybrid_des.analysis.verdict import SHARE_NAMES
from hybrid_des.cluster.channel import Channel
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.purposes import OF_LAYERS, PARAMETERS, REDUCTION, Purpose
from hybrid_des.planning.program_table import NONE, OP_KINDS, Column
from hybrid_des.report.page.link_bands import bands_of
from hybrid_des.report.palette import ACTIVITIES, ink, shades
from hybrid_des.report.plots.curves import natural
from hybrid_des.simulation.timeline import Timeline
from hybrid_des.units import grouped_by

MOST_BARS = 100_000  # on a page; ops and collectives are always drawn
MOST_MEMORY = 60_000  # changes of memory
MOST_ROWS = 6  # of messages side by side on a link
COLUMNS = (
    "lane", "kind", "step", "microbatch", "second", "chunk", "stage", "asked", "start", "end", "row", "by",
    "from", "to", "bytes", "path",
)  # fmt: skip
TIMES = ("asked", "start", "end", "time")  # columns of times


@dataclass(frozen=True)
class Tables:
    """The tables that a page draws of one run.

    Attributes:
        lanes: name, group (rank or link), identical ranks or links, rows of bars, and rank of each lane; of links,
            their band, and the lanes of ranks whose collectives inside ops they carry.
        bands: kinds of links: name, and the kinds of bars of collectives inside ops that they carry.
        kinds: name, label, colours by chunk, those of text on them, and place in the lane of each kind of bar.
        chunks: number of chunks that are told apart by shades.
        bars: `COLUMNS`; times are picoseconds; `row` is within the lane, `by` a bar or −1.
        idle: `lane`, `cause`, `start`, `end`.
        memory: `lane`, `time`, `bytes`.
        left_out: what is not drawn, in words.
    """

    lanes: list[dict[str, Any]]
    bands: list[dict[str, Any]]
    kinds: list[dict[str, Any]]
    bars: dict[str, Column]
    idle: dict[str, Column]
    memory: dict[str, Column]
    left_out: list[str]
    chunks: int


def tables_of(
    timeline: Timeline,
    reasons: Reasons,
    inside: Mapping[str, Column] | None = None,
    fabric: Fabric | None = None,
    replayed: Mapping[str, Sequence[Sequence[int]]] | None = None,
    hidden: Collection[str] = (),
) -> Tables:
    """Arrange a timeline in lanes.

    Args:
        timeline: what happened.
        reasons: why.
        inside: picoseconds by axis of collectives inside each op, drawn at its end.
        fabric: tells which links carry them.
        replayed: axis → groups of ranks whose collectives take no messages.
        hidden: of these axes, those whose collectives are partly hidden by computation.
    """
    within = {axis: took for axis, took in (inside or {}).items() if axis in AXES and took.any()}
    pipelines = _pipelines(timeline, reasons, within)
    lanes = [lane for group in pipelines for lane in _rank_lanes(timeline, group)]
    lane_of = np.full(int(timeline.pipeline_rank.size) + 1, NONE, dtype=np.int64)
    lane_of[[lane["rank"] for lane in lanes]] = np.arange(len(lanes))
    chunks = int(timeline.programs.ops["chunk"].max(initial=0)) + 1
    kinds = Kinds(chunks)
    blocks = [
        _ops(timeline, lane_of),
        *_collectives(timeline, lane_of, kinds),
        *_inside(timeline, lane_of, kinds, within),
    ]
    left = MOST_BARS - sum(len(block["lane"]) for block in blocks)
    messages, links, left_out = _messages(timeline, reasons, len(lanes), kinds, left)
    blocks.append(messages)
    source = np.concatenate([block.pop("source") for block in blocks])
    bars = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    order = np.lexsort((bars["start"], bars["row"], bars["lane"]))
    bars = {name: column[order] for name, column in bars.items()}
    bars["by"], bars["path"] = _reasons(source[order], reasons)
    drawn = lane_of[reasons.idle["rank"]]
    idle = {"lane": drawn, **{name: reasons.idle[name] for name in ("cause", "start", "end")}}
    shown = np.flatnonzero(drawn >= 0)
    shown = shown[np.lexsort((idle["start"][shown], drawn[shown]))]
    replayed = replayed or {}
    numbers = {axis: kinds.of_axis(axis) for axis in within if axis in replayed}
    return Tables(
        lanes + links,
        bands_of(lanes + links, fabric, replayed, numbers, hidden),
        kinds.rows,
        {name: bars[name] for name in COLUMNS},
        {name: column[shown] for name, column in idle.items()},
        _memory(timeline, lane_of),
        left_out,
        chunks,
    )


class Kinds:
    """The kinds of bars of a page, numbered in order of appearance."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self.rows: list[dict[str, Any]] = []
        for name in OP_KINDS:
            self.number(name, ACTIVITIES[name].label, ACTIVITIES[name].colour, "op")

    def number(self, name: str, label: str, colour: str, where: str) -> int:
        """The number of a kind, which is added if it is new."""
        for number, row in enumerate(self.rows):
            if row["name"] == name and row["place"] == where:
                return number
        chunks = self._chunks if where == "op" else 1
        colours = shades(colour, chunks)
        inks = [ink(shade) for shade in colours]
        self.rows.append({"name": name, "label": label, "colours": colours, "inks": inks, "place": where})
        return len(self.rows) - 1

    def of_axis(self, axis: str) -> int:
        """The number of the kind of collectives inside ops along an axis."""
        return self.number(f"{axis} collectives", *_look(OF_LAYERS[axis]), "axis")

    def of_channel(self, channel: Channel) -> int:
        """The number of the kind of messages on a channel."""
        return self.number(channel.kind, *_look(channel.purpose), "message")


def _look(purpose: Purpose) -> tuple[str, str]:
    """The label and the colour of a purpose; those of layers are called as in the bar of the step."""
    return SHARE_NAMES[purpose.name] if purpose.name in OF_LAYERS else purpose.label, purpose.colour


def _pipelines(timeline: Timeline, reasons: Reasons, inside: Mapping[str, Column]) -> list[list[int]]:
    """Groups of pipelines that are identical in every row of their ranks, in order of their first."""
    pipeline, pipeline_rank = timeline.pipeline, timeline.pipeline_rank
    ops = {**timeline.ops, **inside, "path": _on_path(reasons)[: len(timeline.ops["rank"])]}
    digests: dict[int, list[bytes]] = {}
    tables = (ops, timeline.reductions, timeline.gathers, timeline.memory, reasons.idle)
    for table in tables:
        of_pipeline = pipeline[table["rank"]]
        facts = [pipeline_rank[table["rank"]], *(column for name, column in table.items() if name != "rank")]
        order = np.lexsort((*facts[::-1], of_pipeline))
        ends = np.searchsorted(of_pipeline[order], np.arange(pipeline.max() + 2))
        for number, (first, last) in enumerate(pairwise(ends.tolist())):
            mine = np.column_stack([column[order[first:last]] for column in facts])
            digests.setdefault(number, []).append(sha256(mine.tobytes()).digest())
    numbers = np.unique(pipeline[timeline.steps["rank"]]).tolist()
    return list(grouped_by(numbers, lambda number: tuple(digests[number])).values())


def _rank_lanes(timeline: Timeline, group: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The lanes of the first pipeline of a group, each with the ranks that it stands for."""
    of_rank = timeline.pipeline[: timeline.layout.ranks]
    experts = timeline.layout.groups("expert") if timeline.layout.expert > 1 else []
    many = len(np.unique(timeline.layout.along("data"))) > 1
    for pipeline_rank in range(timeline.programs.pipeline):
        alike = np.flatnonzero(np.isin(of_rank, group) & (timeline.layout.along("pipeline") == pipeline_rank))
        first = int(alike[of_rank[alike] == group[0]][0])
        replica = timeline.layout.coordinate(first, "data")
        yield {
            "name": f"rank {first}", "group": "rank", "alike": len(alike) * timeline.alike, "rows": 1, "rank": first,
            "also": [int(rank) for rank in alike if rank != first][:64],
            **({"note": f"replica {replica}"} if many else {}),
            **next(({"experts": group} for group in experts if first in group), {}),
        }  # fmt: skip


def _block(count: int, **columns: Column | int) -> dict[str, Column]:
    """Columns of bars; those not given are `NONE`."""
    given: dict[str, Column | int] = {**{name: NONE for name in COLUMNS if name not in ("by", "path")}, **columns}
    whole = {name: np.full(count, value) if isinstance(value, int) else value for name, value in given.items()}
    return {"source": np.full(count, NONE), **whole}


def _ops(timeline: Timeline, lane_of: Column) -> dict[str, Column]:
    kept = np.flatnonzero(lane_of[timeline.ops["rank"]] >= 0)
    rows = timeline.op_rows(kept)
    names = ("kind", "step", "microbatch", "second", "chunk", "stage", "asked", "start", "end")
    facts = {name: rows[name] for name in names}
    return _block(len(kept), lane=lane_of[rows["rank"]], row=0, source=kept, **facts)


def _collectives(timeline: Timeline, lane_of: Column, kinds: Kinds) -> Iterator[dict[str, Column]]:
    """Reductions of buckets and gathers of parameters, below the ops of their rank."""
    for table, name, purpose, part in (
        (timeline.reductions, "reduction", REDUCTION, "bucket"),
        (timeline.gathers, "gather", PARAMETERS, "layer"),
    ):
        kept = np.flatnonzero(lane_of[table["rank"]] >= 0)
        if len(kept):
            rows = {name: column[kept] for name, column in table.items()}
            kind = kinds.number(name, purpose.label, purpose.colour, part)
            yield _block(
                len(kept), lane=lane_of[rows["rank"]], row=0, kind=kind,
                step=rows["step"], stage=rows["stage"], chunk=rows[part], asked=rows["start"], start=rows["start"],
                end=rows["end"],
            )  # fmt: skip


def _inside(
    timeline: Timeline, lane_of: Column, kinds: Kinds, inside: Mapping[str, Column]
) -> Iterator[dict[str, Column]]:
    """What ops wait for collectives inside them, below their ends; one axis before the other."""
    for axis, having, start, end in drawn_inside(timeline, inside):
        shown = lane_of[timeline.ops["rank"][having]] >= 0
        rows, kind = timeline.op_rows(having[shown]), kinds.of_axis(axis)
        yield _block(
            len(rows["rank"]), lane=lane_of[rows["rank"]], row=0, kind=kind, step=rows["step"], stage=rows["stage"],
            asked=start[shown], start=start[shown], end=end[shown],
        )  # fmt: skip


def _messages(
    timeline: Timeline, reasons: Reasons, first: int, kinds: Kinds, room: int
) -> tuple[dict[str, Column], list[dict[str, Any]], list[str]]:
    """The messages of the busiest links that fit, their lanes, and a note on those left out."""
    rows = timeline.message_rows()
    if rows is None or not timeline.channels:
        sent = 0 if timeline.stream is None else len(timeline.stream)
        return _block(0), [], [f"{sent:,} messages on links, which are in timeline.parquet"] if sent else []
    rows_of = _rows_of_links(timeline, rows)
    groups = _alike_links(rows_of, rows, _on_path(reasons)[len(timeline.ops["rank"]) : -1])
    chosen: list[list[str]] = []
    for names in sorted(groups, key=lambda names: -int(rows["bytes"][rows_of[names[0]]].sum())):
        size = len(rows_of[names[0]])
        if size <= room:
            room -= size
            chosen.append(names)
    chosen.sort(key=lambda names: natural(names[0]))
    blocks, lanes = [_block(0)], []
    channel_kind = np.array([kinds.of_channel(channel) for channel in timeline.channels])
    sender, receiver = timeline.of_channel["sender"], timeline.of_channel["receiver"]
    for number, names in enumerate(chosen):
        mine = rows_of[names[0]]
        part = {name: column[mine] for name, column in rows.items()}
        row = _side_by_side(part["start"], part["end"])
        channel = part["channel"]
        blocks.append(_block(
            len(mine), lane=first + number, kind=channel_kind[channel], row=row, to=receiver[channel],
            source=mine + len(timeline.ops["rank"]), **{"from": sender[channel]},
            **{name: part[name] for name in ("step", "microbatch", "chunk", "stage", "asked", "start", "end", "bytes")},
        ))  # fmt: skip
        lanes.append({
            "name": names[0], "group": "link", "alike": len(names) * timeline.alike,
            "rows": int(row.max(initial=0)) + 1, "rank": NONE, "also": names[1:65],
        })  # fmt: skip
    hidden = [names for names in groups if names not in chosen]
    left_out = [f"{sum(map(len, hidden)):,} less busy links that do not fit on the page"] if hidden else []
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}, lanes, left_out


def _rows_of_links(timeline: Timeline, rows: Mapping[str, Column]) -> dict[str, Column]:
    """The message rows of each link, in order of start."""
    link = timeline.of_channel["link"][rows["channel"]]
    order = np.lexsort((rows["end"], rows["start"], link))
    begins = np.searchsorted(link[order], np.arange(1, len(timeline.links)))
    return dict(zip(timeline.links, np.split(order, begins), strict=True))


def _alike_links(rows_of: Mapping[str, Column], rows: Mapping[str, Column], path: Column) -> list[list[str]]:
    """Groups of links with the same messages at the same times."""
    facts = np.column_stack([*(rows[name] for name in ("step", "microbatch", "stage", "start", "end", "bytes")), path])
    return list(grouped_by(rows_of, lambda name: facts[rows_of[name]].tobytes()).values())


def _side_by_side(start: Column, end: Column) -> Column:
    """A row for each message of a link, so that those at the same time do not hide each other."""
    if not np.any(np.maximum.accumulate(end)[:-1] > start[1:]):
        return np.zeros(len(start), dtype=np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    rows, used = [], 0
    for begin, until in zip(start.tolist(), end.tolist(), strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, used = used, used + 1
        heapq.heappush(busy, (until, row))
        rows.append(min(row, MOST_ROWS - 1))
    return np.array(rows, dtype=np.int64)


def _reasons(source: Column, reasons: Reasons) -> tuple[Column, Column]:
    """For each bar the bar that released it, and whether it is on the critical path."""
    bar_of = np.full(len(reasons.released_by) + 1, NONE, dtype=np.int64)  # the last entry stands for NONE
    known = source >= 0
    bar_of[source[known]] = np.flatnonzero(known)
    released = np.append(reasons.released_by, NONE)
    return bar_of[released[source]], _on_path(reasons)[source]


def _on_path(reasons: Reasons) -> Column:
    """For each row, and last for `NONE`, whether it is on the critical path."""
    on_path = np.zeros(len(reasons.released_by) + 1, dtype=np.int64)
    on_path[reasons.path] = 1
    return on_path


def _memory(timeline: Timeline, lane_of: Column) -> dict[str, Column]:
    """Memory of the drawn ranks, one change per time; only of the first pipeline if there are too many changes."""
    rows = timeline.memory
    kept = np.flatnonzero(lane_of[rows["rank"]] >= 0)
    if len(kept) > MOST_MEMORY:
        kept = kept[lane_of[rows["rank"][kept]] < timeline.programs.pipeline]
    kept = kept[np.lexsort((rows["time"][kept], lane_of[rows["rank"][kept]]))]
    lane, time, size = lane_of[rows["rank"][kept]], rows["time"][kept], rows["bytes"][kept]
    last = np.append((np.diff(time) > 0) | (np.diff(lane) > 0), True) if len(kept) else np.zeros(0, dtype=bool)
    return {"lane": lane[last], "time": time[last], "bytes": size[last]}
