"""The costs that the simulation is given: time, bytes and parameters of every pipeline rank, stage and micro-batch.

    RankCosts    per pipeline rank, before a plan says which stages it holds
    StageCosts   of one micro-batch on one stage, or on one of its layers; a stage is the sum of its layers (`sum_of`)
    Costs        of a plan: its stages by place; with documents of unequal length, by lane too (`UnequalCosts`)

How they come about is elsewhere: from a model (`modelled`), a workload or recorded ops (`pipeline_ranks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import starmap
from math import ceil
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from hybrid_des.pipeline.plan import Kind, Place
from hybrid_des.scenario.overhead import NO_OVERHEAD, Overhead

if TYPE_CHECKING:
    from hybrid_des.cost_model.documents import Load, PackedSteps
    from hybrid_des.cost_model.update import Update
    from hybrid_des.interchange.profiles.durations import Durations

from hybrid_des.cost_model.elementwise import is_array, largest
from hybrid_des.cost_model.layer_collectives import Both, LayerCollective, Traffic, traffic_of
from hybrid_des.workload.optimizers import Matrix

StagesOf = Callable[[int, bool], "Sequence[StageCosts]"]  # (number, whether ends meet) → the costs of each stage

WEIGHTS, MOMENTS = 2, 12  # bytes per parameter: 16-bit weights; a 32-bit copy and Adam's two moments


class Sharding(NamedTuple):
    """Number of ranks that share each part of a parameter's memory (Rajbhandari et al., arXiv 1910.02054)."""

    weights: int = 1
    gradients: int = 1
    optimizer: int = 1
    state: Fraction = Fraction(MOMENTS)  # bytes of the optimizer's state per parameter
    weight: int = WEIGHTS  # bytes of a whole weight

    @classmethod
    def of(cls, name: str, ranks: int, *, once: bool = False, updating: int | None = None) -> Sharding:
        """The division that `sharding: name` means for a group of ranks.

        Gradients that are scattered `once` per step, as in a pipeline, are undivided until then. Where several groups
        divide the optimizer's state, those are the `updating` ranks.
        """
        level = {"none": 0, "zero-1": 1, "zero-2": 2, "zero-3": 3}[name]
        weights, gradients, optimizer = (ranks if level >= needed else 1 for needed in (3, 2, 1))
        return cls(weights, 1 if once else gradients, updating or optimizer)

    def per_parameter(self, gradient: Fraction) -> Fraction:
        """Bytes that a rank holds per parameter; `gradient` are those of an undivided gradient."""
        return Fraction(self.weight, self.weights) + gradient / self.gradients + self.state / self.optimizer

    def bytes(self, parameters: int, gradient: Fraction) -> int:
        """Bytes that a rank holds for this number of parameters."""
        return ceil(parameters * self.per_parameter(gradient))

    def parts(self, parameters: int, gradient: Fraction) -> tuple[int, int]:
        """Of these bytes, those of weights and of gradients, rounded down; the rest is the optimizer's state."""
        return parameters * self.weight // self.weights, int(parameters * gradient / self.gradients)


@dataclass(frozen=True)
class RankCosts:
    """Costs of one micro-batch per pipeline rank, before they are split into stages.

    Attributes:
        forward, backward, weight, optimizer: picoseconds, one entry per pipeline rank; as in `StageCosts`. Of a model,
            `backward` is that of split backwards, for schedules that plan with times.
        message: bytes of the activation sent to the next stage.
        parameters: number of parameters per rank of one copy of the model.
        per_parameter: bytes per parameter.
        kept: bytes of activations kept per micro-batch.
        weight_share: share of them kept from the input gradient to the weight gradient of a split backward.
        repeated: whether the backward repeats the whole forward, so that only the stage's input is kept.
        gathered: whether ranks divide the weights among themselves, and gather them for use.
        whole: whether all that a rank gathers stays whole until the step ends.
        scattered: bytes of a parameter's gradient where they are scattered layer by layer; 0: they are not.
        stages: of a model: number of stages, and whether the first and the last are on the same ranks, which then hold
            what both use once → the costs of each.
        loaded: of a model: the same for micro-batches that hold other documents, of each.
        durations: of every op, if they are given; the times above are their means.
        packed: with `data`: the documents of all steps.
        routing: step → picoseconds in which the host finds out which documents a rank sends, beyond the least of all
            steps, which `optimizer` has; none if steps are alike.
        overhead: host time of each op of a stage, and between ops, which no split makes shorter.
        tensors: parameters of each tensor of a rank, in the order of the forward; none if they are not known.
        orthogonalised: of a model whose optimizer does so: what it takes for the matrices of a rank.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    message: tuple[int, ...]
    parameters: tuple[int, ...]
    per_parameter: tuple[Fraction, ...]
    kept: tuple[int, ...]
    weight_share: tuple[Fraction, ...]
    repeated: bool = False
    gathered: bool = False
    whole: bool = False
    scattered: Fraction = Fraction(0)
    stages: StagesOf | None = None
    loaded: Callable[[Sequence[Load], int, bool], list[Sequence[StageCosts]]] | None = None
    durations: Durations | None = field(default=None, compare=False)
    packed: PackedSteps | None = None
    routing: tuple[int, ...] = ()
    overhead: Overhead = NO_OVERHEAD
    tensors: tuple[tuple[int, ...], ...] = ()
    orthogonalised: Callable[[Iterable[Matrix]], Update] | None = None

    @property
    def input(self) -> tuple[int, ...]:
        """The input-gradient part of each rank's backward."""
        return tuple(whole - weight for whole, weight in zip(self.backward, self.weight, strict=True))


class ModelStates(NamedTuple):
    """What a stage holds whatever its micro-batches are.

    Attributes:
        parameters: number of parameters, without those of experts.
        experts: number of parameters of experts.
        resident: bytes of parameters, gradients and optimizer state, if the workload gives them.
        weights, gradients: bytes of `resident`; the rest is the optimizer's state.
        optimizer: picoseconds of the optimizer step.
        frozen, frozen_experts: numbers of parameters without a gradient, outside and in experts.
        tensors: of a model: the parameters of each tensor, outside and in experts, in the order of the forward.
        matrices: those that the optimizer orthogonalises.
    """

    parameters: int = 0
    experts: int = 0
    resident: int = 0
    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    frozen: int = 0
    frozen_experts: int = 0
    tensors: tuple[tuple[int, int], ...] = ()
    matrices: tuple[Matrix, ...] = ()

    @property
    def gathered(self) -> tuple[int, int]:
        """Numbers of parameters, trained or not, outside and in experts."""
        return self.parameters + self.frozen, self.experts + self.frozen_experts


NO_STATES = ModelStates()


@dataclass(frozen=True)
class StageCosts:
    """Costs of one micro-batch on one stage.

    Attributes:
        forward, backward, weight: picoseconds; `backward` is the whole backward including recomputed forwards,
            `weight` its weight-gradient part.
        message: bytes of the activation sent to the next stage, and of its gradient.
        kept: bytes of activations kept from the start of a forward to the end of its backward.
        weight_share: share of `kept` that the input part of a split backward leaves to the weight part.
        states: its parameters, gradients and optimizer.
        transient: bytes that exist only while a backward runs.
        transients: the part of these that exists during its input part, and during its weight part.
        attention_backward: bytes that exist only while a backward runs, and never beside `reserved`.
        reserved: bytes held in addition to those that another layer's backward needs.
        layers: the costs of its layers, in order; none if the workload does not tell them apart.
        again: picoseconds of `backward` in which a forward is computed again.
        traffic: collectives inside the ops, one entry per axis.
        collectives: the same of a layer, one by one, in the order of an op.
        moving: of a model: the share of computation that memory bounds.
        later: of a layer that shares parameters with another one of its rank: those that the other one holds or, below
            0, that it holds itself. Gathered for one of them, they stay until the other's part of the same pass.
        inner: of a layer: picoseconds of its experts in `forward`, and in both parts of `backward`.
        imbalance: picoseconds of both that would not be taken if all experts were equally wanted.
        end: of a layer: whether it is none of those that stages are cut from, such as an embedding.
        passed: of a layer: whether nothing is trained in it or before it, so that there is no backward.
        host_times: of `forward`, `backward` and `weight`, what the host adds: its launches, or copies to and from its
            memory; a whole backward has no `weight` of it.
    """

    forward: int
    backward: int
    weight: int
    message: int
    kept: int
    weight_share: Fraction
    states: ModelStates = NO_STATES
    transient: int = 0
    transients: tuple[int, int] = (0, 0)
    reserved: int = 0
    layers: tuple[StageCosts, ...] = ()
    again: int = 0
    traffic: tuple[Traffic, ...] = ()
    collectives: Both = ((), ())
    later: int = 0
    moving: Fraction = Fraction(0)
    inner: tuple[int, int, int] = (0, 0, 0)
    imbalance: int = 0
    end: bool = False
    passed: bool = False
    host_times: Overhead = NO_OVERHEAD
    attention_backward: int = 0

    def time(self, kind: Kind) -> int:
        """Picoseconds of an op of this kind."""
        if kind == "I":
            return max(0, self.backward - self.weight + self.host_times.weight)  # rounding may leave −1
        return self.forward if kind == "F" else self.backward if kind == "B" else self.weight

    def waits(self, kind: Kind) -> int:
        """Picoseconds by which collectives make an op of this kind longer, at any speed of the GPU."""
        if kind == "W" or not self.traffic:
            return 0
        return sum(traffic.forward if kind == "F" else traffic.backward for traffic in self.traffic)

    def host(self, kind: Kind) -> int:
        """Picoseconds by which the host makes an op of this kind longer; of a split backward, its input part."""
        return self.host_times.held(kind, split=False)

    def needed(self, kind: Kind) -> int:
        """Bytes that exist only while an op of this kind runs."""
        return {"F": 0, "B": self.transient, "I": self.transients[0], "W": self.transients[1]}[kind]

    def freed(self, kind: Kind, held: int) -> int:
        """The part of an activation of size `held` that the end of an op of this kind frees."""
        if kind in ("F", "B"):
            return held if kind == "B" else 0
        deferred = round(self.weight_share * held)
        return held - deferred if kind == "I" else deferred


_SUMMED = ("forward", "backward", "weight", "kept", "again", "reserved", "imbalance")


def without_work(layer: StageCosts) -> StageCosts:
    """The costs of a layer in a micro-batch without documents: those of what it holds."""
    return replace(
        layer, forward=0, backward=0, weight=0, message=0, kept=0, transient=0, transients=(0, 0), reserved=0, again=0,
        traffic=(), collectives=((), ()), inner=(0, 0, 0), imbalance=0, host_times=NO_OVERHEAD, attention_backward=0,
    )  # fmt: skip


def feasible(layers: Sequence[StageCosts]) -> tuple[StageCosts, ...]:
    """The layers of a stage, with no more collective time hidden in an op than the op takes to compute."""
    if not any(way for layer in layers for way in layer.collectives):
        return tuple(layers)
    shares = []
    kinds: tuple[Kind, Kind] = ("F", "I")
    for way, kind in enumerate(kinds):
        computes = sum(layer.time(kind) - layer.waits(kind) for layer in layers)
        hidden = sum(one.repeats * (one.overlapped - one.weights) for layer in layers for one in layer.collectives[way])
        shares.append(Fraction(min(computes, hidden), hidden) if hidden else Fraction(1))
    return tuple(layers) if shares == [1, 1] else tuple(_hiding(layer, *shares) for layer in layers)


def _hiding(layer: StageCosts, *shares: Fraction) -> StageCosts:
    """A layer with these shares of its hidden collective time still hidden, in forward and backward."""
    ways = [
        tuple(one._replace(overlapped=int((one.overlapped - one.weights) * share) + one.weights) for one in way)
        for way, share in zip(layer.collectives, shares, strict=True)
    ]
    return _with_collectives(layer, *ways)


def split(stage: StageCosts) -> StageCosts:
    """A stage whose backwards are split: no weight gradients, computed later, overlap its collectives."""
    if not any(one.weights for layer in stage.layers for one in layer.collectives[1]):
        return stage
    return sum_of([_with_collectives(layer, layer.collectives[0], _alone(layer)) for layer in stage.layers])


def _alone(layer: StageCosts) -> Sequence[LayerCollective]:
    """The collectives of a layer's split backward, where those of tensor ranks overlap by copy engines only."""
    return [
        one._replace(overlapped=one.overlapped - one.weights, weights=0, lost=Fraction(0)) if one.weights else one
        for one in layer.collectives[1]
    ]


def _with_collectives(layer: StageCosts, *ways: Sequence[LayerCollective]) -> StageCosts:
    """A layer with other collectives in its forward and backward."""
    more = [
        sum(one.repeats * one.waits for one in now) - sum(one.repeats * one.waits for one in before)
        for now, before in zip(ways, layer.collectives, strict=True)
    ]
    return replace(
        layer,
        forward=layer.forward + more[0],
        backward=layer.backward + more[1],
        traffic=traffic_of(*ways),
        collectives=(tuple(ways[0]), tuple(ways[1])),
    )


def sum_of(layers: Sequence[StageCosts], usual: StageCosts | None = None) -> StageCosts:
    """The costs of layers that make up a stage; transients do not exist at the same time.

    Where only the documents differ from those of the `usual` costs of the stage, what parameters take is known, and the
    share that memory bounds is taken from there.
    """
    layers = feasible(layers)
    counts = Counter(map(id, layers))  # blocks are equal
    distinct = [(layer, counts[number]) for number, layer in {id(layer): layer for layer in layers}.items()]
    sums = {name: sum([times * getattr(layer, name) for layer, times in distinct]) for name in _SUMMED}
    if usual is None:
        weights = [times * (layer.forward + layer.backward) for layer, times in distinct]
        moving = _mean([layer.moving for layer, _ in distinct], weights)
        tensors = tuple(tensor for layer in layers for tensor in layer.states.tensors)
        matrices = tuple(matrix for layer in layers for matrix in layer.states.matrices)
        summed = _sums((layer.states[:-2], times) for layer, times in distinct)
        states = ModelStates._make((*summed, tensors, matrices))
    else:
        moving, states = usual.moving, usual.states
    return StageCosts(
        **sums,
        states=states,
        moving=moving,
        host_times=Overhead(*_sums((layer.host_times, times) for layer, times in distinct)),
        message=layers[-1].message,
        weight_share=_share_of(distinct, sums["kept"]),
        transient=largest(layer.transient for layer, _ in distinct),
        attention_backward=largest(layer.attention_backward for layer, _ in distinct),
        transients=(
            largest(one.transients[0] for one, _ in distinct),
            largest(one.transients[1] for one, _ in distinct),
        ),
        layers=layers,
        traffic=_traffic_of(layers),
    )


def each_of(stacked: StageCosts) -> list[StageCosts]:
    """The costs of a stage for every load, from those in which arrays have an element for each; without its layers."""
    same = vars(stacked) | {"layers": ()}
    columns: dict[str, Any] = {name: amounts.tolist() for name, amounts in same.items() if is_array(amounts)}
    count = len(next(iter(columns.values())))
    columns["transients"] = _rows(stacked.transients, count)
    columns["host_times"] = starmap(Overhead, _rows(stacked.host_times, count))
    return [
        StageCosts(**{**same, **dict(zip(columns, row, strict=True))}) for row in zip(*columns.values(), strict=True)
    ]


def _sums(distinct: Iterable[tuple[Sequence[int], int]]) -> list[int]:
    """The sum of each amount, times how often there are such amounts."""
    scaled = [[times * amount for amount in amounts] for amounts, times in distinct]
    return [sum(column) for column in zip(*scaled, strict=True)]


def _rows(amounts: Iterable[int], count: int) -> Iterator[tuple[int, ...]]:
    """For every load, of which there are so many, the amounts."""
    return zip(*(each.tolist() if is_array(each) else [each] * count for each in amounts), strict=True)


def _share_of(distinct: Sequence[tuple[StageCosts, int]], kept: int) -> Fraction:
    """The share of kept bytes that weight gradients need; in whole numbers: every micro-batch may have its own."""
    shares = [(layer.weight_share, times * layer.kept) for layer, times in distinct]
    if not is_array(kept):
        return _share_in(shares, kept)
    lists = [[amounts.tolist() for amounts in cast(Any, of_layer)] for of_layer in shares]
    of_loads = zip(*(zip(*of_layer, strict=True) for of_layer in lists), strict=True)
    each = [_share_in(of_load, whole) for of_load, whole in zip(of_loads, kept.tolist(), strict=True)]
    return cast(Fraction, np.array(each, dtype=object))


def _share_in(shares: Sequence[tuple[Fraction, int]], kept: int) -> Fraction:
    over, under = 0, 1
    for share, held in shares:
        over = over * share.denominator + held * share.numerator * under
        under *= share.denominator
    return Fraction(over, under * kept) if kept else Fraction(0)


def _mean(shares: Sequence[Fraction], weights: Sequence[int]) -> Fraction:
    whole = sum(weights)
    return sum(map(mul, shares, weights), Fraction(0)) / whole if whole else Fraction(0)


def _traffic_of(layers: Sequence[StageCosts]) -> tuple[Traffic, ...]:
    """The collectives of layers along each axis."""
    amounts: dict[str, tuple[int, ...]] = {}
    for axis, *more in (traffic for layer in layers for traffic in layer.traffic):
        amounts[axis] = tuple(map(sum, zip(amounts.get(axis, (0,) * len(more)), more, strict=True)))
    return tuple(Traffic(axis, *sums) for axis, sums in amounts.items())


class Visit(NamedTuple):
    """Micro-batches on a stage.

    Attributes:
        position: pipeline rank and chunk.
        costs: of each of them there.
        lane: of the ranks; 0 where all compute the same.
        times: how many.
    """

    position: Place
    costs: StageCosts
    lane: int
    times: int


class UnequalCosts(Protocol):
    """What stages cost where documents differ, by lane: a place along data and context."""

    @property
    def count(self) -> int:
        """Number of lanes."""

    @property
    def steps(self) -> int:
        """Training steps after which documents are those of the first step again."""

    def numbers(self, step: int, lane: int) -> Sequence[int]:
        """For each micro-batch, a number that it shares with others if they cost the same."""

    def stages(self, step: int, lane: int) -> Sequence[Sequence[StageCosts]]:
        """Micro-batch → the costs of its stages."""

    def together(self, step: int, lane: int, microbatch: int) -> tuple[int, int] | None:
        """The first of the lanes that share a micro-batch, and their number, if these change with the micro-batch."""

    @property
    def meetings(self) -> Collection[tuple[int, int]]:
        """All lanes that share micro-batches so."""

    def sent_together(self, axis: str) -> int:
        """Bytes per step of their collectives along an axis, rounded."""

    def cost(self, step: int, lane: int, microbatch: int, stage: int) -> StageCosts:
        """The costs of a micro-batch on a stage."""

    def visits(self) -> Iterator[Visit]:
        """The visits of every micro-batch of every lane in every step."""

    def collectives(self, pipeline_rank: int) -> Collection[LayerCollective]:
        """The different collectives inside the ops of a pipeline rank, on any lane."""

    def transient(self, pipeline_rank: int, lane: int, usual: int) -> int:
        """The most bytes that a rank holds for a while, besides activations, in any step; `usual`: as in `Costs`."""


@dataclass(frozen=True)
class Costs:
    """Costs of a plan.

    Attributes:
        stages: (pipeline rank, chunk) → costs of its stage, for all copies of the model.
        parameters: per stage, of one copy of the model, without experts.
        experts: per stage, of one copy of the model, parameters of experts.
        resident: per pipeline rank, bytes of parameters, gradients and optimizer state, and the largest transients.
        optimizer: per pipeline rank, picoseconds of the optimizer step.
        between: picoseconds from the end of an op to the start of the next one on its rank.
        transient: per pipeline rank, those bytes of `resident` that exist only while a backward runs.
        lanes: where documents differ: the costs of each lane; `stages` are those of the usual micro-batch.
        tensors: per stage of one copy of the model, as in `StageCosts`; none if the workload does not tell them apart.
        routing: as in `RankCosts`.
        exchanged: per pipeline rank, picoseconds of `optimizer` in collectives; none if there are none.
    """

    stages: Mapping[Place, StageCosts]
    parameters: tuple[int, ...]
    resident: tuple[int, ...]
    optimizer: tuple[int, ...]
    experts: tuple[int, ...]
    transient: tuple[int, ...]
    tensors: tuple[tuple[tuple[int, int], ...], ...] = ()
    between: int = 0
    lanes: UnequalCosts | None = None
    routing: tuple[int, ...] = ()
    exchanged: tuple[int, ...] = ()

    def transients(self, pipeline_rank: int, lane: int = 0) -> int:
        """`transient` of a lane."""
        usual = self.transient[pipeline_rank]
        return usual if self.lanes is None else self.lanes.transient(pipeline_rank, lane, usual)

    def held(self, pipeline_rank: int, lane: int = 0) -> int:
        """`resident` of a lane."""
        usual = self.resident[pipeline_rank]
        if self.lanes is None:
            return usual
        return usual - self.transient[pipeline_rank] + self.transients(pipeline_rank, lane)

    def collectives_of(self, pipeline_rank: int) -> Iterator[LayerCollective]:
        """The collectives inside the ops of a pipeline rank; where documents differ, of any lane."""
        if self.lanes is not None:
            return iter(self.lanes.collectives(pipeline_rank))
        stages = (stage for (rank, _), stage in self.stages.items() if rank == pipeline_rank)
        return (one for stage in stages for layer in stage.layers for way in layer.collectives for one in way)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Per stage of one copy of the model: numbers of parameters, those of experts apart."""
        return list(zip(self.parameters, self.experts, strict=True))
