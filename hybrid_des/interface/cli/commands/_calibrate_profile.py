"""Shares of a GPU's peak that products and attention reached in a profile, and a table of times: now in `import`."""

import argparse
import json
import sys
from pathlib import Path

from hybrid_des.cluster.time_table import shown, write_table
from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import add_out, whole
from hybrid_des.interface.cli.benchmark_tables import as_data, describe
from hybrid_des.interface.cli.output import say, write_file
from hybrid_des.measured.calibration.fit import fit_of_every_second
from hybrid_des.measured.calibration.nccl_tests import COLLECTIVES, all_reduce_table, link_table
from hybrid_des.measured.imports.calibrating import calibrate_profile
from hybrid_des.units import format_share


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file and output options."""
    parser.add_argument("file", metavar="FILE", help="a profiler's trace, or a folder of them")
    parser.add_argument("--from-profile", action="store_true", help="FILE is a profiler's trace, or a folder of them")
    parser.add_argument("--gpu", metavar="NAME", help="the GPU, such as h100-sxm (default: as named)")
    parser.add_argument("--link", action="store_true", help="make a table for a link instead of a whole collective")
    parser.add_argument("--nics-per-node", type=whole, metavar="N", help="with --link: NICs of a node")
    parser.add_argument("--collective", choices=COLLECTIVES, default="all_reduce", help="the collective")
    parser.add_argument("--json", action="store_true", help="print table, assumptions and quality of fit as JSON")
    add_out(parser, "write the table to this file", metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Print shares of peaks, and print or write the table of a collective."""
    if args.nics_per_node is not None and not (args.link and args.nics_per_node >= 1):
        raise UsageError(f"--nics-per-node {args.nics_per_node}: at least 1, and with --link only")
    calibration = calibrate_profile(args.file, args.gpu)
    measured = calibration.collectives.get(args.collective)
    table = None
    if measured is not None:
        table = link_table(measured, args.nics_per_node) if args.link else all_reduce_table(measured)
    if args.out is not None:
        if table is None:
            raise UsageError(f"{args.file}: no table to write: {'; '.join(calibration.notes) or 'no such collective'}")
        write_file(args.out, write_table(table, f"a profile, {shown(Path(args.file).name)}"))
    if args.json:
        fits = {} if measured is None else {"a table of every second size": fit_of_every_second(measured.times)}
        tables = {} if measured is None or table is None else as_data(measured, table, fits)
        known = calibration.figures
        first = {"gpu": known["gpu"], "efficiency": known["reached"]}
        print(json.dumps({**first, **tables, "lacking": known["lacking"]}, indent=2))
        return 0
    if calibration.reached:
        shares = ", ".join(f"{one.what}: {one.share:.3f}" for one in calibration.reached)
        print(f"efficiency: {{{shares}}}  # of {calibration.gpu}")
    if table is not None and args.out is None:
        sys.stdout.write(write_table(table, f"a profile, {shown(Path(args.file).name)}"))
    for product in calibration.reached:
        quartiles = " … ".join(format_share(share) for share in product.quartiles)
        count = f"{product.what}: {product.products} GEMMs"
        say(f"{count}, half of them {quartiles}; mean error of their times {format_share(product.error)}")
    for test in calibration.collectives.values():
        for note in test.notes:
            say(f"{test.test}: {note}; a table of every second size: {describe(fit_of_every_second(test.times))}")
    for note in calibration.notes:
        say(f"note: {note}")
    return 0
