"""The report of weeks as text: goodput, where the time went, failures, the best interval, the assumptions."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.errors import one_line
from hybrid_des.report.billed import bill_headline
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.faults import Faults
from hybrid_des.studies.goodput.failures import faults_of
from hybrid_des.studies.goodput.ledger import LOST, unknown_causes
from hybrid_des.studies.goodput.states import Steps, described
from hybrid_des.units import format_seconds, format_share, in_units

WIDTH, BAR, LABEL = 100, 30, 40


LONG = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


MOST_CLASSES = 20


def render(scenario: Scenario, facts: Mapping[str, Any], steps: Steps, width: int = WIDTH) -> str:
    """The report, as wide as given, without a newline at its end."""
    blocks = [
        list(_title(scenario, facts)),
        list(_headline(facts)),
        _bill(scenario, facts),
        list(_ledger(scenario, facts, width)),
        list(_failures(facts)),
        list(_advice(scenario, facts)),
        list(_states(scenario, steps)),
        textwrap.wrap(_limits(scenario), min(width, WIDTH)),
        textwrap.wrap(_assumed(facts), min(width, WIDTH)),
    ]
    return "\n\n".join("\n".join(map(one_line, block)) for block in blocks if block)


def long_time(seconds: float) -> str:
    """A time of any length: "54 d", "3.1 h", "12.5 min", "6.2 s"."""
    return in_units(seconds, LONG, format_seconds(seconds))


def _title(scenario: Scenario, facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{scenario.name}: {scenario.description}" if scenario.description else scenario.name
    nodes = len(scenario.cluster.nodes_for(scenario.parallel.ranks))
    mtbf = f"one stop every {long_time(facts['mtbf_s'])}" if facts["mtbf_s"] else "no stops"
    yield f"{long_time(facts['horizon_s'])} on {nodes:,} nodes, {facts['replications']} replications; expected: {mtbf}"


def _headline(facts: Mapping[str, Any]) -> Iterator[str]:
    bound = "at most " if facts["unknown"] else ""
    spread = facts["goodput_percentiles"]
    note = ", ".join(f"{name} {format_share(spread[name], 2)}" for name in ("p5", "p50", "p95"))
    yield f"{'goodput':<12}{bound}{format_share(facts['goodput'], 2)}{_interval(facts['goodput_ci95'])}"
    yield f"{'':<12}{note} of {facts['replications']} replications"
    yield f"{'ETTR':<12}{bound}{format_share(facts['ettr'], 2)}{_interval(facts['ettr_ci95'])}"
    yield f"{'stops':<12}{facts['stops']:.4g} per replication, of {facts['failures']:.4g} failures"


def _interval(bounds: list[float] | None) -> str:
    ends = "" if bounds is None else f"{format_share(bounds[0], 2)} … {format_share(bounds[1], 2)}"
    return ends and f"   mean, 95 % confidence {ends}"


def _bill(scenario: Scenario, facts: Mapping[str, Any]) -> list[str]:
    """What the whole training takes, of wall time; that it has no end, if no step is kept."""
    if scenario.train is not None and "bill" not in facts:
        return [f"{'training':<12}without end: failures undo all work"]
    return [f"{one.label:<12}{one.value:<16}{one.note}".rstrip() for one in bill_headline(facts)]


def _assumed(facts: Mapping[str, Any]) -> str:
    said = facts.get("bill", {}).get("assumes")
    return f"Cost assumes: {'; '.join(said)}." if said else ""


def _ledger(scenario: Scenario, facts: Mapping[str, Any], width: int) -> Iterator[str]:
    horizon, unknown = facts["horizon_s"], unknown_causes(scenario)
    bar = max(min(BAR, width - LABEL - 23), 8)
    yield "where the time went"
    yield _share("useful steps", facts["useful_s"], horizon, bar)
    for cause, seconds in facts["lost_s"].items():
        if seconds is None:
            yield f"  {LOST[cause]:<{LABEL}}{'unknown':>10}   {unknown[cause]} is not given"
        elif seconds:
            yield _share(LOST[cause], seconds, horizon, bar)


def _share(label: str, seconds: float, horizon: float, bar: int) -> str:
    share = seconds / horizon
    return f"  {label:<{LABEL}}{long_time(seconds):>10}{format_share(share, 2):>10}  {'█' * round(bar * share)}"


def _failures(facts: Mapping[str, Any]) -> Iterator[str]:
    counts = sorted(facts["failures_by_class"].items(), key=lambda item: -item[1])
    yield "failures per replication"
    for name, count in counts[:MOST_CLASSES]:
        yield f"  {name:<{LABEL}}{count:>10.4g}"
    if len(counts) > MOST_CLASSES:
        others = sum(count for _, count in counts[MOST_CLASSES:])
        yield f"  {f'{len(counts) - MOST_CLASSES} other classes':<{LABEL}}{others:>10.4g}"


def _advice(scenario: Scenario, facts: Mapping[str, Any]) -> Iterator[str]:
    best, every = facts["best_interval_s"], facts["checkpoint_interval_s"]
    if best is not None:
        chosen = f"every {long_time(every)}; " if every else ""
        formulas = f"Young {long_time(best['young'])}, Daly {long_time(best['daly'])}"
        yield f"{'checkpoints':<12}{chosen}best {long_time(best['exact'])} (exact for constant rates; {formulas})"
    if facts["spares_availability"] is not None and scenario.faults and scenario.faults.spares:
        spares = scenario.faults.spares.nodes
        nodes = len(scenario.cluster.nodes_for(scenario.parallel.ranks))
        enough = f"enough {format_share(facts['spares_availability'], 4)} of the time (binomial)"
        yield f"{'spares':<12}{spares} in addition to {nodes} nodes, {enough}"


def _states(scenario: Scenario, steps: Steps) -> Iterator[str]:
    whole = scenario.parallel.data
    yield f"{'step':<12}{format_seconds(steps.healthy.time / 1e12)} with all replicas"
    others = sorted((state, step) for state, step in steps.known.items() if step is not steps.healthy)
    for state, step in others[:8]:
        slow = map(described, state.slowed)
        replicas = [f"{state.replicas} of {whole} replicas"] if state.replicas < whole else []
        yield f"{'':<12}{format_seconds(step.time / 1e12)} with {', '.join([*replicas, *slow])}"
    if len(others) > 8:
        yield f"{'':<12}and {len(others) - 8} other states"


def _limits(scenario: Scenario) -> str:
    """What is exact and what is assumed."""
    return " ".join([
        "The step of each state is simulated exactly, and exact as long as states change between steps: a change takes "
        "effect at the next step, a failure immediately.",
        "All replicas are treated as identical. Failures are independent of each other and of what the job does.",
        *_assumptions(faults_of(scenario)),
    ])  # fmt: skip


def _assumptions(faults: Faults) -> Iterator[str]:
    if any(one.effect is not None and one.effect.flap is not None for one in faults.classes):
        yield "A flap stops the job for its whole length, which is the most that it can cost."
    if faults.checkpoint is not None and faults.checkpoint.mode != "sync":
        yield "Writing a checkpoint slows no step."
    if faults.elastic is not None:
        yield "Nodes of a replica that is missing another node stay idle."
