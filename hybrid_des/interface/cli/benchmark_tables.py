"""Tables of times for scenarios, made from the output of nccl-tests or rccl-tests (`measure --from`)."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid_des.cluster.time_table import (
    MICROSECOND,
    CollectiveTable,
    MeasuredGroup,
    TimeTable,
    shown,
    write_collective_table,
    write_table,
)
from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.bench_comparison import given_of, runs_of
from hybrid_des.interface.cli.output import say, write_file
from hybrid_des.measured.calibration.extrapolation import Table, extrapolated
from hybrid_des.measured.calibration.fit import Fit, fit_of_every_second, fit_of_one_line
from hybrid_des.measured.calibration.nccl_tests import NcclTests, all_reduce_table, link_table
from hybrid_des.measured.calibration.runs import one_of
from hybrid_des.units import format_bytes, format_seconds, format_share, to_seconds

SEVERAL = "times are those of all NICs of a node together"
UNLISTED = "its hosts are not known; if there are several, times are those of all NICs of a node together"
SHARES = ", of which infiniband.table gives each its share by nics_per_node; or say --nics-per-node"


def print_table(args: argparse.Namespace) -> int:
    """Print or write the table, and print what was assumed and its quality of fit."""
    if args.nics_per_node is not None and not (args.link and args.nics_per_node >= 1):
        raise UsageError(f"--nics-per-node {args.nics_per_node}: at least 1, and with --link only")
    given = given_of(args)
    runs = runs_of(args.source, args.collective, args.number, args.ranks)
    if args.link:
        runs = [one_of(runs, None)]
    tables = [extrapolated(run, given) for run in runs]
    file = "stdin" if args.source == "-" else shown(Path(args.source).name)
    of_one = args.link or (len(runs) == 1 and runs[0].test == "all_reduce")
    text, data = (_one if of_one else _several)(tables, file, args)
    if args.out is not None:
        write_file(args.out, text)
    if args.json:
        print(json.dumps(data, indent=2))
        return 0
    if args.out is None:
        sys.stdout.write(text)
    for table in tables:
        _describe(table, file, args, by_group=not of_one)
    return 0


def _one(tables: Sequence[Table], file: str, args: argparse.Namespace) -> tuple[str, Any]:
    """The table of one run, as text and as plain values."""
    made = tables[0]
    table = link_table(made.whole, args.nics_per_node) if args.link else all_reduce_table(made.whole)
    what = f"{made.run.test} in {file}"
    about = f"one message of a ring, from {what}" if args.link else what
    lines = [about, made.beyond] if made.beyond else [about]
    return write_table(table, "\n".join(lines)), as_data(made.run, table, _fits(made.run)) | _extent(made)


def _several(tables: Sequence[Table], file: str, args: argparse.Namespace) -> tuple[str, Any]:
    """The table of several runs by group, or of a collective other than an all-reduce, as text and as plain values."""
    groups: dict[MeasuredGroup, TimeTable] = {}
    about, data = [f"{file}, for efficiency.collectives, or the all-reduces for gradients.table"], []
    for made in tables:
        group, table = made.group, TimeTable(tuple((one.size, one.time) for one in made.whole.times))
        if group in groups:
            one_of([each.run for each in tables], None)  # says which there are
        groups[group] = table
        on = f"{group.collective}, {group.ranks} ranks on {group.nodes} node{'s' * (group.nodes > 1)}"
        about.append(f"{on}: measured from {made.run.times[0].size} to {made.run.times[-1].size} bytes")
        about += [made.beyond] if made.beyond else []
        data.append(as_data(made.run, table, _fits(made.run)) | _extent(made))
    return write_collective_table(CollectiveTable(tuple(groups.items())), about), {"tables": data}


def _describe(made: Table, file: str, args: argparse.Namespace, *, by_group: bool) -> None:
    """Print notes and quality of fit of one run to stderr."""
    run = made.run
    for note in (*run.notes, *made.notes, *([made.on_node] if by_group and made.on_node else [])):
        say(f"note: {note}")
    if args.link and args.nics_per_node is None and not run.one_adapter:
        say(f"note: {SEVERAL if run.nodes else UNLISTED}{SHARES}")
    say(f"{len(run.times)} sizes from {run.test} in {file}")
    say(f"{run.where}{_range(made)}")
    for name, fit in _fits(run).items():
        say(f"{name}: {describe(fit)}")


def _fits(run: NcclTests) -> dict[str, Fit]:
    return {
        "a table of every second size": fit_of_every_second(run.times),
        "one latency and one bandwidth": fit_of_one_line(run.times),
    }


def as_data(measured: NcclTests, table: TimeTable, fits: Mapping[str, Fit]) -> dict[str, Any]:
    """The same information as the printed text, as plain values."""
    rows = [{"bytes": size, "time_us": time / MICROSECOND} for size, time in table.entries]
    errors = {name: {"sizes": fit.sizes, "mean": fit.mean, "worst": fit.worst} for name, fit in fits.items()}
    return {
        "operation": measured.test,
        "ranks": measured.ranks,
        "nodes": measured.nodes,
        "adapters": table.adapters,
        "table": rows,
        "notes": list(measured.notes),
        "errors": errors,
    }


def _extent(made: Table) -> dict[str, Any]:
    """Which sizes were measured, and by what the others are extrapolated."""
    first, last = made.run.times[0].size, made.run.times[-1].size
    return {"measured_bytes": [first, last], "extrapolated_by": made.law, "assumed": list(made.notes)}


def _range(made: Table) -> str:
    """Between which sizes a table interpolates."""
    times = TimeTable(tuple((one.size, one.time) for one in made.run.times))
    (first, _), (last, _) = times.entries[0], times.entries[-1]
    empty = format_seconds(to_seconds(times.latency))
    line = f" ({empty} at zero)" if made.law is None else ""
    by = f" by NCCL's timing model for {made.law}" if made.law is not None else ""
    return f"sizes below {format_bytes(first)}{line} and above {format_bytes(last)} are extrapolated{by}"


def describe(fit: Fit) -> str:
    """How well a fit meets the times."""
    if not fit.sizes:
        return "too few sizes above 1 MiB"
    return f"{format_share(fit.mean)} mean and {format_share(fit.worst)} worst error on {fit.sizes} sizes above 1 MiB"
