"""Runs of one scenario that differ in their seed, as a table."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import UsageError
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.registry import import_file
from hybrid_des.scenario import Scenario, Source, load
from hybrid_des.simulation.run import run
from hybrid_des.sweep.axes import Case
from hybrid_des.sweep.dispatch import Row, dispatch, split
from hybrid_des.sweep.journal import columns
from hybrid_des.sweep.local_workers import cores, local_workers

if TYPE_CHECKING:
    import pandas as pd

FIGURES = (
    "step_time_s", "pipeline_time_s", "bubble_ratio", "exposed_communication_ratio", "busy_s", "idle_s",
)  # fmt: skip
BATCHES = 8  # per worker, so that workers finish at about the same time
LONGEST_S = 0.5  # of a batch, after which a worker reports
WORTH_WORKERS_S = 3.0  # of runs: workers take a second or two to start


def spread(
    scenario: Source,
    runs: int = 200,
    *,
    jobs: int | None = None,
    imports: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    ties: bool = False,
) -> pd.DataFrame:
    """Simulate a scenario with `runs` consecutive seeds, the first of them its own; one row per run, by seed.

    Columns are `seed` and figures of the summary, in seconds or as ratios; idle time by cause (`idle_s.dependency`).
    Two scenarios with the same seeds have random numbers in common, so that their rows can be compared one by one.
    The table does not depend on `jobs`.

    With `ties`, all runs have the scenario's own seed, and GPUs start in random orders, numbered in column `order`
    instead of `seed`. Under `fifo`, that decides which of the messages that reach a link at the same time is served
    first; where no such tie matters, all runs take the same time.

    Args:
        scenario: what to simulate, a path or a mapping too; it has `jitter`, unless orders vary.
        runs: number of runs, at least 1.
        jobs: local worker processes; by default none if all runs take a few seconds, else one per core.
        imports: user-defined plug-in files that workers import first.
        progress: called with (runs done, runs in total).
        ties: whether the order of equal arrivals varies, instead of the seed.

    Raises:
        UsageError: the scenario has no jitter.
        HybridDesError: it cannot be simulated.
    """
    import pandas as pd

    scenario = load(scenario)
    if not scenario.jitter and not ties:
        example = "{distribution: lognormal, sigma: 0.02, level: rank-step}"
        raise UsageError(
            f"{scenario.name}: nothing is random, all runs are identical; expected a key such as jitter: {example}"
        )
    cases: list[Case] = [{"order": n} if ties else {"seed": scenario.seed + n} for n in range(runs)]
    rows: list[Row] = [{}] * runs
    with contextlib.closing(_rows(scenario, cases, jobs, imports)) as arriving:
        for done, (place, row) in enumerate(arriving, start=1):
            rows[place] = row
            if progress is not None:
                progress(done, runs)
    return pd.DataFrame(rows)


def without_jitter(scenario: Scenario) -> float:
    """Seconds of a step of the same scenario without its jitter; its `slow` is unchanged."""
    figure = summary(run(_lean(scenario).model_copy(update={"jitter": ()})))["step_time_s"]
    return float(figure)


def as_simulated(scenario: Scenario) -> float:
    """Seconds of a step of a scenario."""
    return float(summary(run(_lean(scenario)))["step_time_s"])


def _lean(scenario: Scenario) -> Scenario:
    """The scenario without rows of messages, which no figure needs."""
    return scenario.model_copy(update={"record": "compute"})


def _rows(
    scenario: Scenario, cases: Sequence[Case], jobs: int | None, imports: Sequence[str]
) -> Generator[tuple[int, Row], None, None]:
    """The number and row of every run, as they finish; the first one tells how long the others take."""
    lean = _lean(scenario)
    started = time.perf_counter()
    parts = _shared(lean)
    yield 0, _row(lean, parts, cases[0])
    rest = cases[1:]
    if jobs is None:
        long = (time.perf_counter() - started) * len(rest) > WORTH_WORKERS_S
        jobs = min(cores(), len(rest)) if long else 1
    if jobs == 1 or not rest:
        yield from ((place, _row(lean, parts, case)) for place, case in enumerate(rest, start=1))
        return
    batches = split(rest, min(len(rest), BATCHES * jobs))
    with local_workers(min(jobs, len(batches))) as workers:
        task = partial(_run_batch, lean, tuple(imports))
        for place, row in dispatch(task, batches, workers):
            if "error" in row:  # a worker that was killed twice
                raise UsageError(f"{scenario.name}: {_named(rest[place])}: {row['error']}")
            yield place + 1, row


def _run_batch(scenario: Scenario, imports: Sequence[str], cases: Sequence[Case]) -> list[Row]:
    """Simulate the first cases in a worker, at least one."""
    for path in imports:
        import_file(path)
    parts = _shared(scenario)
    until = time.monotonic() + LONGEST_S
    rows: list[Row] = []
    for case in cases:
        rows.append(_row(scenario, parts, case))
        if time.monotonic() >= until:
            break
    return rows


def _shared(scenario: Scenario) -> Parts | None:
    """The parts that all seeds share; None if the training depends on the seed."""
    return None if scenario.numerics else parts_of(scenario)


def _row(scenario: Scenario, parts: Parts | None, case: Case) -> Row:
    seed = case.get("seed", scenario.seed)
    figures = summary(run(scenario.model_copy(update={"seed": seed}), parts=parts, order=case.get("order")))
    return {**case, **columns({name: figures[name] for name in FIGURES})}


def _named(case: Case) -> str:
    return ", ".join(f"{key} {value}" for key, value in case.items())
