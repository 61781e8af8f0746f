"""Runs of one scenario that differ in their seed: their table, its statistics with confidence intervals, and a plot."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import UsageError
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.pool import LOST, Progress, cores, line_of, open_pool
from hybrid_des.report.plots.style import LINES, legend, new_figure, plain, scale_of, verbatim
from hybrid_des.scenario import Scenario, Source, load
from hybrid_des.simulation.run import run
from hybrid_des.sweep.axes import Case
from hybrid_des.sweep.runner import Row, columns
from hybrid_des.workload.costs import CostBasis

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Runs of one scenario that differ in their seed, as a table.


FIGURES = (
    "step_time_s", "pipeline_time_s", "bubble_ratio", "exposed_communication_ratio", "busy_s", "idle_s",
)  # fmt: skip
WORTH_WORKERS_S = 3.0  # of runs: workers take a second or two to start


def spread(
    scenario: Source,
    runs: int = 200,
    *,
    jobs: int | None = None,
    imports: Sequence[str] = (),
    progress: Progress | None = None,
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

    scenario = load(scenario)
    if not scenario.jitter and not ties:
        example = "{distribution: lognormal, sigma: 0.02, level: rank-step}"
        raise UsageError(
            f"{scenario.name}: nothing is random, all runs are identical; expected a key such as jitter: {example}"
        )
    first, *rest = ({"order": n} if ties else {"seed": scenario.seed + n} for n in range(runs))
    show = progress or (lambda done, total: None)
    started, simulated = time.perf_counter(), _Simulated(_lean(scenario))
    rows = [simulated(first)]  # tells how long the others take
    show(1, runs)
    if jobs is None:
        jobs = cores() if (time.perf_counter() - started) * len(rest) > WORTH_WORKERS_S else 1

    def lost(case: Case, error: BaseException) -> Row:
        named = ", ".join(f"{key} {value}" for key, value in case.items())
        raise UsageError(f"{scenario.name}: {named}: {LOST}: {line_of(error)}")

    with open_pool(min(jobs, len(rest)), imports=imports, progress=lambda done, _: show(done + 1, runs)) as pool:
        rows += (row for _, row in sorted(pool.map(simulated, rest, lost), key=itemgetter(0)))
    return pd.DataFrame(rows)


def without_jitter(scenario: Scenario) -> float:
    """Seconds of a step of the same scenario without its jitter; its `slow` is unchanged."""
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


# Mean and percentiles of a sample, each with a confidence interval, and of the differences between paired samples.
#
# The interval of a mean is mean ± 1.96 s/√n; that of a percentile lies between two values of the ordered sample, whose
# positions follow from the binomial number of values below it (Conover, Practical Nonparametric Statistics, 1999,
# section 3.2). Where the sample is too small to have such a value, the interval has no bound.


CONFIDENCE = 0.95
PERCENTILES = (50, 90, 99)


class Estimate(NamedTuple):
    """An estimate and its confidence interval; an end is None where the sample is too small to tell."""

    value: float
    low: float | None
    high: float | None


def estimates_of(sample: ArrayLike) -> dict[str, Estimate]:
    """The figures of a sample of at least 2 numbers: `mean`, `p50`, `p90`, `p99`."""
    ordered = np.sort(np.asarray(sample, dtype=np.float64))
    wide = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    mean, error = float(ordered.mean()), float(ordered.std(ddof=1)) / math.sqrt(len(ordered))
    found = {"mean": Estimate(mean, mean - wide * error, mean + wide * error)}
    for percent in PERCENTILES:
        share = percent / 100
        about, by = share * len(ordered), wide * math.sqrt(len(ordered) * share * (1 - share))
        low, high = math.floor(about - by) - 1, math.ceil(about + by)
        found[f"p{percent}"] = Estimate(
            float(np.percentile(ordered, percent)),
            float(ordered[low]) if low >= 0 else None,
            float(ordered[high]) if high < len(ordered) else None,
        )
    return found


def as_mapping(sample: ArrayLike) -> dict[str, Any]:
    """The figures of a sample for JSON, with its size, standard deviation, minimum and maximum."""
    numbers = np.asarray(sample, dtype=np.float64)
    found: dict[str, Any] = {"n": len(numbers)}
    for name, one in estimates_of(sample).items():
        found |= {name: one.value, f"{name}_ci95": [one.low, one.high]}
    return {**found, "std": float(numbers.std(ddof=1)), "min": float(numbers.min()), "max": float(numbers.max())}


# The plot of a spread: the distribution of step times, and how two scenarios differ seed by seed.


BINS = 30


def histogram(samples: Mapping[str, ArrayLike], usual: Mapping[str, float] | None = None) -> Figure:
    """Draw the step times of one or two scenarios, by name, in seconds; for two, also the differences of pairs.

    Args:
        samples: step times by seed.
        usual: step times without jitter, drawn as dashed lines.
    """
    pair = len(samples) == 2
    figure = new_figure((11.0 if pair else 7.0, 4.2))
    panels = figure.subplots(1, 2 if pair else 1, squeeze=False)[0]
    _times(panels[0], samples, usual or {})
    if pair:
        first, second = samples
        _differences(panels[1], np.subtract(samples[second], samples[first]), f"{second} − {first}")
    return figure


def _times(ax: Axes, samples: Mapping[str, ArrayLike], usual: Mapping[str, float]) -> None:
    numbers = np.concatenate([np.asarray(sample) for sample in samples.values()])
    scale, unit = scale_of(float(numbers.max()))
    bins = np.histogram_bin_edges(numbers / scale, BINS).tolist()
    for colour, (name, sample) in zip(LINES, samples.items(), strict=False):
        times = np.asarray(sample) / scale
        ax.hist(times, bins, color=colour, alpha=0.55, label=verbatim(name))
        for percent, style in ((50, "-"), (99, ":")):
            ax.axvline(float(np.percentile(times, percent)), color=colour, linestyle=style, linewidth=1.2)
        if name in usual:
            ax.axvline(usual[name] / scale, color=colour, linestyle="--", linewidth=1)
    ax.set_title("median (solid), 99 % (dotted), without jitter (dashed)", loc="left", fontsize=9)
    ax.set_xlabel(f"step time ({unit})")
    ax.set_ylabel("runs")
    legend(ax, loc="upper right", bbox_to_anchor=(1.0, 1.0))
    plain(ax)


def _differences(ax: Axes, differences: NDArray[np.float64], title: str) -> None:
    scale, unit = scale_of(float(np.abs(differences).max()))
    ax.hist(differences / scale, BINS, color="0.55")
    ax.axvline(0, color="black", linewidth=1)
    ax.set_title(verbatim(title), loc="left", fontsize=9)
    ax.set_xlabel(f"difference with the same seed ({unit})")
    plain(ax)
