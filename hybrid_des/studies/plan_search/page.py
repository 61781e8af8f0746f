"""The page of a search: the best plan in a sentence, the frontier to click, a table to sort, what each plan changes.

A point, or a row of the table, opens its plan: the settings that differ from the file's, the flags to copy, and the
plan as a scenario file.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

from hybrid_des.report.page.answer import verdict
from hybrid_des.report.page.study_page import Cell, chart, chart_of, legend, sorted_table, study_page
from hybrid_des.report.plots.style import LINES
from hybrid_des.scenario.composition import value_at
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import flow_text, to_mapping
from hybrid_des.studies.neighbours.framework import changed_flags, frameworks_of
from hybrid_des.studies.plan_search.branch import EXCLUDED, SIMULATED, UNKNOWN, Candidate
from hybrid_des.studies.plan_search.objectives import Objective
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.plan_search.scenario_files import scenario_file, with_values
from hybrid_des.studies.plan_search.space import values_of
from hybrid_des.studies.sweep.axes import plain
from hybrid_des.units import format_bytes, format_number, format_share

MOST_PLANS, MOST_BOUNDS = 300, 1000  # plans that can be opened; plans that were not simulated, in the chart
GREY = "#8A8A8A"


def search_page(result: SearchResult) -> str:
    """The page of a search that found a plan, in one file."""
    shown = shown_plans(result)
    body = [
        verdict(_verdict(result)),
        f"<p>{html.escape(result.sentence)}</p>",
        f"<h2>{html.escape(_title(result))}</h2>{legend('frontier')}{chart('frontier')}",
        "<p>Click a point or a row: its plan is below the chart.</p>",
        '<div id="plan" class="plan" aria-live="polite"></div>',
        f"<h2>{len(shown)} plans, simulated; the first is the best</h2>{_table(result, shown)}",
    ]
    title = str(result.settings.document.value.get("name", "search"))
    plans = {one.number: plan_html(result, one) for one in shown}
    first = result.best.number if result.best is not None else None
    return study_page(title, "".join(body), {"frontier": _frontier(result, shown)}, plans=plans, first=first)


def shown_plans(result: SearchResult) -> list[Candidate]:
    """The plans that can be opened: the best ones, and all of the frontier."""
    best = result.ranked[:MOST_PLANS]
    return [*best, *(one for one in _best_in_both(result) if one not in best)]


def _best_in_both(result: SearchResult) -> list[Candidate]:
    return result.front() if result.settings.objective.against is None else result.frontier()


def _verdict(result: SearchResult) -> str:
    best, objective = result.best, result.settings.objective
    assert best is not None
    figure = f"{objective.axis.partition(' (')[0]} {in_words(objective, best)}"
    sentence = f"Plan {best.number} is the best found: {figure}, {format_bytes(best.held)} on the fullest GPU"
    if result.stopped:
        sure = f"the search was {result.stopped}, and at most {format_share(result.gap)} could still be gained"
    else:
        sure = f"none of the {len(result.candidates)} plans can be better"
    if result.ties:
        others = "1 other lies" if len(result.ties) == 1 else f"{len(result.ties)} others lie"
        sure += f", but {others} within the 80 % prediction interval around it: not certain which is best"
    return f"{sentence}; {sure}."


def _title(result: SearchResult) -> str:
    objective = result.settings.objective
    against = "memory" if objective.against is None else objective.against.heading
    return f"{objective.axis.partition(' (')[0].capitalize()} against {against}"


def in_words(objective: Objective, plan: Candidate) -> str:
    """The cost of a plan, and what it is weighed against, in words."""
    against = "" if objective.against is None else f" {objective.against.text(plan.against)}"
    return f"{objective.text(plan.least)}{against}"


def _frontier(result: SearchResult, shown: Sequence[Candidate]) -> dict[str, Any]:
    """Every plan as a point: simulated ones, those that none is better than in both, and bounds of the others."""
    objective, against = result.settings.objective, result.settings.objective.against
    best, opened = _best_in_both(result), {one.number for one in shown}
    unknown = sorted(with_values(result, EXCLUDED, UNKNOWN), key=lambda plan: plan.least)[:MOST_BOUNDS]
    others = [one for one in with_values(result, SIMULATED) if one not in best]

    def at(plan: Candidate) -> float:
        return plan.held if against is None else plan.against

    def point(plan: Candidate) -> list[Any]:
        text = f"plan {plan.number}: {objective.text(plan.least)}, {format_bytes(plan.held)}"
        return [at(plan), objective.value(plan.least), text, plan.number if plan.number in opened else None]

    series: list[dict[str, Any]] = [
        {"name": "not simulated: at least", "colour": GREY, "mark": 5, "hollow": True, "size": 2.5,
         "points": [point(one) for one in unknown]},
        {"name": "simulated", "colour": LINES[0], "mark": 0, "points": [point(one) for one in others]},
        {"name": "simulated, none better in both", "colour": LINES[1], "mark": 3, "line": True, "size": 5.5,
         "points": [point(one) for one in sorted(best, key=at)]},
    ]  # fmt: skip
    limits = {result.settings.allowed(kind.gpu) for kind in result.settings.written.cluster.kinds}
    marks = [{"at": float(limit), "name": "usable memory"} for limit in sorted(limits)] if against is None else []
    x = {"label": "memory of the fullest GPU", "kind": "bytes"}
    if against is not None:
        x = {"label": against.axis, "kind": "number"}
    seconds = objective.key.endswith("_s") and not objective.key.endswith("gpu_s")
    y = {"label": objective.axis, "kind": "seconds" if seconds else "number"}
    return chart_of(x, y, [one for one in series if one["points"]], marks=marks, height=340)


def _table(result: SearchResult, shown: Sequence[Candidate]) -> str:
    objective, against = result.settings.objective, result.settings.objective.against
    paths = values_of(one.case for one in shown)
    heads = [
        "plan",
        objective.axis.partition(" (")[0],
        *(() if against is None else [against.heading]),
        "memory",
        *(key.replace("_per_s", "/s") for key in objective.beside),
        *paths,
    ]
    rows = [
        [Cell(str(one.number), one.number), Cell(objective.text(one.least), objective.value(one.least)),
         *(() if against is None else [Cell(format_number(one.against), one.against)]),
         Cell(format_bytes(one.held), one.held),
         *(Cell(format_number(one.row[key]), one.row[key]) for key in objective.beside),
         *(_swept_value(one.case.get(path)) for path in paths)]
        for one in shown
    ]  # fmt: skip
    return sorted_table(heads, rows, [one.number for one in shown])


def _swept_value(value: Any) -> Cell | str:
    value = plain(value)
    if value is None:
        return ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(flow_text(value), value if number else None)


def plan_html(result: SearchResult, plan: Candidate) -> str:
    """A plan: its figures, what it changes in the file, the flags to copy, and its scenario file."""
    objective, scenario = result.settings.objective, result.scenario(plan)
    facts = f"{in_words(objective, plan)}, {format_bytes(plan.held)} on the fullest GPU"
    changed = "; ".join(changes_of(result.settings.written, scenario, plan)) or "nothing: it is the plan of the file"
    parts = [
        f"<h3>Plan {plan.number}: {html.escape(facts)}</h3><p>Changes {html.escape(changed)}</p>",
        *_flags(result.settings.written, scenario),
        "<details><summary>the plan as a scenario file</summary>",
        _to_copy(scenario_file(result, plan)),
        "</details>",
    ]
    return "".join(parts)


def changes_of(written: Scenario, scenario: Scenario, plan: Candidate) -> list[str]:
    """The values of a plan that differ from those of the file, each as "parallel.tensor 4 → 1"."""
    before, after = to_mapping(written), to_mapping(scenario)
    pairs = ((path, value_at(before, path), value_at(after, path)) for path in plan.case)
    return [f"{path} {_text(first)} → {_text(second)}" for path, first, second in pairs if first != second]


def _text(value: Any) -> str:
    return "(not given)" if value is None else flow_text(value)


def _flags(written: Scenario, scenario: Scenario) -> Iterator[str]:
    """The flags that differ from the file's, and the whole line, for each framework that may start it."""
    if scenario.model is None or scenario.rl is not None:  # whose frameworks have words for both sides
        return
    for framework in frameworks_of(written):
        before, after = framework.launch(written), framework.launch(scenario)
        flags = changed_flags(before, after)
        yield f"<h3>Flags of {html.escape(framework.name)} that differ from the file's</h3>"
        yield _to_copy("\n".join(flags)) if flags else "<p>None.</p>"
        said = [*(f"no flag: {one}" for one in after.unsaid), *(f"refused: {one}" for one in after.refused)]
        yield "".join(f"<small>{html.escape(one)}</small>" for one in said)
        yield f"<details><summary>the whole launch line</summary>{_to_copy(after.text)}</details>"


def _to_copy(text: str) -> str:
    return f'<div class="flags"><code>{html.escape(text)}</code><button class="copy">copy</button></div>'
