"""Programs that came from elsewhere, such as a profile or an execution trace, one per pipeline rank or per rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.compute_speed import ComputeSpeed
from hybrid_des.planning.program import GRADIENT, Collective, Confirm, Group, Program, Send, call_of
from hybrid_des.planning.program_table import table_of


@dataclass(frozen=True)
class GivenPrograms:
    """Programs that came from elsewhere; `Lowering` answers the same.

    Attributes:
        programs: one per pipeline rank; or one per rank.
        pipeline: number of pipeline ranks.
    """

    programs: Sequence[Program]
    pipeline: int

    @property
    def each(self) -> bool:
        """Whether every rank has a program of its own."""
        return len(self.programs) > self.pipeline

    @property
    def blocking(self) -> bool:
        """Whether some wait until their messages have arrived."""
        return any(call.block.every(Confirm) for program in self.programs for call in program.calls)

    @property
    def microbatches(self) -> int:
        """Number of micro-batches per replica and training step."""
        return table_of(self.programs).microbatches

    @property
    def pairs(self) -> Collection[tuple[int, int]]:
        """The pipeline ranks that send to each other."""
        calls = ((place, call) for place, program in enumerate(self.programs) for call in program.calls)
        return {(place, send.peer) for place, call in calls for send in call.block.every(Send)}

    def chunks(self, rank: int) -> Mapping[int, int]:
        """Stage → its chunk, for the stages that a pipeline rank holds."""
        calls = self.programs[rank].rows
        return {stage: op.chunk for call in calls for stage, op in zip(call.block.stages, call.ops, strict=True)}

    def nominal_durations(self, rank: int, lane: int = 0) -> Callable[[Op, int], int]:
        """The picoseconds of each op of a pipeline rank in a step at speed 1."""
        durations = {op: call.duration for call in self.programs[rank].rows for op in call.ops}
        return lambda op, step: durations[op]

    def lower(self, rank: int, pace: ComputeSpeed, lane: int = 0) -> Program:
        """The program of a pipeline rank at a pace."""
        return self.programs[rank].lasting(lambda call, duration: pace.duration(duration))

    def serve(self, group: Group, rank: int, lane: int = 0) -> Program:
        """The program of an endpoint that serves a process group, with the collectives of a member's program."""
        blocks = (call.block for call in self.programs[rank].calls)
        serves = [replace(one, row=None, cause=None) for block in blocks for one in block.every(Collective)
                  if one.group == group]  # fmt: skip
        return Program({GRADIENT: (call_of(*serves, stages=(0,)),)})
