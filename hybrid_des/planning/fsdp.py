"""Lowering of ops whose gradients or weights are sharded (ZeRO-2, ZeRO-3, FSDP): layer by layer, with collectives.

    compute       │ layer 0 │ layer 1 │ layer 2 │ …               of a backward, deepest layer first
    parameters  G0│ G1      │ S0 G2   │ S1 G3   │ … S             G: all-gather, S: reduce-scatter of gradients

The gather of a layer may start when the layer before it begins, even in an earlier op; its scatter starts when the
layer ends. Without overlap the compute stream runs them itself. While the parameter stream is busy, layers run slower.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import chain
from typing import NamedTuple

from hybrid_des import collectives
from hybrid_des.cluster.purposes import PARAMETERS, REDUCTION, Purpose
from hybrid_des.cluster.rings import channels
from hybrid_des.cluster.self_contention import Groups
from hybrid_des.collectives import codecs
from hybrid_des.collectives.benchmark import Outcome
from hybrid_des.cost_model.collective_times import SIXTEEN_BITS, CollectiveTimes
from hybrid_des.cost_model.rank_costs import StageCosts
from hybrid_des.engine.recorder import BEFORE, INSIDE
from hybrid_des.layout import RankGroup
from hybrid_des.pipeline.plan import Action, Kind, Place, Plan
from hybrid_des.planning.gradients import parts_of_stage
from hybrid_des.planning.op_bodies import body_of
from hybrid_des.planning.program import (
    LAYER,
    Collective,
    Compute,
    ComputeSpeed,
    Instruction,
    Record,
    Row,
    Wait,
    gathered,
    waiting_for,
)
from hybrid_des.scenario.sections.training import Gradients

RINGS = ("ring-reduce-scatter", "ring-all-gather")
LAYERS = ("layers", 0, 0)  # the groups of all collectives of layers
NOTHING: tuple[Outcome, ...] = ()


class LayerPass(NamedTuple):
    """One layer's part of an op.

    Attributes:
        body: its computation, and collectives among it.
        gather: the collectives before it.
        scatter: the collectives after it.
    """

    stage: int
    layer: int
    body: tuple[Instruction, ...]
    gather: tuple[Outcome, ...] = NOTHING
    scatter: tuple[Outcome, ...] = NOTHING

    def gathers(self, when: int | None = None) -> tuple[Collective, ...]:
        """The gather, if there is one; `when` counts the time waited for it."""
        return self._collective(PARAMETERS, self.gather, "gathers", when)

    def scatters(self, when: int | None = None) -> tuple[Collective, ...]:
        """The scatter, if there is one; `when` counts the time waited for it."""
        return self._collective(REDUCTION, self.scatter, "reductions", when)

    def _collective(
        self, purpose: Purpose, outcomes: Sequence[Outcome], table: str, when: int | None
    ) -> tuple[Collective, ...]:
        durations = tuple(outcome.duration for outcome in outcomes)
        cause = None if when is None else waiting_for(purpose, when)
        return (Collective(LAYERS, durations, Row(table, self.stage, self.layer), cause),) if any(durations) else ()


@dataclass(frozen=True)
class Fsdp:
    """How ops are lowered layer by layer.

    A collective per layer, micro-batch and rank would need too many messages, so each distinct one is simulated once,
    in all groups at the same time, and its duration is replayed: it still begins when the last member of its group
    arrives, so groups with a slow member wait.

    Attributes:
        times: how long collectives take.
        gradients: their codec and channels.
        once: whether layers are gathered once per step, before their first forward, instead of before every use.
        scatters_once: whether gradients are scattered once per step, after their last backward.
        sizes: the numbers of ranks that divide parameters outside experts, and in experts; None: all that hold them.
        axes: those whose collectives inside layers are instructions.
        ahead, overlapped: whether the parameter stream runs the gathers (`ahead`) and the scatters (`overlapped`).
    """

    plan: Plan
    times: CollectiveTimes
    gradients: Gradients
    once: bool
    scatters_once: bool
    ahead: bool
    overlapped: bool
    sizes: tuple[int | None, int | None] = (None, None)
    axes: frozenset[str] = frozenset()

    @cached_property
    def groups(self) -> Sequence[Groups]:
        """The ranks that divide the same parameters outside experts, and in experts, of all pipeline ranks."""
        of_ranks = map(self._groups_of, range(self.times.layout.sizes["pipeline"]))
        return [list(chain.from_iterable(of_part)) for of_part in zip(*of_ranks, strict=True)]

    @cached_property
    def _groups_of(self) -> Callable[[int], Sequence[Groups]]:
        return cache(self._groups_at)

    def _groups_at(self, rank: int) -> Sequence[Groups]:
        """Those of one pipeline rank."""
        layout = self.times.layout
        start = rank * layout.strides["pipeline"]
        apart = layout.expert_holders if layout.apart else []
        return [
            [group for ranks in holders for group in _grouped(ranks.shifted(start), size)]
            for holders, size in zip((layout.holders, apart), self.sizes, strict=True)
        ]

    @property
    def channels(self) -> int | None:
        """The most rings that a group has; None if there is no group."""
        find = partial(channels, self.times.fabric, count=self.gradients.channels, tuned=self._halves != RINGS)
        return max((len(find(groups[0])) for groups in self.groups if groups), default=None)

    @cached_property
    def _halves(self) -> tuple[str, str]:
        """The reduce-scatter and the all-gather."""
        return collectives.phases_of(self.gradients.algorithm) or RINGS

    @cached_property
    def _outcomes(self) -> Callable[[int, str, tuple[int, int], str], tuple[Outcome, ...]]:
        return cache(self._outcomes_of)

    def _outcomes_of(self, rank: int, name: str, sizes: tuple[int, int], codec: str) -> tuple[Outcome, ...]:
        """A collective of a layer among those that divide its parameters outside experts, and in experts."""
        build, count = codecs.find(codec).build(), self.gradients.channels
        parts = zip(self._groups_of(rank), parts_of_stage(*sizes, self.times.layout), strict=True)
        return tuple(self.times.around(name, groups, size, build, count) for groups, size in parts)

    @cached_property
    def _last(self) -> Mapping[Place, int]:
        """Pipeline rank and chunk → the micro-batch that completes its gradients."""
        ops = ((rank, op) for rank, program in enumerate(self.plan.programs) for action in program for op in action)
        return {(rank, op.chunk): op.microbatch for rank, op in ops if op.kind in "BW"}

    def scatters(self, rank: int, action: Action) -> bool:
        """Whether gradients are scattered after an action of a pipeline rank."""
        if not self.scatters_once:
            return True
        return any(op.microbatch == self._last[rank, op.chunk] for op in action if op.kind in "BW")

    def passes(
        self, rank: int, action: Action, costs: Sequence[StageCosts], pace: ComputeSpeed, fresh: frozenset[int]
    ) -> tuple[LayerPass, ...]:
        """The layers of an action, in the order in which they run; `fresh` stages have not run in this step.

        `costs` are those of its ops.
        """
        (scatter, gather), scatters = self._halves, self.scatters(rank, action)
        passes, bodies = [], dict[tuple[int, int, str], tuple[Instruction, ...]]()  # most layers are one object
        fused = self.plan.fused_time if len(action) > 1 else 1
        for op, cost in sorted(zip(action, costs, strict=True), key=lambda each: each[0].kind != "F"):
            stage = self.plan.stage_of[rank, op.chunk]
            layers = list(enumerate(cost.layers or (cost,)))
            gathers = op.kind == "F" and stage in fresh if self.once else op.kind != "W"
            gathers &= op.kind == "F" or not all(layer.passed for _, layer in layers)  # else it has no backward
            for number, layer in layers if op.kind == "F" else reversed(layers):
                sizes = layer.states.parameters, layer.states.experts
                whole = layer.states.gathered
                needed = (whole[0] + (0 if op.kind == "F" else layer.later), whole[1])
                alike = stage, id(layer), op.kind
                if alike not in bodies:
                    bodies[alike] = self._body(stage, layer, op.kind, fused, pace)
                passes.append(
                    LayerPass(
                        stage,
                        number,
                        bodies[alike],
                        self._outcomes(rank, gather, needed, SIXTEEN_BITS) if gathers else NOTHING,
                        self._outcomes(rank, scatter, sizes, self.gradients.codec)
                        if scatters and op.kind in "BW"
                        else NOTHING,
                    )
                )
        return tuple(passes)

    def _body(
        self, stage: int, layer: StageCosts, kind: Kind, fused: Fraction | int, pace: ComputeSpeed
    ) -> tuple[Instruction, ...]:
        """What a layer does in an op of a kind."""
        waits = layer.waits(kind)
        duration = pace.duration((layer.time(kind) - waits) * fused, waits * fused)
        if not any(one.axis in self.axes for one in layer.collectives[kind != "F"]) or kind == "W":
            return (Compute(duration),)
        return body_of([(stage, replace(layer, layers=(layer,)), kind)], duration, pace, self.axes, ())

    def body(self, passes: Iterable[LayerPass]) -> tuple[list[Instruction], list[Instruction]]:
        """What an action waits for before it starts, and what it does then."""
        needs: list[Instruction] = []
        body: list[Instruction] = []
        for layer_pass in passes:
            before, when = (body, INSIDE) if body else (needs, BEFORE)
            waits = [Wait(gathered(layer_pass.stage), waiting_for(PARAMETERS, when)) for _ in layer_pass.gathers()]
            before += waits if self.ahead else layer_pass.gathers(when)
            if self.ahead or self.overlapped:
                body += [Record(LAYER), *layer_pass.body, Record(LAYER)]
            else:
                body += layer_pass.body
            body += () if self.overlapped else layer_pass.scatters(INSIDE)
        return needs, body

    def stream(self, passes: Iterable[LayerPass]) -> Iterator[Instruction]:
        """The parameter stream during these layers; it proceeds when a layer begins and when it ends."""
        if not (self.ahead or self.overlapped):
            return
        before: LayerPass | None = None
        # a layer records twice: as it begins, the next one's gather may start, and as it ends, its own scatter;
        # the last turn has no layer, only the scatter of the one before
        for layer_pass in (*passes, None):
            if before:
                yield Wait(LAYER)
            if layer_pass and self.ahead:
                yield from (
                    part for gather in layer_pass.gathers() for part in (gather, Record(gathered(layer_pass.stage)))
                )
            if before:
                yield Wait(LAYER)
                yield from before.scatters() if self.overlapped else ()
            before = layer_pass

    def replayed(self, passes: Iterable[LayerPass]) -> Mapping[str, int]:
        """Amounts that all ranks send for these layers, by attribute of `Run`."""
        sent = dict.fromkeys(("messages", "bytes_scales", PARAMETERS.counter, REDUCTION.counter), 0)
        for layer_pass in passes:
            for purpose, outcomes in ((PARAMETERS, layer_pass.gather), (REDUCTION, layer_pass.scatter)):
                for outcome in outcomes:
                    sent["messages"] += outcome.messages
                    sent["bytes_scales"] += outcome.scales
                    sent[purpose.counter] += outcome.bytes
        return sent


def _grouped(ranks: RankGroup, size: int | None) -> Iterator[Sequence[int]]:
    """Neighbours among some ranks, so many in a group; those alone have nothing to divide."""
    size = size or len(ranks)
    if size > 1:
        yield from (ranks[first : first + size] for first in range(0, len(ranks), size))
