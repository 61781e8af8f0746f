"""Make a scenario from a profile or trace of a measured run; report how well it is reproduced, and who was slow.

SOURCE is a file, a folder, an archive (tar, zip) or a pattern, or several of them. Its kind is recognised by content:
traces of the PyTorch profiler, event dumps of Primus or Megatron, a timeline.csv of this program, a table of durations,
Chakra execution traces (one per rank). Written to DIR: scenario.yaml with the tables it uses, import.json with all
figures, import.txt, and timelines.html, with a measured step and its simulation on one time axis.

Who was slow: where the source gives the micro-batch of each op, slowdowns are those of "Understanding Stragglers in
Large Model Training Using What-if Analysis" (OSDI 2025): the step relative to one in which all ops of a kind take their
mean time, and the same with only some ops as measured; steps.csv, classes.csv and stragglers.png are written too. For
other traces, it is the rank that others waited for in collectives.

What kernels reached: traces with operator shapes give the shares of the GPU's peak that GEMMs and attention reached,
for `efficiency`. Traces of several ranks give times of collectives without waiting: all_reduce.csv for
`gradients.table`, link.csv for `cluster.nvlink.table` or `cluster.infiniband.table`.
"""

import argparse

from hybrid_des.interface.cli.arguments import add_out
from hybrid_des.interface.cli.output import output_width, progress_bar, say_written, show_result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the profile and output options."""
    parser.add_argument(
        "source", nargs="+", metavar="SOURCE", help="files, folders, archives, or patterns such as 'traces/*.json.gz'"
    )
    parser.add_argument(
        "--machine", metavar="SCENARIO", help="the cluster that carries the messages of an execution trace"
    )
    parser.add_argument(
        "--overheads-from",
        action="append",
        default=[],
        metavar="SOURCE",
        help="a recording of the same pipeline with another number of chunks, to separate host time from work",
    )
    parser.add_argument(
        "--schedule", metavar="NAME", help="the schedule of a table or of event dumps (default: the recorded order)"
    )
    parser.add_argument("--gpu", metavar="NAME", help="the GPU, such as h100-sxm, if traces do not name it")
    add_out(parser, "write the scenario, its tables, the report and the page to this folder")
    parser.add_argument("--json", action="store_true", help="print only the figures, as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Import, print the report, and write files."""
    from hybrid_des.measured.imports.importing import import_profile
    from hybrid_des.scenario.loading import load

    with progress_bar(args.json, "reading") as progress:
        machine = None if args.machine is None else load(args.machine)
        imported = import_profile(
            args.source, progress, machine, args.overheads_from, schedule=args.schedule, gpu=args.gpu
        )
        written = None if args.out is None else imported.write(args.out)
    if written is not None:
        say_written(args.out, written)
    show_result(args, lambda: imported.figures, lambda: imported.text(output_width()))
    return 0
