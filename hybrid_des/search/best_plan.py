"""The search for the best plan of a scenario: every plan is simulated, or proved not to be the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from math import inf
from pathlib import Path
from typing import Any

from hybrid_des.errors import UsageError
from hybrid_des.pool.pool import open_pool
from hybrid_des.registry import import_file
from hybrid_des.scenario import Source, document_of
from hybrid_des.search.branch import SIMULATED, BranchAndBound, Candidate, Standing
from hybrid_des.search.evaluation import evaluate
from hybrid_des.search.result import SearchResult
from hybrid_des.search.search_log import search_log
from hybrid_des.search.space import plans_in
from hybrid_des.search.terms import Settings, settings_of
from hybrid_des.simulation.run import BudgetSpentError
from hybrid_des.sweep.axes import Case

SLOTS = 64  # concurrent tasks on a given executor


def search(source: Source, overrides: Sequence[str] = (), **how: Any) -> SearchResult:
    """Find the best plan of a scenario with a `search:` block.

    Args:
        source: the file's path, a mapping with the content of one, or a scenario.
        overrides: strings such as "search.top=3".
        how: `jobs`, `budget_s` and the other keywords of `explore`.

    Raises:
        ScenarioError: the scenario or its block is wrong, or the space is empty.
    """
    settings = settings_of(document_of(source, overrides))
    return explore(settings, plans_in(settings), **how)


def explore(
    settings: Settings,
    cases: Sequence[Case],
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    budget_s: float = inf,
    folder: Path | None = None,
    resume: bool = False,
    progress: Callable[[Standing], None] = lambda standing: None,
    waiting: Callable[[], None] = lambda: None,
) -> SearchResult:
    """Find the best of some plans; Ctrl-C ends the search with its results so far.

    Args:
        settings: the scenario and its `search` block.
        cases: the plans.
        jobs: local worker processes, at most one per plan; 1 runs in this process, unless there is a budget.
        executor: instead of `jobs`, anything with the `submit` of `concurrent.futures`.
        budget_s: real seconds after which to stop.
        folder: an existing folder to which every evaluation is written.
        resume: whether to continue from the evaluations in `folder`.
        progress: called after every evaluation.
        waiting: called every second in which nothing finishes; may raise.

    Raises:
        UsageError: the folder cannot be written, or holds nothing to resume.
    """
    for path in settings.imports:
        import_file(path)
    started, stopped = time.monotonic(), ""
    how = {"imports": settings.imports, "until": started + budget_s, "waiting": waiting}
    with search_log(folder, settings, cases, resume=resume) as (known, note):
        state = BranchAndBound(settings, cases, known=known, note=note, progress=progress)
        try:
            with open_pool(min(jobs, len(cases)), executor, slots=SLOTS, **how) as pool:
                state.run(pool)
        except BudgetSpentError:
            stopped = f"after {budget_s:g} s"
        except KeyboardInterrupt:
            stopped = "interrupted"
    if stopped:
        state.stop()
    return SearchResult(settings, state.candidates, state.least, stopped, time.monotonic() - started)


# Continuous keys of the best plan, such as the size of a bucket, tuned by Optuna: an improvement, without a proof.
#
# search:
#   tune: {gradients.bucket: [4 MiB, 512 MiB], overlap.tensor: [0, 0.9]}
#
# Sizes are drawn on a logarithmic scale. The draws follow from the scenario's seed (Akiba et al., arXiv 1907.10902; by
# default the tree-structured Parzen estimator of Bergstra et al., NeurIPS 2011).


def tune(found: SearchResult, best: Candidate, trials: int) -> tuple[Candidate, Mapping[str, float]]:
    """The best plan with values of `search.tune`, and these values; the plan itself and no values if none is better.

    Raises:
        UsageError: there is nothing to tune, or Optuna is not installed.
    """
    settings = found.settings
    if not settings.tunables:
        raise UsageError("--tune needs search.tune: the continuous knobs and their ranges")
    try:
        import optuna
    except ImportError:
        raise UsageError("--tune needs the tune extra: pip install 'hybrid-des[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=settings.written.seed))
    plan, values = best, dict[str, float]()
    for _ in range(trials):
        trial = study.ask()
        drawn = {one.path: one.drawn(trial) for one in settings.tunables}
        case = {**best.case, **drawn}
        tried = evaluate(settings, "simulate", case)
        if tried.reason:  # it does not fit, or is impossible
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        study.tell(trial, tried.least)
        if tried.least < plan.least:
            values = drawn
            plan = Candidate(best.number, case, SIMULATED, "", tried.least, tried.held, row=tried.row)
    return plan, values
