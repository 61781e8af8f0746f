"""Simulate weeks of failures, checkpoints and recoveries (`faults`): goodput, and where the time goes.

The training step is simulated once for each state of the cluster; weeks of wall time are a renewal process over these
steps, in many replications. Durations that the scenario does not give are printed as unknown. --out also computes
goodput against the interval between checkpoints and against the number of spares.
"""

import argparse
from contextlib import nullcontext

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import add_common, add_jobs
from hybrid_des.interface.cli.output import progress_bar, say, say_written, show_result, terminal_width
from hybrid_des.report.files.staging import reserved
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import read_scenario, scenario_of
from hybrid_des.studies.goodput.failures import sources_of
from hybrid_des.studies.goodput.goodput import goodput_on
from hybrid_des.studies.goodput.plot import write
from hybrid_des.studies.goodput.process import expected_failures
from hybrid_des.studies.pool import cores, open_pool

POINTS = 16  # of both curves, and the scenario itself
WORTH_A_WORKER = 20_000  # failures that take about as long as starting a worker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario and output options."""
    parser.add_argument("file", metavar="SCENARIO", help="a scenario with `faults`")
    add_common(parser, out="also write the page goodput.html, summary, tables and pictures to this folder")
    parser.add_argument("--json", action="store_true", help="print only the summary, as one JSON object")
    add_jobs(parser, " (default: by the number of failures)")


def run(args: argparse.Namespace) -> int:
    """Simulate the weeks and print the report."""
    document = read_scenario(args.file, args.set)
    if document.value.get("sweep") not in (None, "none"):
        raise UsageError(f"{args.file}: has a sweep; run it without `goodput`: its table has the columns of goodput")
    scenario = scenario_of(document)
    jobs = args.jobs or _jobs(scenario, curves=args.out is not None)
    with (
        nullcontext() if args.out is None else reserved(args.out),
        progress_bar(args.json) as progress,
        open_pool(jobs, progress=progress, imports=args.imports) as pool,
    ):
        weeks = goodput_on(pool, scenario)
        written = None if args.out is None else write(weeks, args.out, pool)
    for warning in weeks.warnings:
        say(f"warning: {warning}")
    show_result(args, lambda: weeks.summary, lambda: weeks.report(terminal_width()))
    if written is not None:
        say_written(args.out, written)
    return 0


def _jobs(scenario: Scenario, curves: bool) -> int:
    """Number of local workers for the expected failures; with curves, for those of all their points."""
    faults = expected_failures(scenario, sources_of(scenario)) * (POINTS if curves else 1)
    return max(1, min(cores(), int(faults // WORTH_A_WORKER)))
