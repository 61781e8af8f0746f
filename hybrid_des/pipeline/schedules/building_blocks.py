"""Schedules that repeat a building block (Qi et al., arXiv 2405.15362)."""

from collections.abc import Callable
from functools import partial

from hybrid_des.pipeline.plan import Action, Kind, Op, Plan, wave
from hybrid_des.pipeline.schedules.time_slots import Slots
from hybrid_des.units import collected

PERIOD = 6


BLOCK: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0))


def repeat(pipeline: int, microbatches: int, block: Callable[[int], tuple[int, int, int, int]]) -> Plan:
    """Repeat a block every six slots and put each W into the first free slot, oldest first.

    `block` maps a rank to the slots of the first micro-batch's F0, F1, I1, I0.
    """
    programs = [_program(microbatches, block(rank)) for rank in range(pipeline)]
    return Plan.of(programs, [wave(pipeline, 2)], [0] * microbatches)


def _program(microbatches: int, slots: tuple[int, int, int, int]) -> list[Op]:
    row = Slots()
    for microbatch in range(microbatches):
        for slot, (kind, chunk) in zip(slots, BLOCK, strict=True):
            row.put(slot + PERIOD * microbatch, Op(kind, microbatch, chunk))
    for slot, op in sorted(pair for pair in row.placed if pair[1].kind == "I"):
        row.put(row.free(slot + 1), op._replace(kind="W"))
    return row.program


def fill_gaps(plan: Plan, limit: int) -> Plan:
    """Reorder within the same memory: idle ranks run later ops if possible, in warm-up and cool-down above all.

    Every op counts as one slot. A rank runs the next op of its program or, if that is not ready, the first later one
    that is ready and never lets the rank hold more than `limit` chunks of micro-batches. From its last forward of chunk
    0 on, a rank runs weight gradients last, since other ranks wait for all other ops. The remaining order stays
    feasible throughout, so the loop terminates. In the authors' code (zero-bubble-pipeline-parallelism, zbv_greedy.py)
    ops move to free earlier slots, and weight gradients are then placed again.
    """
    ranks = [_Rank(program, limit) for program in plan.programs]
    finished: set[tuple[int, Op]] = set()

    def ready(number: int, op: Op) -> bool:
        return all(need in finished for need in plan.needs(number, op))

    while len(finished) < sum(len(program) for program in plan.programs):
        picks = [(number, rank.pick(partial(ready, number))) for number, rank in enumerate(ranks)]
        finished.update((number, op) for number, op in picks if op is not None)
    return Plan.of([rank.ran for rank in ranks], plan.paths, plan.path_of)


class _Rank:
    """A rank's progress through its program; `ran` is its new program so far."""

    def __init__(self, program: tuple[Action, ...], limit: int) -> None:
        self.ran: list[Op] = []
        self._left: list[Op | None] = [action[0] for action in program]
        self._limit = limit
        self._head = self._held = 0
        # Ops of one kind and chunk become ready in order, so only the next of each is a candidate.
        ops = reversed([(index, op) for index, (op,) in enumerate(program)])
        self._queues = collected(((op.kind, op.chunk), index) for index, op in ops)

    def pick(self, ready: Callable[[Op], bool]) -> Op | None:
        """Choose and run the op of this slot, if any is possible."""
        while self._head < len(self._left) and self._left[self._head] is None:
            self._head += 1
        nexts = sorted(queue[-1] for queue in self._queues.values() if queue)
        ops = [(index, op) for index in nexts if (op := self._left[index]) is not None]
        if not any(op.kind == "F" and op.chunk == 0 for _, op in ops):
            ops.sort(key=lambda pair: pair[1].kind == "W")  # W last, else in program order
        for index, op in ops:
            if ready(op) and self._fits(index, op):
                self._left[index] = None
                self._queues[op.kind, op.chunk].pop()
                self._held += (op.kind == "F") - (op.kind == "W")
                self.ran.append(op)
                return op
        return None

    def _fits(self, index: int, op: Op) -> bool:
        """Whether an op may be moved ahead; ops passed by a forward run with one more chunk in memory."""
        if op.kind != "F":
            return True
        held = most = self._held
        for between in self._left[self._head : index]:
            if between is not None:
                held += (between.kind == "F") - (between.kind == "W")
                most = max(most, held)
        return most < self._limit
