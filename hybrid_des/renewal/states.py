"""How long a training step takes in each state of the cluster: simulated when a state first occurs, then remembered.

A state is the number of working replicas and the nodes that are slow. Replicas are taken to be alike: which of them is
missing, and in which of them a node is slow, makes no difference to the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from hybrid_des.errors import HybridDesError, ScenarioError, UsageError
from hybrid_des.scenario import Scenario, scenario_from, to_mapping
from hybrid_des.scenario.fault_checks import job_nodes
from hybrid_des.simulation.run import run

Stages = tuple[int, ...]  # the pipeline ranks on a node
Slowed = tuple[tuple[Stages, Fraction], ...]  # the pipeline ranks of slow nodes, and their share of the speed


class State(NamedTuple):
    """A state of the cluster: working replicas, and slow nodes."""

    replicas: int
    slowed: Slowed = ()


@dataclass(frozen=True)
class Step:
    """One training step in a state, in picoseconds.

    Attributes:
        time: how long it takes.
        useful: how long its samples take with all replicas at full speed.
        fewer: what missing replicas add; `slow` is the rest, what slow nodes add.
    """

    state: State
    time: int
    useful: int
    fewer: int

    @property
    def slow(self) -> int:
        """What slow nodes add."""
        return self.time - self.useful - self.fewer


class Steps:
    """The step of every state of a scenario's cluster, simulated once each.

    Args:
        scenario: the scenario.
        times: of states with all replicas, in picoseconds, where they are known already.
    """

    def __init__(self, scenario: Scenario, times: Mapping[State, int] | None = None) -> None:
        self.scenario = scenario
        self.known: dict[State, Step] = {}
        self._times = dict(times or {})

    @property
    def healthy(self) -> Step:
        """The step with all replicas at full speed."""
        return self.of(State(self.scenario.parallel.data))

    def of(self, state: State) -> Step:
        """The step in a state.

        Raises:
            HybridDesError: it cannot be simulated.
        """
        if state not in self.known:
            self.known[state] = self._step(state)
        return self.known[state]

    @property
    def times(self) -> dict[State, int]:
        """The times of states with all replicas; they depend on nothing that `faults` says."""
        return {state: time for state, time in self._times.items() if state.replicas == self.scenario.parallel.data}

    def learn(self, known: dict[State, Step]) -> None:
        """Take over steps that another process has simulated."""
        self.known |= known

    def _step(self, state: State) -> Step:
        whole = self.scenario.parallel.data
        time, healthy = self._time(state), self._time(State(whole))
        useful, alone = healthy, self._time(State(state.replicas))
        if self._shrinks:
            useful = round(Fraction(healthy * state.replicas, whole))
        return Step(state, time, useful, alone - useful)

    @property
    def _shrinks(self) -> bool:
        elastic = self.scenario.faults and self.scenario.faults.elastic
        return bool(elastic and elastic.batch == "shrink")

    def _time(self, state: State) -> int:
        if state not in self._times:
            self._times[state] = self._simulated(state)
        return self._times[state]

    def _simulated(self, state: State) -> int:
        mapping = to_mapping(self.scenario)
        mapping |= {"record": "none", "name": _named(self.scenario, state)}
        for key in ("faults", "numerics"):
            mapping.pop(key, None)
        if state.replicas == self.scenario.parallel.data:
            return self._run(_slowed(mapping, state))
        mapping["parallel"]["data"] = state.replicas
        mapping.pop("batch", None)
        samples, refused = self.scenario.schedule.microbatches, None
        if not self._shrinks:
            samples = -(-samples * self.scenario.parallel.data // state.replicas)
        for more in range(self.scenario.parallel.pipeline):  # some schedules need multiples
            mapping["schedule"]["microbatches"] = samples + more
            try:
                return self._run(_slowed(mapping, state))
            except HybridDesError as error:
                refused = refused or error
        raise UsageError(f"{self.scenario.name}: no step with {state.replicas} replicas: {refused}")

    def _run(self, mapping: dict[str, Any]) -> int:
        scenario = scenario_from(mapping, mapping["name"])
        done = run(scenario)
        time = round(Fraction(done.duration, scenario.steps))
        if not time:
            raise ScenarioError([f"{self.scenario.name}: its training step takes no time; weeks of it have no goodput"])
        return time


def stages_of(scenario: Scenario) -> list[Stages]:
    """The pipeline ranks on each node of the job, in order."""
    layout, first, found = scenario.parallel.layout, 0, []
    for kind in job_nodes(scenario):
        ranks = range(first, min(first + kind.gpus_per_node, layout.ranks))
        found.append(tuple(sorted({layout.coordinate(rank, "pipeline") for rank in ranks})))
        first += kind.gpus_per_node
    return found


def replicas_of(scenario: Scenario) -> list[frozenset[int]]:
    """The replicas with ranks on each node of the job, in order."""
    layout, first, found = scenario.parallel.layout, 0, []
    for kind in job_nodes(scenario):
        ranks = range(first, min(first + kind.gpus_per_node, layout.ranks))
        found.append(frozenset(layout.coordinate(rank, "data") for rank in ranks))
        first += kind.gpus_per_node
    return found


def _named(scenario: Scenario, state: State) -> str:
    slow = [f"a node of pipeline rank {stages[0]} at {float(share):g}" for stages, share in state.slowed]
    return ", ".join([f"{scenario.name} with {state.replicas} replicas", *slow])


def _slowed(mapping: dict[str, Any], state: State) -> dict[str, Any]:
    """The scenario with these nodes slow: of each kind the first node with the same pipeline ranks."""
    if not state.slowed:
        return mapping
    scenario = scenario_from(mapping, mapping["name"])
    stages, nodes = stages_of(scenario), mapping["cluster"]["nodes"]
    kinds = [dict(kind) for kind in nodes] if isinstance(nodes, list) else [{"count": nodes}]
    each = [{**kind, "count": 1} for kind in kinds for _ in range(kind.get("count", 1))]
    for wanted, share in state.slowed:
        at = stages.index(wanted) if wanted in stages else next(i for i, s in enumerate(stages) if wanted[0] in s)
        each[at]["speed"] = Fraction(each[at].get("speed", 1)) * share
    cluster = {**mapping["cluster"], "nodes": _merged(each)}
    return {**mapping, "cluster": cluster}


def _merged(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring nodes that are alike, as one entry with their count."""
    merged: list[dict[str, Any]] = []
    for node in nodes:
        if merged and {**merged[-1], "count": 1} == node:
            merged[-1]["count"] += 1
        else:
            merged.append(node)
    return merged
