"""Run a collective by itself over a range of sizes, and print the table that nccl-tests prints.

Without a scenario the ranks stand in nodes of their own behind a switch that never blocks, each with one port of the
given bandwidth and latency; with --gpus-per-node several share a node, whose NVSwitch has such ports too and adds up.
Time is in µs, bandwidths in GB/s: algorithm bandwidth is size over time, bus bandwidth what a link has to carry for
it (nccl-tests, doc/PERFORMANCE.md). With --out: collective.csv, collective.png and collective.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.cli.commands import add_import, add_set, import_files

if TYPE_CHECKING:
    from hybrid_des.collectives.codecs import Codec
    from hybrid_des.network.fabric import Fabric
    from hybrid_des.units import Dimension

MOST_BYTES = 10**13
MOST_RANKS = 2**16


class Row(NamedTuple):
    """One size: bytes, elements, picoseconds; GB/s of the algorithm and of the bus; the algorithm that ran."""

    size: int
    elements: int
    time: int
    algorithm: float
    bus: float
    name: str


class Place(NamedTuple):
    """Where the collective runs: the wiring, its ranks, how links are shared, and what to call it."""

    fabric: Fabric
    ranks: int
    sharing: str
    about: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A name, a wiring, sizes, options of the algorithm."""
    parser.add_argument("name", metavar="NAME", help="a collective, such as ring; auto: the quickest for each size")
    parser.add_argument("--ranks", type=int, metavar="N", help="how many take part (default 8, or all of the scenario)")
    parser.add_argument("--bandwidth", metavar="B", help="of a port, each way (default 25 GB/s)")
    parser.add_argument("--latency", metavar="T", help="from port to port, once (default 1 us)")
    parser.add_argument("--gpus-per-node", type=int, metavar="G", help="ranks in a node (default 1)")
    parser.add_argument("--scenario", metavar="FILE", help="on the first ranks of a scenario's cluster instead")
    parser.add_argument("--min", default="1 KiB", metavar="SIZE", help="smallest buffer (default 1 KiB)")
    parser.add_argument("--max", default="1 GiB", metavar="SIZE", help="largest buffer (default 1 GiB)")
    parser.add_argument("--factor", type=int, default=4, metavar="F", help="from one size to the next (default 4)")
    parser.add_argument("--codec", default="fp32", metavar="NAME", help="what travels (default fp32)")
    parser.add_argument("--pieces", type=int, metavar="K", help="pieces of a buffer, for algorithms that cut it")
    parser.add_argument("--servers", type=int, metavar="K", help="parameter-server: how many")
    parser.add_argument("--servers-on", choices=("ranks", "hosts"), help="parameter-server: where")
    parser.add_argument("--table", metavar="FILE", help="measured: the table of times")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write the table and a picture there")
    add_set(parser)
    add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table, and write it where asked."""
    from hybrid_des import collectives
    from hybrid_des.collectives import codecs

    import_files(args.imports)
    if args.name != collectives.AUTO:
        collectives.find(args.name)
    codec = codecs.find(args.codec).build()
    sizes = _sizes(args.min, args.max, args.factor)
    place = _in_scenario(args) if args.scenario else _behind_a_switch(args)
    rows: list[Row] = []
    for row in _measure(args, place, codec, sizes):
        if not rows:  # what is wrong is said before the first line
            print(_head(args.name, place))
        rows.append(row)
        print(_line(row, args), flush=True)
    print(f"# Avg bus bandwidth    : {sum(row.bus for row in rows) / len(rows):.4g}")
    if args.out is not None:
        _write(args.out, f"{args.name}, {place.about}", rows)
    return 0


def _measure(args: argparse.Namespace, place: Place, codec: Codec, sizes: Sequence[int]) -> Iterator[Row]:
    from hybrid_des import collectives
    from hybrid_des.collectives.benchmark import measure, quickest
    from hybrid_des.collectives.buffer import Buffer

    more: dict[str, Any] = {
        "options": _options(args),
        "spare": range(place.ranks, place.fabric.gpus),
        "sharing": place.sharing,
    }
    groups = [range(place.ranks)]
    for size in sizes:
        elements = max(1, int(size / codec.bytes_per_element))

        def buffer(group: int, member: int, elements: int = elements) -> Buffer:
            return Buffer(elements, codec)

        if args.name == collectives.AUTO:
            name, outcome = quickest(place.fabric, groups, buffer, **more)
        else:
            name, outcome = args.name, measure(place.fabric, args.name, groups, buffer, **more)
        rate = size * 1000 / outcome.duration if outcome.duration else 0.0
        factor = collectives.bus_factor(collectives.find(name).facts["does"], place.ranks)
        yield Row(size, elements, outcome.duration, rate, rate * float(factor), name)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of algorithms that are given; one that the algorithm does not read is a mistake."""
    from hybrid_des import collectives
    from hybrid_des.errors import UsageError
    from hybrid_des.network.times import read_table

    options = {name: getattr(args, name) for name in ("pieces", "servers", "servers_on", "table")}
    options = {name: value for name, value in options.items() if value is not None}
    read = options if args.name == collectives.AUTO else collectives.find(args.name).facts["options"]
    for name, value in options.items():
        if name not in read:
            raise UsageError(f"--{name.replace('_', '-')}: is not read by {args.name}")
        if isinstance(value, int) and value < 1:
            raise UsageError(f"--{name}: must be at least 1, not {value}")
    for name in () if args.name == collectives.AUTO else collectives.find(args.name).facts["needs"]:
        if name not in options:
            raise UsageError(f"--{name}: is required by {args.name}")
    if "table" in options:
        options["table"] = read_table(options["table"])
    return options


def _sizes(smallest: str, largest: str, factor: int) -> list[int]:
    from hybrid_des.errors import UsageError

    first, last = _quantity("--min", smallest, "size"), _quantity("--max", largest, "size")
    if factor < 2:
        raise UsageError(f"--factor: must be at least 2, not {factor}")
    if not 1 <= first <= last <= MOST_BYTES:
        raise UsageError(f"--min {smallest} --max {largest}: expected two sizes of at least a byte, the smaller first")
    sizes = [int(first)]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def _behind_a_switch(args: argparse.Namespace) -> Place:
    from hybrid_des.errors import UsageError
    from hybrid_des.network import topologies
    from hybrid_des.network.fabric import ClusterSpec, NodeSpec, PortSpec
    from hybrid_des.units import to_picoseconds

    if args.set:
        raise UsageError("--set: changes a scenario; give one with --scenario")
    ranks = 8 if args.ranks is None else args.ranks
    per_node = 1 if args.gpus_per_node is None else args.gpus_per_node
    if min(ranks, per_node) < 1 or ranks > MOST_RANKS or ranks % per_node:
        raise UsageError(f"--ranks {ranks} --gpus-per-node {per_node}: expected 2 … {MOST_RANKS} ranks that fill nodes")
    _check_ranks(ranks)
    bandwidth, latency = args.bandwidth or "25 GB/s", args.latency or "1 us"
    rate = None if bandwidth == "inf" else _quantity("--bandwidth", bandwidth, "bandwidth")
    if rate == 0:
        raise UsageError("--bandwidth: a bandwidth of 0 never ends; expected 25 GB/s or the like, or inf")
    port = PortSpec(rate, to_picoseconds(_quantity("--latency", latency, "time")))
    spare = (args.servers or 1) if args.servers_on == "hosts" else 0
    nodes = ranks // per_node + -(-spare // per_node)
    node = NodeSpec(per_node, port, port, per_node, in_switch=per_node > 1)
    fabric = topologies.find("nodes").build(ClusterSpec((node,) * nodes))
    about = f"{ranks} ranks, {per_node} a node, {bandwidth}, {latency}"
    return Place(fabric, ranks, "fifo", about)


def _in_scenario(args: argparse.Namespace) -> Place:
    from hybrid_des.errors import UsageError
    from hybrid_des.scenario import load
    from hybrid_des.simulation.planner import fabric_of

    for option in ("bandwidth", "latency", "gpus_per_node"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')}: the scenario says that; change it with --set")
    scenario = load(args.scenario, args.set)
    fabric = fabric_of(scenario)
    ranks = args.ranks if args.ranks is not None else scenario.parallel.ranks
    if ranks > fabric.gpus:
        raise UsageError(f"--ranks {ranks}: the cluster of {args.scenario} has {fabric.gpus} GPUs")
    _check_ranks(ranks)
    cluster = scenario.cluster
    return Place(fabric, ranks, cluster.sharing, f"first {ranks} ranks of {scenario.name}, {cluster.topology}")


def _check_ranks(ranks: int) -> None:
    from hybrid_des.errors import UsageError

    if ranks < 2:
        raise UsageError(f"--ranks {ranks}: a collective needs at least 2")


def _quantity(option: str, text: str, dimension: Dimension) -> Fraction:
    from hybrid_des.errors import UsageError
    from hybrid_des.units import parse_quantity

    try:
        return parse_quantity(text, dimension)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _head(name: str, place: Place) -> str:
    return (
        f"# {name}: {place.about}, {place.sharing}\n#\n"
        f"#{'size':>13}{'count':>14}{'type':>8}{'time':>12}{'algbw':>9}{'busbw':>9}\n"
        f"#{'(B)':>13}{'(elements)':>14}{'':>8}{'(us)':>12}{'(GB/s)':>9}{'(GB/s)':>9}"
    )


def _line(row: Row, args: argparse.Namespace) -> str:
    from hybrid_des.collectives import AUTO

    chosen = f"  {row.name}" if args.name == AUTO else ""
    time = _digits(row.time / 10**6)
    return f"{row.size:>14} {row.elements:>13} {args.codec:>7} {time:>11} {row.algorithm:>8.2f} {row.bus:>8.2f}{chosen}"


def _digits(microseconds: float) -> str:
    return f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.1f}"


def _write(folder: Path, about: str, rows: Sequence[Row]) -> None:
    """Write the table, which can calibrate, and the picture in both formats."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from hybrid_des.network.times import TimeTable, write_table
    from hybrid_des.report.files import write_whole
    from hybrid_des.report.plots.collective import times_and_bandwidths

    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    times_and_bandwidths(figure, about, [(row.size, row.time, row.bus) for row in rows])
    table = TimeTable(tuple((row.size, row.time) for row in rows))

    def fill(workshop: Path) -> list[str]:
        (workshop / "collective.csv").write_text(write_table(table, about), encoding="utf-8")
        with mpl.rc_context({"svg.hashsalt": "hybrid_des"}):
            figure.savefig(workshop / "collective.png", dpi=150, metadata={"Software": None})
            figure.savefig(workshop / "collective.svg", metadata={"Date": None, "Creator": None})
        return []

    write_whole(folder, fill)
