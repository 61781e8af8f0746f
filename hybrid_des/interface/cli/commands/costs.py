"""Print what a micro-batch costs on each stage, or with --layers in each operation, with the formulas.

Only collectives are simulated, each once. Listed for each stage: the time of its computation and of the collectives it
waits for, the bytes it sends, the activations it keeps, and its memory. --out writes the table as CSV, in seconds and
bytes.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

from hybrid_des.analysis.costs import costs
from hybrid_des.analysis.safe_csv import write_csv
from hybrid_des.interface.cli.arguments import add_common, add_out
from hybrid_des.interface.cli.output import output_width, say, show_result, write_file
from hybrid_des.report.cost_tables import render_layers, render_stages
from hybrid_des.scenario.loading import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario, and what is printed."""
    parser.add_argument("file", metavar="SCENARIO", help="a scenario file")
    parser.add_argument("--layers", action="store_true", help="per layer and operation; needs a scenario with a model")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    add_out(parser, "also write the table as CSV to this file", metavar="FILE")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    scenario = load(args.file, args.set)
    frame = costs(scenario, layers=args.layers)
    if args.out is not None:
        write_file(args.out, write_csv(frame))
    render = render_layers if args.layers else partial(render_stages, width=output_width())
    as_text, as_json = partial(render, frame, scenario), partial(frame.to_json, orient="records", double_precision=15)
    show_result(args, lambda: json.loads(str(as_json())), as_text)
    if args.out is not None:
        say(f"wrote {args.out}")
    return 0
