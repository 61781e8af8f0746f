"""Run one collective over a range of buffer sizes, and print a table in the format of nccl-tests.

Without a scenario, each rank is a node on a non-blocking network, with one port of the given bandwidth and latency;
--gpus-per-node puts several ranks in a node, whose NVSwitch has such ports and in-network reduction. Time is in µs,
bandwidths in GB/s: algorithm bandwidth is size over time, bus bandwidth the implied load on a link (nccl-tests,
doc/PERFORMANCE.md). Options of user-defined collectives are set with --set, such as --set gradients.pieces=4.
With --out: collective.csv, collective.png and collective.svg; the picture shows the slowest link between neighbours.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.cli.arguments import add_common, whole
from hybrid_des.cli.output import say, status_line
from hybrid_des.errors import Refusal, ScenarioError, UsageError, one_line

if TYPE_CHECKING:
    from hybrid_des.folding.times import CollectiveTimes
    from hybrid_des.scenario import Scenario
    from hybrid_des.scenario.strict_yaml import KeyPath


# Output of the command `collective`.


class BenchRow(NamedTuple):
    """One line of the table: bytes, elements, picoseconds; algorithm and bus bandwidth in GB/s; the collective."""

    size: int
    elements: int
    time: int
    algorithm: float
    bus: float
    name: str


def head_of(name: str, about: str, sharing: str) -> str:
    """The lines above a table."""
    return (
        f"# {name}: {about}, {sharing}\n#\n"
        f"#{'size':>13}{'count':>14}{'type':>8}{'time':>12}{'algbw':>9}{'busbw':>9}\n"
        f"#{'(B)':>13}{'(elements)':>14}{'':>8}{'(us)':>12}{'(GB/s)':>9}{'(GB/s)':>9}"
    )


def line_of(row: BenchRow, codec: str) -> str:
    """One line of a table."""
    microseconds = row.time / 10**6
    time = f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.1f}"
    return f"{row.size:>14} {row.elements:>13} {codec:>7} {time:>11} {row.algorithm:>8.2f} {row.bus:>8.2f}"


def columns_of(row: BenchRow) -> dict[str, Any]:
    """A row by the names of its columns, as in `collective.csv`."""
    return {"bytes": row.size, "time_us": row.time / 10**6, "algorithm_bandwidth_gb_per_s": row.algorithm,
            "bus_bandwidth_gb_per_s": row.bus, "algorithm": row.name}  # fmt: skip


def write_bench(folder: Path, about: str, rows: Sequence[BenchRow], limit: float | None, *, by_name: bool) -> None:
    """Write the table, which `calibrate` reads if it has one collective, and the picture as PNG and SVG.

    Args:
        folder: the target folder.
        about: what was measured.
        rows: rows of one collective, or of several one after the other.
        limit: limit of bus bandwidth, drawn as a line.
        by_name: whether each collective is a line of the picture; else all rows are one line.
    """
    from hybrid_des.network.rate import TimeTable, write_table
    from hybrid_des.report.files import write_files
    from hybrid_des.report.plots.curves import times_and_bandwidths

    names = dict.fromkeys(row.name for row in rows) if by_name else {about.partition(",")[0]: None}
    mine = {name: [row for row in rows if not by_name or row.name == name] for name in names}
    curves = {name: [(row.size, row.time, row.bus) for row in found] for name, found in mine.items()}
    figure = times_and_bandwidths(about, curves, limit)
    table = TimeTable(tuple((row.size, row.time) for row in rows))
    cells = [{name: str(cell) for name, cell in columns_of(row).items()} for row in rows]
    more = {name: [row[name] for row in cells] for name in [*cells[0]][2:]}
    write_files(folder, {"collective.csv": write_table(table, about, more), "collective": figure})


ALL = "all"
MOST_BYTES = 10**13
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


class Bench(NamedTuple):
    """The setup of a benchmark: the first ranks of a scenario's cluster."""

    scenario: Scenario
    times: CollectiveTimes
    ranks: int
    about: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add name, wiring, sizes and options of algorithms."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a collective, such as ring; auto: the fastest for each size; all: every all-reduce",
    )
    parser.add_argument(
        "--ranks", type=whole, metavar="N", help="size of the group (default 8, or all of the scenario)"
    )
    parser.add_argument("--bandwidth", metavar="B", help="port bandwidth per direction (default 25 GB/s)")
    parser.add_argument("--latency", metavar="T", help="latency from port to port (default 1 us)")
    parser.add_argument("--gpus-per-node", type=whole, metavar="G", help="ranks per node (default 1)")
    parser.add_argument("--scenario", metavar="FILE", help="run on the first ranks of a scenario's cluster instead")
    parser.add_argument("--min", default="1 KiB", metavar="SIZE", help="smallest buffer (default 1 KiB)")
    parser.add_argument("--max", default="1 GiB", metavar="SIZE", help="largest buffer (default 1 GiB)")
    parser.add_argument("--factor", type=whole, default=4, metavar="F", help="ratio of consecutive sizes (default 4)")
    parser.add_argument("--codec", metavar="NAME", help="encoding of messages (default fp32)")
    parser.add_argument("--channels", metavar="auto|N", help="rings that run at once (default auto: one per adapter)")
    parser.add_argument("--pieces", type=whole, metavar="K", help="segments per buffer, for pipelined algorithms")
    parser.add_argument("--servers", type=whole, metavar="K", help="parameter-server: number of servers")
    parser.add_argument("--servers-on", metavar="ranks|hosts", help="parameter-server: placement of servers")
    parser.add_argument("--table", metavar="FILE", help="measured: the table of times")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    add_common(parser, out="write the table and a picture to this folder")


def run(args: argparse.Namespace) -> int:
    """Print the tables, and write them with --out."""
    from hybrid_des import collectives

    if args.name not in (collectives.AUTO, ALL):
        collectives.find(args.name)
    sizes = _sizes(args.min, args.max, args.factor)
    bench = _bench(args, len(sizes))
    rows: list[BenchRow] = []
    options = bench.scenario.gradients.options
    for name in collectives.all_reduces(options) if args.name == ALL else [args.name]:
        try:
            rows += _rows(name, bench, sizes, quiet=args.json)
        except Refusal as refusal:
            if args.name != ALL:
                raise
            say(f"left out: {refusal}")
    if args.json:
        print(json.dumps([columns_of(row) for row in rows], indent=2))
    if args.out is not None:
        write_bench(args.out, f"{args.name}, {bench.about}", rows, _limit(bench), by_name=args.name == ALL)
    return 0


def _rows(name: str, bench: Bench, sizes: Sequence[int], quiet: bool) -> list[BenchRow]:
    """Measure one collective, and print its table line by line."""
    from hybrid_des import collectives

    rows: list[BenchRow] = []
    for done, size in enumerate(sizes):
        with status_line(quiet, f"{done} of {len(sizes)} sizes ({done / len(sizes):.0%})"):
            row = _row(name, bench, size)
        if not rows and not quiet:  # so that errors precede the first line
            print(head_of(name, bench.about, bench.scenario.cluster.sharing))
        rows.append(row)
        if not quiet:
            chosen = f"  {row.name}" if name == collectives.AUTO else ""
            print(f"{line_of(row, bench.scenario.gradients.codec)}{chosen}", flush=True)
    if not quiet:
        print(f"# Avg bus bandwidth    : {sum(row.bus for row in rows) / len(rows):.4g}")
    return rows


def _limit(bench: Bench) -> float | None:
    """Bandwidth of the slowest link between neighbours of the group, in GB/s; None if all are infinite."""
    fabric = bench.times.fabric
    routes = (fabric.route(rank, (rank + 1) % bench.ranks) for rank in range(bench.ranks))
    known = [fabric.links[link].bandwidth for route in routes for link in route.links]
    return min((float(one) / 1e9 for one in known if one is not None), default=None)


def _bench(args: argparse.Namespace, sizes: int) -> Bench:
    from hybrid_des.collectives import AUTO
    from hybrid_des.folding.times import CollectiveTimes
    from hybrid_des.layout import Layout
    from hybrid_des.planning.wiring import fabric_of
    from hybrid_des.scenario.sizes import (
        MOST_MESSAGES,
        MOST_PAIRS,
        PAIRS,
        most_channels,
        reduction_messages,
        reduction_pairs,
    )

    scenario = _scenario(args)
    ranks = scenario.parallel.ranks if args.ranks is None else args.ranks
    if ranks < 2:
        raise UsageError(f"--ranks {ranks}: a collective needs at least 2")
    if ranks > scenario.cluster.gpus:
        raise UsageError(f"--ranks {ranks}: the cluster of {args.scenario} has {scenario.cluster.gpus} GPUs")
    name, options = AUTO if args.name == ALL else args.name, dict(scenario.gradients.options or {})
    for count, most, what in (
        (reduction_pairs(name, ranks, options), MOST_PAIRS, PAIRS),
        (
            sizes * reduction_messages(name, ranks, options, most_channels(scenario)),
            MOST_MESSAGES,
            f"messages for {sizes} sizes",
        ),
    ):
        if count > most:
            raise UsageError(f"--ranks {ranks}: {count:.3g} {what} are more than can be simulated (at most {most:.3g})")
    cluster = scenario.cluster
    about = f"first {ranks} ranks of {scenario.name}, {cluster.topology}" if args.scenario else scenario.name
    layout, folded = Layout({"data": ranks}, ("data",)), scenario.fold != "off"
    times = CollectiveTimes(fabric_of(scenario), layout, cluster.sharing, folded=folded)
    return Bench(scenario, times, ranks, one_line(about))


def _scenario(args: argparse.Namespace) -> Scenario:
    """Validate the options as a scenario, whose messages name the options."""
    from hybrid_des import collectives
    from hybrid_des.scenario import read_scenario, scenario_of
    from hybrid_des.scenario.composition import override
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
    """A scenario of one replica per rank in nodes with one port per GPU."""
    ranks = 8 if args.ranks is None else args.ranks
    per_node = 1 if args.gpus_per_node is None else args.gpus_per_node
    port = {"bandwidth": args.bandwidth or "25 GB/s", "latency": args.latency or "1 us"}
    spare = (args.servers or 1) if args.servers_on == "hosts" else 0
    share = max(1, per_node)  # less is reported with the rest of the scenario
    return {
        "name": f"{ranks} ranks, {per_node} per node, {port['bandwidth']}, {port['latency']}",
        "cluster": {
            "nodes": max(1, -(-ranks // share) + -(-spare // share)),
            "gpus_per_node": per_node,
            "nvlink": {**port, "in_switch": per_node > 1},
            "infiniband": {**port, "nics_per_node": per_node},
        },
        "parallel": {"data": ranks},
        "schedule": {"kind": "gpipe", "microbatches": 1},
        "workload": {"forward": 0, "backward": 0},
        "gradients": {},
    }


def _row(name: str, bench: Bench, size: int) -> BenchRow:
    """Measure one collective."""
    from hybrid_des import collectives
    from hybrid_des.collectives import codecs
    from hybrid_des.folding.times import Concurrent

    gradients = bench.scenario.gradients
    codec = codecs.find(gradients.codec).build()
    elements = max(1, int(size / codec.bytes_per_element))
    asked = Concurrent([range(bench.ranks)], [elements], codec, gradients.options)
    ran, outcome = bench.times.fastest(asked) if name == collectives.AUTO else (name, bench.times.of(name, asked))
    rate = size * 1000 / outcome.duration if outcome.duration else 0.0
    factor = collectives.bus_factor(collectives.find(ran).facts["does"], bench.ranks)
    return BenchRow(size, elements, outcome.duration, rate, rate * float(factor), ran)


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _sizes(smallest: str, largest: str, factor: int) -> list[int]:
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
