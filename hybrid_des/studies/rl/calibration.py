"""The engine's share of its simulated speed, from what a run took: one number, by bisection over simulations.

Engines of a framework are slower than the same engines that only serve: they return log-probabilities, keep old
versions, are called synchronously. One log of a run has a time that depends on it: that of generation, or of a cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from hybrid_des.studies.rl.engine_all_reduce import tensor_nodes
from hybrid_des.studies.rl.figures import figures_of
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.rl.parts_of_scenario import parts_of
from hybrid_des.units import PICOSECONDS_PER_SECOND, grouped_by

if TYPE_CHECKING:
    from hybrid_des.scenario.definition import Scenario
    from hybrid_des.scenario.sections.rl import Rollout
    from hybrid_des.studies.rl.record import LoopRecord

LOWEST, HIGHEST = 1 / 16, 4.0
CLOSE = 1e-3  # relative error of the time at which a share is near enough
MOST_RUNS = 24
BUDGET_S = 60.0  # of a run
SYNCS = 4  # at least, of which cycles are averaged, those of the warm-up apart


class Share(NamedTuple):
    """What a run says of its engines.

    Attributes:
        value: of `rl.rollout.efficiency.reached`, or the inverse of `across` (`setting`); None: no value between 1/16
            and 4 has the run's time.
        is_least: whether faster engines would take as long, as where the trainer never waits.
    """

    value: float | None
    is_least: bool = False


def calibrated(
    scenario: Scenario, kind: str, seconds: float, simulated: Callable[[Scenario], LoopRecord] | None = None
) -> Share:
    """The share of their simulated speed that engines reach where a loop takes as long as the run.

    Args:
        scenario: with an `rl` section, maybe of several kinds of engines, which all get the same value.
        kind: "generation" of the samples of a batch, or "cycle", from sync to sync.
        seconds: what the run took, on average.
        simulated: runs the loop. Default: a minute each time at most, with the trainer's steps simulated once.

    Raises:
        HybridDesError: the loop cannot be simulated, or takes more than a minute.
    """
    short = scenario.model_copy(update={"steps": max(scenario.steps, SYNCS) if kind == "cycle" else 2})

    run = _runs(short) if simulated is None else simulated

    def time(share: float) -> float:
        record = run(with_share(short, share))
        return generation_s(record) if kind == "generation" else figures_of(short, record).cycle

    share = reached(seconds, time)
    if share is None or kind == "generation":
        return Share(share)
    return Share(share, abs(time(min(2 * share, HIGHEST)) - seconds) <= 10 * CLOSE * seconds)


def _runs(scenario: Scenario) -> Callable[[Scenario], LoopRecord]:
    """What runs loops that differ in their engines only."""
    parts = parts_of(scenario)
    return partial(run_loop, trainer=parts.trainer, sync_ps=parts.sync_ps, budget_s=BUDGET_S)


def setting(scenario: Scenario, rollout: Rollout, share: float) -> tuple[str, float]:
    """The key of `efficiency`, and its value, that say that engines reach a share of their simulated speed.

    Where tensor ranks are on several nodes, the difference is attributed to their all-reduces, which no measured
    engine had across nodes: `across` instead of `reached`.
    """
    return ("across", 1 / share) if tensor_nodes(scenario, rollout) > 1 else ("reached", share)


def with_share(scenario: Scenario, share: float) -> Scenario:
    """The same scenario with engines that reach this share of their simulated speed, or the inverse for all-reduces."""
    assert scenario.rl is not None
    engines = []
    for kind in scenario.rl.rollout:
        key, value = setting(scenario, kind, share)
        changed = kind.efficiency.model_copy(update={key: Fraction(value).limit_denominator(10**6)})
        engines.append(kind.model_copy(update={"efficiency": changed}))
    return scenario.model_copy(update={"rl": scenario.rl.model_copy(update={"rollout": tuple(engines)})})


def generation_s(record: LoopRecord) -> float:
    """Seconds from the first sample of a batch that an engine takes up to its last token, on average.

    The first batch is left out if there are others: engines may begin it before all else.
    """
    trained = grouped_by((one for one in record.samples if one.batch >= 0), lambda sample: sample.batch)
    batches = [trained[number] for number in sorted(trained)]
    times = [max(one.ended for one in batch) - min(one.started for one in batch) for batch in batches[1:] or batches]
    return fmean(times) / PICOSECONDS_PER_SECOND


def reached(measured_s: float, simulated: Callable[[float], float]) -> float | None:
    """The share with which something takes as long as it did.

    Args:
        measured_s: seconds of the run.
        simulated: seconds with a given share; it falls, or stays, as the share grows.

    Returns:
        None if the time is out of reach, as where the trainer alone takes longer.
    """
    low, high, share = LOWEST, HIGHEST, 1.0
    for _ in range(MOST_RUNS):
        time = simulated(share)
        if abs(time - measured_s) <= CLOSE * measured_s:
            break
        slow = time > measured_s
        if share == (HIGHEST if slow else LOWEST):
            return None
        low, high = (share, high) if slow else (low, share)
        guess = share * time / measured_s  # right where all of the time is that of engines
        if not low < guess < high:
            guess = (
                HIGHEST if slow and high == HIGHEST else LOWEST if not slow and low == LOWEST else (low * high) ** 0.5
            )
        share = guess
    return share
