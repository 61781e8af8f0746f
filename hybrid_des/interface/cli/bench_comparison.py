"""`collective --compare`: a benchmark of nccl-tests beside its prediction, and the options that say where it ran."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.files import read_stream
from hybrid_des.interface.cli.arguments import whole
from hybrid_des.interface.cli.output import say, status_line
from hybrid_des.units import format_share

if TYPE_CHECKING:
    from hybrid_des.measured.calibration.comparison import Compared
    from hybrid_des.measured.calibration.nccl_tests import NcclTests
    from hybrid_des.measured.calibration.predicted import Given

COLUMNS = (14, 12, 12, 12, 12, 9, 8)
HEADS = ("size", "predicted", "measured", "predicted", "measured", "share", "")
UNITS = ("(B)", "(us)", "(us)", "busbw", "busbw", "of busbw", "")


def add_log(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Add which run of a log is meant, and the GPU that it ran on."""
    add = parser.add_argument
    return [
        add("--run", dest="number", type=whole, metavar="N", help="of several runs in a log, the N-th"),
        add("--gpu", metavar="NAME", help="GPU that the log was recorded on, such as h100 (default: as the log says)"),
    ]


def given_of(args: argparse.Namespace) -> Given:
    """What the options say of the machine where a log was measured.

    Raises:
        UsageError: they contradict each other.
    """
    from hybrid_des.measured.calibration.predicted import Given

    for option, value in (("--gpu", args.gpu), ("--gpus-per-node", args.gpus_per_node)):
        if args.scenario and value is not None:
            raise UsageError(f"{option}: given by the scenario; change it with --set")
    if args.gpus_per_node is not None and args.gpus_per_node < 1:
        raise UsageError(f"--gpus-per-node {args.gpus_per_node}: expected at least 1")
    return Given(args.scenario, args.gpu, args.gpus_per_node, tuple(args.set))


def runs_of(file: str, collective: str | None, number: int | None, ranks: int | None) -> list[NcclTests]:
    """The runs in a file, or stdin (-): all, or the one of a number.

    Raises:
        UsageError: there is none, one is damaged, or it has another number of ranks than is given.
    """
    from hybrid_des.measured.calibration.runs import on_ranks, one_of, parse_runs, read_runs

    if file == "-":
        if sys.stdin is None:
            raise UsageError("stdin: is closed, expected the output of a benchmark")
        runs = parse_runs(read_stream(sys.stdin.buffer, "stdin"), "stdin", collective)
    else:
        runs = read_runs(file, collective)
    chosen = runs if number is None else [one_of(runs, number)]
    return chosen if ranks is None else [on_ranks(run, ranks) for run in chosen]


def compare(args: argparse.Namespace) -> int:
    """Print each run of a log beside its prediction, with a verdict; of several, those that have one.

    Raises:
        UsageError: none has one.
        Refusal: none can be simulated.
    """
    given, results = given_of(args), []
    runs = runs_of(args.compare, None, args.number, args.ranks)
    for done, run in enumerate(runs):
        try:
            results.append(_compared(run, given, args.json))
        except (UsageError, Refusal) as error:
            if not results and done == len(runs) - 1:
                raise
            say(f"left out: {error}")
    if args.json:
        print(json.dumps(results, indent=2))
    return 0


def _compared(run: NcclTests, given: Given, quiet: bool) -> dict[str, Any]:
    """Compare a run, printing size by size unless all is printed as JSON, and return the figures."""
    from hybrid_des.measured.calibration.comparison import Compared, compared, verdict_of
    from hybrid_des.measured.calibration.predicted import Predicted

    predicted = Predicted(run, given)
    notes, sizes, rows = [*run.notes, *predicted.assumed], list[Compared](), compared(run, predicted)
    if not quiet:
        for note in notes:
            say(f"note: {note}")
        print(f"# {run.test}, {run.where.rstrip('; ')}; predicted for {predicted.machine}\n#")
        for heads in (HEADS, UNITS):
            print(f"#{_line(heads)[1:]}".rstrip())
    for done in range(len(run.times)):
        with status_line(quiet, f"{done} of {len(run.times)} sizes ({format_share(done / len(run.times), 0)})"):
            sizes.append(next(rows))
        if not quiet:
            print(_line(_cells(sizes[-1])).rstrip(), flush=True)
    with status_line(quiet, "verdict"):
        verdict = verdict_of(run, given, predicted, sizes)
    if not quiet:
        print(f"# Verdict: {verdict.line}", flush=True)
    return {
        "operation": run.test, "ranks": run.ranks, "nodes": run.nodes, "machine": predicted.machine, "notes": notes,
        "sizes": [size.as_data() for size in sizes], "verdict": verdict.word, "reason": verdict.line,
    }  # fmt: skip


def _cells(row: Compared) -> tuple[str, ...]:
    times = (f"{time / 10**6:.2f}" if time < 10**9 else f"{time / 10**6:.1f}" for time in (row.predicted, row.measured))
    buses = (f"{bus:.2f}" for bus in (row.predicted_bus, row.measured_bus))
    return f"{row.size}", *times, *buses, format_share(row.share, 0), row.parts


def _line(cells: tuple[str, ...]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS, strict=True))
