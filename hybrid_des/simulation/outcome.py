"""The outcome of a simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cost_model.rank_costs import Costs
from hybrid_des.engine.causes import Causes
from hybrid_des.engine.recorder import CHUNK
from hybrid_des.folding.symmetry import Fold
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.layer_traffic import TensorTraffic
from hybrid_des.planning.planner import Parts
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.memory import MemoryPeak, worst_peak
from hybrid_des.simulation.outer import OuterPeriod
from hybrid_des.simulation.timeline import Timeline


@dataclass(frozen=True)
class Run:
    """The outcome of a simulation; `result` makes tables, pictures and files from it.

    Attributes:
        scenario, parts: what was simulated.
        timeline: the recorded rows, as typed columns.
        messages, bytes_pipeline, bytes_gradients, bytes_scales, bytes_parameters, bytes_tensor, bytes_context,
            bytes_expert: totals over all steps that GPUs and hosts send; replayed collectives of these axes send
            bytes, but no messages.
        bytes_switched: bytes that switches with in-network reduction forward, over all steps.
        duration: simulated picoseconds over all steps.
        ranks: the simulated global ranks.
        peak_chunks, peak_memory: one entry for each of these: activations, in parts of a chunk (`CHUNK`), and bytes.
        events: SimPy events processed.
        wall_s: real seconds.
        slowed: picoseconds by which computation of all simulated ranks took longer beside collectives; None if times
            are given, or nothing is slowed.
        numerics: the training entries of the summary, with numerics.
        weights: rank → stage → arrays, with numerics.
        trace: the causes that released each op and message, if requested.
        carried: bytes over each link, if replayed collectives may disturb messages on it.
        fold: maps other ranks to the simulated ones; None if all are simulated.
        unfolded: why replicas were not folded, if they were meant to be.
        left_out: what was not simulated as it changes no figure, in words; empty if nothing was.
        refused: what could not be left out, and why, in the order in which it was tried.
        any_order: whether ranks that start in any other order have been found to take the same times.
        outer: with `gradients.every`, what the exchange between groups of replicas costs; the run is a group's.
    """

    scenario: Scenario
    parts: Parts
    timeline: Timeline
    messages: int
    bytes_pipeline: int
    bytes_gradients: int
    bytes_scales: int
    bytes_parameters: int
    duration: int
    ranks: Sequence[int]
    peak_chunks: Sequence[int]
    peak_memory: list[int]
    events: int
    wall_s: float
    slowed: int | None = None
    numerics: dict[str, Any] | None = None
    weights: dict[int, dict[int, list[Any]]] | None = None
    trace: Causes | None = None
    bytes_tensor: int = 0
    bytes_context: int = 0
    bytes_expert: int = 0
    bytes_switched: int = 0
    carried: Mapping[str, int] = field(default_factory=dict)
    fold: Fold | None = None
    unfolded: str = ""
    left_out: str = ""
    refused: Sequence[tuple[str, str]] = ()
    any_order: bool = False
    outer: OuterPeriod | None = None

    @property
    def costs_of_steps(self) -> Sequence[Costs]:
        """The costs of each step; of one, if all are alike."""
        return [self.costs, *self.parts.further]

    @property
    def plan(self) -> Plan:
        """The schedule as data; empty if the programs came from elsewhere."""
        return self.parts.plan

    @property
    def costs(self) -> Costs:
        """Time, bytes and memory of every stage."""
        return self.parts.costs

    @property
    def fabric(self) -> Fabric:
        """The wiring."""
        return self.parts.fabric

    @property
    def traffic(self) -> TensorTraffic:
        """How collectives of layers were simulated."""
        return self.parts.traffic

    @property
    def algorithm(self) -> str:
        """The all-reduce used; for `auto` the chosen one."""
        return self.parts.reductions.algorithm

    @property
    def choices(self) -> Mapping[str, int]:
        """What a library takes for buckets, with their number; empty if it is no library's algorithm."""
        return self.parts.reductions.choices

    @property
    def channels(self) -> int | None:
        """The most rings that reduce the same gradients at once; None if nothing is reduced around rings."""
        return self.parts.channels

    @property
    def microbatches(self) -> int:
        """Micro-batches per replica and step."""
        return self.plan.microbatches or self.scenario.schedule.microbatches

    @property
    def tensor_delay(self) -> int:
        """Picoseconds by which a step may be longer than with replayed collectives."""
        return self.traffic.delay(self.fabric, self.carried, self.scenario.steps)

    @property
    def peak_activations(self) -> list[Fraction]:
        """For each simulated rank, the most activations that it holds, in whole-rank micro-batches."""
        visits = self.timeline.programs.visits[self.timeline.pipeline_rank[self.ranks]].tolist()
        return [Fraction(parts, CHUNK * times) for parts, times in zip(self.peak_chunks, visits, strict=True)]


def fullest(run: Run) -> MemoryPeak:
    """The GPU of a run that is closest to its memory, or furthest above it, with its peak."""
    return worst_peak(run.ranks, run.peak_memory, run.scenario.cluster.gpus_of(run.ranks))
