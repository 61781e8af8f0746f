"""Runs of one scenario that differ in their seed: their table, its statistics with confidence intervals, and a plot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING

from hybrid_des.analysis.metrics import summary
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.errors import UsageError
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.shortcuts.run import run
from hybrid_des.studies.pool import LOST, Progress, cores, line_of, open_pool
from hybrid_des.studies.sweep.axes import Case
from hybrid_des.studies.sweep.rows import Row, columns

if TYPE_CHECKING:
    import pandas as pd

FIGURES = (
    "step_time_s", "pipeline_time_s", "bubble_ratio", "exposed_communication_ratio", "busy_s", "idle_s",
)  # fmt: skip


WORTH_WORKERS_S = 3.0  # of runs: workers take a second or two to start


def spread(
    scenario: Source,
    runs: int = 200,
    *,
    overrides: Overrides = (),
    jobs: int | None = None,
    imports: Sequence[str] = (),
    progress: Progress | None = None,
    ties: bool = False,
) -> pd.DataFrame:
    """Simulate a scenario with `runs` consecutive seeds, the first of them its own; one row per run, by seed.

    Columns are `seed` and figures of the summary, in seconds or as ratios; idle time by cause (`idle_s.dependency`).
    Two scenarios with the same seeds use common random numbers, so that their rows can be compared in pairs.
    The table does not depend on `jobs`.

    With `ties`, all runs have the scenario's own seed, and GPUs start in random orders, numbered in column `order`
    instead of `seed`. Under `fifo`, that decides which of the messages that reach a link at the same time is served
    first; where no such tie matters, all runs take the same time.

    Args:
        scenario: what to simulate, a path or a mapping too; it has `jitter` or drawn documents, unless orders vary.
        runs: number of runs, at least 1.
        overrides: changes to it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.
        jobs: local worker processes; by default none if all runs take a few seconds, else one per core.
        imports: user-defined plug-in files that workers import first.
        progress: called with (runs done, runs in total).
        ties: whether the order of equal arrivals varies, instead of the seed.

    Raises:
        UsageError: nothing in the scenario is random.
        HybridDesError: it cannot be simulated.

    Example:
        >>> from hybrid_des import load, spread
        >>> noisy = load("scenarios/a100_8x.yaml", ["jitter={distribution: lognormal, sigma: 0.02}"])
        >>> spread(noisy, 3)[["seed", "step_time_s", "bubble_ratio"]].round(3)
           seed  step_time_s  bubble_ratio
        0     0        1.454         0.284
        1     1        1.447         0.280
        2     2        1.453         0.283
    """
    import pandas as pd

    scenario = load(scenario, overrides)
    if not ties:
        _check_random(scenario)
    first, *rest = ({"order": n} if ties else {"seed": scenario.seed + n} for n in range(runs))
    show = progress or (lambda done, total: None)
    started, simulated = time.perf_counter(), _Simulated(_lean(scenario))
    rows = [simulated(first)]  # tells how long the others take
    show(1, runs)
    if jobs is None:
        jobs = cores() if (time.perf_counter() - started) * len(rest) > WORTH_WORKERS_S else 1

    with open_pool(min(jobs, len(rest)), imports=imports, progress=lambda done, _: show(done + 1, runs)) as pool:
        rows += (row for _, row in sorted(pool.map(simulated, rest, partial(_lost, scenario.name)), key=itemgetter(0)))
    return pd.DataFrame(rows)


def _check_random(scenario: Scenario) -> None:
    if not random_parts(scenario):
        example = "{distribution: lognormal, sigma: 0.02, level: rank-step}"
        raise UsageError(
            f"{scenario.name}: nothing is random, all runs are identical; expected a key such as jitter: {example}"
        )


def _lost(name: str, case: Case, error: BaseException) -> Row:
    """What a run that lost its worker says."""
    named = ", ".join(f"{key} {value}" for key, value in case.items())
    raise UsageError(f"{name}: {named}: {LOST}: {line_of(error)}")


def random_parts(scenario: Scenario) -> list[str]:
    """What another seed changes: jitter, the lengths of documents."""
    data = scenario.data
    drawn = data is not None and scenario.model is not None and data.lengths.drawn and data.seed is None
    return [name for name, holds in (("jitter", scenario.jitter), ("documents", drawn)) if holds]


def without_jitter(scenario: Scenario) -> float:
    """Seconds of a step of the same scenario without its jitter; its `slow` and its documents are unchanged."""
    return as_simulated(scenario.model_copy(update={"jitter": ()}))


def as_simulated(scenario: Scenario) -> float:
    """Seconds of a step of a scenario."""
    return float(summary(run(_lean(scenario)))["step_time_s"])


def _lean(scenario: Scenario) -> Scenario:
    """The scenario without rows of messages, which no figure needs."""
    return scenario.model_copy(update={"record": "compute"})


class _Simulated:
    """Case → its figures; planning is shared by all seeds, unless it depends on the seed or is done group by group."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def __reduce__(self) -> tuple[type[_Simulated], tuple[Scenario]]:
        return _Simulated, (self._scenario,)  # workers plan by themselves

    @cached_property
    def _parts(self) -> Parts | None:
        each = self._scenario.numerics or self._scenario.gradients.every > 1
        return None if each else parts_of(self._scenario)

    def __call__(self, case: Case) -> Row:
        scenario = self._scenario.model_copy(update={"seed": case.get("seed", self._scenario.seed)})
        shared = CostBasis.of(scenario) == CostBasis.of(self._scenario)  # loads of experts are drawn
        figures = summary(run(scenario, parts=self._parts if shared else None, order=case.get("order")))
        return {**case, **columns({name: figures[name] for name in FIGURES})}
