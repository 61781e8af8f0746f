"""What schedules share: time slots, building blocks, and patterns such as `F0 F1+B0 I1 W`; registers nothing."""

from collections.abc import Callable
from functools import partial

from hybrid_des.pipeline import Op, Plan, wave
from hybrid_des.pipeline.plan import KINDS, Action, Kind

# A grid of time slots.
#
# Several schedules define their order on such a grid, before real times are known. A plan keeps only the order.


# Writes a rank's program from patterns such as `F0 F1+B0 I1 W`.
#
# Papers and implementations describe two-chunk schedules as phases, each a repeated pattern. A word is a kind and a way
# (0 or 1), for the next micro-batch of that way; `W` alone is the oldest deferred weight gradient; `+` fuses two ops.


class Slots:
    """The slots of one rank, and the ops in them: `placed`, each with its first slot.

    `_next[slot]` points from a taken slot towards the next free one; path compression keeps searches near constant
    time.
    """

    def __init__(self) -> None:
        self.placed: list[tuple[int, Op]] = []
        self._next: dict[int, int] = {}

    @property
    def program(self) -> list[Op]:
        """The rank's program: its ops by slot."""
        return [op for _, op in sorted(self.placed, key=lambda pair: pair[0])]

    def put(self, slot: int, op: Op, length: int = 1) -> None:
        """Put an op into `length` slots from `slot` on."""
        self.take(slot, length)
        self.placed.append((slot, op))

    def take(self, slot: int, length: int = 1) -> None:
        """Take `length` slots from `slot` on."""
        for at in range(slot, slot + length):
            self._next[at] = at + 1

    def free(self, slot: int, length: int = 1) -> int:
        """Find the first `length` consecutive free slots from `slot` on."""
        start = self._first(slot)
        while (end := next((at for at in range(start, start + length) if at in self._next), None)) is not None:
            start = self._first(end)
        return start

    def close_before(self, slot: int, count: int) -> None:
        """Close the free ones of the `count` slots before `slot`."""
        for at in range(max(0, slot - count), slot):
            if at not in self._next:
                self.take(at)

    def _first(self, slot: int) -> int:
        end = slot
        while end in self._next:
            end = self._next[end]
        while slot != end:
            self._next[slot], slot = end, self._next[slot]
        return end


# Schedules that repeat a building block (Qi et al., arXiv 2405.15362).
#
# A building block gives the slots of one micro-batch's F of chunk 0, F of chunk 1, I of chunk 1 and I of chunk 0 on
# each rank of a V. It is repeated every six slots, the duration of its six ops; weight gradients fill the free slots.
# The lifetime of a micro-batch, from its F to its W, determines the memory.


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
        self._queues: dict[tuple[Kind, int], list[int]] = {}
        for index, (op,) in reversed(list(enumerate(program))):
            self._queues.setdefault((op.kind, op.chunk), []).append(index)

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


class Writer:
    """Writes a program, counting micro-batches; `program` holds the actions so far."""

    def __init__(self, chunks: tuple[int, int] = (0, 1), first: tuple[int, int] = (0, 0), fused: bool = True) -> None:
        """`chunks` and `first` give the chunk and first micro-batch per way; without `fused`, one op per action."""
        self.program: list[Action] = []
        self._chunks = chunks
        self._forward, self._backward = list(first), list(first)
        self._fused = fused
        self._deferred: list[Op] = []  # weight gradients, oldest first

    def write(self, pattern: str, times: int = 1) -> None:
        """Append a pattern of words, repeated `times` times."""
        for _ in range(times):
            for word in pattern.split():
                ops = tuple(self._op(name) for name in word.split("+"))
                self.program.extend([ops] if self._fused else [(op,) for op in ops])

    def forwards(self, way: int) -> int:
        """The micro-batch of this way's next forward."""
        return self._forward[way]

    def deferred(self, way: int) -> int:
        """Number of deferred weight gradients of this way."""
        return sum(op.chunk == self._chunks[way] for op in self._deferred)

    def _op(self, name: str) -> Op:
        kind: Kind = next(k for k in KINDS if k == name[0])
        if kind == "W":
            at = 0
            if len(name) > 1:
                chunk = self._chunks[int(name[1])]
                at = next(i for i, op in enumerate(self._deferred) if op.chunk == chunk)
            return self._deferred.pop(at)
        way = int(name[1])
        counter = self._forward if kind == "F" else self._backward
        op = Op(kind, counter[way], self._chunks[way])
        counter[way] += 1
        if kind == "I":
            self._deferred.append(op._replace(kind="W"))
        return op
