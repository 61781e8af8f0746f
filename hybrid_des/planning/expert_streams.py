"""Lowering of ops whose exchanges with experts run on a stream of their own, beside what there is to compute.

    exchanges  ─ there B ─│─ there F ─── back B ─│─ back F ─│─ there B ─      of a fused pair, layer by layer
    compute    attention F│experts B · experts F │attention B│attention F

The forward of one micro-batch and the backward of another do not depend on each other, so that the exchanges of one run
beside the computation of the other: B's gradients reach the experts while F computes attention, F's tokens while B
computes experts, and so on. An op on its own waits for its exchanges, except for weight gradients that it computes
meanwhile (`delay_weight`). Order of both streams: NVIDIA/Megatron-LM, overlap_moe_expert_parallel_comm in
megatron/core/models/common/model_chunk_schedule_plan.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.cluster.purposes import OF_LAYERS, PURPOSES
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.cost_model.rank_costs import StageCosts
from hybrid_des.planning.program import Compute, ComputeSpeed, Instruction, Join, Start
from hybrid_des.units import split_evenly

if TYPE_CHECKING:
    from hybrid_des.pipeline.plan import Kind

AXIS = "expert"
PURPOSE = PURPOSES.index(OF_LAYERS[AXIS])
THERE, BACK = 0, 1  # exchanges of a layer
ASIDE = 4  # the slot of other collectives


class Work(NamedTuple):
    """Picoseconds of computation, and of waiting at any speed; and collectives by messages among it, with stages."""

    computes: int = 0
    waits: int = 0
    messages: tuple[tuple[int, LayerCollective], ...] = ()

    def then(self, other: Work) -> Work:
        """Both, one after the other."""
        return Work(self.computes + other.computes, self.waits + other.waits, self.messages + other.messages)


class Unit(NamedTuple):
    """A layer with experts, and the layers without that run before it in the same op.

    Attributes:
        before: until its tokens, or gradients, leave for the experts.
        exchanges: there and back.
        inner: of its experts, without weight gradients that are delayed.
        inner_weights: those weight gradients.
        after: the rest, likewise.
        after_weights: its delayed weight gradients.
    """

    stage: int
    before: Work
    exchanges: tuple[LayerCollective, LayerCollective]
    inner: int
    inner_weights: int = 0
    after: Work = Work()
    after_weights: int = 0


@dataclass(frozen=True)
class ExpertStreams:
    """How ops with exchanges are lowered.

    Attributes:
        delay: whether weight gradients are computed while gradients travel back from the experts.
        axes: those whose collectives are instructions.
    """

    delay: bool
    axes: Collection[str] = ()

    def units(self, stage: int, cost: StageCosts, kind: Kind) -> tuple[list[Unit], Work]:
        """The layers with experts of an op, in order, and what follows the last one."""
        units: list[Unit] = []
        pending = Work()
        for layer in cost.layers if kind == "F" else cost.layers[::-1]:
            own = layer.collectives[0 if kind == "F" else 1] if kind != "W" else ()
            along = [one for one in own if one.axis == AXIS for _ in range(one.repeats)]
            exchanges, first = along[-2:], along[:-2]  # after which experts each token has, which all need to know
            others = first + [one for one in own if one.axis != AXIS for _ in range(one.repeats)]
            messages = tuple((stage, one) for one in others if one.axis in self.axes)
            waits = sum(one.waits for one in others if one.axis not in self.axes)
            computes = layer.time(kind) - layer.waits(kind)
            if len(exchanges) != len((THERE, BACK)):
                pending = pending.then(Work(computes, waits, messages))
                continue
            unit = self._unit(layer, kind, Work(computes, waits, messages), exchanges)
            units.append(unit._replace(stage=stage, before=pending.then(unit.before)))
            pending = Work()
        return units, pending

    def _unit(self, layer: StageCosts, kind: Kind, rest: Work, exchanges: Sequence[LayerCollective]) -> Unit:
        both, (forward, inputs, weights) = (exchanges[THERE], exchanges[BACK]), layer.inner
        if kind == "F":
            return Unit(0, rest._replace(computes=rest.computes - forward), both, forward)
        if kind == "I":
            return Unit(0, Work(), both, inputs, after=rest._replace(computes=rest.computes - inputs))
        rest = rest._replace(computes=rest.computes - inputs - weights)
        if not self.delay:
            return Unit(0, Work(), both, inputs + weights, after=rest)
        late = layer.weight - weights
        return Unit(0, Work(), both, inputs, weights, rest._replace(computes=rest.computes - late), late)

    def body(
        self, parts: Sequence[tuple[int, StageCosts, Kind]], scale: Fraction | int, pace: ComputeSpeed
    ) -> list[Instruction]:
        """The instructions of an action; `scale` is the time of its ops relative to their costs."""
        writer = _Writer(scale, pace)
        forward: tuple[list[Unit], Work] = [], Work()
        backward: tuple[list[Unit], Work] = [], Work()
        for stage, cost, kind in parts:
            if kind == "F":
                forward = self.units(stage, cost, kind)
            else:
                backward = self.units(stage, cost, kind)
        writer.write(forward[0], backward[0])
        for _, rest in (forward, backward):
            writer.compute(rest)
        return writer.found


@dataclass
class _Writer:
    """Writes the instructions of an action."""

    scale: Fraction | int
    pace: ComputeSpeed
    found: list[Instruction] = field(default_factory=list)

    def write(self, forward: Sequence[Unit], backward: Sequence[Unit]) -> None:
        """The layers of both, in pairs as far as they go."""
        late, last = 0, False
        for f, b in zip_longest(forward, backward):
            if b:
                self.compute(b.before)
                self.start(b, THERE, 2)
                self.compute(Work(late))
            if f:
                self.join(*[1] * last)
                self.compute(f.before)
                self.start(f, THERE, 0)
            if b:
                self.join(2)
                self.compute(Work(b.inner))
                self.start(b, BACK, 3)
                self.compute(Work(b.inner_weights))
            if f:
                self.join(0)
                self.compute(Work(f.inner))
                self.start(f, BACK, 1)
                last = True
            if b:
                self.join(3)
                self.compute(b.after)
                late = b.after_weights
        self.join(*[1] * last)
        self.compute(Work(late))

    def start(self, unit: Unit, way: int, slot: int) -> None:
        """Start an exchange, after those that were started before; until it is launched, nothing is computed."""
        exchange = unit.exchanges[way]
        if exchange.launch:
            self.found.append(Compute(round(exchange.launch * self.scale)))
        self.found.append(Start((AXIS, unit.stage, 0), exchange._replace(launch=0), slot))

    def join(self, *slots: int) -> None:
        """Wait for an exchange."""
        self.found += [Join(PURPOSE, slot) for slot in slots]

    def compute(self, work: Work) -> None:
        """Compute, in equal parts around the collectives by messages."""
        parts = len(work.messages) + 1
        for number, computes in enumerate(split_evenly(work.computes, parts)):
            if took := self.pace.duration(computes * self.scale):
                self.found.append(Compute(took))
            if number < len(work.messages):
                stage, collective = work.messages[number]
                self.found += [
                    Start((collective.axis, stage, 0), collective, ASIDE),
                    Join(PURPOSES.index(OF_LAYERS[collective.axis]), ASIDE),
                ]
        if work.waits:
            self.found.append(Compute(round(work.waits * self.scale)))


def at_points(body: Sequence[Instruction], points: Sequence[tuple[Fraction, Instruction]]) -> Iterator[Instruction]:
    """The same body with further instructions, each after a share of its computation; in order."""
    whole = sum(one.own or 0 for one in body)
    pending, done = [(int(share * whole), one) for share, one in points][::-1], 0
    for piece in body:
        if piece.own is None:
            yield piece
            continue
        left = piece.own
        while pending and pending[-1][0] < done + left:
            at, point = pending.pop()
            if at > done:
                yield Compute(at - done)
                left, done = left - (at - done), at
            yield point
        yield Compute(left)
        done += left
    yield from (point for _, point in reversed(pending))
