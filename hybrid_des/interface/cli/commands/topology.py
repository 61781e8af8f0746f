"""Print the links of a scenario's cluster, and draw them; or list the topologies.

Links of one kind and bandwidth share a line, with * for the numbers in their names. With --route: the links between
two ranks, in both directions. With --out: topology.png and topology.svg. Without a scenario: every
topology, with its options under `cluster`.

With --from: the `cluster:` block of a machine or network, from a dump of NCCL or RCCL (NCCL_TOPO_DUMP_FILE),
`nvidia-smi topo -m`, `rocm-smi --showtopo`, SLURM's topology.conf, topology.yaml or `scontrol show topology`, or
ibnetdiscover. Values that the dump does not give are UNKNOWN.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hybrid_des.cluster import topologies
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.errors import UsageError, one_line
from hybrid_des.files import read_text
from hybrid_des.interchange.topology.reading import read_topology
from hybrid_des.interface.cli.arguments import add_common, whole
from hybrid_des.interface.cli.output import output_width, say, show_result
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import load
from hybrid_des.units import format_bandwidth, format_seconds, to_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario, a route and a folder."""
    parser.add_argument("file", nargs="?", metavar="SCENARIO", help="a scenario file; default: list all topologies")
    parser.add_argument("--json", action="store_true", help="print every link, or the table of topologies, as JSON")
    parser.add_argument(
        "--route", nargs=2, type=whole, metavar=("FROM", "TO"), help="show the routes between two ranks"
    )
    parser.add_argument("--from", dest="dump", metavar="FILE", help="print the cluster that a dump describes")
    add_common(parser, out="write topology.png and topology.svg to this folder")


def run(args: argparse.Namespace) -> int:
    """Print the links, and draw them with --out."""
    if args.dump is not None:
        return _imported(args)
    if args.file is None:
        if args.route or args.out or args.set:
            raise UsageError("topology: --route, --out and --set need a SCENARIO; see hybrid-des topology --help")
        entries = map(topologies.find, topologies.names())
        rows = [(one.name, one.facts["summary"], ", ".join(one.keys)) for one in entries]
        heads = ("name", "description", "options")
        show_result(
            args,
            lambda: [dict(zip(heads, row, strict=True)) for row in rows],
            lambda: text_table(heads, rows, width=output_width()),
        )
        return 0

    scenario = load(args.file, args.set)
    fabric = fabric_of(scenario)
    if args.route:
        _check(args.route, fabric)
    show_result(args, lambda: _data(scenario.name, fabric, args.route), lambda: _text(scenario, fabric, args.route))
    if args.out is not None:
        from hybrid_des.report.files.staging import write_files
        from hybrid_des.report.plots.fabric_map import draw_fabric

        write_files(args.out, {"topology": draw_fabric(fabric, tuple(args.route) if args.route else None)})
    return 0


def _imported(args: argparse.Namespace) -> int:
    """Print the cluster of a dump, and ask for what is unknown."""
    if args.file is not None or args.route or args.out or args.set:
        raise UsageError(
            "topology: --from takes no FILE, --set, --route or --out; put its output into a scenario first"
        )
    block = read_topology(read_text(args.dump, "the dump of a topology"), args.dump)
    facts = {"cluster": block.mapping, "unknown": block.asked, "notes": block.notes}
    show_result(args, lambda: facts, lambda: block.text, verbatim=True)
    for path, question in block.asked.items():
        say(f"unknown: cluster.{path}: {question}")
    return 0


def _text(scenario: Scenario, fabric: Fabric, ends: Sequence[int] | None) -> str:
    """Links by kind, and the routes between two ranks."""
    name = scenario.cluster.topology
    title = one_line(f"{scenario.name}: {name}: {topologies.find(name).facts['summary']}")
    counts = ((fabric.gpus, "GPU"), (max(fabric.node_of) + 1, "node"), (len(fabric.links), "link"))
    sizes = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    table = text_table(("link", "count", "bandwidth each"), _kinds(fabric), width=output_width())
    routes = [f"\n{_route(fabric, *pair)}" for pair in ((ends, ends[::-1]) if ends else ())]
    return "\n".join([title, sizes, "", table, *routes])


def _data(name: str, fabric: Fabric, ends: Sequence[int] | None) -> dict[str, Any]:
    """Links and routes as plain values: bytes per second (null: infinite) and seconds."""
    links = [
        {"link": link.name, "bandwidth_bytes_per_s": None if link.bandwidth is None else float(link.bandwidth),
         "from": link.source, "to": link.target}
        for link in fabric.links.values()
    ]  # fmt: skip
    routes = [
        {"from": sender, "to": receiver, "links": list(fabric.route(sender, receiver).links),
         "latency_s": to_seconds(fabric.route(sender, receiver).latency)}
        for sender, receiver in ((ends, ends[::-1]) if ends else ())
    ]  # fmt: skip
    return {"name": name, "gpus": fabric.gpus, "nodes": max(fabric.node_of) + 1, "links": links, "routes": routes}


def _check(ends: Sequence[int], fabric: Fabric) -> None:
    for rank in ends:
        if not 0 <= rank < fabric.gpus:
            raise UsageError(
                f"--route {ends[0]} {ends[1]}: there is no rank {rank}; the cluster has {fabric.gpus} GPUs"
            )
    if ends[0] == ends[1]:
        raise UsageError(f"--route {ends[0]} {ends[1]}: a rank does not send messages to itself; give two ranks")


def _kinds(fabric: Fabric) -> list[tuple[str, str, str]]:
    """Links of one kind and bandwidth: pattern of their names, count, bytes per second."""
    counts = Counter((re.sub(r"\d+", "*", link.name), link.bandwidth) for link in fabric.links.values())
    return [(pattern, str(count), format_bandwidth(bandwidth)) for (pattern, bandwidth), count in counts.items()]


def _route(fabric: Fabric, sender: int, receiver: int) -> str:
    route = fabric.route(sender, receiver)
    bandwidths = [fabric.links[name].bandwidth for name in route.links]
    slowest = min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None)
    latency = format_seconds(to_seconds(route.latency))
    head = f"rank {sender} to rank {receiver}: latency {latency}, {format_bandwidth(slowest)}"
    rows = [(name, format_bandwidth(bandwidth)) for name, bandwidth in zip(route.links, bandwidths, strict=True)]
    return f"{head}\n{text_table(('link', 'bandwidth'), rows, '  ', width=output_width())}"
