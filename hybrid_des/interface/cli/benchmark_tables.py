"""Tables of times for scenarios, made from the output of nccl-tests or rccl-tests (`measure --from`)."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_des.cluster.time_table import MICROSECOND, TimeTable, shown, write_table
from hybrid_des.errors import UsageError
from hybrid_des.files import read_stream
from hybrid_des.interface.cli.output import say, write_file
from hybrid_des.measured.calibration.fit import Fit, fit_of_every_second, fit_of_one_line
from hybrid_des.measured.calibration.nccl_tests import (
    NcclTests,
    all_reduce_table,
    link_table,
    parse_nccl_tests,
    read_nccl_tests,
)
from hybrid_des.units import format_bytes, format_seconds, to_seconds

SEVERAL = "times are those of all adapters of a node together"
UNLISTED = "its hosts are not known; if there are several, times are those of all adapters of a node together"
SHARES = ", of which infiniband.table gives each its share by nics_per_node; or say --nics-per-node"


def print_table(args: argparse.Namespace) -> int:
    """Print or write the table, and print what was assumed and its quality of fit."""
    if args.nics_per_node is not None and not (args.link and args.nics_per_node >= 1):
        raise UsageError(f"--nics-per-node {args.nics_per_node}: at least 1, and with --link only")
    measured = _read(args.source, args.collective)
    table = link_table(measured, args.nics_per_node) if args.link else all_reduce_table(measured)
    what = f"{measured.test} in {'stdin' if args.source == '-' else shown(Path(args.source).name)}"
    text = write_table(table, f"one message of a ring, from {what}" if args.link else what)
    fits = {
        "a table of every second size": fit_of_every_second(measured.times),
        "one latency and one bandwidth": fit_of_one_line(measured.times),
    }
    if args.out is not None:
        write_file(args.out, text)
    if args.json:
        print(json.dumps(as_data(measured, table, fits), indent=2))
        return 0
    if args.out is None:
        sys.stdout.write(text)
    for note in measured.notes:
        say(f"note: {note}")
    if args.link and args.nics_per_node is None and not measured.one_adapter:
        say(f"note: {SEVERAL if measured.nodes else UNLISTED}{SHARES}")
    say(f"{len(measured.times)} sizes from {what}")
    say(f"{measured.where}{_range(table)}")
    for name, fit in fits.items():
        say(f"{name}: {describe(fit)}")
    return 0


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


def _range(table: TimeTable) -> str:
    """Between which sizes a table interpolates."""
    (first, _), (last, _) = table.entries[0], table.entries[-1]
    empty = format_seconds(to_seconds(table.latency))
    return f"sizes below {format_bytes(first)} ({empty} at zero) and above {format_bytes(last)} are extrapolated"


def _read(file: str, collective: str | None) -> NcclTests:
    if file != "-":
        return read_nccl_tests(file, collective)
    if sys.stdin is None:
        raise UsageError("stdin: is closed, expected the output of a benchmark")
    return parse_nccl_tests(read_stream(sys.stdin.buffer, "stdin"), "stdin", collective)


def describe(fit: Fit) -> str:
    """How well a fit meets the times."""
    if not fit.sizes:
        return "too few sizes above 1 MiB"
    return f"{fit.mean:.1%} mean and {fit.worst:.1%} worst error on {fit.sizes} sizes above 1 MiB"
