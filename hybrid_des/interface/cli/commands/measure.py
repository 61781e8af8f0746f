"""Measure this machine with PyTorch as a base for scenarios, or make a table from the output of nccl-tests.

    torchrun --nproc-per-node 8 -m hybrid_des measure --model llama3.1-8b --tensor 1,2 --out node
    torchrun --nproc-per-node 4 -m hybrid_des measure my_model:stages --shapes 1x4096 --pipeline 4 --out node
    hybrid-des measure --from all_reduce.txt --link --out infiniband.csv

Start it by torchrun with a process per GPU, or on CPUs over gloo. With --model, the operators of the model's layers and
a training step are measured. MODULE:FUNCTION is your function that returns the module of a stage, given its number and
the number of stages; PyTorch pipelines run them. Written to DIR: machine.yaml, which a scenario names as `base: DIR`,
tables of the measurements, and noise.json. Then steps that were measured but not used are predicted, and the errors
printed. An interrupted measurement is resumed.

With --from, the output of nccl-tests or rccl-tests becomes a table of times for scenarios, which is printed, or
written to the file --out. By default it is for `gradients.table`: the time of a whole all-reduce by size. With --link
it is for `cluster.nvlink.table` or `cluster.infiniband.table`: the time of one message, chosen so that a simulated ring
takes the measured time. Between nodes, all NICs of a node carry that message: a scenario gives each its share by
`nics_per_node`, unless --nics-per-node says how many there were. Assumptions and the quality of fit are printed to
stderr: the error of a table of every second size at the sizes in between (above 1 MiB), compared with the best single
latency and bandwidth; and which sizes are extrapolated. The output, as text or JSON (-J of nccl-tests, -Z
json of rccl-tests), must be that of one run; other lines around it are skipped.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import add_out, refuse_given, whole
from hybrid_des.interface.cli.bench_comparison import add_log
from hybrid_des.interface.cli.output import say, show_result
from hybrid_des.measured.calibration.nccl_tests import NAMES
from hybrid_des.units import format_share

if TYPE_CHECKING:
    from hybrid_des.measured.measure.chosen import Options

MOST = 2**16
LINES = 10  # of progress where there is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is measured, how often, what is read instead, and output options."""
    add = parser.add_argument
    measuring = [
        add(
            "modules",
            nargs="?",
            metavar="MODULE:FUNCTION",
            help="your function that returns a stage: function(stage, count)",
        ),
        add("--shapes", help="input of the first stage per micro-batch, such as 1x4096, or 1x4096:int64 for tokens"),
        add("--model", metavar="NAME", help="a published model, or a scenario's file with one"),
        add("--tensor", type=_counts, default=(1,), metavar="T,…", help="with --model: tensor ranks, such as 1,2"),
        add("--pipeline", type=_count, default=1, metavar="P", help="pipeline ranks, one per process"),
        add("--chunks", type=_counts, default=(1,), metavar="V,…", help="chunks per rank, such as 1,2"),
        add(
            "--microbatches",
            type=_count,
            metavar="M",
            help="micro-batches of a pipeline, a multiple of P (default: 2 × P)",
        ),
        add(
            "--repeats",
            type=_count,
            default=20,
            metavar="N",
            help="repetitions of each operator and collective (default 20)",
        ),
        add("--rounds", type=_count, default=3, metavar="N", help="steps of each model and schedule (default 3)"),
        add("--again", action="store_true", help="measure everything anew"),
    ]
    add("--from", dest="source", metavar="FILE", help="the output of all_reduce_perf or the like; - reads stdin")
    reading = [
        add("--link", action="store_true", help="with --from: a table for a link instead of a whole collective"),
        add(
            "--nics-per-node",
            type=whole,
            metavar="N",
            help="with --link: number of NICs that carried a node's messages",
        ),
        add("--collective", choices=NAMES, help="with --from: which collective, if the output names none or several"),
        *add_log(parser),
        add("--ranks", type=whole, metavar="N", help="with --from: number of ranks, if the output does not say it"),
        add("--gpus-per-node", type=whole, metavar="G", help="with --from: ranks per node, if hosts are not listed"),
        add("--scenario", metavar="FILE", help="with --from: the cluster on which it was measured"),
        add("--set", action="append", default=[], metavar="PATH=VALUE", help="with --from: a change of that cluster"),
    ]
    add_out(parser, "the folder (required); with --from, the file", metavar="DIR|FILE")
    add("--json", action="store_true", help="print only the figures, as one JSON object")
    parser.set_defaults(measuring=measuring, reading=reading)


def run(args: argparse.Namespace) -> int:
    """Measure, print what came of it on rank 0, and write files; or make a table of what was measured elsewhere."""
    if args.source is not None:
        from hybrid_des.interface.cli.benchmark_tables import print_table

        refuse_given("measure", args, args.measuring, "does not go with --from, which measures nothing")
        return print_table(args)
    from hybrid_des.measured.measure.job import rank_of_process
    from hybrid_des.measured.measure.measuring import AgreedError, measure

    rank = rank_of_process()
    try:
        measured = measure(_options(args), _progress(rank == 0 and not args.json))
    except UsageError as error:
        if rank == 0:
            raise
        if isinstance(error, AgreedError):
            return UsageError.exit_code  # rank 0 says it
        raise UsageError(f"rank {rank}: {error}") from error
    if measured is not None:
        show_result(args, lambda: measured.figures, measured.text)
    return 0


def _options(args: argparse.Namespace) -> Options:
    """The options, which do not contradict each other.

    Raises:
        UsageError: they do.
    """
    from hybrid_des.measured.measure.chosen import Options
    from hybrid_des.measured.measure.measuring import AgreedError

    try:
        _check(args)
    except UsageError as error:
        raise AgreedError(str(error)) from error
    given = {option.dest: getattr(args, option.dest) for option in args.measuring}
    return Options(Path(args.out), **{**given, "microbatches": args.microbatches or 2 * args.pipeline})


def _check(args: argparse.Namespace) -> None:
    """Refuse options that contradict each other.

    Raises:
        UsageError: they do.
    """
    if args.out is None:
        raise UsageError("measure: --out DIR is required: the folder that scenarios take as their base")
    refuse_given("measure", args, args.reading, "needs --from FILE, the output of nccl-tests")
    if (args.modules is None) != (args.shapes is None):
        raise UsageError("measure: MODULE:FUNCTION and --shapes belong together: the stages, and what the first takes")
    if args.modules is not None and args.pipeline == 1:
        raise UsageError("measure: stages need --pipeline P, with one process for each pipeline rank")
    for given, option, needed in (
        (args.pipeline > 1, f"--pipeline {args.pipeline}", args.modules),
        (args.chunks != (1,), "--chunks", args.modules),
        (args.microbatches is not None, "--microbatches", args.modules),
        (args.tensor != (1,), "--tensor", args.model),
    ):
        if given and needed is None:
            what = "--model NAME" if option == "--tensor" else "MODULE:FUNCTION and --shapes, the stages of a pipeline"
            raise UsageError(f"measure: {option} needs {what}")
    if args.microbatches is not None and args.microbatches % args.pipeline:
        raise UsageError(f"--microbatches {args.microbatches}: expected a multiple of --pipeline {args.pipeline}")


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MOST:
        raise argparse.ArgumentTypeError(f'"{text}": expected a number from 1 to {MOST}')
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _progress(shown: bool) -> Callable[[int, int, str], None]:
    """What shows progress in per cent: on a terminal in one line, else in a few."""
    last = [-1]

    def show(done: int, total: int, what: str) -> None:
        share = done / max(total, 1)
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r\x1b[K{format_share(share, 0):>5}  {what}", end=end, file=sys.stderr, flush=True)
        elif int(share * LINES) > last[0]:
            last[0] = int(share * LINES)
            say(f"{format_share(share, 0):>5}  {what}")

    return show if shown and os.environ.get("TERM") != "dumb" else (lambda done, total, what: None)
