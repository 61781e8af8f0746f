"""The search for the best plan of a scenario: every plan is simulated, or proved not to be the best."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.experience import experience, tied
from hybrid_des.analysis.table import write_csv
from hybrid_des.errors import UsageError, installing
from hybrid_des.plan_search.bound import least_step
from hybrid_des.plan_search.branch import (
    EXCLUDED,
    IMPOSSIBLE,
    MISFIT,
    SAME,
    SIMULATED,
    UNKNOWN,
    BranchAndBound,
    Candidate,
    Standing,
)
from hybrid_des.plan_search.evaluation import evaluate, scenario_in, search_log
from hybrid_des.plan_search.space import plans_in
from hybrid_des.plan_search.terms import Settings, settings_of
from hybrid_des.planning.planner import parts_of
from hybrid_des.pool import open_pool
from hybrid_des.registry import import_file
from hybrid_des.report.files import Written, write_whole
from hybrid_des.report.plots import style
from hybrid_des.scenario import Scenario, Source, document_of
from hybrid_des.scenario.composition import anchor
from hybrid_des.scenario.export import yaml_text
from hybrid_des.simulation.run import BudgetSpentError
from hybrid_des.sweep.axes import Case, plain
from hybrid_des.sweep.runner import cells, with_case
from hybrid_des.units import to_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


# The outcome of a search: the best plans, the reason why each of the others is ruled out, and the remaining gap.


_WORDS = {SAME: "the same as others", MISFIT: "do not fit"}
_ALWAYS = (SIMULATED, EXCLUDED, MISFIT, UNKNOWN)


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The outcome of a search.

    Attributes:
        settings: the scenario and its `search` block.
        candidates: every plan of the space.
        least: a cost that no plan undercuts.
        stopped: why it ended before that was proved; empty if it was.
        wall_s: real seconds.
    """

    settings: Settings
    candidates: Sequence[Candidate]
    least: float
    stopped: str = ""
    wall_s: float = 0.0

    def __repr__(self) -> str:
        return f"<SearchResult {self.sentence}>"

    @cached_property
    def ranked(self) -> list[Candidate]:
        """The simulated plans, the best first."""
        simulated = (one for one in self.candidates if one.status == SIMULATED)
        return sorted(simulated, key=lambda one: (one.least, one.held, one.number))

    @property
    def best(self) -> Candidate | None:
        """The best plan; None if none was found."""
        return self.ranked[0] if self.ranked else None

    @property
    def gap(self) -> float:
        """The share by which the best plan could still be undercut; 0 if it is proved to be the best."""
        best = self.best
        if best is None or not best.least:
            return 0.0
        return max(0.0, 1 - self.least / best.least)

    @property
    def counts(self) -> Counter[str]:
        """The number of plans by status."""
        return Counter(one.status for one in self.candidates)

    @cached_property
    def ties(self) -> list[Candidate]:
        """The simulated plans that are as good as the best, as far as predictions of measured runs were right."""
        if self.best is None:
            return []
        known = experience(self.scenario(self.best))
        return [one for one in self.ranked if one is not self.best and tied(known, self.best.least, one.least)]

    def front(self) -> list[Candidate]:
        """The simulated plans that no other simulated one undercuts in both time and memory, fastest first."""
        found: list[Candidate] = []
        for one in self.ranked:
            if not found or one.held < found[-1].held:
                found.append(one)
        return found

    def nearest(self) -> Candidate | None:
        """Of the plans that do not fit, the one that exceeds the memory least."""
        return min((one for one in self.candidates if one.status == MISFIT), key=lambda one: one.excess, default=None)

    def scenario(self, candidate: Candidate) -> Scenario:
        """The scenario of a plan."""
        return scenario_in(self.settings, candidate.case)

    def least_step(self, candidate: Candidate) -> float:
        """A bound on the step of a plan in seconds, known without simulating it."""
        scenario = self.scenario(candidate)
        return to_seconds(least_step(scenario, parts_of(scenario)))

    @property
    def sentence(self) -> str:
        """How the search ended, with its counts."""
        counts = self.counts
        listed = ", ".join(
            f"{counts[name]} {_WORDS.get(name, name)}"
            for name in (SIMULATED, EXCLUDED, SAME, MISFIT, IMPOSSIBLE, UNKNOWN)
            if counts[name] or name in _ALWAYS
        )
        if not self.stopped:
            return f"{'optimal' if self.best else 'no plan'}: {listed}"
        if self.best is None:
            return f"stopped ({self.stopped}), no plan yet: {listed}"
        least = self.settings.objective.text(self.least) if self.least else "any"
        return f"stopped ({self.stopped}), a gap of {self.gap:.1%} is left to {least}: {listed}"

    def table(self) -> pd.DataFrame:
        """One row per plan, the best first: its values, its status and reason, its bound, and its summary.

        Columns: `plan`, `status`, `reason`, the keys that vary, `least` (a bound of the objective, or its value),
        `held_bytes` of the fullest GPU, and the keys of the summary for simulated plans.
        """
        import pandas as pd

        rest = [one for one in self.candidates if one.status != SIMULATED]
        order = [SIMULATED, UNKNOWN, EXCLUDED, SAME, MISFIT, IMPOSSIBLE]
        rest.sort(key=lambda one: (order.index(one.status), one.least))
        return pd.DataFrame([self._row(one) for one in (*self.ranked, *rest)])

    def _row(self, one: Candidate) -> dict[str, Any]:
        objective = self.settings.objective
        known = one.status not in (MISFIT, IMPOSSIBLE) and one.least
        return {
            "plan": one.number,
            "status": one.status,
            "reason": one.reason,
            **{path: value for path, value in plain(one.case).items() if value is not None},
            f"{objective.key}_bound": objective.value(one.least) if known else None,
            "held_bytes": one.held or None,
            **cells({key: value for key, value in one.row.items() if key not in ("name", "version")}),
        }


# The scenario file of a plan found by a search.


def scenario_file(found: SearchResult, candidate: Candidate) -> str:
    """The text of a scenario file: the content of the searched file with the values of a plan.

    The paths in it are made absolute, so that it can be placed anywhere.
    """
    document = with_case(found.settings.document, candidate.case, "search")
    anchor(document, Path.cwd())
    values = {key: value for key, value in document.value.items() if value not in ({}, None)}
    values["name"] = f"{values.get('name', 'scenario')}, plan {candidate.number}"
    lines = ["# Found by hybrid-des search.", f"# {found.sentence}", ""]
    return "\n".join(lines) + yaml_text(values)


# The plot of a search: time against memory, one point per plan.


GB = 1e9
BLUE, ORANGE, GREY = style.LINES[0], style.LINES[1], "#999999"


def draw(found: SearchResult, ax: Axes | None = None) -> Axes:
    """Draw every plan whose memory is known: simulated ones, the Pareto front among them, and the bounds of the others.

    A plan that was not simulated is drawn at its bound: its value is there or higher, for `tokens_per_gpu_s` lower.
    """
    ax = style.axes(ax, (8, 5))
    objective = found.settings.objective
    groups: tuple[tuple[str, Sequence[Candidate], dict[str, object]], ...] = (
        ("not simulated: its bound", _with(found, EXCLUDED, UNKNOWN), {"color": GREY, "marker": "_", "linewidths": 1}),
        ("simulated", _with(found, SIMULATED), {"color": BLUE, "s": 16}),
        ("none is better in both", found.front(), {"color": ORANGE, "s": 28, "zorder": 3}),
    )
    for label, plans, look in groups:
        if plans:
            points = [(one.held / GB, objective.value(one.least)) for one in plans]
            ax.scatter(*zip(*points, strict=True), label=label, **look)  # type: ignore[arg-type]
    front = [(one.held / GB, objective.value(one.least)) for one in found.front()]
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color=ORANGE, linewidth=1, zorder=2)
    for one in {found.settings.allowed(kind.gpu) for kind in found.settings.written.cluster.kinds}:
        ax.axvline(one / GB, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xlim(left=max(0.0, ax.get_xlim()[0]))  # points, whose distances matter, not their distance from 0
    ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
    ax.set_xlabel("memory of the fullest GPU (GB); dotted: usable")
    ax.set_ylabel(objective.axis)
    ax.set_title(style.verbatim(str(found.settings.document.value.get("name", ""))), loc="left", fontsize=10)
    if found.ranked:
        style.legend(ax, loc="best", bbox_to_anchor=None)
    return style.plain(ax)


def _with(found: SearchResult, *statuses: str) -> list[Candidate]:
    return [one for one in found.candidates if one.status in statuses and one.weighed]


def write(found: SearchResult, folder: str | Path) -> Written:
    """Write `search.csv`, the table of all plans; `search.png` and `.svg`; and `best.yaml`, if there is a best one.

    Raises:
        UsageError: the folder cannot be written.
    """

    def fill(staging: Path) -> None:
        write_csv(found.table(), staging / "search.csv")
        if found.best is not None:
            figure = style.new_figure((8, 5))
            draw(found, figure.subplots())
            style.save(figure, staging, "search")
            (staging / "best.yaml").write_text(scenario_file(found, found.best), encoding="utf-8")

    return write_whole(folder, fill, replaces=["search.csv", "search.png", "search.svg", "best.yaml"])


SLOTS = 64  # concurrent tasks on a given executor


def search(source: Source, overrides: Sequence[str] = (), **how: Any) -> SearchResult:
    """Find the best plan of a scenario with a `search:` block.

    Args:
        source: the file's path, a mapping with the content of one, or a scenario.
        overrides: strings such as "search.top=3".
        how: `jobs`, `budget_s` and the other keywords of `explore`.

    Raises:
        ScenarioError: the scenario or its block is wrong, or the space is empty.

    Example:
        >>> from hybrid_des import search
        >>> found = search("scenarios/a100_8x.yaml", ["search.axes=[{schedule.kind: [gpipe, 1f1b, zb-h1]}]"])
        >>> found
        <SearchResult optimal: 10 simulated, 2 excluded by bound, 0 do not fit, 0 unknown>
        >>> found.table()[["status", "schedule.kind", "step_time_s"]].round(3).head(1)
              status schedule.kind  step_time_s
        0  simulated         zb-h1        1.194
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
