"""How far predictions of measured runs were off, and so how sure a prediction is.

`experience.csv` holds one row per measured run of the corpora: what it is like, and predicted / measured. It is written
by `hybrid-des validate CORPUS --record`, never by hand.

Beside a predicted step stand the errors of the runs most like it: of the same generation of GPUs, precision, and dense
or with experts; where there are several, also alike in their software, and in whether layers are sharded; of those, the
nearest in size.

An interval that contains the measured step nine times out of ten rests on all runs, each error taken in units of how
far runs like that one are off: the mean error of the ten most like it, itself left out, and 2 %, by which repeats of
one setting differ (normalized conformal prediction: Lei, G'Sell, Rinaldo, Tibshirani and Wasserman, Journal of the
American Statistical Association 113, 2018, section 5.2). So where runs are met well it is narrow, and one source that
is far off widens only intervals of runs like it. It is the shortest that holds 0.9 of the weight of all runs and of
one more, whose error may be any (with fixed weights: Barber, Candès, Ramdas and Tibshirani, Annals of Statistics 51,
2023; with equal weights it is the ⌈0.9 (n+1)⌉-th smallest of n: Vovk et al., Algorithmic Learning in a Random World,
2005). A weight is 2^−u² for an unlikeness of u units (`unlikeness`). The unit is chosen for every prediction so that
all weights sum to 29, of which 27 lie inside: where many runs are alike only they count; where few are, others do too.

No scenario tells a slow site from others with the same software, GPUs and settings, so that the interval knows none.
Where fewer than five runs tell of a software on such a GPU, with efficiencies that were not fitted to them, or are the
catalogue's, nobody measured it, and the interval is at least that of all corpora, each of equal weight. The same holds
where sequences are longer, or GPUs more, than in any run of this software and kind of model on such a GPU (`RANGES`),
as no run tells how errors go on from there. The bound is the largest run itself: a multiple of it would be a number of
our choice. Runs with fitted efficiencies count here: these are the same at all sizes, so that such runs do tell of
sizes, and that no run is larger can be looked up.

Where k numbers were fitted to a corpus of m runs, its errors are divided by 1 − k/m, as if each run had been left out
of the fit (the mean leverage is k/m: Allen, Technometrics 16, 1974).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from math import exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from hybrid_des.analysis.experience_table import RANGES, Likeness, Recorded, Units, known, unlikeness
from hybrid_des.scenario.definition import Scenario
from hybrid_des.units import format_seconds

NEAREST = 30  # runs whose errors are shown


COUNTS = 0.25  # the least weight of a run that the interval is said to rest on


SHOWN = 2  # places of runs that are named


FEWEST = 9  # runs of which nine of ten can be told


FEW = 5  # fewer runs with the same sharding are not considered by themselves


SURE = "90 % interval"  # begins what is said of one


COVERED = 0.9


ROUNDING = 1e-9


ENOUGH = 29.0  # runs of which 27, ⌈0.9 (29 + 1)⌉, lie inside


ALIKE = 10  # runs whose mean error is the unit of an error


REPEATS = 0.02  # by which the same setting differs between two measurements (docs/background/accuracy_details.md)


NARROWEST, WIDEST = 1e-3, 1e3  # units of unlikeness


FARTHEST = 30.0  # units; runs that are farther count for nothing


class Experience(NamedTuple):
    """The measured runs most like a predicted one.

    Attributes:
        like: what they have in common with it, in words.
        errors: of the nearest, |predicted / measured − 1| as if left out of fits, in ascending order.
        reach: the half-width of the interval as a logarithm; None if fewer than nine runs are known.
        runs: the number of runs that the interval rests on, the less the more unlike they are.
        latest: the last of them to be recorded; None if there are none.
        places: software and GPU of the runs that count at least a quarter in the interval → their number, most first.
        place: its software and GPU, in words.
        measured: whether the interval rests on runs of this software on such GPUs; if not, it is wider.
        beyond: in what it exceeds all of those, in words; if in anything, the interval is wider too.
    """

    like: str
    errors: tuple[float, ...] = ()
    reach: float | None = None
    runs: int = 0
    latest: Recorded | None = None
    places: tuple[tuple[str, int], ...] = ()
    place: str = ""
    measured: bool = True
    beyond: tuple[str, ...] = ()

    @property
    def unmeasured(self) -> str:
        """What nobody measured, in words: "no measured runs of Megatron on H100 with more than 8 GPUs (this: 9)"."""
        beyond = f" with {' or '.join(self.beyond)}" if self.beyond else ""
        return f"no measured runs of {self.place}{beyond}" if beyond or not self.measured else ""

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


def experience(scenario: Scenario, stack: str = "") -> Experience | None:
    """The measured runs most like a scenario, by default of its own software; None if it has no model."""
    if scenario.model is None:
        return None
    return of_runs(Likeness.of(scenario, stack), known())


class _Pool(NamedTuple):
    """Known runs: what each is like, its error as a logarithm, how far runs like it are off, and all corpora."""

    likes: tuple[Likeness, ...]
    errors: Units
    usual: Units
    of_sources: float


@lru_cache(maxsize=2)
def _pool_of(runs: tuple[Recorded, ...]) -> _Pool:
    sizes = Counter(one.corpus for one in runs)
    errors = np.array([error_left_out(one, sizes[one.corpus]) for one in runs])
    likes = tuple(one.like for one in runs)
    if len(runs) < FEWEST:
        return _Pool(likes, errors, np.ones(len(runs)), 0.0)
    unlike = unlikeness(likes, likes)
    np.fill_diagonal(unlike, np.inf)  # each is left out
    return _Pool(likes, errors, _usual(unlike, errors), _of_sources(runs, errors))


def of_runs(like: Likeness, runs: Sequence[Recorded]) -> Experience:
    """The runs most like this one, their errors, and the interval of all."""
    pool = _pool_of(tuple(runs))
    unlike = unlikeness([like], pool.likes)[0] if runs else np.zeros(0)
    weights = _weights(unlike)
    scores = zip((pool.errors / pool.usual).tolist(), weights.tolist(), strict=True)
    score = _reached([*scores])
    reach = None if score is None else score * float(_usual(unlike, pool.errors))
    near = Counter(one.like.place for one, weight in zip(runs, weights, strict=True) if weight >= COUNTS)
    places = tuple(near.most_common())
    same = [one for one in runs if one.like.where == like.where]
    known = sum(one.tells_of(like) for one in same) >= FEW
    beyond = _beyond(like, [one.like for one in same]) if known else ()
    if (beyond or not known) and reach is not None:
        reach = max(reach, pool.of_sources)
    shown, shared = _narrowed(like, runs)
    if not shown:
        return Experience(shared.words, (), reach, len(runs), None, places, like.place, known, beyond)
    nearest = sorted(shown, key=lambda recorded: like.distance(recorded.like))[:NEAREST]
    error = {id(one): each for one, each in zip(runs, pool.errors.tolist(), strict=True)}
    off = tuple(sorted(exp(error[id(one)]) - 1 for one in nearest))
    latest = max(shown, key=lambda recorded: recorded.date)
    return Experience(shared.words, off, reach, len(runs), latest, places, like.place, known, beyond)


def _beyond(like: Likeness, others: Sequence[Likeness]) -> tuple[str, ...]:
    """In what a run exceeds all others, in words."""
    most = {name: (max(getattr(one, name) for one in others), getattr(like, name)) for name in RANGES}
    return tuple(f"{RANGES[name].format(known)} (this: {own:,})" for name, (known, own) in most.items() if own > known)


def _narrowed(like: Likeness, runs: Sequence[Recorded]) -> tuple[Sequence[Recorded], Likeness]:
    """The runs whose errors are shown, and what they have in common with this one."""
    shown = [one for one in runs if one.like[:3] == like[:3]]
    shared = like._replace(sharded=False)
    for name in ("stack", "sharded"):
        same = [one for one in shown if getattr(one.like, name) == getattr(like, name)]
        if len(same) >= FEW or not shown:
            shown, shared = same, shared._replace(**{name: getattr(like, name)})
    return shown, shared


def error_left_out(recorded: Recorded, of: int) -> float:
    """The error of a run of a corpus with so many, as a logarithm, as if it had been left out of the fit."""
    return abs(log(recorded.ratio)) / (1 - min(recorded.fitted, of - 1) / of)


def _usual(unlike: Units, errors: Units) -> Units:
    """How far runs are off usually: the mean error of the runs most like each, those as like it included."""
    last = min(ALIKE, len(errors) - 1) - 1
    nearest = unlike <= np.partition(unlike, last, axis=-1)[..., last, None] + ROUNDING
    return np.asarray((nearest * errors).sum(axis=-1) / nearest.sum(axis=-1) + REPEATS)


def _weights(unlike: Units) -> Units:
    """The weights of runs, which sum to `ENOUGH` if there are as many."""
    narrow, wide = NARROWEST, WIDEST
    while wide > narrow * 1.001:
        unit = sqrt(narrow * wide)
        if _weight(unlike / unit).sum() < ENOUGH:
            narrow = unit
        else:
            wide = unit
    return _weight(unlike / wide)


def _weight(units: Units) -> Units:
    return np.asarray(np.exp2(-(np.minimum(units, FARTHEST) ** 2)))


def _reached(weighted: Sequence[tuple[float, float]]) -> float | None:
    """The error that holds nine tenths of the weight of errors and of one more run; None if that is any."""
    ascending = sorted(weighted)
    needed = COVERED * (sum(weight for _, weight in weighted) + 1)
    inside = accumulate(weight for _, weight in ascending)
    return next(
        (error for (error, _), sofar in zip(ascending, inside, strict=True) if sofar >= needed - ROUNDING), None
    )


def _of_sources(runs: Sequence[Recorded], errors: Units) -> float:
    """The error that holds nine tenths of the weight of all corpora, each of equal weight, and of one more."""
    sizes = Counter(one.corpus for one in runs)
    shares = [1 / sizes[one.corpus] for one in runs]
    return _reached([*zip(errors.tolist(), shares, strict=True)]) or float(errors.max())


def facts(experience: Experience, step: float) -> dict[str, Any]:
    """As values of a summary."""
    interval = experience.interval(step)
    rests = {
        "interval_s": None if interval is None else list(interval),
        "interval_runs": experience.runs,
        "stack": experience.place,
        "stack_measured": experience.measured,
        "beyond_measured": [f"{experience.place} with {more}" for more in experience.beyond],
        "rests_on": dict(experience.places),
    }
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


def facts_of_several(stacks: Mapping[str, tuple[Experience, float]]) -> dict[str, Any]:
    """As values of a summary, where any of several stacks may be meant: the interval spans those of all.

    Args:
        stacks: what each is called → what is known of it, and the step it takes, the first the simulated one.
    """
    each = {name: facts(known, step) for name, (known, step) in stacks.items()}
    usual, *_ = each.values()
    ends = [end for one in each.values() for end in one["interval_s"] or ()]
    spans = [min(ends), max(ends)] if all(one["interval_s"] for one in each.values()) else None
    words = "; ".join(f"if {name}, {_rests_on(known)}" for name, (known, _) in stacks.items())
    rests = Counter[str]()
    for told, _ in stacks.values():
        rests |= Counter(dict(told.places))
    return usual | {
        "interval_s": spans,
        "stack": " or ".join(dict.fromkeys(one["stack"] for one in each.values())),
        "stack_measured": all(one["stack_measured"] for one in each.values()),
        "beyond_measured": [more for one in each.values() for more in one["beyond_measured"]],
        "rests_on": dict(rests.most_common()),
        "text": usual["text"] if spans is None else f"{SURE} {range_text(*spans)}; {words}",
    }


def text(experience: Experience, step: float) -> str:
    """How sure a predicted step is, in words: "90 % interval 5.7 to 7.5 s; from 21 similar measured runs, …"."""
    interval = experience.interval(step)
    if interval is None:
        return "nothing like this was measured"
    return f"{SURE} {range_text(*interval)}; {_rests_on(experience)}"


def _rests_on(experience: Experience) -> str:
    """The runs that an interval rests on, in words."""
    total = sum(number for _, number in experience.places)
    runs = "run" if total == 1 else "runs"
    said = experience.unmeasured and f"{experience.unmeasured}; "
    if not experience.measured:
        return f"{said}from {total} {runs} of others"
    names = [place for place, _ in experience.places]
    if len(names) == 1:
        return f"{said}from {total} similar measured {runs}, {names[0]}"
    listed = [f"{place} ({number})" for place, number in experience.places[:SHOWN]]
    rest = sum(number for _, number in experience.places[SHOWN:])
    return f"{said}from {total} similar measured {runs}: {', '.join(listed + [f'others ({rest})'] * bool(rest))}"


def range_text(low: float, high: float) -> str:
    """Two times with two digits, of which the unit is said once if it is the same: "5.7 to 7.5 s"."""
    first, last = (format_seconds(float(f"{value:.2g}")) for value in (low, high))
    number, unit = first.split()
    return f"{number if last.endswith(f' {unit}') else first} to {last}"
