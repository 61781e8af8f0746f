"""List the GPUs of the catalogue, or the figures of one with their sources.

Without a name: memory, dense peaks in TFLOP/s, bandwidth of memory in GB/s, multiprocessors, power, bandwidth of the
links within a node and of a NIC per direction in GB/s, and NICs of a usual node. With a name: every figure, with its
source. `cluster.gpu` takes a name, or the figures of your own GPU. --out writes all of it as a page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hybrid_des.cluster import gpus
from hybrid_des.cluster.gpus import Figure, figures
from hybrid_des.interface.cli.arguments import add_out
from hybrid_des.interface.cli.output import output_width, show_result, terminal_width, write_out
from hybrid_des.report.text import labelled
from hybrid_des.report.text_tables import markdown_table, text_table

LABEL = 18  # columns
HEADS = ("GPU", "memory", "bf16", "fp8", "fp4", "GB/s", "SMs", "W", "node", "NICs")
PAGE = """# GPUs

Written by `hybrid-des gpus --out docs/reference/gpus.md` from the catalogue
([gpus.yaml](../../hybrid_des/cluster/gpus.yaml)). Peaks are dense TFLOP/s, bandwidths GB/s of memory, and per direction
of a GPU's links within a node and of a NIC. `hybrid-des gpus h100` prints every figure of one with its source,
as below.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a name."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a GPU; default: list all")
    parser.add_argument("--json", action="store_true", help="print the table, or the figures, as JSON")
    add_out(parser, "write all GPUs and their sources as a page in Markdown", metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Print the table, or the figures of one GPU."""
    names = gpus.names() if args.name is None else [gpus.part(args.name).name]
    if args.name is None:
        rows = [columns(name) for name in names]
        show_result(args, lambda: rows, lambda: text_table(HEADS, [cells(row) for row in rows], width=output_width()))
    else:
        shown = figures(args.name)
        show_result(args, lambda: [figure._asdict() for figure in shown], lambda: "\n".join(_lines(shown)))
    write_out(args.out, page)
    return 0


def columns(name: str) -> dict[str, Any]:
    """The figures of a GPU by name, in SI units."""
    part = gpus.part(name)
    peaks = {"peak": part.peak, "peak_fp8": part.peak_fp8, "peak_fp4": part.peak_fp4}
    return {
        "gpu": name,
        "memory_bytes": float(part.memory),
        **{f"{key}_flops": None if peak is None else float(peak) for key, peak in peaks.items()},
        "bandwidth_bytes_per_s": float(part.bandwidth),
        "multiprocessors": part.multiprocessors,
        "power_w": None if part.power is None else float(part.power),
        "node_link": part.nvlink.name,
        "node_bytes_per_s": float(part.nvlink.bandwidth),
        "adapter": part.infiniband.name,
        "adapter_bytes_per_s": float(part.infiniband.bandwidth),
        "adapters_per_node": part.nics_per_node,
        "gpus_per_node": part.gpus_per_node,
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    peaks = (_in(row[f"{key}_flops"], 10**12) for key in ("peak", "peak_fp8", "peak_fp4"))
    adapters = f"{row['adapters_per_node']} x {_in(row['adapter_bytes_per_s'], 10**9)}"
    scaled = (_in(row[key], 10**9) for key in ("memory_bytes", "bandwidth_bytes_per_s", "node_bytes_per_s"))
    memory, bandwidth, node = scaled
    power = _in(row["power_w"], 1)
    return row["gpu"], f"{memory} GB", *peaks, bandwidth, str(row["multiprocessors"]), power, node, adapters


def _in(value: float | None, unit: int) -> str:
    return "-" if value is None else f"{float(Fraction(value) / unit):.5g}"


def _lines(shown: list[Figure]) -> list[str]:
    """Every figure with what it rests on, as wide as the terminal."""
    lines = [(figure.name, [figure.value, *([figure.source] if figure.source else [])]) for figure in shown]
    return list(labelled(lines, max(terminal_width(80), 40), LABEL))


def page() -> str:
    """All GPUs and their sources as a page in Markdown."""
    rows = [cells(columns(name)) for name in gpus.names()]
    tables = {name: markdown_table(Figure._fields, map(tuple, figures(name))) for name in gpus.names()}
    sections = (line for name, table in tables.items() for line in (f"\n## {name}\n", *table))
    return "\n".join([PAGE, *markdown_table(HEADS, rows), *sections]) + "\n"
