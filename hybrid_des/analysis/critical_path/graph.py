"""The graph of causes: points in time, ordered so that causes precede effects, and the edges that release them.

    op        point ── duration ──► point
    message   point ──► head ──► service ── latency ──► head at the next link ──► … ──► delivered
    link      service of the message before ── its service time ──► service
    barrier   every rank's point ──► met

Every time is the maximum over its edges of (time of the cause + lag). Under `fifo` a head that finds the link free is
forwarded by the formula of `cluster.sharing.fifo`; under `fair`, a message is one edge with the duration that sharing
gave it, of which `queue` is the time lost to other messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hybrid_des.analysis.critical_path.edges import BLOCK, Edges, Some, Sparse, edges_of_run, points_of_rows
from hybrid_des.analysis.critical_path.images import Images
from hybrid_des.analysis.critical_path.messages import DATA, Messages, Places, messages_of
from hybrid_des.engine.causes import MET, OPS, START, Causes
from hybrid_des.folding.symmetry import Fold
from hybrid_des.planning.program_table import NONE, Column, Columns
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import Timeline

Mask = NDArray[np.bool_]

LIMIT = 2**31


@dataclass(frozen=True, eq=False)
class Graph:
    """The causes of a run.

    Activities number the op rows, then the messages.

    Attributes:
        timeline, messages: the rows that activities number.
        places: where the points of processes and messages are.
        time: recorded time of each point.
        edges: what releases points.
        at_op: points at the start and the end of each op row.
        at_mark: table → row → point, for all tables that a trace marks.
        images: what the points and activities stand for, if the run was folded.
        meets: per point of a meeting, the place of its group in `keeping`; −1 for other points.
        keeping: per group and element of the fold, the element that stands for all with the same meeting.
    """

    timeline: Timeline
    messages: Messages
    places: Places
    time: Column
    edges: Edges
    at_op: tuple[Column, Column]
    at_mark: Sequence[Column]
    images: Images
    meets: Column
    keeping: Sequence[Column]

    @property
    def activities(self) -> int:
        """Number of activities that were simulated: an image's number has this times that of its element added."""
        return len(self.timeline.ops["step"]) + len(self.messages.flow)

    @property
    def head(self) -> Column:
        """The point at which each message is sent."""
        return self.places.asked[:, 0]

    @property
    def duration(self) -> int:
        """The end of the last step, in picoseconds."""
        return int(self.time[-1])

    @property
    def end(self) -> int:
        """The point at which the last rank has finished."""
        return len(self.time) - 1

    def rank(self, points: Column) -> Column:
        """The ranks of points' processes, or senders of their messages; −1 for others."""
        owner = self.edges.owner[points]
        rank, sent = -2 - owner, np.flatnonzero(owner >= 0)
        rank[sent] = self.messages.sender[owner[sent]]
        return rank

    def slack(self, some: Some) -> Column:
        """How long the causes of edges are ready before what the edges lead to."""
        edges = self.edges
        slack: Column = self.time[edges.point[some]] - self.time[edges.cause[some]]
        slack -= edges.lag(some)
        return slack

    @cached_property
    def binding(self) -> Mask:
        """Whether an edge releases its point: its cause is the last to be ready."""
        releases: Mask = np.empty(len(self.edges), dtype=np.bool_)
        for some in self.edges.blocks:
            releases[some] = self.slack(some) == 0
        return releases

    @cached_property
    def released(self) -> Column:
        """The binding edge that is shown for each point; −1 for points that nothing releases.

        Ties go to data, program, link, barrier in this order, then to the lower rank, then to the earlier cause; but of
        processes that a rank awaits together to the first in its program, as they may end in another order if folded.
        """
        chosen: Column = np.full(len(self.time), NONE, dtype="int32")
        last, count = 0, len(self.edges)
        while last < count:  # no point is in two blocks
            first, last = last, min(last + BLOCK, count)
            last += int(np.searchsorted(self.edges.point[last:], self.edges.point[last - 1], side="right"))
            self._first_of(first + np.flatnonzero(self.binding[first:last]), 0, chosen)
        return chosen

    @cached_property
    def told_apart(self) -> Column:
        """The binding edges of points for which ties are decided differently in some images."""
        if self.images.order == 1:
            return np.empty(0, dtype=np.int64)
        edges, of = np.flatnonzero(self.binding), self.edges
        edges = edges[_of_several(of.point[edges])]
        order = edges[np.lexsort((of.turn[edges], of.kind(edges), of.point[edges]))]
        shown = self.released[of.point[order]]
        tied = (of.kind(order) == of.kind(shown)) & (of.turn[order] != of.turn[shown])
        return order[np.isin(of.point[order], of.point[order[tied]])]

    def released_in(self, image: int) -> dict[int, int]:
        """What `released` is in an image of the run, at points where that may differ: ranks are in another order."""
        chosen: Column = np.full(len(self.time), NONE)
        self._first_of(self.told_apart, image, chosen)
        points = np.flatnonzero(chosen != NONE)
        return dict(zip(points.tolist(), chosen[points].tolist(), strict=True))

    def released_at(self, point: Column, image: Column) -> tuple[Column, Column]:
        """The edges that release images of points, −1 for none, and the images in which their causes are."""
        if self.images.order == 1:
            return self.released[point], image
        edge, image = self.released[point], image.copy()
        for group in np.unique(self.meets[point]).tolist():
            if group != NONE:
                here = self.meets[point] == group
                image[here] = self.keeping[group][image[here]]
        for row in np.flatnonzero(np.isin(point, self.edges.point[self.told_apart])).tolist():
            edge[row] = self.released_in(int(image[row]))[int(point[row])]
        return edge, self.images.combined(image, np.where(edge == NONE, 0, self.edges.turn[edge]))

    def _first_of(self, edges: Column, image: int, chosen: Column) -> None:
        """Write, of edges that are ordered by their points, the one that is shown for each point."""
        of, point = self.edges, self.edges.point[edges]
        chosen[point] = edges
        edges = edges[_of_several(point)]
        cause = of.cause[edges]
        rank = self.images.moved(self.rank(cause), self.images.combined(of.turn[edges], np.asarray(image)))
        first = np.where(of.sort[edges] == DATA, edges, cause)  # of a process, in the order of its program
        order = edges[np.lexsort((first, rank, of.kind(edges), of.point[edges]))][::-1]
        chosen[of.point[order]] = order  # the last that is written is the first in order

    def recomputed(self, lag: Column | None = None) -> Column:
        """The time of each point from its causes alone, with the recorded or other lags."""
        edges = self.edges
        lags = (edges.lag() if lag is None else lag).tolist()
        times = [-LIMIT] * len(self.time)
        starts = np.bincount(edges.point, minlength=len(self.time)) == 0
        for root in np.flatnonzero(starts).tolist():
            times[root] = 0
        for cause, point, more in zip(edges.cause.tolist(), edges.point.tolist(), lags, strict=True):
            if (time := times[cause] + more) > times[point]:
                times[point] = time
        return np.array(times, dtype=np.int64)


def graph_of(run: Run, beside: Column | None = None) -> Graph:
    """Join the points of a traced run with its messages.

    Args:
        run: the run.
        beside: for a run beside other jobs, the picoseconds for which their messages are on the links of each message
            row; what the run's own messages do not explain is theirs.

    Raises:
        ValueError: the run has no trace, or no rows of messages.
    """
    if run.trace is None or run.timeline.messages is None:
        raise ValueError("the run was not traced, or recorded no messages")
    timeline, tables = run.timeline, run.trace.columns()
    points, images = tables["points"], Images(run.fold or Fold(timeline.layout, ()), run.fabric)
    messages = messages_of(run, tables["sends"], images)
    messages = messages if beside is None else messages.beside(beside)
    run.trace.let_go()
    places = messages.places(points["row"])
    position, each = places.process, (np.arange(len(messages.flow), dtype="int32"),) * 3
    times = places.column(points["time"], *messages.times, timeline.duration)
    owner = places.column((-2 - _ranks(timeline, tables)).astype(np.int32), *each, NONE)
    run.trace.let_go()
    edges = edges_of_run(tables, messages, places, images, owner)
    marks = tables["marks"]
    meets, keeping = _meetings(run.trace, points, places, images)
    graph = Graph(
        timeline,
        messages,
        places,
        times,
        _known(run, edges, times, places.delivered, beside is not None),
        at_op=_at_op(tables, position, points["before"]),
        at_mark=[points_of_rows(marks, table, position) for table in range(5)],
        images=images,
        meets=meets,
        keeping=keeping,
    )
    run.trace.let_go()
    return graph


def _of_several(point: Column) -> Mask:
    """Which entries of a column in order are there more than once."""
    several = np.zeros(len(point), dtype=np.bool_)
    same = point[1:] == point[:-1]
    several[1:] |= same
    several[:-1] |= same
    return several


def _meetings(trace: Causes, points: Columns, places: Places, images: Images) -> tuple[Column, list[Column]]:
    """`meets` and `keeping` of a graph; all ranks meet at its end, and those that a switch serves at all of its points.

    A switch waits for its members in their order, so that of those that come last together the highest is shown.
    """
    every, meetings = range(images.fold.layout.ranks), trace.meetings.table()
    switches = {group for _, group in trace.serving}
    keeping = [images.keeping(every)]
    keeping += [images.keeping(ranks, last=group in switches) for group, ranks in enumerate(trace.groups)]
    meets: Column = np.full(places.end + 1, NONE, dtype=np.min_scalar_type(-len(keeping)))
    meets[places.process[meetings["point"]]] = 1 + meetings["group"]
    serving = serving_of(trace, points)
    served = np.flatnonzero(serving != NONE)
    meets[places.process[served]] = 1 + serving[served]
    meets[places.end] = 0
    return meets, keeping


def _known(run: Run, edges: Edges, times: Column, delivered: Column, beside: bool) -> Edges:
    """The edges with delays that the formulas leave out: varying links, overtaking, messages of other jobs."""
    scenario = run.scenario
    varies = scenario.slow or scenario.background or scenario.cluster.service == "priority"
    if run.timeline.fair if beside else not varies:
        return edges
    return _as_recorded(edges, times, delivered, "others" if beside or scenario.background else "transfer")


def _as_recorded(edges: Edges, time: Column, delivered: Column, part: str) -> Edges:
    """Edges on links that vary over time, or that others use: the extra time is added to a part of a point's edges.

    Flaps and temporary changes of latency or bandwidth are not part of the formulas; the rows show their effect, as
    they show that of a head which a slower link before held back under `priority`.
    """
    latest = np.full(len(time), np.iinfo(np.int64).min)
    for some in edges.blocks:
        np.maximum.at(latest, edges.point[some], time[edges.cause[some]] + edges.lag(some))
    late = np.zeros(len(time), dtype=bool)
    late[delivered] = True  # a message may arrive later than its route's latency says
    longer, values = [], []
    for some in edges.blocks:
        more = (time - latest)[edges.point[some]]
        mine = np.flatnonzero(((edges.message(some) >= 0) | late[edges.cause[some]]) & (more != 0))
        longer.append(some.start + mine)
        values.append(more[mine])
    nothing = np.empty(0, dtype=np.int64)
    more = Sparse(np.concatenate([nothing, *longer]), np.concatenate([nothing, *values]))
    return replace(edges, more=more, part=part)


def lags_with(graph: Graph, edges: Column, messages: Messages, duration: Column) -> Column:
    """The lags of some edges with changed messages and changed durations of op rows.

    The pieces of an op keep their shares of its duration; those of an op that took no time still take none.

    Args:
        graph: the graph of a run.
        edges: the edges.
        messages: its messages, with other times.
        duration: of each op row.
    """
    ops, of_run = len(duration), graph.edges
    took, rows = of_run.lag(of_run.rows.edges), of_run.rows.value
    whole = np.bincount(rows, weights=took, minlength=ops).astype(np.int64)
    lags = of_run.lag(edges)
    lags[of_run.kind(edges) == DATA] = 0  # nothing passes from a message to its receiver
    mine = np.flatnonzero(of_run.message(edges) >= 0)
    lags[mine] = replace(of_run, messages=messages).formula(edges[mine])
    piece, index = of_run.rows.among(edges, len(of_run))
    of = rows[index]
    shares = np.rint(lags[piece] * (duration[of] / np.maximum(whole[of], 1))).astype(np.int64)
    lags[piece] = np.where(duration[of] == whole[of], lags[piece], shares)
    return lags


def _ranks(timeline: Timeline, tables: dict[str, dict[str, Column]]) -> Column:
    """The rank of each point of a process: that of the rows written by its thread or by the one that started it."""
    points, marks = tables["points"], tables["marks"]
    of_thread = np.full(int(points["thread"].max(initial=-1)) + 1, NONE)
    for table, rows in enumerate((timeline.ops, timeline.steps, timeline.reductions, timeline.gathers, timeline.waits)):
        chosen = marks["table"] == table
        of_thread[marks["thread"][chosen]] = rows["rank"][marks["row"][chosen]]
    return np.where(points["kind"] == MET, NONE, _inherited(points, of_thread)[points["thread"]])


def _inherited(points: Columns, of_thread: Column) -> Column:
    """What is known of each thread, or else of the one that started it."""
    starts = np.flatnonzero(points["kind"] == START)
    for start in starts[of_thread[points["thread"][starts]] == NONE].tolist():
        parent = points["before"][start]
        if parent != NONE:
            of_thread[points["thread"][start]] = of_thread[points["thread"][parent]]
    return of_thread


def serving_of(trace: Causes, points: Columns) -> Column:
    """For each point of a process, the group that a switch serves there; −1 for points of ranks."""
    of_thread = np.full(int(points["thread"].max(initial=-1)) + 1, NONE)
    roots = points["thread"][(points["kind"] == START) & (points["before"] == NONE)]
    for first, group in trace.serving:
        of_thread[roots[roots >= first]] = group
    served: Column = _inherited(points, of_thread)[points["thread"]]
    return served


def _at_op(tables: dict[str, dict[str, Column]], position: Column, before: Column) -> tuple[Column, Column]:
    """The points at which ops start and end; an op of zero duration has one point for both."""
    marks, pieces = tables["marks"], tables["pieces"]
    end = marks["point"][marks["table"] == OPS]
    start = end.copy()
    rows, firsts = np.unique(pieces["row"], return_index=True)
    start[rows] = before[pieces["point"][firsts]]
    return position[start], position[end]
