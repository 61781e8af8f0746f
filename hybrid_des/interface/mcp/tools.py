"""What each tool does, in a process of its own whose current folder is that of the server."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_des.analysis.compare import compare, side_of_scenario
from hybrid_des.analysis.explanation import explain as explain_whole
from hybrid_des.analysis.losses import losses
from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import UsageError
from hybrid_des.interchange.loops import FRAMEWORKS
from hybrid_des.interface.cli import command_files
from hybrid_des.interface.cli.arguments import Parser, distinct
from hybrid_des.interface.failures import error_document
from hybrid_des.interface.mcp.answers import (
    Answer,
    ChangeAnswer,
    CompareAnswer,
    DocsAnswer,
    ExplainAnswer,
    Failure,
    InitAnswer,
    LoopAnswer,
    PlanAnswer,
    SearchAnswer,
    StepAnswer,
)
from hybrid_des.interface.mcp.arguments import (
    Arguments,
    CompareArguments,
    DocsArguments,
    ExplainArguments,
    InitArguments,
    SearchArguments,
    SimulateArguments,
)
from hybrid_des.report.compared import render_comparison
from hybrid_des.report.explained import opening, render_explanation
from hybrid_des.result import simulate
from hybrid_des.scenario.composition import anchor_overrides, over_base, override
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import flow_text
from hybrid_des.scenario.loading import document_of, read_scenario, scenario_of
from hybrid_des.scenario.loops import has_loop
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.shipped import shipped
from hybrid_des.scenario.strict_yaml import Document, parse
from hybrid_des.scenario.unused_gpus import unused_gpus
from hybrid_des.simulation.outcome import Run, fullest
from hybrid_des.studies.advice import advise
from hybrid_des.studies.forked import forked
from hybrid_des.studies.plan_search.best_plan import explore
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.plan_search.space import plans_in
from hybrid_des.studies.plan_search.terms import settings_of
from hybrid_des.studies.pool import cores
from hybrid_des.studies.rl.explained import explain_loop
from hybrid_des.studies.rl.result import RlResult, result_of
from hybrid_des.studies.sweep.axes import plain
from hybrid_des.units import format_bytes, format_share

INLINE = "the text"  # what messages call a scenario that is given as text
NO_LOOP = "rl: a loop of engines, queue and trainer, which the tools simulate and explain take; expected none"
SEVERAL = {  # keys of files with several scenarios, and what to do instead
    "sweep": "set sweep=none and plot=none, and its values by set",
    "jobs": "the scenario of a job; hybrid-des FILE simulates them together",
}
MOST_TEXT = 4000  # characters of documentation in one answer: about six hundred words
EARLY = 0.8  # of the time left: a simulation or search ends by itself before the process is ended
WIDTH = 100  # columns of a text


class Reply(NamedTuple):
    """The answer of a tool.

    Attributes:
        text: for the reader, short.
        found: the same as numbers.
    """

    text: str
    found: Answer


def reply(tool: str, given: Arguments, until: float) -> Reply:
    """Run a tool; `until` is when its process is ended, on the monotonic clock.

    Raises:
        HybridDesError: as the command of the same name.
    """
    return _TOOLS[tool](given, until)


def failure(error: Exception, message: str, exit_code: int) -> Reply:
    """The answer of a call that has no result."""
    known = Failure(**error_document(error, message, exit_code))
    facts = getattr(error, "facts", {})
    share = f"; simulated {format_share(facts['share_of_ops'], 0)} of the step's ops" if facts else ""
    return Reply(message + share, Answer(error=known, **json.loads(json.dumps(facts, default=str))))


def document_for(source: str, overrides: Overrides) -> Document:
    """A scenario of the folder, a shipped one by its name, or one that is given as text, with changes.

    Raises:
        ScenarioError: it cannot be read.
        UsageError: it holds several scenarios.
    """
    if "\n" in source.strip() or (": " in source and not Path(source).exists()):
        document = _of_text(source, overrides)
    else:
        document = read_scenario(_file(source), overrides)
    for key, instead in SEVERAL.items():
        if document.value.get(key) not in (None, "none"):
            raise UsageError(f"{document.source}: {key}: several scenarios; the tools take one: {instead}")
    return document


def _of_text(text: str, overrides: Overrides) -> Document:
    value, places = parse(text, INLINE)
    if not isinstance(value, dict):
        raise UsageError(f"{INLINE}: expected keys such as base: and parallel:")
    document = over_base(Document({"name": "scenario", **value}, INLINE, places), Path())
    override(document, overrides)
    anchor_overrides(document, Path())
    return document


def _file(source: str) -> str:
    """The file that a name stands for: one of the folder first, then a shipped one."""
    name = source.removeprefix("scenarios/").removesuffix(".yaml")
    if not Path(source).exists() and name in shipped():
        return f"scenarios/{name}.yaml"
    return source


def _early(until: float) -> float:
    """Seconds after which a simulation is to end by itself, so that what is known by then can be said."""
    return max(EARLY * (until - time.monotonic()), 0.1)


def _simulate(given: SimulateArguments, until: float) -> Reply:
    document = document_for(given.scenario, given.set)
    if has_loop(document):
        return _loop(document)
    scenario = scenario_of(document).model_copy(update={"record": "compute"})
    result = simulate(scenario, budget_s=_early(until))
    answer = StepAnswer(**_step(result.run, result.summary, document, scenario))
    warnings = [f"warning: {warning}" for warning in answer.warnings]
    return Reply("\n".join([opening(result.run, WIDTH), *warnings]), answer)


def _loop(document: Document) -> Reply:
    """The short answer on a loop: its report, and its main figures."""
    result = result_of(document, forked())
    return Reply(result.report(WIDTH), StepAnswer(**_of_loop(result, document)))


def _of_loop(result: RlResult, document: Document) -> dict[str, Any]:
    """What a simulated loop is like, by the keys of `StepAnswer`."""
    figures = result.figures
    answer = LoopAnswer(
        cycle_s=figures.cycle,
        trainer_wait_s=figures.wait,
        trainer_busy_ratio=figures.trainer_busy,
        rollout_busy_ratio=figures.rollout_busy,
        mean_age=figures.ages.mean,
        largest_age=figures.ages.largest,
        samples_per_s=figures.samples_per_s,
        tokens_per_gpu_s=figures.tokens_per_gpu_s,
        recomputed_tokens=figures.tokens("recomputed"),
        dropped=figures.samples_with("dropped"),
    )
    warnings = [*document.notices.values(), *filter(None, [unused_gpus(document, result.scenario)])]
    return {"name": result.scenario.name, "gpus": figures.gpus, "loop": answer, "warnings": warnings}


def _step(run: Run, figures: Mapping[str, Any], document: Document, scenario: Scenario) -> dict[str, Any]:
    """What a simulated step is like, by the keys of `StepAnswer`."""
    peak = fullest(run)
    warnings = [*document.notices.values(), unused_gpus(document, scenario)]
    return {
        "name": figures["name"],
        "gpus": figures["ranks"],
        "step_time_s": figures["step_time_s"],
        "likely_step_time_s": figures.get("experience", {}).get("interval_s"),
        "likely_text": figures.get("experience", {}).get("text", ""),
        "tokens_per_gpu_s": figures.get("tokens_per_gpu_s"),
        "mfu": figures.get("mfu"),
        "step_shares": figures["step_shares"],
        "peak_memory_bytes": peak.held,
        "memory_bytes": peak.gpu.memory,
        "fits": peak.fits,
        "warnings": [warning for warning in warnings if warning],
    }


def _explain(given: ExplainArguments, until: float) -> Reply:
    document = document_for(given.scenario, given.set)
    if has_loop(document):
        return _explained_loop(document, given.what_if)
    scenario, at_once = scenario_of(document), forked()

    def build(changes: Overrides) -> Scenario:
        return scenario_of(document_of(document.value, changes))

    why = explain_whole(scenario, given.what_if, build=build, at_once=at_once) if given.what_if else None
    lost = why.losses if why is not None else losses(scenario, at_once)
    advice = advise(document.value, run=lost.run, at_once=at_once)
    answer = ExplainAnswer(
        **_step(lost.run, summary(lost.run), document, scenario),
        main_loss=lost.verdict,
        changes=[
            ChangeAnswer(
                change=line.change,
                set=[f"{path}={value}" for path, value in line.overrides.items()],
                step_time_s=line.step_s,
                gain=line.gain,
                likely_gain=None if line.sure is None else _less(line.sure.interval(-line.gain)),
                peak_memory_bytes=line.held,
                remarks=[*line.remarks],
                flags=[*line.flags],
            )
            for line in advice.lines
        ],
        what_if={
            one.change: lost.seconds(one.duration) * scenario.steps / one.steps
            for one in (why.what_if if why is not None else ())
            if one.asked
        },
    )
    return Reply(render_explanation(lost if why is None else why, WIDTH, advice=advice), answer)


def _explained_loop(document: Document, what_if: Sequence[str]) -> Reply:
    """Why the cycle of a loop takes as long, with simulated changes."""
    explanation = explain_loop(result_of(document, forked()), what_if)
    simulated = (*explanation.asked, *explanation.result.all_what_ifs)
    answer = ExplainAnswer(
        **_of_loop(explanation.result, document),
        main_loss=explanation.verdict,
        what_if={one.change.words: one.cycle for one in simulated},
    )
    return Reply(explanation.report(WIDTH), answer)


def _less(interval: tuple[float, float]) -> tuple[float, float]:
    """An interval of a change as one of a gain."""
    low, high = interval
    return -high, -low


def _compare(given: CompareArguments, until: float) -> Reply:
    if not given.other and not given.changes:
        raise UsageError("compare: expected other, a second scenario, or with, changes such as schedule.kind=zb-h1")
    documents = [
        document_for(given.scenario, given.set),
        document_for(given.other or given.scenario, [*given.set, *given.changes]),
    ]
    if loops := [document.source for document in documents if has_loop(document)]:
        raise UsageError(f"{loops[0]}: {NO_LOOP}")
    names = distinct([str(document.value.get("name")) for document in documents], given.changes)
    a, b = (
        replace(side_of_scenario(scenario_of(document), document.value), name=name)
        for document, name in zip(documents, names, strict=True)
    )
    comparison = compare(a, b)
    sure = comparison.difference
    answer = CompareAnswer(
        a=a.name,
        b=b.name,
        a_step_time_s=a.summary["step_time_s"],
        b_step_time_s=b.summary["step_time_s"],
        change_ratio=comparison.regression,
        likely_change_ratio=sure.interval(comparison.regression) if sure is not None else None,
        tied=comparison.tied,
        a_fits=not a.summary["out_of_memory"],
        b_fits=not b.summary["out_of_memory"],
        causes_s={row["cause"]: row["change_s"] for row in comparison.causes() if row["change_s"]},
    )
    return Reply(render_comparison(comparison, WIDTH), answer)


def _search(given: SearchArguments, until: float) -> Reply:
    settings = settings_of(document_for(given.scenario, given.set))
    plans = plans_in(settings)
    result = explore(settings, plans, walks=True, jobs=cores(), budget_s=round(_early(until), 1))
    objective = settings.objective
    best = [
        PlanAnswer(
            cost=objective.value(one.least),
            peak_memory_bytes=one.held,
            set=[f"{path}={flow_text(value)}" for path, value in plain(one.case).items()],
        )
        for one in result.ranked[: given.top]
    ]
    answer = SearchAnswer(
        outcome=result.sentence,
        objective=objective.key,
        plans=len(plans),
        gap_ratio=result.gap if isfinite(result.gap) else None,
        stopped=result.stopped,
        best=best,
    )
    return Reply(_plans_text(result, best), answer)


def _plans_text(result: SearchResult, best: list[PlanAnswer]) -> str:
    """The outcome, and a line per plan: what it costs and how it differs from the best."""
    lines = [result.sentence]
    for number, (candidate, plan) in enumerate(zip(result.ranked, best, strict=False), start=1):
        shown = [text for text in plan.set if number == 1 or text not in best[0].set]
        cost, held = result.settings.objective.text(candidate.least), format_bytes(candidate.held)
        others = "" if number == 1 else "as 1, but "
        lines.append(f"{number}  {cost}, {held}: {others}{', '.join(shown) or 'the same'}")
    return "\n".join(lines)


def _init(given: InitArguments, until: float) -> Reply:
    if given.log and given.tool not in FRAMEWORKS:
        raise UsageError(f"init: tool: expected {', '.join(FRAMEWORKS)} for a log, not {given.tool!r}")
    program = f"--from-{given.tool}" if given.log else "--tool"
    options = {"--from": given.model, "--from-megatron": given.megatron, program: given.log or given.tool}
    words = [word for option, value in options.items() if value for word in (option, value)]
    words += [word for file in given.job for word in ("--from-job", file)]
    words += [word for change in given.set for word in ("--set", change)]
    value = _command("init", [*([given.name] if given.name else []), *words])
    if not given.name and not words:
        known = {row["name"]: row["description"] for row in value}
        return Reply("\n".join(known), InitAnswer(shipped=known))
    if isinstance(value, list):
        return Reply(f"wrote {', '.join(value)}", InitAnswer(files=value))
    facts = {name: lines for name, lines in value.items() if name != "file"}
    said = [f"{name.replace('_', ' ')}: {', '.join(lines)}" for name, lines in facts.items() if lines]
    return Reply("\n".join([f"wrote {value['file']}", *said])[:MOST_TEXT], InitAnswer(files=[value["file"]], **facts))


def _docs(given: DocsArguments, until: float) -> Reply:
    value = _command("docs", [*filter(None, [given.page, given.section])])
    if not given.page:
        text = "\n".join(f"{name}: {title}" for name, title in value.items())
    elif "text" in value:
        text = value["text"]
    else:  # of a key
        texts = (one["text"] if one["heads"] else f"{one['section'][-1]}: {one['text']}" for one in value["entries"])
        text = "\n\n".join(texts)
    shown = text[given.offset : given.offset + MOST_TEXT]
    left = max(len(text) - given.offset - len(shown), 0)
    more = f"\n… {left} more characters: offset={given.offset + len(shown)}" if left else ""
    return Reply(shown + more, DocsAnswer(text=shown, left=left))


def _command(name: str, words: list[str]) -> Any:
    """What a command of the command line prints with --json.

    Raises:
        HybridDesError: as the command.
    """
    command, parser, printed = command_files.find(name), Parser(name), io.StringIO()
    command.add_arguments(parser)
    args = parser.parse_args([*words, "--json"])
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        command.run(args)
    return json.loads(printed.getvalue())


_TOOLS: Mapping[str, Callable[[Any, float], Reply]] = {
    "simulate": _simulate, "explain": _explain, "compare": _compare, "search": _search, "init": _init, "docs": _docs,
}  # fmt: skip
