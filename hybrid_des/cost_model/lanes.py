"""Costs of stages where documents differ in length: by lane (a place along data and context), step and micro-batch.

Micro-batches that hold the same documents, their load, share their costs, which are worked out once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, cached_property
from itertools import product

from hybrid_des.cost_model.documents import PackedSteps
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.cost_model.rank_costs import RankCosts, StageCosts, Visit
from hybrid_des.cost_model.stages import beside_activations, loaded_stages, model_stages
from hybrid_des.pipeline.plan import Plan


class Lanes:
    """What stages cost on each lane.

    Attributes:
        packed: the documents of the lanes.
        count: number of lanes.
        steps: training steps after which documents are those of the first step again.
    """

    def __init__(self, packed: PackedSteps, ranks: RankCosts, plan: Plan) -> None:
        self.packed, self.count, self.steps = packed, packed.lanes, len(packed.steps)
        self._ranks, self._plan = ranks, plan
        self._numbers, self._of_lane = cache(self._numbers_of), cache(self._stages_of)
        self._usual, self._most = cache(self._of_usual), cache(self._most_of)
        self._collectives, self._sent = cache(self._collectives_of), cache(self._sent_in)

    @cached_property
    def _stages(self) -> Sequence[Sequence[StageCosts]]:
        """Load → the costs of its stages."""
        return loaded_stages(self._ranks, self._plan, self.packed.loads)

    def _numbers_of(self, step: int, lane: int) -> list[int]:
        return [self.packed.number(step, microbatch, lane) for microbatch in range(self._plan.microbatches)]

    def _stages_of(self, step: int, lane: int) -> list[Sequence[StageCosts]]:
        return [self._stages[number] for number in self._numbers(step, lane)]

    def __repr__(self) -> str:
        return f"Lanes({self.packed!r})"

    def numbers(self, step: int, lane: int) -> Sequence[int]:
        """For each micro-batch, a number that it shares with others if they cost the same."""
        return self._numbers(step, lane)

    def stages(self, step: int, lane: int) -> Sequence[Sequence[StageCosts]]:
        """Micro-batch → the costs of its stages."""
        return self._of_lane(step, lane)

    def together(self, step: int, lane: int, microbatch: int) -> tuple[int, int] | None:
        """The first of the lanes that share a micro-batch, and their number, if these change with the micro-batch."""
        return self.packed.load(step, microbatch, lane).lanes

    @cached_property
    def meetings(self) -> Collection[tuple[int, int]]:
        """All lanes that share micro-batches so."""
        return {load.lanes for load in self.packed.loads if load.lanes is not None}

    def cost(self, step: int, lane: int, microbatch: int, stage: int) -> StageCosts:
        """The costs of a micro-batch on a stage."""
        return self._of_lane(step, lane)[microbatch][stage]

    def visits(self) -> Iterator[Visit]:
        """The visits of every micro-batch of every lane in every step."""
        plan = self._plan
        for step in range(self.steps):
            for microbatch, path in enumerate(plan.path_of):
                for lane in range(self.count):
                    stages = self._of_lane(step, lane)[microbatch]
                    for stage, position in enumerate(plan.paths[path]):
                        yield Visit(position, stages[stage], lane, 1)

    def collectives(self, pipeline_rank: int) -> Collection[LayerCollective]:
        """The different collectives inside the ops of a pipeline rank, on any lane."""
        return self._collectives(pipeline_rank)

    def _collectives_of(self, pipeline_rank: int) -> Collection[LayerCollective]:
        stages = {stage for (rank, _), stage in self._plan.stage_of.items() if rank == pipeline_rank}
        held = (of_load[stage] for of_load in self._stages for stage in stages)
        layers = {id(layer): layer for stage in held for layer in stage.layers}.values()
        return {one for layer in layers for way in layer.collectives for one in way}

    def sent_together(self, axis: str) -> int:
        """Bytes per step of collectives along an axis between lanes that share micro-batches for a while, rounded."""
        total, steps = 0, range(self.steps)
        for step, (microbatch, path) in product(steps, enumerate(self._plan.path_of)):
            for lane in range(self.count):
                number = self._numbers(step, lane)[microbatch]
                if self.packed.loads[number].first == lane:
                    total += self._sent(number, path, axis)
        return round(Fraction(total, self.steps))

    def _sent_in(self, number: int, path: int, axis: str) -> int:
        stages = self._stages[number][: len(self._plan.paths[path])]
        layers = (layer for stage in stages for layer in stage.layers)
        every = (one for layer in layers for way in layer.collectives for one in way)
        return sum(one.repeats * one.sent for one in every if one.axis == axis)

    def transient(self, pipeline_rank: int, lane: int, usual: int) -> int:
        """The most bytes that a rank holds for a while, besides activations, in any step.

        `usual` are those where all micro-batches are the usual one; gathered weights among them do not depend on it.
        """
        return usual + self._most(pipeline_rank, lane) - self._usual(pipeline_rank)

    def _most_of(self, pipeline_rank: int, lane: int) -> int:
        every = (self._costs_of(pipeline_rank, lane, step) for step in range(self.steps))
        return max(beside_activations(self._plan, pipeline_rank, costs) for costs in every)

    def _of_usual(self, pipeline_rank: int) -> int:
        stages = model_stages(self._ranks, self._plan)
        mine = {chunk: (stages[self._plan.stage_of[pipeline_rank, chunk]],)
                for chunk in self._plan.chunks_of(pipeline_rank)}  # fmt: skip
        return beside_activations(self._plan, pipeline_rank, mine)

    def _costs_of(self, pipeline_rank: int, lane: int, step: int) -> Mapping[int, Sequence[StageCosts]]:
        """Chunk → the costs of each micro-batch, on a rank."""
        stages, microbatches = self._plan.stage_of, range(self._plan.microbatches)
        return {
            chunk: [self.cost(step, lane, microbatch, stages[pipeline_rank, chunk]) for microbatch in microbatches]
            for chunk in self._plan.chunks_of(pipeline_rank)
        }
