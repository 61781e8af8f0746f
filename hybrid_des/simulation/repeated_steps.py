"""Steps that are not simulated again, because an earlier one began in the same way.

    step 1   ranks go on in the order 8 0 9 1 … │ 251 ms │ in the order 14 6 15 7 …
    step 2   in the order 14 6 15 7 …           │ known: as step 1, with rank 14 in place of 8, 6 in place of 0, …

At a barrier all ranks meet when nothing is under way any more: no message, no event. What follows depends on what ranks
do, and on the order in which they go on, which decides ties; not on the time. So where ranks do in a step what others,
on links that are alike, did in an earlier step in the same order (`step_actions`), it takes as long, and ranks go on
from its end in the order of these. Once that holds for all steps that are left, their rows and the end are known.

What varies with time or from step to step (`slow`, `jitter`, background traffic, real numbers) is simulated; so are
ranks that stand for others, and groups that switches or servers serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from simpy.core import StopSimulation

from hybrid_des.engine.recorder import LAST_TIME, TIMES, Rows, TimeRangeError
from hybrid_des.simulation.gpu import Gpu
from hybrid_des.simulation.jobs import UNCONTENDED, Job
from hybrid_des.simulation.planning.lowering import Lowering
from hybrid_des.simulation.planning.program import COMPUTE, Program, Record, Wait
from hybrid_des.simulation.step_actions import ToldSteps, UntoldError

COUNTED = "count", "scales"  # totals of a flow
Renamed = Mapping[int, int]  # rank → the rank that does in a step what this one did in an earlier step


class Beginning(NamedTuple):
    """How a step begins when nothing is under way.

    Attributes:
        time: in picoseconds.
        order: the ranks in the order in which they go on.
        held: rank → bytes and activations in its memory.
        rows: the rows in each table.
        totals: what each flow has sent: its `count` and `scales`; and each GPU's `slowed`.
    """

    time: int
    order: Sequence[int]
    held: Mapping[int, tuple[int, int]]
    rows: Sequence[int]
    totals: Mapping[tuple[Any, str], int]


class Repeated(NamedTuple):
    """A step that repeats an earlier one, which begins and ends so, by other names."""

    begin: Beginning
    end: Beginning
    renamed: Renamed


class RepeatedSteps:
    """The steps of a run all of whose ranks are simulated."""

    def __init__(self, job: Job) -> None:
        self._job, self._env, self._gpus, self._steps = job, job.transport.env, job.gpus, job.scenario.steps
        self._tables = [table for table in vars(job.recorder).values() if isinstance(table, Rows)]
        self._places = job.scenario.parallel.layout.along("pipeline").tolist()
        self._ranks = {process: gpu.rank for gpu in job.gpus for process in gpu.processes}
        self._began: list[Beginning | None] = [None]  # the first step does not begin at a barrier
        self._same = dict[tuple[int, ...], bool]()

    @classmethod
    def of(cls, job: Job) -> RepeatedSteps | None:
        """Those of a run; None if steps may vary, or depend on more than their beginning."""
        scenario, parts = job.scenario, job.parts
        several = scenario.steps > 2 and scenario.barrier and job.recorder.messages is None
        perturbed = scenario.slow or scenario.jitter or scenario.background
        varies = perturbed or parts.training or parts.durations or parts.costs.lanes is not None or job.reads_links
        served = job.servers or parts.given or parts.meeting is not None or parts.traffic.streams
        usual = isinstance(parts.programs, Lowering) and scenario.cluster.service in ("fifo", UNCONTENDED)
        known = several and usual and not varies and not served and all(map(_waits, job.gpus))
        return cls(job) if known else None

    def carry_out(self, beat: Callable[[], None]) -> bool:
        """Process events until the last step, or until all others are known: then the clock goes on to their end."""
        for _ in range(1, self._steps):
            self._gpus[0].barrier.over.callbacks.append(_stop)  # before ranks wait for it
            released = self._env.run(beat=beat)
            if released is None:
                return False
            self._began.append(self._beginning(released))
            if (left := self._left()) is not None:
                self._go_on(left)
                return True
        return False

    def _beginning(self, released: Any) -> Beginning | None:
        """How the step begins in which ranks go on now; None if anything else is under way."""
        env = self._env
        alone = not env.agenda.times and [len(events) for events in env.apart.booked.values()] == [1]
        if not alone or self._job.transport.unread:
            return None
        order = tuple(self._ranks[wake.__self__] for wake in released.callbacks)
        held = {gpu.rank: (gpu.memory.bytes, gpu.memory.activations) for gpu in self._gpus}
        return Beginning(env.now, order, held, tuple(map(len, self._tables)), self._totals())

    def _totals(self) -> dict[tuple[Any, str], int]:
        totals = {(flow, name): getattr(flow, name) for flow in self._job.transport.flows for name in COUNTED}
        slow = [gpu.computation for gpu in self._gpus if gpu.computation]
        return totals | {(computation, "slowed"): computation.slowed for computation in slow}

    def _left(self) -> list[Repeated] | None:
        """The steps that are left; None if some have to be simulated."""
        if (now := self._began[-1]) is None:
            return None
        left, order = list[Repeated](), now.order
        for step in range(len(self._began) - 1, self._steps):
            earlier = (self._as(known, step, order, now) for known in range(1, len(self._began) - 1))
            if (repeated := next(filter(None, earlier), None)) is None:
                return None
            left.append(repeated)
            order = tuple(repeated.renamed[rank] for rank in repeated.end.order)
        return left

    def _as(self, known: int, step: int, order: Sequence[int], now: Beginning) -> Repeated | None:
        """A step in this order, if it repeats a known one."""
        begin, end = self._began[known : known + 2]
        if begin is None or end is None or not begin.held == end.held == now.held:
            return None
        renamed = dict(zip(begin.order, order, strict=True))
        if any(self._places[rank] != self._places[other] for rank, other in renamed.items()):
            return None  # those of a place in the pipeline hold the same
        these, others = ({gpu.rank: gpu.program.at(one) for gpu in self._gpus} for one in (known, step))
        key = *begin.order, *order, *(id(program.streams) for one in (these, others) for program in one.values())
        if key not in self._same:
            self._same[key] = self._alike(these, others, renamed)
        return Repeated(begin, end, renamed) if self._same[key] else None

    def _alike(self, these: Mapping[int, Program], others: Mapping[int, Program], renamed: Renamed) -> bool:
        if all(rank == other and these[rank].streams is others[rank].streams for rank, other in renamed.items()):
            return True
        try:
            return self._told.same(these, others, renamed)
        except UntoldError:
            return False

    @cached_property
    def _told(self) -> ToldSteps:
        return ToldSteps(self._job.parts, self._gpus)

    def _go_on(self, left: Sequence[Repeated]) -> None:
        """Go on to the end, with the rows of all steps that are left; they hold no more memory than earlier ones."""
        first = len(self._began) - 1
        for step, (begin, end, renamed) in enumerate(left, start=first):
            if self._env.now + end.time - begin.time > LAST_TIME:
                raise TimeRangeError
            for table, *rows in zip(self._tables, begin.rows, end.rows, strict=True):
                _repeat(table, slice(*rows), renamed, step, self._env.now - begin.time)
            for (counts, name), total in end.totals.items():  # other ranks send as much in total
                setattr(counts, name, getattr(counts, name) + total - begin.totals.get((counts, name), 0))
            self._env.now += end.time - begin.time


def _stop(event: Any) -> None:
    raise StopSimulation(event)


def _repeat(table: Rows, rows: slice, renamed: Renamed, step: int, later: int) -> None:
    """Add the rows of a step again, for another step and under other names."""
    again = np.frombuffer(table.numbers, dtype=np.int64).reshape(-1, table.width)[rows].copy()
    for column, name in zip(again.T, table.columns, strict=True):
        if name in TIMES:
            column += later
        elif name == "step":
            column[:] = step
        elif name == "rank":
            column[:] = [renamed[rank] for rank in column.tolist()]
    table.write(again.tobytes())


def _waits(gpu: Gpu) -> bool:
    """Whether all other streams of a GPU begin a step by waiting for what its computation records in it."""
    for program in gpu.program.distinct:
        counts = Counter[str]()
        for call in program.calls:
            counts.update(one.event for one in call.block.every(Record))
            counts.subtract(one.event for one in call.block.every(Wait))
        others = (calls for name, calls in program.streams.items() if name != COMPUTE)
        if any(counts.values()) or not all(calls[0].block.instructions[0].__class__ is Wait for calls in others):
            return False
    return True
