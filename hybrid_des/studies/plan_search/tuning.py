"""Continuous keys of the best plan, such as the size of a bucket, tuned by Optuna: an improvement, without a proof.

search:
  tune: {gradients.bucket: [4 MiB, 512 MiB], overlap.tensor: [0, 0.9]}

Sizes are drawn on a logarithmic scale. The draws follow from the scenario's seed (Akiba et al., arXiv 1907.10902; by
default the tree-structured Parzen estimator of Bergstra et al., NeurIPS 2011).
"""

from collections.abc import Mapping

from hybrid_des.errors import UsageError, installing
from hybrid_des.studies.plan_search.branch import (
    SIMULATED,
    Candidate,
)
from hybrid_des.studies.plan_search.evaluation import evaluate
from hybrid_des.studies.plan_search.outcome import SearchResult


def tune(result: SearchResult, best: Candidate, trials: int) -> tuple[Candidate, Mapping[str, float]]:
    """The best plan with values of `search.tune`, and these values; the plan itself and no values if none is better.

    Raises:
        UsageError: there is nothing to tune, or Optuna is not installed.
    """
    settings = result.settings
    if not settings.tunables:
        raise UsageError("--tune needs search.tune: the continuous parameters and their ranges")
    try:
        import optuna
    except ImportError:
        raise UsageError(f"--tune needs the tune extra: {installing('tune')}") from None
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
