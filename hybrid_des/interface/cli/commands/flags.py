"""Print the launch line of a scenario for Megatron-LM or torchtitan.

Model sizes, layout, schedule, batch, precision, recomputation, sharding and overlap as flags, with mock data; what no
flag expresses, and flags that the framework does not accept together, are listed in comments above the line.
"""

import argparse

from hybrid_des.interchange.frameworks import megatron, torchtitan
from hybrid_des.interchange.frameworks.launch_line import WIDTH, Launch
from hybrid_des.interface.cli.arguments import add_common, one_scenario
from hybrid_des.interface.cli.output import output_width, show_result
from hybrid_des.report.text import folded

FRAMEWORKS = {"megatron": megatron, "torchtitan": torchtitan}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario and a framework."""
    parser.add_argument("file", metavar="SCENARIO", help="such as scenarios/llama3.1-70b_128.yaml")
    parser.add_argument("--for", dest="framework", required=True, choices=[*FRAMEWORKS], help="the framework")
    parser.add_argument("--json", action="store_true", help="print environment, program, flags and the rest as JSON")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Print the line."""
    launch = FRAMEWORKS[args.framework](one_scenario("flags", args.file, args.set))
    show_result(args, launch._asdict, lambda: launch_text(launch, output_width()), verbatim=True)
    return 0


def launch_text(launch: Launch, width: int | None = None) -> str:
    """The line, below a comment for each thing that it does not say or that the framework refuses."""
    said = [*(f"no flag: {one}" for one in launch.unsaid), *(f"refused: {one}" for one in launch.refused)]
    comments = [f"# {line}" for one in said for line in ([one] if width is None else folded(one, width - 2))]
    return "\n".join([*comments, launch.text if width is None else launch.within(min(width, WIDTH))])
