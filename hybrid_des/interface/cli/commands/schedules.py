"""List the schedules, print the order of one as a grid of time × rank, or verify one on real numbers.

Without a name: every schedule with its time, peak activations and source (p pipeline ranks, m micro-batches, v chunks;
F forward, B the whole backward, I and W its input and weight part, T = F+I+W). Instead of printing them, --out writes
them as CSV or, to a file that ends in .html, as a page of all schedules side by side, from the smallest bubble to the
largest, each beside its formula; into a folder, both. With a name: what each rank does at each time, as stage, kind and
micro-batch, for F = I = W = 1 on free links; "│" continues the op above, "·" is idle; --out writes the order in
PyTorch's format, which a scenario reads by schedule.file.

With --verify, the schedule of a scenario runs on real numbers: a small model is trained for two steps in double
precision, uncompressed, with the scenario's layout, schedule and collective. Every op's result, every reduced gradient
and the activation memory are compared with serial training. Prints `pass`, or `fail` with the first wrong op, and exits
with 0 or 1.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import UsageError, one_line
from hybrid_des.interface.cli.arguments import add_budget, add_common, add_out, one_scenario, refuse_given, whole
from hybrid_des.interface.cli.output import output_width, say, show, show_result, terminal_width, write_file, write_out

if TYPE_CHECKING:
    from pathlib import Path

    from hybrid_des.simulation.outcome import Run

FACTS = {"what it does": "summary", "time": "time", "peak": "memory", "source": "source"}
PAGE = ".html"
NAME = 19  # columns
MOST_LINES = 5000  # of a grid; above, actions are listed without their times
IDLE, ON = "·", "│"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a name and sizes for the grid."""
    out = "write the table as CSV, a page (FILE.html) or both (a folder); with NAME, the order in PyTorch's format"
    shown = [
        parser.add_argument("name", nargs="?", metavar="NAME", help="a schedule; default: list all"),
        parser.add_argument("--pipeline", type=whole, default=4, metavar="P", help="pipeline ranks (default 4)"),
        parser.add_argument("--microbatches", type=whole, default=8, metavar="M", help="micro-batches (default 8)"),
        parser.add_argument(
            "--chunks", type=whole, metavar="V", help="chunks per rank, where the schedule allows a choice"
        ),
        add_out(parser, out, metavar="FILE"),
    ]
    parser.add_argument(
        "--verify", dest="file", metavar="SCENARIO", help="compare the schedule of a scenario with serial training"
    )
    budget = add_budget(parser, "with --verify: end after this time, such as 60s, without a result; exit code 3")
    parser.add_argument(
        "--json", action="store_true", help="print the table, the times of all ops or the verdict as JSON"
    )
    add_common(parser)
    parser.set_defaults(shown=shown, verifying=[budget])


def run(args: argparse.Namespace) -> int:
    """Print the table or one grid; or verify a schedule, which fails with 1."""
    if args.file is not None:
        refuse_given("schedules", args, args.shown, "does not go with --verify, whose schedule is that of SCENARIO")
        return _verify(args)
    refuse_given("schedules", args, args.verifying, "needs --verify SCENARIO")
    if args.name is None:
        rows = _facts()
        texts = {path: _page(args) if path.suffix == PAGE else _csv(rows) for path in _tables_and_pages(args.out)}
        if args.json or not texts:
            show_result(args, lambda: rows, lambda: _blocks(rows), ascii_only=False)
        for path, text in texts.items():
            write_file(path, text)
        if texts:
            say(f"wrote {' and '.join(map(str, texts))}")
        return 0
    from hybrid_des.interface.live.schedules import free_run
    from hybrid_des.pipeline.order_csv import write_order

    done = free_run(args.name, args.pipeline, args.microbatches, args.chunks, args.set)
    print(json.dumps(_times(done), ensure_ascii=False) if args.json else _grid(done))
    write_out(args.out, lambda: write_order(done.plan))
    return 0


def _verify(args: argparse.Namespace) -> int:
    """Run a schedule on real numbers, print the verdict and return the exit code."""
    from hybrid_des.errors import PlanError, SimulationError
    from hybrid_des.interface.cli.deadline import OutOfTimeError, within
    from hybrid_des.studies.verification import verify

    with within(args.budget, args.file):
        scenario = one_scenario("schedules --verify", args.file, args.set)
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


def _tables_and_pages(out: Path | None) -> list[Path]:
    """The files to write: the given one, or a table and a page in a folder."""
    if out is None:
        return []
    return [out / "schedules.csv", out / f"schedules{PAGE}"] if out.is_dir() else [out]


def _csv(rows: Sequence[Mapping[str, str]]) -> str:
    import pandas as pd

    from hybrid_des.analysis.safe_csv import write_csv

    return write_csv(pd.DataFrame(rows))


def _page(args: argparse.Namespace) -> str:
    from pydantic import ValidationError

    from hybrid_des.interface.live.schedules import Sizes, schedules_page

    given = {"pipeline": args.pipeline, "microbatches": args.microbatches, "chunks": args.chunks}
    try:
        sizes = Sizes(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        (bound, limit), option = next(iter(first["ctx"].items())), first["loc"][0]
        most = "at most" if bound == "le" else "at least"
        raise UsageError(
            f"--{option}: must be {most} {limit} for the page of schedules, not {first['input']}"
        ) from None
    return schedules_page(sizes, args.set)


def _facts() -> list[dict[str, str]]:
    """The table: a row per schedule."""
    from hybrid_des.pipeline import schedules

    entries = (schedules.find(name) for name in schedules.names())
    return [{"name": one.name, **{key: str(one.facts[key]) for key in FACTS.values()}} for one in entries]


def _blocks(rows: Sequence[Mapping[str, str]]) -> str:
    """A block of lines per schedule, as wide as the terminal, or 80 columns."""
    width = max(terminal_width(80), 40)
    lines = []
    for row in rows:
        name = one_line(row["name"])
        head = f"{name:<{NAME}}" if len(name) < NAME else f"{name}\n{'':<{NAME}}"
        for title, key in FACTS.items():
            label = "" if key == "summary" else f"{title:<7}"
            text = textwrap.wrap(one_line(row[key]), width - NAME - len(label), break_on_hyphens=False) or [""]
            lines += [head + label + text[0], *(" " * (NAME + len(label)) + more for more in text[1:])]
            head = " " * NAME
        lines.append("")
    return "\n".join(lines[:-1])


def _ops(done: Run) -> list[list[tuple[int, int, str]]]:
    """For each rank the start and end of its actions in picoseconds, and their names."""
    rows = done.timeline.ops
    ops: list[list[tuple[int, int, str]]] = [[] for _ in range(done.plan.pipeline)]
    names = [done.plan.names(rank) for rank in range(done.plan.pipeline)]
    for rank, index, start, end in zip(*(rows[key].tolist() for key in ("rank", "index", "start", "end")), strict=True):
        if rank < len(ops) and 0 <= index < len(names[rank]):
            ops[rank].append((start, end, names[rank][index]))
    return ops


def _grid(done: Run) -> str:
    """Time × rank as text, a line for the longest time that divides all."""
    from hybrid_des.pipeline.grid import draw_grid

    ranks = _ops(done)
    unit = gcd(*(time for ops in ranks for start, end, _ in ops for time in (start, end)))
    lines = max((end for ops in ranks for _, end, _ in ops), default=0) // (unit or 1)
    if not 0 < lines <= MOST_LINES:
        return done.plan.grid(width=output_width())
    columns = []
    for ops in ranks:
        column = [IDLE] * lines
        for start, end, name in ops:
            first, last = start // unit, end // unit
            column[first:last] = [name, *[ON] * (last - first - 1)][: last - first]
        columns.append(column)
    return draw_grid(columns, width=output_width())


def _times(done: Run) -> dict[str, Any]:
    """The times of all ops, in the unit of a forward."""
    from hybrid_des.units import PICOSECONDS_PER_SECOND

    second = PICOSECONDS_PER_SECOND
    ranks = [
        [{"op": name, "start": start / second, "end": end / second} for start, end, name in ops] for ops in _ops(done)
    ]
    return {"schedule": done.scenario.schedule.kind, "stages": done.plan.stages, "ranks": ranks}
