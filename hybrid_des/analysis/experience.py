"""How far predictions of measured runs were off, and so how sure a prediction is.

`experience.csv` holds one row per measured run of the corpora: what it is like, and predicted / measured. It is written
by `hybrid-des validate CORPUS --record`, never by hand.

Beside a predicted step stand the errors of the runs most like it: of the same generation of GPUs, precision, and dense
or with experts; where there are several, also alike in whether layers are sharded; of those, the nearest in size.

An interval that contains the measured step nine times out of ten rests on all runs, with weights: the shortest that
holds 0.9 of the weight of all runs and of one more, whose error may be any (conformal prediction with fixed weights:
Barber, Candès, Ramdas and Tibshirani, Annals of Statistics 51, 2023; with equal weights it is the ⌈0.9 (n+1)⌉-th
smallest error of n: Vovk et al., Algorithmic Learning in a Random World, 2005). A weight halves with every unit of
unlikeness: 1 for each characteristic that differs (those above, and whether tensor ranks divide layers), ½ for a factor
of ten in size. The unit is chosen for every prediction so that all weights sum to 19, the fewest runs of which one may
lie outside: where many runs are alike only they count; where few are, others do too, and it is as wide as theirs.

Where k numbers were fitted to a corpus of m runs, its errors are divided by 1 − k/m, as if each run had been left out
of the fit (the mean leverage is k/m: Allen, Technometrics 16, 1974).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.experience_table import Likeness, Recorded, known
from hybrid_des.scenario.definition import Scenario
from hybrid_des.units import format_seconds

NEAREST = 30  # runs whose errors are shown


FEW = 5  # fewer runs with the same sharding are not considered by themselves


COVERED = 0.9


ROUNDING = 1e-9


ENOUGH = 19.0  # runs of which 18, ⌈0.9 (19 + 1)⌉, lie inside


NARROWEST, WIDEST = 1e-3, 1e3  # units of unlikeness


class Experience(NamedTuple):
    """The measured runs most like a predicted one.

    Attributes:
        like: what they have in common with it, in words.
        errors: of the nearest, |predicted / measured − 1| as if left out of fits, in ascending order.
        reach: the half-width of the interval as a logarithm; None if fewer than nine runs are known.
        runs: the number of runs that the interval rests on, the less the more unlike they are.
        latest: the last of them to be recorded; None if there are none.
    """

    like: str
    errors: tuple[float, ...] = ()
    reach: float | None = None
    runs: int = 0
    latest: Recorded | None = None

    def interval(self, step: float) -> tuple[float, float] | None:
        """The interval around a predicted step time."""
        return None if self.reach is None else (step * exp(-self.reach), step * exp(self.reach))

    @property
    def median(self) -> float:
        """The median error."""
        return float(np.median(self.errors))

    @property
    def most(self) -> float:
        """The error that nine of ten runs do not exceed."""
        return float(np.percentile(self.errors, 100 * COVERED))


def experience(scenario: Scenario) -> Experience | None:
    """The measured runs most like a scenario; None if it has no model, so that its times are given."""
    if scenario.model is None:
        return None
    return of_runs(Likeness.of(scenario), known())


def of_runs(like: Likeness, runs: Sequence[Recorded]) -> Experience:
    """The runs most like this one, their errors, and the interval of all."""
    sizes = Counter(one.corpus for one in runs)
    errors = {id(one): error_left_out(one, sizes[one.corpus]) for one in runs}
    reach = _reach([(errors[id(one)], like.unlike(one.like)) for one in runs])
    alike = [one for one in runs if one.like[:3] == like[:3]]
    same = [one for one in alike if one.like.sharded == like.sharded]
    shown = same if len(same) >= FEW else alike
    if not shown:
        return Experience(like.words, reach=reach, runs=len(runs))
    nearest = sorted(shown, key=lambda recorded: like.distance(recorded.like))[:NEAREST]
    shared = like if shown is same else like._replace(sharded=False)
    off = tuple(sorted(exp(errors[id(one)]) - 1 for one in nearest))
    return Experience(shared.words, off, reach, len(runs), max(shown, key=lambda recorded: recorded.date))


def error_left_out(recorded: Recorded, of: int) -> float:
    """The error of a run of a corpus with so many, as a logarithm, as if it had been left out of the fit."""
    return abs(log(recorded.ratio)) / (1 - min(recorded.fitted, of - 1) / of)


def _reach(runs: Sequence[tuple[float, float]]) -> float | None:
    """The error that the interval reaches to, given the error and the unlikeness of every run."""
    narrow, wide = NARROWEST, WIDEST
    while wide > narrow * 1.001:
        unit = sqrt(narrow * wide)
        if sum(2 ** (-unlike / unit) for _, unlike in runs) < ENOUGH:
            narrow = unit
        else:
            wide = unit
    weights = sorted((error, 2 ** (-unlike / wide)) for error, unlike in runs)
    needed = COVERED * (sum(weight for _, weight in weights) + 1)
    inside = accumulate(weight for _, weight in weights)
    return next((error for (error, _), sofar in zip(weights, inside, strict=True) if sofar >= needed - ROUNDING), None)


def tied(experience: Experience | None, step: float, other: float) -> bool:
    """Whether two predictions differ by less than their interval."""
    return bool(
        experience and experience.reach is not None and step and other and abs(log(other / step)) <= experience.reach
    )


def facts(experience: Experience, step: float) -> dict[str, Any]:
    """As values of a summary."""
    interval = experience.interval(step)
    rests = {"interval_s": None if interval is None else list(interval), "interval_runs": experience.runs}
    if experience.latest is None:
        return {"like": experience.like, "runs": 0, **rests, "text": text(experience, step)}
    return {
        "like": experience.like,
        "runs": len(experience.errors),
        "median_error_percent": 100 * experience.median,
        "p90_error_percent": 100 * experience.most,
        **rests,
        "recorded": experience.latest.date,
        "commit": experience.latest.commit,
        "text": text(experience, step),
    }


def text(experience: Experience, step: float) -> str:
    """How sure a predicted step is, in words."""
    count, interval = len(experience.errors), experience.interval(step)
    if count >= FEW:
        median, most = 100 * experience.median, 100 * experience.most
        return f"runs like it were predicted within {median:.1f} % (median), {most:.1f} % (90 %)"
    if not count:
        said = "nothing like this was measured"
    else:
        runs = "the only run" if count == 1 else f"the {count} runs"
        said = f"{runs} like it {'was' if count == 1 else 'were'} predicted within {100 * experience.errors[-1]:.1f} %"
    if interval is None:
        return said
    low, high = map(format_seconds, interval)
    return f"{said}; {low} to {high} going by other runs (90 %)"
