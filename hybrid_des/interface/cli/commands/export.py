"""Write a scenario for another program: a launch line of a framework, or traces of its step.

    hybrid-des export scenarios/llama3.1-70b_128.yaml --for megatron
    hybrid-des export scenarios/h100_2x8.yaml --for hta --out traces

`megatron` and `torchtitan` print a launch line: model sizes, layout, schedule, batch, precision, recomputation,
sharding and overlap as flags, with mock data. Comments above the line list what no flag can express, and flags that
the framework does not accept together. `hta` simulates, and writes a trace per rank as PyTorch's profiler
would, for Holistic Trace Analysis and TraceLens; `chakra` writes one step as a Chakra execution trace per rank, for
ASTRA-sim. Both need --out.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hybrid_des.errors import UsageError
from hybrid_des.interchange.frameworks import megatron, torchtitan
from hybrid_des.interchange.frameworks.launch_line import WIDTH, Launch
from hybrid_des.interface.cli.arguments import add_common, add_out, add_quiet_json, one_scenario
from hybrid_des.interface.cli.deadline import within
from hybrid_des.interface.cli.output import (
    output_width,
    print_json,
    say_written,
    show_result,
    status_line,
    write_out,
)
from hybrid_des.report.text import folded

if TYPE_CHECKING:
    from pathlib import Path

    from hybrid_des.report.files.staging import Written
    from hybrid_des.scenario.definition import Scenario

FRAMEWORKS = {"megatron": megatron, "torchtitan": torchtitan}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario and a program."""
    parser.add_argument("file", metavar="SCENARIO", help="a scenario file, such as scenarios/llama3.1-70b_128.yaml")
    parser.add_argument(
        "--for", dest="program", required=True, choices=[*FRAMEWORKS, *TRACES], help="the other program"
    )
    add_quiet_json(parser)
    add_out(parser, "write the traces to this folder, or the launch line to this file", metavar="DIR|FILE")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write the line, or write the traces."""
    with within(args.budget, args.file):
        scenario = one_scenario("export", args.file, args.set)
        return _line(args, scenario) if args.program in FRAMEWORKS else _traces(args, scenario)


def _line(args: argparse.Namespace, scenario: Scenario) -> int:
    """Print a launch line, or write it."""
    launch = FRAMEWORKS[args.program](scenario)
    write_out(args.out, lambda: launch_text(launch) + "\n")
    if args.out is None or args.json:
        show_result(args, launch._asdict, lambda: launch_text(launch, output_width()), verbatim=True)
    return 0


def _traces(args: argparse.Namespace, scenario: Scenario) -> int:
    """Write a trace per rank."""
    if args.out is None:
        raise UsageError(f"export: --for {args.program} writes a trace per rank: expected --out DIR")
    with status_line(args.quiet):
        written = TRACES[args.program](scenario, args.out)
    if args.json:
        print_json(args, {"files": [str(path) for path in written.paths]})
    say_written(args.out, written)
    return 0


def launch_text(launch: Launch, width: int | None = None) -> str:
    """The line, below a comment for each thing that it does not say or that the framework refuses."""
    said = [*(f"no flag: {one}" for one in launch.unsaid), *(f"refused: {one}" for one in launch.refused)]
    comments = [f"# {line}" for one in said for line in ([one] if width is None else folded(one, width - 2))]
    return "\n".join([*comments, launch.text if width is None else launch.within(min(width, WIDTH))])


def _hta(scenario: Scenario, folder: Path) -> Written:
    from hybrid_des.report.files.kineto import write_kineto
    from hybrid_des.report.files.staging import reserved
    from hybrid_des.result import simulate

    with reserved(folder) as scratch:  # fails before a long simulation
        return write_kineto(simulate(scenario, scratch=scratch), folder)


def _chakra(scenario: Scenario, folder: Path) -> Written:
    from hybrid_des.measured.imports.exporting import write_traces

    return write_traces(scenario, folder)


TRACES = {"hta": _hta, "chakra": _chakra}
