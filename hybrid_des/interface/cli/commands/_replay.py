"""The report of a measured run without pauses between its ops, as `replay` gave it: `import` has taken its place."""

import argparse
from typing import Any

from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.op_table import has_ops
from hybrid_des.interface.cli.arguments import add_out, as_path
from hybrid_des.interface.cli.commands import import_
from hybrid_des.interface.cli.output import output_width, say_written, show_result, status_line
from hybrid_des.measured.replay.heat_map import heat_map
from hybrid_des.measured.replay.replaying import Replayed, replay
from hybrid_des.measured.replay.who_was_slow import table_of, verdict
from hybrid_des.report.files.staging import write_files
from hybrid_des.scenario.shipped import located
from hybrid_des.units import format_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the table, its schedule, and output options."""
    parser.add_argument("file", metavar="FILE", type=as_path, help="a table of durations, event dumps, or traces")
    parser.add_argument("--schedule", metavar="NAME", help="its schedule (default: the one with the measured order)")
    parser.add_argument("--pauses", action="store_true", help="pause between ops and from rank to rank as starts show")
    add_out(parser, "also write replay.json, steps.csv, classes.csv and replay.png to this folder")
    parser.add_argument("--json", action="store_true", help="print only the figures, as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Replay, print the comparison and the verdict, and write files."""
    args.file = located(args.file)
    if not has_ops(args.file):
        if args.pauses:
            raise UsageError(f"{args.file}: --pauses: traces are done as recorded; it is for tables of durations")
        return import_.run(
            argparse.Namespace(source=args.file, machine=None, overheads_from=(), gpu=None, **vars(args))
        )
    with status_line(args.json):
        replayed = replay(args.file, args.schedule, pauses=args.pauses)
        figures = _figures(replayed)
    if args.out is not None:
        contents = {
            "replay.json": figures, "steps.csv": replayed.steps, "classes.csv": replayed.classes,
            "replay": heat_map(replayed, replayed.steps),
        }  # fmt: skip
        say_written(args.out, write_files(args.out, contents))
    show_result(args, lambda: figures, lambda: _report(replayed, figures))
    return 0


def _figures(replayed: Replayed) -> dict[str, Any]:
    trace, steps = replayed.trace, replayed.steps
    compared = {}
    if "error_percent" in steps:
        errors = steps.error_percent
        compared = {
            "measured_s": float(steps.measured_s.mean()),
            "error_percent": {
                "mean": float(errors.abs().mean()), "worst": float(errors.abs().max()), "bias": float(errors.mean()),
            },
        }  # fmt: skip
    sizes = dict(zip(("replicas", "pipeline", "chunks", "microbatches"), trace.sizes, strict=True))
    return {
        "file": trace.durations.source,
        **sizes,
        "steps": len(steps),
        "schedule": trace.schedule,
        "schedule_assumed": trace.assumed,
        "simulated_s": float(steps.simulated_s.mean()),
        "between_s": replayed.pauses.between,
        "latency_s": replayed.pauses.latency,
        **compared,
        **replayed.figures,
    }


def _report(replayed: Replayed, figures: dict[str, Any]) -> str:
    trace = replayed.trace
    named = trace.schedule or "no known schedule: its own order"
    origin = "assumed, as the table has no starts" if trace.assumed else "by the order of starts"
    lines = [
        f"{figures['file']}: {figures['steps']} steps, {figures['pipeline']} stages × {figures['replicas']} replicas, "
        f"{figures['microbatches']} micro-batches",
        f"schedule {named} ({origin}); {_told_pauses(replayed)}",
        "",
        f"first to last compute   simulated {format_seconds(figures['simulated_s'])}",
    ]
    if "error_percent" in figures:
        errors = figures["error_percent"]
        lines[-1] += (
            f", measured {format_seconds(figures['measured_s'])}: error {errors['mean']:.2f} % on average, "
            f"{errors['worst']:.2f} % at worst"
        )
    ideal = replayed.what_if.loss.ideal
    lines.append(
        f"slowdown                {figures['slowdown']:.3f}   over {format_seconds(ideal)} with all ops at the mean"
    )
    return "\n".join([*lines, f"who was slow            {verdict(replayed)}", "", table_of(replayed, output_width())])


def _told_pauses(replayed: Replayed) -> str:
    between, latency = replayed.pauses.between, replayed.pauses.latency
    if between is None:
        return "messages take no time"
    across = "messages take no time" if latency is None else f"{format_seconds(latency)} from rank to rank"
    return f"{format_seconds(between)} between ops, {across}"
