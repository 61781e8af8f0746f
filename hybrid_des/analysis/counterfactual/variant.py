"""A variant of a run: the same scenario with other durations, other links, or another scenario altogether."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from hybrid_des.network.fabric import Fabric, LinkSpec, Route
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.pace import Pace
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.program import Call, Program
from hybrid_des.scenario import Scenario
from hybrid_des.simulation.assembly import UNCONTENDED
from hybrid_des.simulation.perturbing import Perturbation
from hybrid_des.simulation.programs import Retime
from hybrid_des.simulation.run import Run, run

Factors = Mapping[str, Fraction | None]  # link → factor of its bandwidth; None: infinite


@dataclass(frozen=True)
class Variant:
    """A changed run to simulate.

    Attributes:
        scenario: the scenario.
        plan, fabric: replacements for the scenario's own.
        retime: changed durations of ops.
    """

    scenario: Scenario
    plan: Plan | None = None
    fabric: Fabric | None = None
    retime: Retime | None = None

    @classmethod
    def of(cls, base: Run) -> Variant:
        """The run itself; its plan is kept regardless of later changes."""
        return cls(base.scenario, base.plan, base.fabric)

    def simulated(self) -> Run:
        """Simulate it, recording rows of ops only."""
        quiet = self.scenario.model_copy(update={"record": "compute", "on_oom": "warn"})
        return run(quiet, self.plan, self.fabric, retime=self.retime, parts=untrained(quiet, self.plan, self.fabric))

    def parts(self) -> Parts:
        """Plan it without simulating it."""
        return parts_of(self.scenario, self.plan, self.fabric)

    def programs(self) -> list[Program]:
        """The program of each global rank, with permanent slowness, before `retime`."""
        parts, layout = self.parts(), self.scenario.parallel.layout
        lower = cache(parts.lowering.lower)
        perturbed = Perturbation(self.scenario, parts.plan, parts.costs, parts.durations)
        return [
            lower(layout.coordinate(rank, "pipeline"), Pace(node.speed * perturbed.speed(rank)))
            for rank, node in enumerate(self.scenario.cluster.nodes_of(range(layout.ranks)))
        ]

    def without_queueing(self) -> Variant:
        """Give every message its links to itself."""
        cluster = self.scenario.cluster.model_copy(update={"sharing": UNCONTENDED})
        return replace(self, scenario=self.scenario.model_copy(update={"cluster": cluster}))

    def with_links(self, factors: Factors) -> Variant:
        """Scale the bandwidth of some links; links with measured times can only become infinite."""
        assert self.fabric is not None
        links = {name: _scaled(link, factors.get(name, Fraction(1))) for name, link in self.fabric.links.items()}
        return replace(self, fabric=replace(self.fabric, links=links))

    def with_all_links(self, factor: Fraction | None) -> Variant:
        """Scale the bandwidth of all links."""
        assert self.fabric is not None
        return self.with_links(dict.fromkeys(self.fabric.links, factor))

    def with_latency(self, factor: Fraction) -> Variant:
        """Scale all latencies of routes."""
        assert self.fabric is not None
        route = self.fabric.route

        def scaled(sender: int, receiver: int) -> Route:
            found = route(sender, receiver)
            return Route(found.links, tuple(round(latency * factor) for latency in found.latencies))

        return replace(self, fabric=replace(self.fabric, route=scaled))

    def with_retime(self, retime: Retime) -> Variant:
        """Change the durations of ops, on top of earlier changes."""
        before = self.retime
        if before is None:
            return replace(self, retime=retime)
        return replace(self, retime=lambda rank, call, took: retime(rank, call, before(rank, call, took)))


def untrained(scenario: Scenario, plan: Plan | None, fabric: Fabric | None) -> Parts | None:
    """The parts of a scenario with numerics, without training, which takes no simulated time; None without numerics."""
    if scenario.numerics is None:
        return None
    return replace(parts_of(scenario, plan, fabric), training=None, workers={})


def _scaled(link: LinkSpec, factor: Fraction | None) -> LinkSpec:
    if factor is None:
        return link._replace(bandwidth=None)
    if factor == 1 or type(link.bandwidth) is not Fraction:
        return link
    return link._replace(bandwidth=link.bandwidth * factor)


def scaled_ops(factor: Fraction, wanted: Callable[[int, Call], bool]) -> Retime:
    """Scale the durations of some ops."""

    def retime(rank: int, call: Call, took: int) -> int:
        return round(took * factor) if wanted(rank, call) else took

    return retime


def at_the_mean(variant: Variant, ranks: frozenset[int] | None = None) -> Retime:
    """Give ops, of all ranks or of some, the mean duration of their kind over all ranks.

    This is the ideal duration of ops in the straggler study of Lin et al. (OSDI 2025).
    """
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for program in variant.programs():
        for call in program.ops.values():
            sums[kinds_of(call)] += call.duration
            counts[kinds_of(call)] += 1
    means = {kind: Fraction(total, counts[kind]) for kind, total in sums.items()}

    def retime(rank: int, call: Call, took: int) -> int:
        whole = call.duration
        if not whole or (ranks is not None and rank not in ranks):
            return took
        return round(took * means[kinds_of(call)] / whole)

    return retime


def kinds_of(call: Call) -> tuple[str, ...]:
    """The kinds of a call's ops, regardless of micro-batch; empty for the optimizer."""
    return tuple(op.kind for op in call.ops)


def ranks_at(at: Variant, place: int) -> frozenset[int]:
    """The global ranks of a pipeline rank."""
    layout = at.scenario.parallel.layout
    return frozenset(rank for rank in range(layout.ranks) if layout.coordinate(rank, "pipeline") == place)


def name_of_place(at: Variant, place: int) -> str:
    """The name of a pipeline rank in reports, which may stand for several global ranks."""
    layout = at.scenario.parallel.layout
    if layout.sizes["pipeline"] == 1:
        return "all ranks"
    if layout.ranks == layout.sizes["pipeline"]:
        return f"rank {place}"
    return f"pipeline rank {place}"
