"""What unequally wanted experts cost layer by layer, what a balanced placement would give, and the busiest adapters.

All figures are of the step in which the busiest ranks of all layers together serve most tokens. A balanced placement is
that by exactly the loads of this step: the best that planning anew could do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from hybrid_des.collectives.token_exchange import TokenExchange
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import costs_of_layer
from hybrid_des.cost_model.expert_loads import ExpertLoads, routed
from hybrid_des.cost_model.layer_collectives import LayerCollective
from hybrid_des.cost_model.rank_costs import StageCosts
from hybrid_des.planning.wiring import times_of
from hybrid_des.simulation.outcome import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.models.routing import Routing
from hybrid_des.workload.placements import Placement, Wanted, placed

SHOWN = 5  # layers
BALANCED = "balanced"  # the placement to compare with


def expert_use(run: Run) -> dict[str, Any]:
    """The summary's `experts`; nothing where all experts are equally wanted, and where the model has them."""
    scenario = run.scenario
    if scenario.model is None or not scenario.experts.unequal or scenario.parallel.expert == 1:
        return {}
    return {"experts": _ExpertUse(run).facts()}


@dataclass
class _ExpertUse:
    """The figures of a run."""

    run: Run

    def facts(self) -> dict[str, Any]:
        """All figures, by their public keys."""
        routings = self.loads.at(self.step)
        dropped = [self.loads.dropped(number, self.step) for number in routings]
        return {
            "step": self.step,
            "placement": self.run.scenario.experts.placement,
            "dropped_ratio": sum(dropped) / len(dropped),
            "layers": [self._layer(number, routings[number]) for number in list(routings)[:SHOWN]],
            "layers_with_experts": len(routings),
            **self._copies(),
            **self._adapters(),
        }

    @cached_property
    def loads(self) -> ExpertLoads:
        """How many tokens want each expert, and where they are."""
        return ExpertLoads(CostBasis.of(self.run.scenario))

    @cached_property
    def ranks(self) -> int:
        """Ranks that share the experts."""
        return self.run.scenario.parallel.expert

    @cached_property
    def step(self) -> int:
        """The step in which the busiest ranks of all layers serve most tokens."""
        sums = [sum(one.busiest(self.ranks) for one in self.loads.at(step).values()) for step in self._steps]
        return max(self._steps, key=lambda step: (sums[step], -step))

    @property
    def _steps(self) -> range:
        return range(len(self.run.costs_of_steps))

    @cached_property
    def _layers(self) -> Mapping[int, StageCosts]:
        """Number → the costs of a layer in this step."""
        of_step, stage_of = self.run.costs_of_steps[self.step].stages, self.run.plan.stage_of
        stages = {stage_of[place]: cost for place, cost in of_step.items()}
        return dict(enumerate(layer for stage in sorted(stages) for layer in stages[stage].layers))

    def _layer(self, number: int, routing: Routing) -> dict[str, Any]:
        """A layer as it is, and as it would be with a balanced placement."""
        loads = routing.loads or (1.0,) * routing.count
        better = placed(BALANCED, Wanted(loads, self.loads.nodes, routing.groups), {})
        balanced = replace(routing, placed=better)
        if balanced.busiest(self.ranks) >= routing.busiest(self.ranks):
            balanced, better = routing, self._held(routing)
        here, moved = self._layers[number].imbalance, zip(self._held(routing), better, strict=True)
        return {
            "layer": number,
            "busiest_ratio": float(routing.busiest(self.ranks)),
            "imbalance_s": self._seconds(here),
            "balanced_busiest_ratio": float(balanced.busiest(self.ranks)),
            "balanced_imbalance_s": self._seconds(here if balanced == routing else self._imbalance(number, balanced)),
            "balanced_moves": sum(expert not in held for held, new in moved for expert in new),
        }

    def _held(self, routing: Routing) -> Placement:
        return tuple(routing.held(rank, self.ranks) for rank in range(self.ranks))

    def _seconds(self, picoseconds: int) -> float:
        """Per step, on the ranks that compute the layer."""
        return picoseconds * self.run.plan.microbatches / PICOSECONDS_PER_SECOND

    def _imbalance(self, number: int, routing: Routing) -> int:
        basis = self.loads.basis
        assert basis.model is not None
        layer = routed(basis.model.network.layers[number], routing, basis)
        return costs_of_layer(basis, self._times, layer, number).imbalance

    @cached_property
    def _times(self) -> Any:
        assert self.run.fabric is not None
        return times_of(self.run.scenario, self.run.fabric)

    def _copies(self) -> dict[str, Any]:
        """Bytes per step of all groups that copies of experts, and experts that move, send; on average."""
        parts = self.run.parts
        if not parts.copied:
            return {}
        groups = len(self.run.scenario.parallel.layout.groups("expert"))
        sent = Counter[str]()
        for step in parts.copies:
            for stage in step.values():
                sent["gradient_bytes"] += sum(size for *_, size in stage.gradients)
                sent["weight_bytes"] += sum(size for *_, size in stage.weights)
        each = groups // self.run.scenario.parallel.pipeline
        return {"copies": {name: size * each / len(parts.copies) for name, size in sent.items()}}

    def _adapters(self) -> dict[str, Any]:
        """Bytes per step that reach each adapter of the busiest node, and of all nodes on average."""
        received: Counter[int] = Counter()
        layout, cluster = self.run.scenario.parallel.layout, self.run.scenario.cluster
        held: dict[int, list[StageCosts]] = {}
        for (rank, _), stage in self.run.costs_of_steps[self.step].stages.items():
            held.setdefault(rank, []).extend(stage.layers)
        visits = self.run.plan.microbatches // len(self.run.plan.paths)
        for ranks in layout.groups("expert"):
            nodes = [cluster.node_of(rank) for rank in ranks]
            for layer in held[layout.coordinate(ranks[0], "pipeline")] if len(set(nodes)) > 1 else ():
                for exchange in (one for way in layer.collectives for one in way if one.axis == "expert"):
                    for node, size in _between_nodes(exchange, nodes):
                        received[node] += size * exchange.repeats * visits
        if not received:
            return {}
        kinds = enumerate(cluster.nodes_of(range(layout.ranks)))
        used = {cluster.node_of(rank): (kind.infiniband.nics_per_node, kind.gpus_per_node) for rank, kind in kinds}
        each = {node: size / min(used[node]) for node, size in received.items()}
        busiest = max(each, key=lambda node: (each[node], -node))
        mean = sum(each.values()) / len(each)
        return {"adapters": {"busiest_node": busiest, "bytes": each[busiest], "mean_bytes": mean}}


def _between_nodes(exchange: LayerCollective, nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The bytes that each node receives from others in an exchange of a group with ranks on these nodes."""
    on, ranks = Counter(nodes), len(nodes)
    for node, here in on.items():
        if not isinstance(exchange.how, TokenExchange):
            yield node, exchange.size * here * (ranks - here) // ranks
            continue
        routing = exchange.how.routing
        share = {}
        for other in on:
            held = (routing.held(rank, ranks) for rank in range(ranks) if nodes[rank] == other)
            share[other] = float(routing.hit(tuple(chain.from_iterable(held))))
        if exchange.algorithm == "per-node-dispatch":
            yield node, round(exchange.size * (ranks - here) * share[node])
        else:
            yield node, round(exchange.size * here * sum(share[other] for other in on if other != node))
