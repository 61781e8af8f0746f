"""How many tokens want each expert, and where experts are, layer by layer and step by step.

    loads       a table, a CSV file, a named workload, or drawn from the seed (`workload.expert_loads`)
    placement   by the loads of all steps or, every `replan` steps, by those of the steps before; it stays where the
                busiest rank would not have fewer tokens

Before the first plan is made anew, experts are where they are put if all are equally wanted.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.errors import UsageError
from hybrid_des.files import read_text
from hybrid_des.workload.expert_loads import WORKLOADS, bounded, dirichlet, power_law
from hybrid_des.workload.models.layer import Layer
from hybrid_des.workload.models.routing import Routing
from hybrid_des.workload.placements import Placement, Wanted, placed

Loads = tuple[float, ...]
Rows = Sequence[Sequence[float]]  # one for all layers with experts, or one each
ROUNDED = 1 + 1e-12  # loads are rounded: those that just fit are not dropped
STEP, LAYER = "step", "layer"  # columns of a file of loads; the others are experts


@dataclass(frozen=True)
class ExpertLoads:
    """The routing of every layer with experts at every step.

    Attributes:
        basis: the sections that say so, and the number of steps.
    """

    basis: CostBasis

    @cached_property
    def layers(self) -> Mapping[int, Routing]:
        """Number → the routing of a layer with experts, as the model has it."""
        assert self.basis.model is not None
        return {n: one.routing for n, one in enumerate(self.basis.model.network.layers) if one.routing is not None}

    def at(self, step: int) -> Mapping[int, Routing]:
        """The routing of each layer with experts at a step."""
        return {number: self._routing(number, step) for number in self.layers}

    def loads(self, number: int, step: int) -> Loads:
        """Tokens of each expert of a layer relative to the mean, before any are dropped; none if all are equal."""
        routing, experts = self.layers[number], self.basis.experts
        if not experts.sources:
            return ()
        wanted = self._wanted(number, step)
        loads = tuple(bounded(wanted, routing.count / routing.active))  # every token chooses an expert at most once
        return () if len(set(loads)) == 1 else loads

    def _wanted(self, number: int, step: int) -> Sequence[float]:
        experts, routing = self.basis.experts, self.layers[number]
        if experts.workload is not None:
            return _of_workload(experts.workload, routing.count, routing.active, step)
        if self._table:
            rows = self._table[step % len(self._table)]
            return rows[0] if len(rows) == 1 else rows[list(self.layers).index(number)]
        draw = step // experts.redraw if experts.redraw is not None else 0
        generator = np.random.default_rng([self.basis.draws.seed, number, *([draw] if draw else [])])
        if experts.power_law is not None:
            tokens = self.basis.tokens * self.basis.parallel.expert
            return power_law(generator, float(experts.power_law), routing.count, routing.active, tokens)
        return dirichlet(generator, float(experts.concentration or 1), routing.count)

    @cached_property
    def _table(self) -> Sequence[Rows]:
        """Rows by step; none where no table is given."""
        experts = self.basis.experts
        if experts.loads_file is not None:
            return rows_in(experts.loads_file, [routing.count for routing in self.layers.values()])
        return [[[float(one) for one in row] for row in rows] for rows in experts.loads]

    def _routing(self, number: int, step: int) -> Routing:
        loads, experts = self.loads(number, step), self.basis.experts
        capacity = None if experts.capacity_factor is None or experts.pad else float(experts.capacity_factor)
        if capacity is not None and max(loads, default=1.0) <= capacity * ROUNDED:
            capacity = None
        if experts.pad:
            loads = ()  # all have as many rows
        return replace(self.layers[number], loads=loads, capacity=capacity, placed=self.placed(number, step))

    def dropped(self, number: int, step: int) -> float:
        """The share of a layer's choices of tokens that find no room."""
        factor, routing = self.basis.experts.capacity_factor, self.layers[number]
        room = None if factor is None else float(factor)
        return replace(routing, loads=self.loads(number, step), capacity=room).dropped

    def placed(self, number: int, step: int) -> Placement:
        """Where the experts of a layer are at a step; none if in order."""
        routing, ranks = self.layers[number], self.basis.parallel.expert
        if not self.basis.experts.moved or ranks == 1:
            return ()
        replan = self.basis.experts.replan
        plan = 0 if replan is None else step // replan
        for before in range(plan):  # each begins where the last one ended; no deep recursion
            self._plan(number, before)
        planned = self._plan(number, plan)
        in_order = Wanted(self._mean(routing, []), self.nodes).in_order
        return () if planned == in_order else planned

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The node of each rank of the first group that shares experts."""
        group = self.basis.parallel.layout.groups("expert")[0]
        return tuple(self.basis.cluster.node_of(rank) for rank in group)

    @cached_property
    def _plan(self) -> Callable[[int, int], Placement]:
        """Number of a layer and of a plan → its placement, each made once."""
        return cache(self._planned)

    def _planned(self, number: int, plan: int) -> Placement:
        routing, loads, experts = self.layers[number], self.seen(number, plan), self.basis.experts
        wanted = Wanted(loads, self.nodes, routing.groups)
        before = self._plan(number, plan - 1) if plan else wanted.in_order
        planned = placed(experts.placement, wanted, experts.options)
        if len(planned[0]) != len(before[0]):
            return planned
        ranks = len(self.nodes)
        busiest = [replace(routing, loads=loads, placed=one).busiest(ranks) for one in (planned, before)]
        return planned if busiest[0] < busiest[1] else before

    def _mean(self, routing: Routing, seen: Iterable[Loads]) -> Loads:
        """The mean of loads; equal ones where none have been seen."""
        rows = [loads or (1.0,) * routing.count for loads in seen]
        if not rows:
            return (1.0,) * routing.count
        return tuple(float(one) for one in np.mean(rows, axis=0))

    def seen(self, number: int, plan: int) -> Loads:
        """The mean of the loads by which a plan is made."""
        replan = self.basis.experts.replan
        steps = range(self.basis.draws.steps) if replan is None else range(plan * replan)
        return self._mean(self.layers[number], (self.loads(number, step) for step in steps))


@lru_cache(maxsize=1024)
def _of_workload(name: str, experts: int, active: int, step: int) -> tuple[float, ...]:
    """Tokens of each expert at a step of a published workload, which every what-if asks for again."""
    return tuple(map(float, WORKLOADS[name](experts, active, step)))


def expert_layers(basis: CostBasis) -> list[Layer]:
    """The layers of the model with the routing of the basis's step; the busiest rank of each determines its costs."""
    assert basis.model is not None
    layers = list(basis.model.network.layers)
    if not basis.experts.unequal:
        return layers
    for number, routing in ExpertLoads(basis).at(basis.draws.step).items():
        layers[number] = routed(layers[number], routing, basis)
    return layers


def routed(layer: Layer, routing: Routing, basis: CostBasis) -> Layer:
    """A layer with a routing; padded experts all have the capacity."""
    factor = basis.experts.capacity_factor if basis.experts.pad and basis.experts.capacity_factor is not None else 1
    balance = layer.balance * factor * routing.busiest(basis.parallel.expert)
    return replace(layer, routing=routing, balance=balance)


def rows_in(file: Path, counts: Sequence[int]) -> list[Rows]:
    """The rows of a CSV file of loads, by step.

    Args:
        file: with a header; columns `step` and `layer` may lack, and the others are experts, in order.
        counts: experts of each layer that has any.

    Raises:
        UsageError: it cannot be read, or does not fit the model.
    """
    lines = list(csv.reader(read_text(file, "loads of experts").splitlines()))
    if len(lines) < 2:
        raise UsageError(f"{file}: expected a header and a row of tokens per expert")
    head = [name.strip() for name in lines[0]]
    keys = [head.index(name) if name in head else None for name in (STEP, LAYER)]
    rows: dict[tuple[int, int], list[float]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not any(cell.strip() for cell in line):
            continue
        where = f"{file}:{number}"
        if len(line) != len(head):
            raise UsageError(f"{where}: {len(line)} cells; expected {len(head)}, as in the header")
        step, layer = (0 if at is None else int(_number(line[at], where, whole=True)) for at in keys)
        tokens = [_number(cell, where) for at, cell in enumerate(line) if at not in keys]
        if (step, layer) in rows:
            raise UsageError(f"{where}: a second row for step {step} and layer {layer}")
        if not any(tokens):
            raise UsageError(f"{where}: expected numbers that are not all 0")
        rows[step, layer] = tokens
    return _by_step(file, rows, counts)


def _by_step(file: Path, rows: Mapping[tuple[int, int], list[float]], counts: Sequence[int]) -> list[Rows]:
    """Rows in order, checked against the model."""
    of_steps: list[Rows] = []
    for step in sorted({step for step, _ in rows}):
        mine = [tokens for (of, _), tokens in sorted(rows.items()) if of == step]
        if len(mine) not in (1, len(counts)):
            expected = f"expected 1, or one for each of {len(counts)} layers with experts"
            raise UsageError(f"{file}: step {step} has {len(mine)} rows; {expected}")
        for layer, count in enumerate(counts):
            columns = len(mine[layer if len(mine) > 1 else 0])
            if columns != count:
                raise UsageError(f"{file}: {columns} columns of experts; the model has {count}")
        of_steps.append(mine)
    return of_steps


def _number(cell: str, where: str, *, whole: bool = False) -> float:
    try:
        number = float(int(cell)) if whole else float(cell)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"{where}: expected a number of at least 0, found {cell.strip()!r}")
    return number
