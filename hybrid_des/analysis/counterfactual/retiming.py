"""The ends of runs whose ops take other times, found from the causes of a run instead of simulated.

Points are computed from their causes with the durations of the changed programs (`critical_path.retimed`). That is what
a simulation gives if the run does the same things in the same order, for which three things are checked:

    links          messages reach them in the same order, ties included (`critical_path.same_order`)
    computation    collectives by messages, which slow it, are under way only while nothing is computed
    folds          ranks whose ops are changed differently are not folded on each other

What else is decided by the clock is left to simulations: sharing other than `fifo`, speeds and links that vary, other
jobs, layers that are gathered while they compute, programs that came from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from hybrid_des.analysis.counterfactual.retimed_tasks import OfRetimed
from hybrid_des.analysis.counterfactual.what_if import Variant
from hybrid_des.analysis.critical_path.edges import points_of_rows
from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.retimed import Nodes, Waits
from hybrid_des.analysis.critical_path.same_order import SameOrder
from hybrid_des.analysis.critical_path.traced import Traced
from hybrid_des.analysis.tasks import AtOnce, Here, Task, grouped
from hybrid_des.engine.causes import GATHERS, REDUCTIONS
from hybrid_des.simulation.computation_alone import ComputationAlone
from hybrid_des.simulation.planning.lowering import Lowering
from hybrid_des.simulation.planning.program import COMPUTE, Block, End, Program, Record, Start
from hybrid_des.simulation.run import Run
from hybrid_des.simulation.speeds import Programs
from hybrid_des.simulation.timeline import Column

ATTEMPTS = 4  # at the order of messages
LATEST = 2**60  # picoseconds; later times are left to a simulation, which says so
LONGEST = 2**48  # picoseconds of computation of a rank: sums over all ranks are no later
MOST = 2**23  # nodes × changes at once: 64 MiB
MOST_POINTS = 6_000_000  # of a graph


def is_retimed(base: Run, variant: Variant) -> bool:
    """Whether a variant differs from a run in the durations of ops alone."""
    same = variant.scenario is base.scenario and variant.plan is base.plan and variant.fabric is base.fabric
    return same and variant.retime is not None and variant.parts is base.parts


def may_be_found(base: Run) -> bool:
    """Whether nothing but the order of messages and what slows computation depends on the clock."""
    scenario, parts = base.scenario, base.parts
    varies = scenario.slow or scenario.jitter or scenario.background or parts.durations or scenario.numerics
    if scenario.cluster.service != "fifo" or varies or scenario.gradients.every > 1 or base.timeline.messages is None:
        return False
    if not isinstance(parts.programs, Lowering) or parts.programs.blocking or parts.meeting is not None:
        return False
    streams, messages = set(parts.traffic.streams), set(parts.traffic.messages)
    blocks = _blocks(Variant.of(base), base)
    late = any(record.after is not None for block in blocks for record in block.every(Record))
    started = (start for block in blocks for start in block.every(Start) if start.group[0] not in streams)
    slowed = parts.slowdown is not None and any(start.call.lost for start in started)
    return not (streams & messages or late or slowed)


def _programs(variant: Variant, base: Run) -> list[Program]:
    """The programs of simulated ranks."""
    scenario, source = variant.scenario, Programs(variant.scenario, variant.parts, variant.retime)
    layout, nodes = scenario.parallel.layout, scenario.cluster.nodes_of(base.ranks)
    pairs = zip(base.ranks, nodes, strict=True)
    return [source.of(rank, layout.coordinate(rank, "pipeline"), node.speed)[0] for rank, node in pairs]


def _blocks(variant: Variant, base: Run) -> list[Block]:
    programs = {id(one): one for program in _programs(variant, base) for one in program.distinct}
    calls = (call for program in programs.values() for call in program.streams.get(COMPUTE, ()))
    return list({id(call.block): call.block for call in calls}.values())


@dataclass(eq=False)
class Retiming:
    """A run whose ops may take other times.

    Attributes:
        traced: the run.
    """

    traced: Traced
    _alone: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = field(default_factory=dict)

    def grouped(self, groups: Sequence[Sequence[Task]], at_once: AtOnce) -> list[list[Any]]:
        """Run the tasks of several groups together; the results of each group.

        This process finds the ends of those with other durations, while others run the rest; then those are simulated
        that it could not find.
        """
        tasks, known = [task for group in groups for task in group], dict[int, Any]()
        retimed = {number: task for number, task in enumerate(tasks) if isinstance(task, OfRetimed)}
        if not retimed or not self.known:
            return grouped(groups, at_once)

        def find() -> None:
            known.update(zip(retimed, self._made(list(retimed.values())), strict=True))

        others = [number for number in range(len(tasks)) if number not in retimed]
        results = dict(zip(others, at_once([*(tasks[number] for number in others), Here(find)]), strict=False))
        left = [number for number in retimed if known[number] is None]
        results |= known | dict(zip(left, at_once([tasks[number] for number in left]), strict=True))
        ordered = (results[number] for number in range(len(tasks)))
        return [[next(ordered) for _ in group] for group in groups]

    def _made(self, tasks: Sequence[OfRetimed]) -> Iterator[Any]:
        """What tasks make of the ends of their variants; None for those that have to be simulated."""
        variants = [task.variants() for task in tasks]
        ends = iter(self.ends([variant for of_task in variants for variant in of_task]))
        for task, of_task in zip(tasks, variants, strict=True):
            mine = [next(ends) for _ in of_task]
            yield None if None in mine else task.made(*mine)

    def ends(self, variants: Sequence[Variant]) -> list[int | None]:
        """The end of each variant in picoseconds; None for those that have to be simulated."""
        ends: list[int | None] = [None] * len(variants)
        if not self.known:
            return ends
        durations = [self.durations(variant) for variant in variants]
        known = [number for number, column in enumerate(durations) if column is not None]
        at_once = max(1, MOST // self.nodes.levels[-1])
        for low in range(0, len(known), at_once):
            some = known[low : low + at_once]
            columns = [column for column in (durations[number] for number in some) if column is not None]
            for number, end in self._ends_with(np.stack(columns, axis=1)).items():
                ends[some[number]] = end
        return ends

    @property
    def _run(self) -> Run:
        return self.traced.run

    @property
    def _graph(self) -> Graph:
        return self.traced.slack.graph

    @cached_property
    def known(self) -> bool:
        """Whether programs explain how long ops took, and the clock decides nothing but the order of messages."""
        run = self._run
        if run.trace is None or not may_be_found(run):
            return False
        tables = run.trace.columns()
        if len(tables["points"]["kind"]) > MOST_POINTS:
            return False
        pieces = tables["pieces"]
        took = tables["points"]["lag"][pieces["point"][np.argsort(pieces["row"], kind="stable")]]
        own = self._by_row(Variant.of(run), np.sort(pieces["row"]))
        return own is not None and bool((own == took).all())

    @cached_property
    def nodes(self) -> Nodes:
        """The points of its graph of causes, joined."""
        return Nodes.of(self._graph, self._order.alone)

    @cached_property
    def _order(self) -> SameOrder:
        assert self._run.trace is not None
        return SameOrder(self._graph, self._run.trace)

    @cached_property
    def _own(self) -> list[Program]:
        """The programs of simulated ranks as they are."""
        return _programs(Variant.of(self._run), self._run)

    def durations(self, variant: Variant) -> Column | None:
        """How long pieces of ops take under a variant, in the order of `Graph.pieces`; None if that is not known."""
        fold, retime = self._run.fold, variant.retime
        if not is_retimed(self._run, variant) or retime is None:
            return None
        if fold is not None:
            keys = list(map(retime.alike, range(fold.layout.ranks)))
            if any(key != keys[rank] for key, rank in zip(keys, fold.representatives.tolist(), strict=True)):
                return None
        row = self._graph.edges.rows.value
        order = np.argsort(row, kind="stable")
        took = self._by_row(variant, row[order])
        if took is None:
            return None
        durations = np.empty_like(took)
        durations[order] = took
        return durations

    def _by_row(self, variant: Variant, row: Column) -> Column | None:
        """How long pieces take, given the row of ops of each, in order; None if there are others than in the run."""
        rank = self._run.timeline.ops["rank"][row]
        order = np.argsort(rank, kind="stable")
        bounds = np.searchsorted(rank[order], self._run.ranks).tolist()
        known: dict[tuple[int, int], Column | None] = {}
        durations: Column = np.zeros(len(row), dtype=np.int64)
        programs = zip(self._own, _programs(variant, self._run), strict=True)
        for (own, changed), low, high in zip(programs, bounds, [*bounds[1:], len(row)], strict=True):
            key = id(own), id(changed)
            if key not in known:
                known[key] = self._of_program(own, changed)
            took = known[key]
            if took is None or len(took) != high - low:
                return None
            durations[order[low:high]] = took
        return durations

    def _of_program(self, own: Program, changed: Program) -> Column | None:
        """How long the pieces of a program take in all steps; None if there are others than in its own form."""
        pieces: list[int] = []
        pending: list[int] = []
        known: dict[tuple[int, int], tuple[int, ...] | None] = {}
        for step in range(self._run.scenario.steps):
            streams = (program.at(step).streams[COMPUTE] for program in (own, changed))
            for mine, its in zip(*streams, strict=True):
                key = id(mine.block), id(its.block)
                if key not in known:
                    before, after = self._pieces_of(mine.block, mine.block), self._pieces_of(mine.block, its.block)
                    known[key] = after if len(before) == len(after) else None
                if (took := known[key]) is None:
                    return None
                pending += took
                if mine.block.every(End):
                    pieces += pending
                    pending.clear()
        return np.array(pieces, dtype=np.int64) if sum(pieces) < LONGEST else None

    def _pieces_of(self, own: Block, block: Block) -> tuple[int, ...]:
        """How long a block computes from one wait to the next, if nothing slows it that began before."""
        key = id(own), block.durations
        if key not in self._alone:
            self._alone[key] = self._computation.pieces(block)
        return self._alone[key]

    @cached_property
    def _computation(self) -> ComputationAlone:
        return ComputationAlone(self._run.scenario, self._run.parts)

    def _ends_with(self, durations: Column) -> dict[int, int]:
        """The ends of changes that can be found, by their number, with these durations of pieces: piece × change.

        Where messages reach a link in another order than they did, times are computed once more with what that makes of
        them, until nothing changes.
        """
        ends: dict[int, int] = {}
        moved = [len(self._graph.time)] * durations.shape[1]
        left, waits = list(range(durations.shape[1])), Waits(*(np.empty(0, dtype=np.int64),) * 3)
        for _ in range(ATTEMPTS):
            times = self.nodes.times(durations[:, left], waits)
            further: list[tuple[int, Column, Column]] = []
            for column, change in enumerate(left):
                changed = self._order.changed(partial(self._at, times), column)
                if changed is None:
                    continue
                if len(changed[0]):
                    if len(changed[0]) <= moved[change]:  # else ever more of them will change places
                        further.append((change, *changed))
                    moved[change] = len(changed[0])
                    continue
                end = int((times[:, column] + self._last).max())
                if end < LATEST and self._unslowed(times, column):
                    ends[change] = end
            if not further:
                break
            left, waits = [change for change, *_ in further], self._waits(further)
        return ends

    def _at(self, times: Column, points: Column, change: Column) -> Column:
        there: Column = times[self.nodes.node[points], change]
        there += self.nodes.distance[points]
        return there

    def _waits(self, further: Sequence[tuple[int, Column, Column]]) -> Waits:
        """What replaces edges: of each change its number, points, and how long these wait."""
        edge = np.concatenate([self.nodes.behind[points] for _, points, _ in further])
        change = np.repeat(np.arange(len(further)), [len(points) for _, points, _ in further])
        wait = np.concatenate([wait for *_, wait in further])
        order = np.argsort(edge, kind="stable")
        return Waits(edge[order], change[order], wait[order])

    @cached_property
    def _last(self) -> Column:
        """By node, how long after it its last point is."""
        last = np.zeros(self.nodes.levels[-1], dtype=np.int64)
        np.maximum.at(last, self.nodes.node, self.nodes.distance)
        return last

    @cached_property
    def _beside(self) -> list[tuple[Column, Column, Column, Column]]:
        """By simulated rank, the points at which ops begin and end, and reductions and gathers of parameters."""
        run, graph = self._run, self._graph
        assert run.trace is not None
        tables, rows = run.trace.columns(), run.timeline
        points, process = tables["points"], graph.places.process
        every = np.arange(len(process))
        ends = np.concatenate([points_of_rows(tables["marks"], table, every) for table in (REDUCTIONS, GATHERS)])
        ranks = np.concatenate([rows.reductions["rank"], rows.gathers["rank"]])
        begins = points["before"][ends]
        beside = []
        for rank in run.ranks:
            ops, mine = np.flatnonzero(rows.ops["rank"] == rank), np.flatnonzero(ranks == rank)
            beside.append((graph.at_op[0][ops], graph.at_op[1][ops], process[begins[mine]], process[ends[mine]]))
        return beside

    def _unslowed(self, times: Column, change: int) -> bool:
        """Whether nothing is computed while gradients are reduced or parameters gathered, if that slows it."""
        if self._run.parts.slowdown is None:
            return True
        nodes = self.nodes
        for of_rank in self._beside:
            begin, end, since, until = (times[nodes.node[of], change] + nodes.distance[of] for of in of_rank)
            following = np.searchsorted(end, since, side="right")  # the first op that is not over by then
            there = following < len(begin)
            if (begin[following[there]] < until[there]).any():
                return False
        return True
