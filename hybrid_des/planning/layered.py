"""Lowering of ops whose gradients or weights are sharded (ZeRO-2, ZeRO-3, FSDP): layer by layer, with collectives.

    compute       │ layer 0 │ layer 1 │ layer 2 │ …               of a backward, deepest layer first
    parameters  G0│ G1      │ S0 G2   │ S1 G3   │ … S             G: all-gather, S: reduce-scatter of gradients

The gather of a layer may start when the layer before it begins, even in an earlier op; its scatter starts when the
layer ends. Without overlap the compute stream runs them itself. While the parameter stream is busy, layers run slower.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hybrid_des.collectives.benchmark import Outcome
from hybrid_des.gradients.replayed import LayerTraffic
from hybrid_des.network.purpose import PARAMETERS, REDUCTION
from hybrid_des.pipeline.op import Action
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.pace import Pace, Slowing
from hybrid_des.planning.tasks import Await, Compute, ComputeBeside, Segment, Transfer, Turn
from hybrid_des.workload.costs import Costs

NOTHING: tuple[Outcome, ...] = ()


class LayerPass(NamedTuple):
    """One layer's part of an op.

    Attributes:
        duration: picoseconds of computation.
        gather: the collectives before it.
        scatter: the collectives after it.
    """

    stage: int
    layer: int
    duration: int
    gather: tuple[Outcome, ...] = NOTHING
    scatter: tuple[Outcome, ...] = NOTHING

    @property
    def gathers(self) -> tuple[Transfer, ...]:
        """The gather as a segment, if there is one."""
        durations = tuple(outcome.duration for outcome in self.gather)
        return (Transfer(self.stage, self.layer, PARAMETERS, durations),) if any(durations) else ()

    @property
    def scatters(self) -> tuple[Transfer, ...]:
        """The scatter as a segment, if there is one."""
        durations = tuple(outcome.duration for outcome in self.scatter)
        return (Transfer(self.stage, self.layer, REDUCTION, durations),) if any(durations) else ()


@dataclass(frozen=True)
class Layered:
    """How ops are lowered layer by layer.

    Attributes:
        once: whether layers are gathered once per step, before their first forward, instead of before every use.
        ahead, beside: whether the parameter stream runs the gathers (`ahead`) and the scatters (`beside`).
        slowing: of computation while that stream is busy.
    """

    plan: Plan
    costs: Costs
    traffic: LayerTraffic
    once: bool
    ahead: bool
    beside: bool
    slowing: Slowing

    def passes(self, rank: int, action: Action, pace: Pace, fresh: frozenset[int]) -> tuple[LayerPass, ...]:
        """The layers of an action, in the order in which they run; `fresh` stages have not run in this step."""
        found = []
        fused = self.plan.fused_time if len(action) > 1 else 1
        for op in sorted(action, key=lambda op: op.kind != "F"):
            stage, cost = self.plan.stage_of[rank, op.chunk], self.costs.stages[rank, op.chunk]
            layers = list(enumerate(cost.layers or (cost,)))
            gathers = op.kind == "F" and stage in fresh if self.once else op.kind != "W"
            for number, layer in layers if op.kind == "F" else reversed(layers):
                sizes, waits = (layer.parameters, layer.experts), layer.waits(op.kind)
                needed = (layer.parameters + (0 if op.kind == "F" else layer.later), layer.experts)
                found.append(
                    LayerPass(
                        stage,
                        number,
                        pace.duration((layer.time(op.kind) - waits) * fused, waits * fused),
                        self.traffic.gather(*needed) if gathers else NOTHING,
                        self.traffic.scatter(*sizes) if op.kind in "BW" else NOTHING,
                    )
                )
        return tuple(found)

    def segments(self, passes: Iterable[LayerPass]) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        """The segments that an action waits for before it starts, and those of the action itself."""
        found: list[Segment] = []
        for one in passes:
            found += [Await(one.stage) for _ in one.gathers] if self.ahead else one.gathers
            streamed = self.ahead or self.beside
            found.append(ComputeBeside(one.duration, self.slowing) if streamed else Compute(one.duration))
            found += () if self.beside else one.scatters
        first = next(i for i, segment in enumerate(found) if isinstance(segment, ComputeBeside | Compute))
        return tuple(found[:first]), tuple(found[first:])

    def stream(self, passes: Iterable[LayerPass]) -> Iterator[Segment]:
        """The parameter stream during these layers; it takes a turn when a layer begins and when it ends."""
        if not (self.ahead or self.beside):
            return
        before: LayerPass | None = None
        for one in (*passes, None):
            if before:
                yield Turn()
            if one and self.ahead:
                yield from one.gathers
            if before:
                yield Turn()
                yield from before.scatters if self.beside else ()
            before = one

    def replayed(self, passes: Iterable[LayerPass]) -> Mapping[str, int]:
        """Amounts that all ranks send for these layers, by attribute of `Run`."""
        sent = dict.fromkeys(("messages", "bytes_scales", PARAMETERS.counter, REDUCTION.counter), 0)
        for one in passes:
            for purpose, outcomes in ((PARAMETERS, one.gather), (REDUCTION, one.scatter)):
                for outcome in outcomes:
                    sent["messages"] += outcome.messages
                    sent["bytes_scales"] += outcome.scales
                    sent[purpose.counter] += outcome.bytes
        return sent
