"""Convert nccl-tests or rccl-tests output to a table of times for scenarios.

The table is printed, or written to a file with --out. By default it is for `gradients.table`: the time of a whole
all-reduce by size. With --link it is for `cluster.nvlink.table` or `cluster.infiniband.table`: the time of one message,
chosen so that a simulated ring takes the measured time. Between nodes, all adapters of a node carry that message: a
scenario gives each its share by `nics_per_node`, unless --nics-per-node says how many they were. Whatever was assumed,
and the quality of fit, is printed to stderr: the error of a table of every second size at the sizes in between (above
1 MiB), compared with the best single latency and bandwidth; and which sizes are extrapolated. The output, as text or
JSON (-J of nccl-tests, -Z json of rccl-tests), must be that of one run; other lines around it are skipped.

With --from-profile, FILE is a trace of PyTorch's profiler, or a folder with one per rank: printed are the shares of a
GPU's peak that matrix products and attention reached, for `efficiency`, each with its quality of fit, and the table of
a collective (--collective, default all_reduce) from transfers without waiting, which needs traces of several ranks.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybrid_des.cluster.time_table import MICROSECOND, TimeTable, shown, write_table
from hybrid_des.errors import UsageError
from hybrid_des.files import read_stream
from hybrid_des.interface.cli.arguments import add_out, whole
from hybrid_des.interface.cli.output import say, write_file
from hybrid_des.measured.calibration.fit import Fit, fit_of_every_second, fit_of_one_line
from hybrid_des.measured.calibration.nccl_tests import (
    COLLECTIVES,
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file and output options."""
    parser.add_argument("file", metavar="FILE", help="output of all_reduce_perf or another such program; - reads stdin")
    parser.add_argument("--from-profile", action="store_true", help="FILE is a profiler's trace, or a folder of them")
    parser.add_argument(
        "--gpu", metavar="NAME", help="with --from-profile: the GPU, such as h100-sxm (default: as named)"
    )
    parser.add_argument("--link", action="store_true", help="make a table for a link instead of a whole collective")
    parser.add_argument(
        "--nics-per-node", type=whole, metavar="N", help="with --link: adapters that carried the messages of a node"
    )
    parser.add_argument("--collective", choices=COLLECTIVES, help="the collective, if the output does not name it")
    parser.add_argument("--json", action="store_true", help="print table, assumptions and quality of fit as JSON")
    add_out(parser, "write the table to this file", metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Print or write the table, and print what was assumed and its quality of fit."""
    if args.nics_per_node is not None and not (args.link and args.nics_per_node >= 1):
        raise UsageError(f"--nics-per-node {args.nics_per_node}: at least 1, and with --link only")
    if args.from_profile:
        return _from_profile(args)
    measured = _read(args.file, args.collective)
    table = link_table(measured, args.nics_per_node) if args.link else all_reduce_table(measured)
    what = f"{measured.test} in {'stdin' if args.file == '-' else shown(Path(args.file).name)}"
    text = write_table(table, f"one message of a ring, from {what}" if args.link else what)
    fits = {
        "a table of every second size": fit_of_every_second(measured.times),
        "one latency and one bandwidth": fit_of_one_line(measured.times),
    }
    if args.out is not None:
        write_file(args.out, text)
    if args.json:
        print(json.dumps(_data(measured, table, fits), indent=2))
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
        say(f"{name}: {_describe(fit)}")
    return 0


def _from_profile(args: argparse.Namespace) -> int:
    """Print shares of peaks, and print or write the table of a collective."""
    from hybrid_des.measured.imports.calibrating import calibrate_profile

    calibration = calibrate_profile(args.file, args.gpu)
    measured = calibration.collectives.get(args.collective or "all_reduce")
    table = None
    if measured is not None:
        table = link_table(measured, args.nics_per_node) if args.link else all_reduce_table(measured)
    if args.out is not None:
        if table is None:
            raise UsageError(f"{args.file}: no table to write: {'; '.join(calibration.notes) or 'no such collective'}")
        write_file(args.out, write_table(table, f"a profile, {shown(Path(args.file).name)}"))
    if args.json:
        fits = {} if measured is None else {"a table of every second size": fit_of_every_second(measured.times)}
        tables = {} if measured is None or table is None else _data(measured, table, fits)
        reached = {one.what: {key: value for key, value in one._asdict().items() if key != "what"}
                   for one in calibration.reached}  # fmt: skip
        print(
            json.dumps(
                {"gpu": calibration.gpu, "efficiency": reached, **tables, "lacking": list(calibration.notes)}, indent=2
            )
        )
        return 0
    if calibration.reached:
        shares = ", ".join(f"{one.what}: {one.share:.3f}" for one in calibration.reached)
        print(f"efficiency: {{{shares}}}  # of {calibration.gpu}")
    if table is not None and args.out is None:
        sys.stdout.write(write_table(table, f"a profile, {shown(Path(args.file).name)}"))
    for product in calibration.reached:
        quartiles = " … ".join(f"{share:.1%}" for share in product.quartiles)
        count = f"{product.what}: {product.products} products"
        say(f"{count}, half of them {quartiles}; mean error of their times {product.error:.1%}")
    for test in calibration.collectives.values():
        for note in test.notes:
            say(f"{test.test}: {note}; a table of every second size: {_describe(fit_of_every_second(test.times))}")
    for note in calibration.notes:
        say(f"note: {note}")
    return 0


def _data(measured: NcclTests, table: TimeTable, fits: Mapping[str, Fit]) -> dict[str, Any]:
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


def _describe(fit: Fit) -> str:
    if not fit.sizes:
        return "too few sizes above 1 MiB"
    return f"{fit.mean:.1%} mean and {fit.worst:.1%} worst error on {fit.sizes} sizes above 1 MiB"
