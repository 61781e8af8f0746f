"""Run a schedule on real numbers and compare every op with serial training.

A small model is trained for two steps in double precision, uncompressed, with the scenario's layout, schedule and
collective. Every op's result, every reduced gradient and the activation memory are compared with serial training.
Prints `pass`, or `fail` with the first wrong op, and exits with 0 or 1.
"""

import argparse
import json

from hybrid_des.errors import PlanError, SimulationError
from hybrid_des.interface.cli.arguments import add_budget, add_common
from hybrid_des.interface.cli.deadline import OutOfTimeError, within
from hybrid_des.interface.cli.output import show
from hybrid_des.scenario.loading import load
from hybrid_des.studies.verification import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario."""
    parser.add_argument("file", metavar="SCENARIO", help="a scenario file, with or without numerics")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    add_budget(parser, "end after this time, such as 60s, without a result; exit code 3")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Verify, print the verdict and return the exit code."""
    with within(args.budget, args.file):
        scenario = load(args.file, args.set)
    try:
        with within(args.budget, scenario.name):
            verdict, account = "pass", verify(scenario)
    except OutOfTimeError:
        raise
    except (PlanError, SimulationError) as error:
        verdict, account = "fail", str(error)
    show(
        json.dumps({"verdict": verdict, "account": account}) if args.json else f"{verdict}: {account}",
        verbatim=True,
    )
    return 0 if verdict == "pass" else 1
