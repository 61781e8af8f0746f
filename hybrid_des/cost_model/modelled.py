"""Costs of a model: each distinct layer once, as the planner cuts them into stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.collective_times import CollectiveTimes
from hybrid_des.cost_model.costing import Costing
from hybrid_des.cost_model.documents import Load
from hybrid_des.cost_model.expert_loads import expert_layers
from hybrid_des.cost_model.rank_costs import RankCosts, StageCosts, each_of, split, sum_of
from hybrid_des.errors import Refusal
from hybrid_des.scenario.sections.efficiency import Efficiency
from hybrid_des.units import to_picoseconds
from hybrid_des.workload.models.amounts import Parameters
from hybrid_des.workload.models.layer import Layer
from hybrid_des.workload.models.stages import begins_prediction, check_sources, cut

# operators per document, where those of the ranks with the same place in their replicas are looked up twice in a tensor
# on the GPU, to plan what is sent (NVIDIA/Megatron-LM, reroute_samples_to_dcp_ranks in megatron/core/datasets/
# data_schedule_utils.py); `in` compares, asks whether any is equal, and reads the answer (PyTorch, torch/_tensor.py)
ROUTING = 2 * 3


def model_costs(basis: CostBasis, times: CollectiveTimes | None) -> RankCosts:
    """Costs of a model, per layer and per pipeline rank; without times, collectives take none.

    Raises:
        Refusal: the model cannot be divided over these numbers of ranks or stages.
    """
    costing, ranks = Costing(basis, times), basis.parallel.pipeline
    model = _Stages(basis, times, costing)
    stages = cache(model.of)
    # with chunks, the plan will say which stages a rank holds; no such schedule plans with times
    whole = [sum_of(model.layers)] * ranks if basis.chunked else stages(ranks, ranks == 1)
    nothing = (0,) * ranks
    routing = _routing(basis, costing.efficiency)
    least = min(routing, default=0)
    return RankCosts(
        forward=tuple(one.forward for one in whole),
        backward=tuple(split(one).backward for one in whole),  # for plans that split it
        weight=tuple(one.weight for one in whole),
        optimizer=(to_picoseconds(costing.efficiency.step_overhead) + least,) * ranks,
        message=tuple(one.message for one in whole),
        parameters=nothing,
        per_parameter=(Fraction(0),) * ranks,
        kept=nothing,
        weight_share=tuple(one.weight_share for one in whole),
        gathered=costing.gathered,
        whole=not basis.layered or basis.shards.kept(basis.parallel),
        scattered=costing.scattered,
        stages=stages,
        loaded=model.loaded_each,
        packed=basis.packed,
        routing=tuple(time - least for time in routing) if max(routing, default=0) > least else (),
        orthogonalised=costing.orthogonalised(),
    )


def _routing(basis: CostBasis, efficiency: Efficiency) -> list[int]:
    """Step → picoseconds in which the host finds out which documents a rank sends; all ranks wait for the slowest."""
    each = ROUTING * to_picoseconds(efficiency.routing)
    return [each * documents for documents in basis.packed.routed] if basis.packed and each else []


class _Stages:
    """The stages of a model; equal ones are one object.

    Attributes:
        each: the costs of every distinct layer.
        layers: the costs of each layer, if the first and the last are on different ranks.
    """

    def __init__(
        self, basis: CostBasis, times: CollectiveTimes | None, costing: Costing, usual: _Stages | None = None
    ) -> None:
        """Cost every distinct layer once; `usual` are the stages with other documents, made of the same layers."""
        self._costing, self._times, self._usual = costing, times, usual
        self._distinct: _Distinct = usual._distinct if usual else _Distinct(basis, costing)
        self.each: Sequence[StageCosts] = self._distinct.costs(costing, usual.each if usual else None)
        self.layers = [self.each[number] for number in self._distinct.apart]
        self._kept = self.each  # costs of layers that are not recomputed, where some are
        if basis.recompute_layers is not None:
            self._kept = self._distinct.costs(Costing(keeping(basis), times), None)
        self._known: dict[Sequence[tuple[int, bool]], StageCosts] = {}
        self._held: Callable[[int, bool], Sequence[tuple[tuple[int, bool], ...]]]
        self._held = usual._held if usual else cache(self._held_by)

    def of(self, count: int, ends_meet: bool) -> list[StageCosts]:
        """So many stages; `ends_meet`: whether the first and the last are on the same ranks."""
        stages, usual = list[StageCosts](), self._usual and self._usual.of(count, ends_meet)
        for held in self._held(count, ends_meet):
            if held not in self._known:
                costs = [(self._kept if whole else self.each)[number] for number, whole in held]
                self._known[held] = sum_of(costs, usual[len(stages)] if usual else None)
            stages.append(self._known[held])
        return stages

    def _loaded(self, load: Load) -> _Stages:
        """The same for micro-batches that hold other documents."""
        costing = self._costing.loaded(load)
        return _Stages(costing.basis, self._times, costing, self)

    def loaded_each(self, loads: Sequence[Load], count: int, ends_meet: bool) -> list[Sequence[StageCosts]]:
        """For each of these loads, so many stages: at once for those that no collective depends on."""
        at_once = [number for number, load in enumerate(loads) if self._costing.stacks(load)]
        stages = dict[int, Sequence[StageCosts]]()
        if at_once:
            stacked = self._loaded(Load.stacked([loads[number] for number in at_once])).of(count, ends_meet)
            known = {key: each_of(stage) for key, stage in {id(stage): stage for stage in stacked}.items()}
            of_loads = zip(*(known[id(stage)] for stage in stacked), strict=True)
            stages = dict(zip(at_once, of_loads, strict=True))
        return [stages.get(number) or self._loaded(load).of(count, ends_meet) for number, load in enumerate(loads)]

    def _held_by(self, count: int, ends_meet: bool) -> Sequence[tuple[tuple[int, bool], ...]]:
        """Stage → its layers: the number of each, and whether it is not recomputed although others are."""
        model, again = self._costing.model, self._costing.basis.recompute_layers
        took = [layer.forward + layer.backward for layer in self.layers]
        try:
            ranges = cut(model.layers, count, self._costing.basis.parallel.stages, took)
        except Refusal as refusal:
            raise Refusal(f"parallel.stages: {refusal}") from None
        check_sources(model.layers, ranges)
        numbers = self._distinct.meeting if ends_meet else self._distinct.apart
        held = []
        logits = len(model.layers) - 1
        for places in ranges:
            alone = any(model.layers[place].predicts for place in places) and logits not in places
            blocks = [place for place in places if model.layers[place].is_block]
            whole = set() if again is None else set(blocks[again:])
            each = self._distinct.away if alone else numbers
            held.append(tuple((each[place], place in whole) for place in places))
        return held


class _Distinct:
    """The layers of a model that differ in what they cost: blocks are equal, so that costs are computed once.

    Attributes:
        apart, meeting: the number of every layer, if the first and the last are on different ranks, and on the same.
        away: the same in a stage with predictions and without logits, whose matrix it holds too.
    """

    def __init__(self, basis: CostBasis, costing: Costing) -> None:
        plain = alike = costing.model.unnamed
        if basis.experts.unequal:
            alike = tuple(replace(layer, name="") for layer in expert_layers(basis))
        received = (0, *(layer.output for layer in plain))
        tied = list(map(cache(costing.tied), alike))
        known: dict[tuple[Layer, int, int, Layer], int] = {}
        apart, meeting = [0] * len(alike), [-sum(tied[1:]), *tied[1:]]
        self.apart, self.meeting = (
            [known.setdefault(asked, len(known)) for asked in zip(alike, received, later, plain, strict=False)]
            for later in (apart, meeting)
        )
        self.away = self.apart
        if isinstance(rule := basis.parallel.stages, tuple) and any(isinstance(stage, str) for stage in rule):
            alike, plain = (tuple(_with_head(layer, plain[-1]) for layer in layers) for layers in (alike, plain))
            asked = zip(alike, received, apart, plain, strict=False)
            self.away = [known.setdefault(one, len(known)) for one in asked]
        self._asked = list(known)

    def costs(self, costing: Costing, usual: Sequence[StageCosts] | None) -> Sequence[StageCosts]:
        """Of each of them; `usual` are those with other documents."""
        if usual is None:
            return [costing.of(*asked) for asked in self._asked]
        return [costing.of(*asked, like) for asked, like in zip(self._asked, usual, strict=True)]


def _with_head(layer: Layer, logits: Layer) -> Layer:
    """A prediction with a copy of the logits' matrix, which is elsewhere; other layers unchanged."""
    if not logits.parameters.tensor or not begins_prediction(layer):
        return layer
    copy_of_head = Parameters(tied=logits.parameters.tensor)
    tensors = (*layer.tensors, copy_of_head)
    return replace(layer, parameters=layer.parameters + copy_of_head, sizes=tensors)


def keeping(basis: CostBasis) -> CostBasis:
    """The same without recomputation."""
    return basis._replace(recompute="none", recompute_layers=None)
