"""Explaining a scenario: a traced run, its graph of causes, and what-ifs, each simulated."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hybrid_des.analysis.counterfactual.change_text import Build, builder_of, of_ranks, variant_of
from hybrid_des.analysis.counterfactual.first_order import first_order
from hybrid_des.analysis.counterfactual.ladder import ladder, ranking
from hybrid_des.analysis.counterfactual.proposals import proposals
from hybrid_des.analysis.counterfactual.slowest import stragglers
from hybrid_des.analysis.counterfactual.variant import Variant, name_of_place, ranks_at, scaled_ops, untrained
from hybrid_des.analysis.critical_path.graph import graph_of
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.explanation import TOP, TWICE, Explanation, Tried
from hybrid_des.analysis.ties import ties_of
from hybrid_des.engine.causes import Causes
from hybrid_des.errors import HybridDesError
from hybrid_des.network.fabric import Fabric
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario import Scenario, Source, load
from hybrid_des.simulation.run import Run, run

QUARTER = Fraction(3, 4)  # factor of a duration that is "25 % quicker"
WITHOUT_BARRIER = 4  # steps that show what a schedule gains across steps


def traced_run(scenario: Scenario, plan: Plan | None = None, fabric: Fabric | None = None) -> Run:
    """Simulate a scenario with all messages and causes recorded, but without training, which takes no time."""
    whole = scenario.model_copy(update={"record": "all", "on_oom": "warn"})
    return run(whole, plan, fabric, trace=Causes(), parts=untrained(whole, plan, fabric))


def explain(
    scenario: Source,
    what_if: Sequence[str] = (),
    *,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    build: Build | None = None,
    top: int = TOP,
) -> Explanation:
    """Find out why a step takes as long as it does, and simulate what would help.

    Args:
        scenario: the scenario to explain, the path of its file, or a mapping.
        what_if: changes, such as "cluster.nvlink.bandwidth=2x".
        plan: replaces the schedule's plan.
        fabric: replaces the topology's fabric.
        build: builds a scenario from overrides, for one that was read from a file.
        top: number of rows in lists.

    Raises:
        HybridDesError: the scenario cannot be simulated, or a what-if is wrong.
    """
    scenario = load(scenario)
    build = build or builder_of(scenario)
    planned = Variant(scenario, plan, fabric or fabric_of(scenario))
    for text in what_if:  # errors are found before a long simulation
        variant_of(text, planned, build)
    base = traced_run(scenario, plan, fabric)
    slack = Slack.of(graph_of(base))
    changes = {text: variant_of(text, Variant.of(base), build) for text in what_if}
    busiest = _busiest(Explanation(base, slack, (), (), (), None))
    rows = [_simulated(name, change, base, slack) for name, change in {**_usual(base, busiest), **changes}.items()]
    rows += _without_barrier(base)
    rungs, gains, slow = ladder(base), ranking(base, busiest), stragglers(base)
    found = proposals(base, rungs, gains, slow, build)
    return Explanation(base, slack, rows, rungs, gains, slow, found, top, ties_of(base))


def _busiest(found: Explanation) -> list[int]:
    """The pipeline ranks on critical paths, those with the most time first, then the others."""
    layout = found.run.timeline.layout
    spans_of = {int(name): span for (sort, name), span in found.classes.items() if sort == "rank"}
    order = sorted(spans_of, key=lambda rank: (-spans_of[rank].least, -spans_of[rank].most, rank))
    places = [layout.coordinate(rank, "pipeline") for rank in order]
    return list(dict.fromkeys([*places, *range(layout.sizes["pipeline"])]))


def _usual(base: Run, busiest: Sequence[int]) -> dict[str, Variant]:
    """The usual what-ifs: the busiest rank quicker, faster links, a free network."""
    at = Variant.of(base)
    ranks = ranks_at(at, busiest[0])
    free = at.with_all_links(None).with_latency(Fraction(0))
    quicker = at.with_retime(scaled_ops(QUARTER, of_ranks(ranks)))
    found = {f"{name_of_place(at, busiest[0])} 25 % quicker": quicker}
    if base.messages:
        found |= {TWICE: at.with_all_links(Fraction(2)), "all bytes free": free}
    return found


def _simulated(name: str, change: Variant, base: Run, slack: Slack) -> Tried:
    changed, end = change.scenario, change.simulated().duration  # first: it refuses durations that no column holds
    return Tried(name, first_order(base, slack, change), end, changed.steps, changed.schedule.microbatches)


def _without_barrier(base: Run) -> list[Tried]:
    """Several steps without the barrier between them, if there is one and that many can be simulated."""
    scenario = base.scenario
    if not scenario.barrier or scenario.parallel.pipeline == 1:
        return []
    free = scenario.model_copy(update={"barrier": False, "steps": WITHOUT_BARRIER})
    try:
        duration = Variant(free, base.plan, base.fabric).simulated().duration
    except HybridDesError:
        return []
    name, microbatches = f"no barrier between {WITHOUT_BARRIER} steps", scenario.schedule.microbatches
    return [Tried(name, None, duration, WITHOUT_BARRIER, microbatches)]
