"""Say why a step takes as long as it does, and simulate what would help.

The text has at most fifteen lines: the step, where its time goes, the main loss, and settings that would make it
shorter, each simulated. --details adds the critical path, idle time by cause, and what-ifs: those marked "first order"
keep the order of all events, "simulated" ones do not. A what-if is a key with a factor or a value, such as
cluster.infiniband.bandwidth=2x, schedule.kind=zb-h1, rank.3.time=0.9x, kind.B.time=0.5x, links.bandwidth=inf,
links.latency=0x or link.node0/nic0/out.bandwidth=2x; commas combine changes. In a file with several jobs, use
jobs.NAME.KEY, or jobs.NAME=none to leave a job out. In a file with rl, the loop of
engines, queue and trainer is explained; what-ifs are keys with values, such as rl.ahead=1.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hybrid_des.analysis.advice import Advice
from hybrid_des.analysis.explanation import Explanation, explain
from hybrid_des.analysis.losses import losses, step_alone
from hybrid_des.analysis.memory_use import memory_use
from hybrid_des.analysis.tasks import AtOnce
from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import (
    add_common,
    add_jobs,
    add_quiet_json,
    as_path,
    count,
    one_document,
    one_scenario,
)
from hybrid_des.interface.cli.deadline import within
from hybrid_des.interface.cli.output import print_json, say, show_result, status_line, terminal_width, write_file
from hybrid_des.interface.cli.output import show as show_text
from hybrid_des.report.explained import next_change, opening, render_explanation, rest
from hybrid_des.report.files.staging import write_files
from hybrid_des.report.memory_text import render_memory
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.jobs import Jobs, has_jobs, jobs_of
from hybrid_des.scenario.loading import load, read_scenario
from hybrid_des.scenario.loops import has_loop
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.simulation.outcome import Run
from hybrid_des.studies.advice import advise, applied
from hybrid_des.studies.forked import forked, nobody
from hybrid_des.units import format_share


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario, what-ifs, and what is printed."""
    parser.add_argument("file", metavar="SCENARIO", help="a scenario file")
    parser.add_argument(
        "--what-if", action="append", default=[], metavar="KEY=FACTOR", help="a change to simulate; may be repeated"
    )
    parser.add_argument("--top", type=count, default=10, metavar="N", help="rows of each list (default 10)")
    parser.add_argument(
        "--details",
        action="store_true",
        help="add critical path, idle time, what-ifs and the cost of each class of activity",
    )
    parser.add_argument(
        "--apply", type=count, metavar="N", help="write the scenario with change N to the file of --write"
    )
    parser.add_argument("--write", metavar="FILE", type=as_path, help="the scenario file that --apply writes")
    parser.add_argument(
        "--memory", action="store_true", help="instead, show what fills the memory of the fullest GPU, and when"
    )
    add_jobs(parser, "; default: one per core, for a long run")
    add_quiet_json(parser)
    add_common(parser, out="also write the page report.html, with the critical path, to this folder")


def run(args: argparse.Namespace) -> int:
    """Explain a scenario."""
    if (args.apply is None) != (args.write is None):
        raise UsageError("--apply N and --write FILE belong together: the number of a change, and where its file goes")
    if has_jobs(document := read_scenario(args.file, args.set)):
        return _jobs(args, document)
    if has_loop(document) and not args.memory:
        return _loop(args, document)
    with within(args.budget, args.file):
        scenario = one_scenario("explain", args.file, args.set)
    if args.memory:
        return _memory(args, scenario)
    begun = _begun(args, scenario)
    with status_line(args.quiet) as show, within(args.budget, scenario.name):
        at_once = _at_once(args, show)
        whole = args.details or args.json or args.what_if or args.out is not None  # the short text needs no causes
        why = _whole(args, scenario, at_once) if whole else losses(scenario, at_once, base=begun)
        advice = advise(args.file, args.set, run=why.run, at_once=at_once)
    why = replace(why, advised=lambda: advice) if isinstance(why, Explanation) else why
    how: dict[str, Any] = {"advice": advice, "details": args.details}
    if args.json and isinstance(why, Explanation):
        further = {"next": next_change(why.losses, advice), "advice": advice.to_mapping()}
        print_json(args, {"verdict": why.verdict, **why.to_mapping(), **further})
    elif begun is not None:
        above = len(opening(begun, terminal_width()).splitlines())
        show_text(rest(why, terminal_width(), above=above, **how))
    else:
        show_text(render_explanation(why, terminal_width(), **how))
    if args.apply is not None:
        _apply(args, advice)
    if args.out is not None and isinstance(why, Explanation):
        from hybrid_des.report.page.traced_pages import explanation_page

        write_files(args.out, {"report.html": explanation_page(why)})
        say(f"wrote {args.out / 'report.html'}")
    return 0


def _apply(args: argparse.Namespace, advice: Advice) -> None:
    """Write the scenario with a change that was proposed.

    Raises:
        UsageError: there is no change of this number.
    """
    if args.apply > len(advice.lines):
        number = {0: "no change", 1: "1 change"}.get(len(advice.lines), f"{len(advice.lines)} changes")
        raise UsageError(f"--apply {args.apply}: {advice.scenario.name} has {number} to apply")
    line = advice.lines[args.apply - 1]
    write_file(args.write, applied(args.file, line, args.set))
    say(f"wrote {args.write}: {line.change}")


def _whole(args: argparse.Namespace, scenario: Scenario, at_once: AtOnce) -> Explanation:
    def build(overrides: Sequence[str]) -> Scenario:
        return load(args.file, [*args.set, *overrides])

    return explain(scenario, args.what_if, build=build, top=args.top, at_once=at_once)


def _begun(args: argparse.Namespace, scenario: Scenario) -> Run | None:
    """On a terminal, show the first lines as soon as the step is simulated; its run, None if nothing is shown yet."""
    if args.json or not sys.stdout.isatty():
        return None
    with status_line(args.quiet), within(args.budget, scenario.name):
        first = step_alone(scenario)
    show_text(opening(first, terminal_width()))
    sys.stdout.flush()
    return first


def _memory(args: argparse.Namespace, scenario: Scenario) -> int:
    """Say what fills the fullest GPU, and when."""
    with status_line(args.quiet), within(args.budget, scenario.name):
        use = memory_use(step_alone(scenario))
    value = {"name": scenario.name, "memory": use.to_mapping()}
    show_result(args, lambda: value, lambda: render_memory(scenario.name, use, terminal_width()))
    return 0


def _at_once(args: argparse.Namespace, show: Callable[[str], None] | None) -> AtOnce:
    """Runs changes, and shows how many are done."""
    told = (lambda done, of: show(f"changes: {done} of {of} ({format_share(done / of, 0)})")) if show else nobody
    return forked(args.jobs, told)


def _jobs(args: argparse.Namespace, document: Document) -> int:
    """Explain each of several jobs on one cluster."""
    from hybrid_des.studies.jobs.explained import explain_jobs
    from hybrid_des.studies.jobs.result import write

    def build(overrides: Sequence[str]) -> Jobs:
        return jobs_of(read_scenario(args.file, [*args.set, *overrides]))

    with within(args.budget, args.file):
        jobs = jobs_of(document)
    with status_line(args.quiet) as show, within(args.budget, jobs.name):
        at_once = _at_once(args, show)
        explanation = explain_jobs(jobs, args.what_if, build, at_once, folded=args.out is None)  # files show all ranks
    text = explanation.details if args.details else explanation.report
    show_result(args, explanation.to_mapping, lambda: text(terminal_width()))
    if args.out is not None:
        write(explanation.neighbours, args.out)
        write_files(
            args.out, {"explanation.json": explanation.to_mapping(), "explanation.txt": explanation.details() + "\n"}
        )
        say(f"wrote {args.out}")
    return 0


def _loop(args: argparse.Namespace, document: Document) -> int:
    """Explain a loop of engines, queue and trainer."""
    from hybrid_des.studies.rl.explained import explain_loop
    from hybrid_des.studies.rl.result import result_of

    if args.apply is not None:
        raise UsageError(f"{args.file}: rl: --apply is for a training step; --set takes the settings of a change")
    one_document("explain", args.file, args.set)
    with status_line(args.quiet) as show, within(args.budget, args.file):
        explanation = explain_loop(result_of(document, _at_once(args, show)), args.what_if)
        assert explanation.result.all_what_ifs is not None  # simulated here, within the budget
    text = explanation.details if args.details else explanation.report
    show_result(args, explanation.to_mapping, lambda: text(terminal_width()))
    if args.out is not None:
        explanation.result.write(args.out)
        say(f"wrote {args.out}")
    return 0
