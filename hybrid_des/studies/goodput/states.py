"""The time of a training step in each state of the cluster: simulated when a state first occurs, then cached.

A state is the number of working replicas and their slow parts. Replicas are assumed to be alike: which of them is
missing, and which of them has a slow part, makes no difference to the step. With `jitter` a step takes the mean of
the scenario's `steps`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from hybrid_des.analysis.idle import busy_share
from hybrid_des.errors import HybridDesError, ScenarioError, UsageError
from hybrid_des.scenario.composition import put
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run

Stages = tuple[int, ...]  # the pipeline ranks on a node


class SlowPart(NamedTuple):
    """A slow node, GPU or NIC: the pipeline ranks that it serves, its number in the node, its share of the speed."""

    what: str
    stages: Stages
    number: int
    share: Fraction


class State(NamedTuple):
    """A state of the cluster: the number of working replicas, and their slow parts."""

    replicas: int
    slowed: tuple[SlowPart, ...] = ()


class Kind(NamedTuple):
    """A simulation of a state: with or without the scenario's own `slow`, with or without its `jitter`."""

    state: State
    slow: bool
    jitter: bool


class SimulatedStep(NamedTuple):
    """A simulated step: its picoseconds, and the share of them for which GPUs compute, the mean over ranks."""

    time: int
    busy: Fraction


@dataclass(frozen=True)
class Step:
    """One training step in a state, in picoseconds.

    Attributes:
        time: its duration.
        useful: the time of its samples with all replicas at full speed.
        fewer: time added by missing replicas.
        slow: time added by slow parts, including those of the scenario's `slow`.
    """

    state: State
    time: int
    useful: int
    fewer: int
    slow: int

    @property
    def jitter(self) -> int:
        """Time added by jitter, on average."""
        return self.time - self.useful - self.fewer - self.slow


class Steps:
    """The step of every state of a scenario's cluster, simulated once each.

    Args:
        scenario: the scenario.
        times: known steps of states with all replicas.
    """

    def __init__(self, scenario: Scenario, times: Mapping[Kind, SimulatedStep] | None = None) -> None:
        self.scenario = scenario
        self.known: dict[State, Step] = {}
        self._times = dict(times or {})

    @property
    def healthy(self) -> Step:
        """The step with all replicas and no failures."""
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
    def busy(self) -> Fraction:
        """The share of a step for which GPUs compute, with all replicas at full speed."""
        return self._simulation(Kind(State(self.scenario.parallel.data), False, False)).busy

    @property
    def times(self) -> dict[Kind, SimulatedStep]:
        """The steps of states with all replicas; they do not depend on `faults`."""
        whole = self.scenario.parallel.data
        return {kind: step for kind, step in self._times.items() if kind.state.replicas == whole}

    def _step(self, state: State) -> Step:
        """Split the time by removing one cause after the other: jitter, slow parts, missing replicas."""
        whole, own, jitter = self.scenario.parallel.data, bool(self.scenario.slow), bool(self.scenario.jitter)
        useful = self._time(Kind(State(whole), False, False))
        alone = self._time(Kind(State(state.replicas), False, False))
        slowed = self._time(Kind(state, own, False))
        time = self._time(Kind(state, own, jitter))
        if self._shrinks:
            useful = round(Fraction(useful * state.replicas, whole))
        return Step(state, time, useful, alone - useful, slowed - alone)

    @property
    def _shrinks(self) -> bool:
        elastic = self.scenario.faults and self.scenario.faults.elastic
        return bool(elastic and elastic.batch == "shrink")

    def _time(self, kind: Kind) -> int:
        return self._simulation(kind).time

    def _simulation(self, kind: Kind) -> SimulatedStep:
        if kind not in self._times:
            self._times[kind] = self._simulated(kind)
        return self._times[kind]

    def _simulated(self, kind: Kind) -> SimulatedStep:
        mapping, state = to_mapping(self.scenario), kind.state
        parts = map(described, state.slowed)
        name = ", ".join([f"{self.scenario.name} with {state.replicas} replicas", *parts])
        mapping |= {"record": "none", "name": name}
        unused = {"faults", "numerics", *(() if kind.slow else ("slow",)), *(() if kind.jitter else ("jitter",))}
        mapping = {key: value for key, value in mapping.items() if key not in unused}
        if state.replicas == self.scenario.parallel.data:
            return self._run(_slowed(mapping, state))
        put(mapping, ("parallel", "data"), state.replicas, name)
        mapping.pop("batch", None)
        samples, refused = self.scenario.schedule.microbatches, None
        if not self._shrinks:
            samples = -(-samples * self.scenario.parallel.data // state.replicas)
        for more in range(self.scenario.parallel.pipeline):  # some schedules need multiples
            put(mapping, ("schedule", "microbatches"), samples + more, name)
            try:
                return self._run(_slowed(mapping, state))
            except HybridDesError as error:
                refused = refused or error
        raise UsageError(f"{self.scenario.name}: no step with {state.replicas} replicas: {refused}")

    def _run(self, mapping: dict[str, Any]) -> SimulatedStep:
        scenario = scenario_from(mapping, mapping["name"])
        done = run(scenario)
        time = round(Fraction(done.duration, scenario.steps) if done.outer is None else done.outer.step)
        if not time:
            raise ScenarioError([f"{self.scenario.name}: its training step takes no time, so goodput is undefined"])
        return SimulatedStep(time, busy_share(done.timeline))


def stages_of(scenario: Scenario) -> list[Stages]:
    """The pipeline ranks on each node of the job, in order."""
    return [tuple(sorted({*stages})) for stages in gpu_stages_of(scenario)]


def gpu_stages_of(scenario: Scenario) -> list[Stages]:
    """The pipeline rank of each GPU of each node of the job."""
    return [tuple(places) for places in _along(scenario, "pipeline")]


def replicas_of(scenario: Scenario) -> list[frozenset[int]]:
    """The replicas with ranks on each node of the job, in order."""
    return [frozenset(places) for places in _along(scenario, "data")]


def _along(scenario: Scenario, axis: str) -> Iterator[list[int]]:
    """The places of the ranks of each node of the job along an axis."""
    places, first = scenario.parallel.layout.along(axis).tolist(), 0
    for kind in scenario.cluster.nodes_for(scenario.parallel.ranks):
        yield places[first : first + kind.gpus_per_node]
        first += kind.gpus_per_node


def described(part: SlowPart) -> str:
    """A slow part in words: "node of pipeline rank 0 at 0.5"."""
    return f"{part.what} of pipeline rank {part.stages[0]} at {float(part.share):g}"


def _slowed(mapping: dict[str, Any], state: State) -> dict[str, Any]:
    """The scenario with these parts slow: those of the first node with the same pipeline ranks."""
    if not state.slowed:
        return mapping
    scenario = scenario_from(mapping, mapping["name"])
    stages, layout = stages_of(scenario), scenario.parallel.layout
    items = []
    for what, served, number, share in state.slowed:
        node = stages.index(served) if served in stages else next(i for i, s in enumerate(stages) if served[0] in s)
        if what == "gpu":
            rank = next(rank for rank in range(layout.ranks) if layout.coordinate(rank, "pipeline") == served[0])
            items.append({"gpu": scenario.cluster.placement[rank], "factor": share})
        elif what == "node":
            items.append({"node": node, "factor": share})
        else:
            items.append({"nic": f"node{node}/nic{number}", "factor": share})
    return {**mapping, "slow": [*mapping.get("slow", []), *items]}
