"""Find the best plan that fits: layout, schedule, micro-batch, recomputation, sharding, with a proof.

The file is a scenario; its `search:` block gives the axes, the objective, and how much memory a plan may use. Without
one, layout, micro-batch, recomputation and the schedules of its framework vary. All plans are enumerated; a local
search from the plan of the file finds good ones early; plans that provably cannot fit, or cannot beat the best one
found, are skipped, and the others are simulated, the most promising first. Prints the best plans, the
report of the winner, its launch line, and the flags that differ from the file's. With `rl`, plans split the GPUs
between engines and trainer, and the time of a cycle is shown against the mean age of samples.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import isfinite
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import add_budget, add_common, add_jobs, as_path, count
from hybrid_des.interface.cli.commands.export import launch_text
from hybrid_des.interface.cli.dask_workers import workers
from hybrid_des.interface.cli.output import output_width, print_json, say, show, terminal_width, warn, write_file
from hybrid_des.pipeline.order_csv import write_order
from hybrid_des.planning.planner import plan_of
from hybrid_des.report.files.staging import reserved
from hybrid_des.report.text import within
from hybrid_des.report.text_tables import text_table
from hybrid_des.result import Result, simulate
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import flow_text
from hybrid_des.scenario.loading import read_scenario, stated_of
from hybrid_des.studies.neighbours.framework import changed_flags, framework_of, frameworks_of
from hybrid_des.studies.plan_search import default_axes
from hybrid_des.studies.plan_search.best_plan import explore, write
from hybrid_des.studies.plan_search.branch import IMPOSSIBLE, Candidate, Standing
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.plan_search.scenario_files import scenario_file
from hybrid_des.studies.plan_search.search_log import LOG, Kept
from hybrid_des.studies.plan_search.space import LAYOUT, kept_in, plans_in, unused_by, values_of
from hybrid_des.studies.plan_search.terms import Settings, settings_of
from hybrid_des.studies.plan_search.tuning import tune
from hybrid_des.studies.pool import cores
from hybrid_des.studies.rl.result import RlResult, result_of
from hybrid_des.studies.sweep.axes import Case, plain
from hybrid_des.studies.verification import verify
from hybrid_des.units import format_bytes, format_number, format_share

MOST_VALUES = 12  # of a key in the list of what varies


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario, limits of the search, and output options."""
    parser.add_argument("file", metavar="SCENARIO", help="a scenario, such as scenarios/search/13b_64.yaml")
    add_common(parser, out="also write search.html, a table of all plans and the best plan's files to this folder")
    parser.add_argument("--list", action="store_true", help="only count the plans and list the axes")
    parser.add_argument("--json", action="store_true", help="print only the outcome, as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no report of the best plan")
    add_jobs(parser, ", at most one per plan (default: one per core)")
    parser.add_argument("--dask", metavar="ADDRESS", help="run on a Dask cluster, such as tcp://10.0.0.1:8786")
    add_budget(parser, "stop after this time, such as 60s")
    parser.add_argument("--resume", action="store_true", help="resume an earlier search from its --out folder")
    parser.add_argument("--write", metavar="FILE", type=as_path, help="write the best plan as a scenario file")
    parser.add_argument("--order", metavar="FILE", type=as_path, help="write its order of ops in PyTorch's format")
    parser.add_argument(
        "--tune", metavar="N", type=count, help="then try N values of the continuous parameters in search.tune"
    )
    parser.add_argument(
        "--verify", action="store_true", help="verify its order on real numbers, as `schedules --verify` does"
    )


def run(args: argparse.Namespace) -> int:
    """Search, print what was found, and return 0, or 1 if nothing fits."""
    if args.resume and args.out is None:
        raise UsageError("--resume needs the --out of the search to resume")
    settings = settings_of(read_scenario(args.file, args.set), args.imports)
    plans = plans_in(settings)
    args.warnings = [f"{args.file}: {text}" for text in [unused_by(settings, plans)] if text]
    warn(args)
    if args.list:
        show(_listed(settings, plans))
        return 0
    talks = not (args.quiet or args.json)
    if talks:
        say(within(_listed(settings, plans), output_width()))
    with (
        nullcontext() if args.out is None else reserved(args.out),
        _bar(settings, talks) as progress,
        workers(args.dask, args.jobs or cores()) as where,
    ):
        kept = Kept(args.out, args.resume)
        result = explore(settings, plans, kept, walks=True, budget_s=args.budget, progress=progress, **where)
    if args.out is not None and not result.stopped:
        (args.out / LOG).unlink(missing_ok=True)
    if args.json:
        print_json(args, _summary(result))
    else:
        if result.best is not None:
            show(_table(result, result.ranked[: settings.block.top]))
        show(result.sentence)
        if settings.objective.against is not None and result.best is not None:
            show(settings.objective.against.summed_up)
            show(_table(result, result.frontier()))
        if result.ties:
            show(_as_good(result))
    if args.out is not None:
        write(result, args.out)
    if result.best is not None:
        best = result.best if args.tune is None else _tuned(result, result.best, args.tune)
        _about_the_best(args, result, best, talks)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt  # results so far are output; the signal determines the exit code
    if result.best is not None or result.stopped:
        return 0
    say(f"{args.file}: {_why_none(result)}")
    return 1


def _listed(settings: Settings, plans: Sequence[Case]) -> str:
    number = f"{len(plans)} plans" if len(plans) > 1 else "1 plan"
    values_in = values_of(plans)
    own = any(path.startswith("cluster.") for path in values_in)  # each plan has GPUs of its own
    gpus = "" if own else f" of {settings.written.cluster.gpus} GPUs"
    lines = [f"{number}{gpus}{', by' if values_in else ''}"]
    for path, values in values_in.items():
        shown = ["default" if value is None else _value_text(value) for value in values[:MOST_VALUES]]
        lines.append(f"  {path}: {', '.join(shown)}{', …' if len(values) > MOST_VALUES else ''}")
    kept, opened = kept_in(settings), _to_vary(settings)
    if settings.by_default:
        as_is = ", ".join(dict.fromkeys((*kept, *default_axes.FROZEN)))
        lines.append(f"  as the file has it: all else; to vary {as_is} too: --set {opened}")
    elif kept:
        lines.append(f"  as the file states: {', '.join(kept)}; to vary them: --set {opened}")
    return "\n".join(lines)


def _to_vary(settings: Settings) -> str:
    """The axes that free what stays as the file has it, as an override."""
    kept = (path for path in kept_in(settings) if path != "schedule.chunks")
    free = ["parallel" if path in LAYOUT else path for path in kept]
    varied = list(settings.names) if settings.by_default or isinstance(settings.block.axes, list) else []
    frozen = default_axes.FROZEN if settings.by_default else ()
    return shlex.quote(f"search.axes=[{', '.join(dict.fromkeys((*varied, *free, *frozen)))}]")


@contextmanager
def _bar(settings: Settings, talks: bool) -> Iterator[Any]:
    """Yield a function that shows the progress of a search."""
    if not talks or not sys.stderr.isatty():
        yield lambda standing: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("plans")

        def show(standing: Standing) -> None:
            done = standing.screened if standing.screened < standing.plans else standing.plans - standing.open
            bar.update(task, total=standing.plans, completed=done, description=_progress(settings, standing))

        yield show


def _progress(settings: Settings, standing: Standing) -> str:
    """One line: how many plans are simulated, excluded and open, the best so far, and the bound."""
    if standing.walked:
        best = settings.objective.text(standing.best) if isfinite(standing.best) else "none"
        return f"from the plan of the file: {standing.walked} met, {standing.simulated} simulated; best {best}"
    if standing.screened < standing.plans:
        return f"screened {standing.screened} of {standing.plans} plans"
    costs = (standing.best, standing.least)
    best, least = (settings.objective.text(cost) if isfinite(cost) else "none" for cost in costs)
    excluded = standing.plans - standing.simulated - standing.open
    return f"{standing.simulated} simulated, {excluded} excluded, {standing.open} open; best {best}, bound {least}"


def _tuned(result: SearchResult, best: Candidate, trials: int) -> Candidate:
    """The best plan with the best values found for its knobs."""
    plan, values = tune(result, best, trials)
    listed = ", ".join(f"{path}={value:g}" for path, value in values.items()) or "nothing better"
    cost, less = result.settings.objective.text(plan.least), 1 - plan.least / best.least
    say(f"tuned in {trials} trials, without proof: {listed}: {cost}, {format_share(less, 2)} less")
    return plan


def _about_the_best(args: argparse.Namespace, search_result: SearchResult, best: Candidate, talks: bool) -> None:
    scenario = search_result.scenario(best)
    if args.write is not None:
        write_file(args.write, scenario_file(search_result, best))
    if args.order is not None:
        write_file(args.order, write_order(plan_of(scenario)))
    if args.out is not None or talks:
        result = _simulated(scenario)
        if args.out is not None:
            result.write(args.out / "best")
        if talks:
            show(f"\n{result.report(width=terminal_width())}")
    if talks:
        print(_launch(search_result.settings.written, scenario))
    if args.verify:
        say(f"verified: {verify(scenario)}")


def _simulated(scenario: Scenario) -> Result | RlResult:
    """A step of the best plan, or its loop."""
    if scenario.rl is not None:
        return result_of(stated_of(scenario))
    return simulate(scenario.model_copy(update={"record": "compute"}))


def _table(result: SearchResult, shown: Sequence[Candidate]) -> str:
    """Plans, one per line."""
    objective, against = result.settings.objective, result.settings.objective.against
    listed = [one.case for one in result.candidates if not one.beyond]
    paths = list(values_of(listed))
    paths += [path for one in shown if one.beyond for path, value in one.case.items() if value != listed[0].get(path)]
    paths = list(dict.fromkeys(paths))
    heads = ["", objective.key.removesuffix("_s").replace("_", " ")]
    heads += [*(() if against is None else [against.heading]), "memory"]
    heads += [*(key.replace("_per_s", "/s") for key in objective.beside), *(path.split(".")[-1] for path in paths)]
    rows = []
    for number, candidate in enumerate(shown, start=1):
        beside = [format_number(candidate.row[key]) for key in objective.beside]
        second = () if against is None else [format_number(candidate.against)]
        values = [candidate.case.get(path) for path in paths]
        cells = ["" if value is None else _value_text(value) for value in values]
        figures = [objective.text(candidate.least), *second, format_bytes(candidate.held), *beside]
        rows.append([str(number), *figures, *cells])
    return text_table(heads, rows, width=output_width())


def _value_text(value: object) -> str:
    """A value in a table; of a list its items, such as tensor-pipeline-data."""
    if isinstance(value, Mapping):
        return flow_text(value)
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(plain(value))


def _as_good(result: SearchResult) -> str:
    """Which plans are ties."""
    assert result.best is not None
    places = [1 + result.ranked.index(one) for one in result.ties]
    more = result.ties[-1].least / result.best.least - 1
    listed = f"1 to {places[-1]}" if len(places) == places[-1] - 1 else ", ".join(map(str, [1, *places]))
    apart = f"up to {format_share(more)} apart, within the 80 % prediction interval"
    return f"not certain which of plans {listed} is best: {apart}"


def _launch(written: Scenario, best: Scenario) -> str:
    """What starts the best plan, and the flags that differ from those of the file."""
    if best.model is None or best.rl is not None:
        return ""
    texts = []
    for framework in frameworks_of(written):
        before, after = framework.launch(written), framework.launch(best)
        flags = ", ".join(changed_flags(before, after)) or "none"
        changes = within(f"other than the file's: {flags}", output_width())
        texts.append(f"\n{framework.name}\n{launch_text(after, output_width())}\n{changes}")
    return "\n".join(texts)


def _why_none(result: SearchResult) -> str:
    """Why no plan was found, and the one that is nearest to fitting."""
    nearest, block = result.nearest(), result.settings.block
    if nearest is None:
        first = next(one for one in result.candidates if one.status == IMPOSSIBLE)
        return f"every plan is impossible; the first: {first.reason}"
    values = ", ".join(f"{path}={flow_text(value)}" for path, value in nearest.case.items() if value is not None)
    limit = "search.memory" if block.memory else "the GPU's memory"
    less = ", less search.reserve" if block.reserve else ""
    return f"no plan fits into {limit}{less}; the nearest: {nearest.reason} ({values})"


def _summary(result: SearchResult) -> dict[str, Any]:
    """The outcome as plain values."""
    weighed = result.settings.objective.against is not None
    return {
        "outcome": result.sentence,
        "objective": result.settings.objective.name,
        "plans": len(result.candidates),
        "counts": dict(result.counts),
        "gap_ratio": result.gap,
        "stopped": result.stopped,
        "best": [_plan(result, one) for one in result.ranked[: result.settings.block.top]],
        "front": [_plan(result, one) for one in result.front()],
        **({"frontier": [_plan(result, one) for one in result.frontier()]} if weighed else {}),
        **_launched(result),
        "as_stated": sorted({*kept_in(result.settings), *(default_axes.FROZEN if result.settings.by_default else ())}),
        "ties": [one.number for one in result.ties],
        "wall_s": result.wall_s,
    }


def _launched(result: SearchResult) -> dict[str, Any]:
    """The launch line of the best plan, and what differs from the file's, by framework."""
    written, best = result.settings.written, result.best
    framework = framework_of(written)
    if framework is None or best is None or written.rl is not None:
        return {}
    before, after = framework.launch(written), framework.launch(result.scenario(best))
    changes = list(changed_flags(before, after))
    return {"launch": {"framework": framework.name, "line": after.text, "changes": changes}}


def _plan(result: SearchResult, candidate: Candidate) -> dict[str, Any]:
    objective, against = result.settings.objective, result.settings.objective.against
    values = {path: value for path, value in plain(candidate.case).items() if value is not None}
    return {
        "plan": candidate.number,
        objective.key: objective.value(candidate.least),
        **({} if against is None else {against.key: candidate.against}),
        **{key: candidate.row[key] for key in objective.beside},
        "held_bytes": candidate.held,
        "values": values,
    }
