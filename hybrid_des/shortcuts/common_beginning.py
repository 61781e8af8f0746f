"""The earliest end of a run whose gradients are reduced otherwise than in a known run, from what both have in common.

    known       F0 ── F1 ── B0 ── B1 │ reduction ── optimizer │
    changed     F0 ── F1 ── B0 ── B1 │ ?                                  no earlier than by `LeastRemaining`

Until a first rank fills a bucket, or gathers parameters, neither run has sent anything for gradients: all ranks have
done the same at the same times. So what the known run's ops took is known of the changed one, contention included,
and only what follows has to be bounded. Of an algorithm that is not chosen yet nothing has to be known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np

from hybrid_des.planning.lowering import Lowering
from hybrid_des.planning.planner import Parts
from hybrid_des.planning.program import COMPUTE, EVENT, MEETING, Block, Call, ComputeSpeed, Instruction, Program, Send
from hybrid_des.planning.program_table import Column, Columns
from hybrid_des.scenario.definition import Scenario
from hybrid_des.shortcuts.least_remaining import LeastRemaining
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.timeline import Timeline

SHOWN = ("name", "description", "record", "on_oom", "fold")  # what of a scenario does not change its times
OF_OTHERS = {EVENT, MEETING}  # signals that concern other streams or groups of ranks


@dataclass(frozen=True)
class Beginning:
    """What a changed run has in common with a known one.

    Attributes:
        timeline: the rows of the known run.
        ops: of each pipeline rank, the number of its first ops that are the same.
    """

    timeline: Timeline
    ops: Sequence[int]

    @cached_property
    def _rows(self) -> Columns:
        """The op rows of the first step."""
        of_step = self.timeline.ops["step"] == 0
        return {name: column[of_step] for name, column in self.timeline.ops.items()}

    @cached_property
    def _common(self) -> Column:
        """The number of ops in common of the rank of each row."""
        return np.array(self.ops)[self.timeline.pipeline_rank[self._rows["rank"]]]

    @cached_property
    def until(self) -> int:
        """The picosecond until which all ranks have done the same."""
        last = self._rows["index"] == self._common - 1
        return int(self._rows["end"][last].min())

    def least(self, known: LeastRemaining) -> int:
        """The picoseconds that the changed run takes at least, of which the least remaining times are known."""
        number, ranks = self._rows["index"], self._rows["rank"]
        after = np.zeros((len(self.ops), max(self.ops)), dtype=np.int64)
        for pipeline_rank, program in enumerate(known.programs):
            for call in program.rows[: self.ops[pipeline_rank]]:
                after[pipeline_rank, call.number] = known.calls[call][1]
        bounded = np.fromiter(map(known.ranks.__contains__, ranks.tolist()), dtype=bool, count=len(ranks))
        bounded &= (number >= 0) & (number < self._common)
        # an op that has not ended by then does not end earlier in the changed run
        reached = np.minimum(self._rows["end"], self.until)[bounded]
        left = after[self.timeline.pipeline_rank[ranks[bounded]], number[bounded]]
        longest = int((reached + left).max(initial=0))
        return max(known.run, longest + (known.steps - 1) * known.step)


def least_of_changed(base: Run, scenario: Scenario, parts: Parts, known: LeastRemaining | None) -> int:
    """The picoseconds that a scenario takes at least that may differ from a known run in its gradients; 0: unknown."""
    changed = {name: getattr(scenario, name) for name in ("gradients", *SHOWN)}
    if known is None or base.scenario.model_copy(update=changed) != scenario:
        return 0
    beginning = in_common(base, parts)
    return 0 if beginning is None else beginning.least(known)


def in_common(base: Run, parts: Parts) -> Beginning | None:
    """The ops that programs of equal GPUs begin with in both; None if there are none on some rank.

    What collectives of layers do may depend on gradients, too: whether they are messages, and the pace of links.
    """
    if parts.fabric is not base.parts.fabric or parts.traffic.messages.keys() != base.parts.traffic.messages.keys():
        return None
    speeds = {kind.speed for kind in base.scenario.cluster.kinds}
    lowered = base.parts.programs, parts.programs
    if len(speeds) > 1 or not all(isinstance(programs, Lowering) for programs in lowered):
        return None
    pace, alike = ComputeSpeed(*speeds), dict[tuple[Block, Block], bool]()
    ops = []
    for rank in range(base.scenario.parallel.pipeline):
        pair = [programs.lower(rank, pace) for programs in lowered]
        ops.append(_equal_ops(pair[0], pair[1], alike) if all(map(_waits, pair)) else 0)
        if not ops[-1]:
            return None
    return Beginning(base.timeline, ops)


def _waits(program: Program) -> bool:
    """Whether all streams but that of computation begin by waiting for an event."""
    others = (calls for stream, calls in program.streams.items() if stream != COMPUTE)
    return all(calls[0].block.instructions[0].waits_for is EVENT for calls in others)


def _equal_ops(program: Program, other: Program, alike: dict[tuple[Block, Block], bool]) -> int:
    """The number of ops with which two programs begin, before either tells another stream anything."""

    def same(pair: tuple[Call, Call]) -> bool:
        call, changed = pair
        blocks = call.block, changed.block
        if blocks not in alike:
            alike[blocks] = _equal(*blocks)
        return alike[blocks] and (call.number, call.ops) == (changed.number, changed.ops)

    calls = takewhile(same, zip(program.streams[COMPUTE], other.streams[COMPUTE], strict=False))
    return sum(call.number >= 0 for call, _ in calls)


def _equal(block: Block, other: Block) -> bool:
    """Whether blocks do the same, all of it on their own stream."""
    if any(OF_OTHERS & {waits_for, *releases} for _, waits_for, _, releases in block.effects):
        return False
    instructions, others = (tuple(map(_without_messages, one.instructions)) for one in (block, other))
    return instructions == others


def _without_messages(instruction: Instruction) -> object:
    """An instruction that is equal where messages, which are told apart by identity, are as large."""
    if not isinstance(instruction, Send):
        return instruction
    sent = instruction.message
    return instruction.op, instruction.peer, instruction.purpose, instruction.tag, sent.size, sent.scales
