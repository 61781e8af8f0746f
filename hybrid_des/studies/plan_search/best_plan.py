"""The search for the best plan of a scenario: every plan is simulated, or proved not to be the best."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TypedDict, Unpack

from hybrid_des.analysis.safe_csv import write_csv
from hybrid_des.registry import import_file
from hybrid_des.report.files.staging import Written, write_whole
from hybrid_des.report.plots import style
from hybrid_des.scenario.loading import Source, document_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.simulation.watch import BudgetSpentError
from hybrid_des.studies.plan_search.branch import SIMULATED, BranchAndBound, Candidate, Standing
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.plan_search.page import search_page
from hybrid_des.studies.plan_search.plot import draw
from hybrid_des.studies.plan_search.scenario_files import scenario_file
from hybrid_des.studies.plan_search.search_log import NOT_KEPT, Kept, search_log
from hybrid_des.studies.plan_search.space import plans_in
from hybrid_des.studies.plan_search.terms import Settings, settings_of
from hybrid_des.studies.plan_search.walk import Walk
from hybrid_des.studies.pool import open_pool
from hybrid_des.studies.sweep.axes import Case


def write(result: SearchResult, folder: str | Path) -> Written:
    """Write `search.csv`, the table of all plans; if there is a best one `best.yaml`, `search.html`, `.png` and `.svg`.

    Where plans are weighed against something besides the objective, as money against days, `frontier.csv` has those
    that none undercuts in both.

    Raises:
        UsageError: the folder cannot be written.
    """

    def fill(staging: Path) -> None:
        write_csv(result.table(), staging / "search.csv")
        if result.best is not None:
            figure = style.new_figure((8, 5))
            draw(result, figure.subplots())
            style.save(figure, staging, "search")
            (staging / "search.html").write_text(search_page(result), encoding="utf-8")
            if result.settings.objective.against is not None:
                write_csv(result.frontier_table(), staging / "frontier.csv")
            (staging / "best.yaml").write_text(scenario_file(result, result.best), encoding="utf-8")

    return write_whole(folder, fill, replaces=FILES)


FILES = ("search.csv", "frontier.csv", "search.html", "search.png", "search.svg", "best.yaml")


WALKED = 0.8  # of a time limit at most, for the walk: what is left after it seldom proves more
SLOTS = 64  # concurrent tasks on a given executor


class Where(TypedDict, total=False):
    """Where the plans of a search are evaluated, and for how long: the keywords of `explore`."""

    jobs: int
    executor: Executor | None
    budget_s: float
    waiting: Callable[[], None]


class Execution(Where, total=False):
    """The same, and who is told."""

    progress: Callable[[Standing], None]


def search(
    source: Source,
    overrides: Overrides = (),
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    **how: Unpack[Execution],
) -> SearchResult:
    """Find the best plan of a scenario with a `search:` block.

    Args:
        source: the file's path, a mapping with the content of one, or a scenario.
        overrides: changes to it, such as ["search.top=3"] or {"search.top": 3}.
        folder: an existing folder to which every evaluation is written.
        resume: whether to continue from the evaluations in `folder`.
        **how: where plans are evaluated, the time limit, and callbacks.
        jobs: local worker processes, at most one per plan; 1 runs in this process, unless there is a budget.
        executor: instead of `jobs`, anything with the `submit` of `concurrent.futures`.
        budget_s: real seconds after which to stop.
        progress: called after every evaluation.
        waiting: called every second in which nothing finishes; may raise.

    Raises:
        ScenarioError: the scenario or its block is wrong, or the space is empty.
        UsageError: the folder cannot be written, or holds nothing to resume.

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
    kept = Kept(None if folder is None else Path(folder), resume)
    return explore(settings, plans_in(settings), kept, walks=True, **how)


def explore(
    settings: Settings,
    cases: Sequence[Case],
    kept: Kept = NOT_KEPT,
    *,
    walks: bool = False,
    progress: Callable[[Standing], None] = lambda standing: None,
    **where: Unpack[Where],
) -> SearchResult:
    """Find the best of some plans; Ctrl-C ends the search with its results so far.

    Args:
        settings: the scenario and its `search` block.
        cases: the plans.
        kept: where every evaluation is written, in an existing folder.
        walks: whether to begin with a walk from the plan of the file, which takes at most four fifths of the time.
        progress: called after every evaluation.
        **where: where plans are evaluated, and for how long.
        jobs: local worker processes, at most one per plan; 1 runs in this process, unless there is a budget.
        executor: instead of `jobs`, anything with the `submit` of `concurrent.futures`.
        budget_s: real seconds after which to stop.
        waiting: called every second in which nothing finishes; may raise.

    Raises:
        UsageError: the folder cannot be written, or holds nothing to resume.
    """
    for path in settings.imports:
        import_file(path)
    started, stopped, budget_s = time.monotonic(), "", where.get("budget_s", inf)
    how = {"imports": settings.imports, "until": started + budget_s}
    how |= {"waiting": where["waiting"]} if "waiting" in where else {}
    with search_log(kept, settings, cases) as (known, note):
        walks = walks and settings.written.rl is None  # moves of advice are those of a step
        walk = Walk(settings, cases, known=known, note=note, progress=progress)
        state = BranchAndBound(settings, cases, known=walk.known, simulated=walk.found, note=note, progress=progress)
        try:
            with open_pool(min(where.get("jobs", 1), len(cases)), where.get("executor"), slots=SLOTS, **how) as pool:
                if walks:
                    with suppress(BudgetSpentError):
                        walk.run(replace(pool, until=started + WALKED * budget_s))
                state.run(pool)
        except BudgetSpentError:
            stopped = f"after {budget_s:g} s"
        except KeyboardInterrupt:
            stopped = "interrupted"
    if stopped:
        state.stop()
    candidates = _with(walk.beyond, state.candidates)
    return SearchResult(settings, candidates, state.least, stopped, time.monotonic() - started)


def _with(beyond: Candidate | None, candidates: list[Candidate]) -> list[Candidate]:
    """Plans, and one beyond them if it is better than all."""
    if beyond is None or any(one.status == SIMULATED and one.least <= beyond.least for one in candidates):
        return candidates
    return [*candidates, beyond]
