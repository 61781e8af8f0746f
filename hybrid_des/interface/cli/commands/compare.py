"""Compare two runs: what changed, and what each change did to the step.

A and B are scenarios, or folders written with --out; with --with, B may be A with other values. Ops and messages are
matched by identity, or, where ranks have other ops, compared by what they do. Between two scenarios, every section that
differs is applied alone, as with --set, and simulated; where only times differ, the durations of each rank, each kind
of link, and the latencies are. With --max-regression, the exit code is 1 if B's step is longer than A's by more than
that.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hybrid_des.analysis.compare import Side, compare, side_of_folder, side_of_scenario
from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import add_common, add_quiet_json, distinct, one_document
from hybrid_des.interface.cli.deadline import within
from hybrid_des.interface.cli.output import output_width, say, show_result, status_line, terminal_width
from hybrid_des.report.compared import draw_comparison, render_comparison
from hybrid_des.report.files.staging import write_files
from hybrid_des.report.page.compared_page import comparison_page
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.jobs import has_jobs, load_jobs
from hybrid_des.scenario.loading import read_scenario, scenario_of
from hybrid_des.studies.jobs.neighbours import neighbours_of
from hybrid_des.studies.jobs.seeds import ComparedJobs
from hybrid_des.units import format_share

TOO_SLOW = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one or two runs, a limit, and what is printed."""
    parser.add_argument("a", metavar="A", help="a scenario, or a folder written with --out")
    parser.add_argument("b", nargs="?", metavar="B", help="another one with as many ranks and steps (default: A)")
    parser.add_argument("--with", action="append", default=[], dest="changes", metavar="PATH=VALUE",
                        help="values of B only, such as --with schedule.kind=zb-h1; --set changes both")  # fmt: skip
    parser.add_argument(
        "--max-regression", type=_share, metavar="PERCENT", help="exit with 1 if the step grows by more, such as 5%%"
    )
    add_quiet_json(parser)
    add_common(parser, out="write the page comparison.html, and comparison.png and .svg, to this folder")


def run(args: argparse.Namespace) -> int:
    """Compare, and say whether B is too slow."""
    width = terminal_width()
    if has_jobs_in(args.a, args.set):
        return _jobs(args)
    with status_line(args.quiet), within(args.budget, "compare"):
        comparison = compare(*_sides(args))
    show_result(args, comparison.to_mapping, lambda: render_comparison(comparison, width))
    if args.out is not None:
        contents = {"comparison": draw_comparison(comparison), "comparison.html": comparison_page(comparison)}
        write_files(args.out, contents)
    return _judged(args, comparison.regression, f"{comparison.b.name}: the step grows")


def _judged(args: argparse.Namespace, regression: float, what: str) -> int:
    """The exit code for a growth of the step, which is said if it is too much."""
    limit = args.max_regression
    if limit is None or regression <= limit:
        return 0
    say(f"{what} by {format_share(regression, 2)}, more than {format_share(limit, 2)}")
    return TOO_SLOW


def _jobs(args: argparse.Namespace) -> int:
    """Compare two files with several jobs, job by job."""
    if args.b is None and not args.changes:
        raise UsageError("compare: expected B, or --with and values of A to change, such as jobs.gpt.start=1s")
    if args.out is not None:
        raise UsageError(f"{args.a}: --out compares single scenarios; it holds several jobs")
    if args.b is not None and not has_jobs_in(args.b, args.set):
        raise UsageError(f"{args.b}: one scenario; expected several jobs, as in {args.a}")
    with status_line(args.quiet), within(args.budget, "compare"):
        a, b = load_jobs(args.a, args.set), load_jobs(args.b or args.a, [*args.set, *args.changes])
        comparison = ComparedJobs(*(neighbours_of(jobs, folded=True)[0] for jobs in (a, b)))
    names = distinct([a.name, b.name], args.changes)
    heads = ["job", "step in A", "in B", "change", "slowdown in A", "in B"]
    title = f"A: {names[0]}\nB: {names[1]}"
    show_result(
        args, comparison.to_mapping, lambda: f"{title}\n\n{text_table(heads, comparison.rows(), width=output_width())}"
    )
    return _judged(args, comparison.regression, f"{names[1]}: a job's step grows")


def has_jobs_in(name: str, overrides: Sequence[str]) -> bool:
    """Whether a file holds several jobs; a folder of results does not."""
    return not Path(name).is_dir() and has_jobs(read_scenario(name, overrides))


def _sides(args: argparse.Namespace) -> tuple[Side, Side]:
    """A and B, or A and A with the values of --with."""
    if args.b is None and not args.changes:
        raise UsageError("compare: expected B, or --with and values of A to change, such as schedule.kind=zb-h1")
    if not args.changes and Path(args.a).resolve() == Path(args.b).resolve():
        raise UsageError(f"compare: A and B are both {args.a}; expected another B, or --with and values to change")
    if args.changes and Path(args.b or args.a).is_dir():
        raise UsageError(f"{args.b or args.a}: a folder of results; --with changes the values of a scenario")
    a, b = _side(args.a, args.set), _side(args.b or args.a, [*args.set, *args.changes])
    first, second = distinct([a.name, b.name], args.changes)
    return replace(a, name=first), replace(b, name=second)


def _side(name: str, overrides: Sequence[str]) -> Side:
    """A folder is read, a scenario simulated; overrides change scenarios."""
    if Path(name).is_dir():
        return side_of_folder(Path(name))
    document = one_document("compare", name, overrides)
    return side_of_scenario(scenario_of(document), document.value)


def _share(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a share such as 5% or 0.05, not {text[:40]}")
    return float(match[1]) / (100 if match[2] else 1)
