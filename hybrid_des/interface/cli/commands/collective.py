"""Run one collective over a range of buffer sizes, as nccl-tests does, or compare with what that measured.

    hybrid-des collective ring --ranks 8
    hybrid-des collective nccl --scenario mine.yaml
    hybrid-des collective --compare all_reduce.txt

Without a scenario, each rank is a node on a non-blocking network, with one port of the given bandwidth and latency;
--gpus-per-node puts several ranks in a node, whose NVSwitch has such ports and in-network reduction. Time is in µs,
bandwidths in GB/s: algorithm bandwidth is size over time, bus bandwidth the implied load on a link (nccl-tests,
doc/PERFORMANCE.md). Options of user-defined collectives are set with --set, such as --set gradients.pieces=4.
With --out: collective.csv, collective.png and collective.svg; the picture shows the slowest link between neighbours.

With --compare, the output of nccl-tests or rccl-tests (text, JSON or CSV), or a log of NCCL Inspector (or a folder of
them), is printed beside the times that NCCL should take, with a verdict: is the network as fast as it should be? The
collective, ranks, hosts, GPU and NCCL version are read from the log; --scenario FILE, or --gpu and --gpus-per-node,
add what it does not say.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import Refusal, ScenarioError, UsageError, one_line
from hybrid_des.interface.cli.arguments import add_common, refuse_given, whole
from hybrid_des.interface.cli.output import output_width, say, status_line

if TYPE_CHECKING:
    from hybrid_des.analysis.collective_bench import Bench, BenchRow
    from hybrid_des.scenario.definition import Scenario
    from hybrid_des.scenario.strict_yaml import KeyPath

from hybrid_des.interface.cli.bench_comparison import add_log, compare
from hybrid_des.interface.cli.bench_output import columns_for, head_of, line_of, write_bench
from hybrid_des.units import format_share

WIRING = ("gpus_per_node", "bandwidth", "latency")  # options that a scenario replaces


GRADIENTS = ("codec", "channels", "pieces", "servers", "servers_on", "table")  # keys of a scenario's `gradients`


# paths in the generated scenario → options, for messages
PLACES: Mapping[KeyPath, str] = {
    ("cluster",): "--ranks",
    ("cluster", "gpus_per_node"): "--gpus-per-node",
    ("cluster", "infiniband", "nics_per_node"): "--gpus-per-node",
    **{("cluster", link, key): f"--{key}" for link in ("nvlink", "infiniband") for key in ("bandwidth", "latency")},
    ("parallel",): "--ranks",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add name, wiring, sizes and options of algorithms; or a log, and where it was measured."""
    add = parser.add_argument
    running = [
        add(
            "name", nargs="?", metavar="NAME",
            help="a collective, such as ring; auto: the fastest for each size; all: every all-reduce",
        ),
        add("--bandwidth", metavar="B", help="port bandwidth per direction (default 25 GB/s)"),
        add("--latency", metavar="T", help="latency from port to port (default 1 us)"),
        add("--min", default="1 KiB", metavar="SIZE", help="smallest buffer (default 1 KiB)"),
        add("--max", default="1 GiB", metavar="SIZE", help="largest buffer (default 1 GiB)"),
        add("--factor", type=whole, default=4, metavar="F", help="ratio of consecutive sizes (default 4)"),
        add("--codec", metavar="NAME", help="encoding of messages (default fp32)"),
        add("--channels", metavar="auto|N", help="number of concurrent rings (default auto: one per NIC)"),
        add("--pieces", type=whole, metavar="K", help="segments per buffer, for pipelined algorithms"),
        add("--servers", type=whole, metavar="K", help="parameter-server: number of servers"),
        add("--servers-on", metavar="ranks|hosts", help="parameter-server: placement of servers"),
        add("--table", metavar="FILE", help="for `measured`: the table of times, as written by measure --from"),
    ]  # fmt: skip
    add(
        "--ranks",
        type=whole,
        metavar="N",
        help="number of ranks (default 8; with a scenario, all of its ranks; with a log, as it says)",
    )
    add("--gpus-per-node", type=whole, metavar="G", help="ranks per node (default 1; with a log, as it says)")
    add("--scenario", metavar="FILE", help="run on the first ranks of a scenario's cluster instead")
    add("--compare", metavar="LOG", help="print the output of nccl-tests beside its prediction; - reads stdin")
    comparing = add_log(parser)
    add("--json", action="store_true", help="print the rows as JSON")
    add_common(parser, out="write the table and a picture to this folder")
    parser.set_defaults(running=running, comparing=comparing)


def run(args: argparse.Namespace) -> int:
    """Print the tables, and write them with --out; or compare a log."""
    if args.compare is not None:
        refuse_given("collective", args, args.running, "does not go with --compare, which runs what the log says")
        if args.out is not None:
            raise UsageError("collective: --out does not go with --compare; --json prints its figures")
        return compare(args)
    refuse_given("collective", args, args.comparing, "needs --compare LOG")
    if args.name is None:
        raise UsageError("collective: expected the NAME of a collective, such as ring, or --compare LOG")
    from hybrid_des import collectives
    from hybrid_des.analysis.collective_bench import ALL, Bench
    from hybrid_des.cluster.time_table import TimeTable

    if args.name not in (collectives.AUTO, ALL):
        collectives.find(args.name)
    sizes = _sizes(args.min, args.max, args.factor)
    bench = Bench.of(_scenario(args), args.name, len(sizes), args.ranks)
    about = _about(bench, args)
    rows: list[BenchRow] = []
    options = bench.scenario.gradients.options
    for name in collectives.all_reduces(options) if args.name == ALL else [args.name]:
        try:
            rows += _rows(name, bench, about, sizes, quiet=args.json)
        except Refusal as refusal:
            if args.name != ALL:
                raise
            say(f"left out: {refusal}")
    table = getattr(options, "table", None) if args.name == "measured" else None
    if isinstance(table, TimeTable) and (beyond := [row for row in rows if not table.covers(row.size)]):
        say(f"{table.extent}; {len(beyond)} of {len(rows)} sizes are extrapolated")
    if args.json:
        print(json.dumps([row.columns() for row in rows], indent=2))
    if args.out is not None:
        write_bench(args.out, f"{args.name}, {about}", rows, bench.limit(), by_name=args.name == ALL)
    return 0


def _rows(name: str, bench: Bench, about: str, sizes: Sequence[int], quiet: bool) -> list[BenchRow]:
    """Measure one collective, and print its table line by line."""
    from hybrid_des import collectives

    rows: list[BenchRow] = []
    columns = columns_for(output_width())
    for done, size in enumerate(sizes):
        with status_line(quiet, f"{done} of {len(sizes)} sizes ({format_share(done / len(sizes), 0)})"):
            row = bench.row(name, size)
        if not rows and not quiet:  # so that errors precede the first line
            print(head_of(name, about, bench.scenario.cluster.sharing, chosen=row.taken is not None, columns=columns))
        rows.append(row)
        if not quiet:
            chosen = f"  {row.name}" if name == collectives.AUTO else ""
            print(f"{line_of(row, bench.scenario.gradients.codec, columns)}{chosen}", flush=True)
    if not quiet:
        print(f"# Avg bus bandwidth    : {sum(row.bus for row in rows) / len(rows):.4g}")
    return rows


def _about(bench: Bench, args: argparse.Namespace) -> str:
    """What is measured, for heads and pictures."""
    name = bench.scenario.name
    return one_line(
        f"first {bench.ranks} ranks of {name}, {bench.scenario.cluster.topology}" if args.scenario else name
    )


def _scenario(args: argparse.Namespace) -> Scenario:
    """Validate the options as a scenario, whose messages name the options."""
    from hybrid_des import collectives
    from hybrid_des.analysis.collective_bench import ALL
    from hybrid_des.scenario.composition import override
    from hybrid_des.scenario.loading import read_scenario, scenario_of
    from hybrid_des.scenario.strict_yaml import Document

    if args.scenario:
        for option in WIRING:
            if getattr(args, option) is not None:
                raise UsageError(f"{_flag(option)}: given by the scenario; change it with --set")
        document = read_scenario(args.scenario, ["gradients={}", *args.set])
    else:
        document = Document(_behind_a_switch(args), "collective", dict(PLACES))
        override(document, args.set)
    given = {option: getattr(args, option) for option in GRADIENTS if getattr(args, option) is not None}
    if given.get("channels", "").isdecimal():
        given["channels"] = int(given["channels"])
    name = collectives.AUTO if args.name == ALL else args.name
    given |= {"algorithm": name} if name in collectives.algorithms() else {}
    document.places = {("gradients", option): _flag(option) for option in GRADIENTS} | document.places
    if isinstance(document.value["gradients"], dict):  # anything else is reported with the scenario
        document.value["gradients"] |= given
    try:
        return scenario_of(document)
    except ScenarioError as error:
        # an option may map to several paths, which its user does not know
        lines = (re.sub(r"^(--[\w-]+): [\w.]+: ", r"\1: ", line) for line in error.problems)
        raise ScenarioError(list(dict.fromkeys(lines))) from None


def _behind_a_switch(args: argparse.Namespace) -> dict[str, Any]:
    """The scenario that the options of wiring describe."""
    from hybrid_des.analysis.collective_bench import PORT, behind_a_switch

    ranks = 8 if args.ranks is None else args.ranks
    per_node = 1 if args.gpus_per_node is None else args.gpus_per_node
    port = {name: getattr(args, name) or usual for name, usual in PORT.items()}
    return behind_a_switch(ranks, per_node, port, (args.servers or 1) if args.servers_on == "hosts" else 0)


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _sizes(smallest: str, largest: str, factor: int) -> list[int]:
    from hybrid_des.analysis.collective_bench import MOST_BYTES
    from hybrid_des.units import parse_quantity

    try:
        first, last = (parse_quantity(text, "size") for text in (smallest, largest))
    except ValueError as error:
        raise UsageError(f"--min {smallest} --max {largest}: {error}") from None
    if factor < 2:
        raise UsageError(f"--factor: must be at least 2, not {factor}")
    if not 1 <= first <= last <= MOST_BYTES:
        raise UsageError(f"--min {smallest} --max {largest}: expected sizes of at least one byte, in ascending order")
    sizes = [int(first)]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes
