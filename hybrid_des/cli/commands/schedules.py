"""Print the table of schedules, or the order of one as a step × rank grid.

Without a name: every schedule with its time, peak activations and source (p pipeline ranks, m micro-batches, v chunks;
F forward, B and W the input and weight part of the backward, T = F+B+W). With a name: the ops of each rank in order, as
stage, kind and micro-batch, for F = B = W on free links.
"""

import argparse
import sys
from collections.abc import Sequence

from hybrid_des.cli.arguments import add_common, import_files, whole
from hybrid_des.cli.output import text_table
from hybrid_des.errors import one_line

COLUMNS = ("name", "what it does", "time", "peak", "source")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a name and sizes for the grid."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a schedule; default: list all")
    parser.add_argument("--pipeline", type=whole, default=4, metavar="P", help="pipeline ranks (default 4)")
    parser.add_argument("--microbatches", type=whole, default=8, metavar="M", help="micro-batches (default 8)")
    parser.add_argument("--chunks", type=whole, metavar="V", help="chunks per rank, where the schedule allows a choice")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table or one grid."""
    from hybrid_des.pipeline import schedules

    import_files(args.imports)
    if args.name is None:
        facts = ("summary", "time", "memory", "source")
        entries = (schedules.find(name) for name in schedules.names())
        _print_table([(one.name, *(str(one.facts[key]) for key in facts)) for one in entries])
    else:
        print(_grid(args))
    return 0


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*COLUMNS)
        table.columns[0].no_wrap = True
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))  # brackets of formulas are not markup
        Console().print(table)
    else:
        print(text_table(COLUMNS, rows))


def _grid(args: argparse.Namespace) -> str:
    from hybrid_des.pipeline import schedules
    from hybrid_des.scenario import scenario_of
    from hybrid_des.scenario.composition import override
    from hybrid_des.scenario.strict_yaml import Document
    from hybrid_des.simulation.planner import plan_of

    free = {"bandwidth": "inf", "latency": 0}
    schedule = {"kind": args.name, "microbatches": args.microbatches}
    if args.chunks is not None:
        schedule["chunks"] = args.chunks
    elif args.name in schedules.names() and schedules.find(args.name).facts["many_chunks"]:
        schedule["chunks"] = 2  # 1 would show nothing of interest
    values = {
        "cluster": {"gpus_per_node": args.pipeline, "nvlink": free},
        "parallel": {"pipeline": args.pipeline},
        "schedule": schedule,
        "workload": {"forward": 1, "backward": 2},
    }
    document = Document(values, f"schedules {args.name}")
    override(document, args.set)
    scenario = scenario_of(document)
    plan = plan_of(scenario)
    plan.check()
    return plan.grid()
