"""What a placement of experts sends: the gradients and weights of copies, and experts that move.

    backward ── gradients of copies ──► the expert's home ── optimizer ── weights ──► copies, and where it moves to

One rank, the expert's home, updates it: the first that holds it, and as long as it does, the same one. In every step
the others send it their gradients before the optimizer, and get its weights after it. Where the next step has a new
placement, its ranks get the weights, and a new home the state of the optimizer too. All layers of a stage travel
together, in messages within each group of ranks that share experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from hybrid_des.collectives import codecs
from hybrid_des.collectives.transfers import Sizes
from hybrid_des.cost_model.expert_loads import ExpertLoads
from hybrid_des.cost_model.rank_costs import WEIGHTS, Sharding
from hybrid_des.errors import Refusal
from hybrid_des.workload.placements import Placement

COPIES = 2  # the part of a stage's collectives that these are


class Transfers(NamedTuple):
    """Of one stage and step: before the optimizer, and after it; bytes between places in a group."""

    gradients: Sizes = ()
    weights: Sizes = ()


@dataclass
class ExpertCopies:
    """The transfers of all steps.

    Attributes:
        loads: where experts are.
    """

    loads: ExpertLoads
    _homes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @property
    def needed(self) -> bool:
        """Whether any expert ever has a copy, or moves."""
        steps, numbers = range(self.loads.basis.draws.steps), self.loads.layers
        return any(
            self._held(number, step) != self._held(number, 0) or _copied(self._held(number, step))
            for step in steps
            for number in numbers
        )

    def at(self, step: int, layers: Sequence[int]) -> Transfers:
        """Those of a stage with these layers.

        Raises:
            Refusal: weights or gradients are divided layer by layer.
        """
        gradients, weights = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        for number in (number for number in layers if number in self.loads.layers):
            gradient, whole, state = self._sizes(number)
            here, home = self._held(number, step), self.homes(number, step)
            after = min(step + 1, self.loads.basis.draws.steps - 1)
            there, next_home = self._held(number, after), self.homes(number, after)
            for expert, rank in enumerate(home):
                for holder in _holders(here, expert):
                    gradients[holder, rank] += gradient
                for holder in _holders(there, expert):
                    weights[rank, holder] += whole
                weights[rank, next_home[expert]] += state
        return Transfers(_between(gradients), _between(weights))

    def homes(self, number: int, step: int) -> tuple[int, ...]:
        """The rank that updates each expert of a layer."""
        replan = self.loads.basis.experts.replan
        plan = 0 if replan is None else step // replan
        for until in range(plan + 1):
            if (number, until) not in self._homes:
                held = self._held(number, until * (replan or 0))
                before = self._homes.get((number, until - 1), ())
                self._homes[number, until] = tuple(
                    before[expert] if before and expert in held[before[expert]] else _holders(held, expert)[0]
                    for expert in range(self.loads.layers[number].count)
                )
        return self._homes[number, plan]

    def _held(self, number: int, step: int) -> Placement:
        routing, ranks = self.loads.layers[number], self.loads.basis.parallel.expert
        in_order = tuple(routing.held(rank, ranks) for rank in range(ranks))
        return self.loads.placed(number, step) or in_order

    def _sizes(self, number: int) -> tuple[int, int, int]:
        """Bytes of the gradient, the weights and the optimizer's state of one expert on a rank."""
        basis = self.loads.basis
        assert basis.model is not None
        parallel, layer = basis.parallel, basis.model.network.layers[number]
        if basis.sharding in ("zero-2", "zero-3") and parallel.pipeline == 1:
            message = f"copies of experts, and experts that move, need sharding none or zero-1, not {basis.sharding}"
            raise Refusal(f"experts.placement: {message}, outside pipelines")
        parameters = Fraction(layer.parameters.expert, self.loads.layers[number].count * parallel.of_expert)
        holders = basis.together * parallel.context * parallel.tensor // (parallel.expert * parallel.of_expert)
        shared = Sharding.of(basis.sharding, max(1, holders), once=basis.accumulation.once)
        gradient = codecs.find(basis.accumulation.codec).build().bytes_per_element
        state = basis.optimizer.state_bytes / shared.optimizer
        return ceil(parameters * gradient), ceil(parameters * WEIGHTS), ceil(parameters * state)


def _holders(held: Placement, expert: int) -> list[int]:
    return [rank for rank, experts in enumerate(held) if expert in experts]


def _copied(held: Placement) -> bool:
    experts = [expert for of_rank in held for expert in of_rank]
    return len(set(experts)) < len(experts)


def _between(sizes: Mapping[tuple[int, int], int]) -> Sizes:
    """What really travels, in order."""
    return tuple((*ends, size) for ends, size in sorted(sizes.items()) if ends[0] != ends[1] and size)
