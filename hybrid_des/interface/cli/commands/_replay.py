"""Replay a measured run with its own durations, compare it with the measured steps, and say who was slow.

FILE is a CSV or Parquet table with the duration of every op (replica, stage, step, kind, micro-batch, seconds, and if
known the start), or a folder of event dumps of Primus or Megatron, or one written with --hta. Layout and micro-batches
follow from it, the schedule from the order of starts. Messages take no time, and ranks do not pause between ops, unless
--pauses takes both from starts. Traces of PyTorch's profiler and Chakra traces do not say whose micro-batch a kernel
is: they are imported, and each rank is asked for whom others waited.
Slowdowns are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): a step
over one in which all ops of a kind take their mean, and the same with only some ops as measured.
"""

import argparse
import json
from typing import Any

from hybrid_des.analysis.counterfactual.attribution import MOST
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.op_table import has_ops
from hybrid_des.interface.cli.arguments import add_out, as_path
from hybrid_des.interface.cli.output import output_width, say_written, show_result, status_line
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.measured.replay.heat_map import heat_map
from hybrid_des.measured.replay.measured import SLOW
from hybrid_des.measured.replay.replaying import Replayed, replay
from hybrid_des.report.files.staging import write_files
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.shipped import located
from hybrid_des.units import format_seconds

MOST_ROWS = 8  # of classes
NAMES = {
    "worker": "stage {stage} of replica {replica}",
    "stage": "stage {stage}",
    "replica": "replica {replica}",
    "kind": "",
}
ABOVE = "more than 100%: the other ops are faster than the mean, and so would be the step"
BELOW = "negative: faster than the mean; at the mean the step would be longer"


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
        return _imported(args)
    with status_line(args.json):
        replayed = replay(args.file, args.schedule, pauses=args.pauses)
        figures = _figures(replayed)
    if args.out is not None:
        contents = {
            "replay.json": figures, "steps.csv": replayed.steps, "classes.csv": replayed.classes,
            "replay": heat_map(replayed),
        }  # fmt: skip
        say_written(args.out, write_files(args.out, contents))
    show_result(args, lambda: figures, lambda: _report(replayed, figures))
    return 0


def _imported(args: argparse.Namespace) -> int:
    """Replay traces as `import` does."""
    given = [option for option, value in (("--schedule", args.schedule), ("--pauses", args.pauses)) if value]
    if given:
        raise UsageError(f"{args.file}: {given[0]}: traces are done as recorded; it is for tables of durations")
    with status_line(args.json):
        profile = import_profile(args.file)
        figures = profile.figures
    if args.out is not None:
        say_written(args.out, profile.write(args.out))
    show_result(args, lambda: figures, lambda: "\n".join([profile.text(), *_ranks(figures)]))
    return 0


def _ranks(figures: dict[str, Any]) -> list[str]:
    """For whom others waited: a sentence and a table; nothing for traces that do not say."""
    rows, step = figures.get("by_rank") or [], figures["measured_step_time_s"]
    if not step:
        return []
    if not rows or not rows[0]["collectives"]:
        return ["", "who was slow  not known: no collective has a trace of each of its members"]
    slowest = max(rows, key=lambda row: float(row["held_up_s"]))
    held = slowest["held_up_s"]
    said = f"rank {slowest['rank']}: it came last to {slowest['last']} of {slowest['collectives']} collectives, by "
    said = f"{said}{format_seconds(held)}, {held / step:.1%} of the step"
    text = said if held > (SLOW - 1) * step else f"no rank holds up others by {SLOW - 1:.0%} of the step; most {said}"
    shown = sorted(rows, key=lambda row: -float(row["held_up_s"]))[:MOST_ROWS]
    keys = ("compute_s", "wait_s", "held_up_s")
    cells = [[str(row["rank"]), *(format_seconds(row[key]) for key in keys), str(row["last"])] for row in shown]
    table = text_table(["rank", "computes", "waits", "holds up", "last to"], cells, width=output_width())
    return ["", f"who was slow  {text}", "", table]


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
        "slowdown": replayed.what_if.slowdown,
        "culprit": _plain(replayed.culprit()),
        "classes": json.loads(replayed.classes.to_json(orient="records")),
    }


def _plain(culprit: dict[str, Any] | None) -> dict[str, Any] | None:
    """A class for JSON, without fields that do not apply to it."""
    if culprit is None:
        return None
    keys = {"worker": ("replica", "stage"), "stage": ("stage",), "replica": ("replica",)}[culprit["what"]]
    numbers = {key: int(culprit[key]) for key in keys}
    return {"what": culprit["what"], **numbers, "slowdown": culprit["slowdown"], "removed": culprit["removed"]}


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
    return "\n".join([*lines, f"who was slow            {verdict(replayed)}", "", _table(replayed)])


def _told_pauses(replayed: Replayed) -> str:
    between, latency = replayed.pauses.between, replayed.pauses.latency
    if between is None:
        return "messages take no time"
    across = "messages take no time" if latency is None else f"{format_seconds(latency)} from rank to rank"
    return f"{format_seconds(between)} between ops, {across}"


def verdict(replayed: Replayed) -> str:
    """Who was slow, in a sentence."""
    culprit = replayed.culprit()
    if replayed.what_if.slowdown < SLOW:
        return f"no straggler: differences between ops cost less than {SLOW - 1:.0%}"
    if culprit is None:
        return f"no single stage or replica explains {MOST:.0%} of the loss"
    more = {"worker": "", "stage": ", in all replicas", "replica": ", all of its stages"}[culprit["what"]]
    name = NAMES[culprit["what"]].format(**culprit) + more
    share = "all" if culprit["removed"] >= 1 else f"{culprit['removed']:.0%}"
    return f"{name}: slowdown {culprit['slowdown']:.3f} by itself, {share} of the loss"


def _table(replayed: Replayed) -> str:
    table = replayed.classes.sort_values(["what", "slowdown"], ascending=[True, False], kind="stable")
    rows, removed = [], []
    for what in NAMES:
        for row in table[table.what == what].head(MOST_ROWS).to_dict("records"):
            name = NAMES[what].format_map(row) or ("forwards" if row["kind"] == "F" else "backwards")
            removed.append(round(row["removed"], 3) + 0.0)  # never -0.0%
            rows.append([name, f"{row['slowdown']:.3f}", f"{removed[-1]:.1%}"])
    notes = [text for text, true in ((ABOVE, max(removed) > 1), (BELOW, min(removed) < 0)) if true]
    heads = ["only this as measured", "slowdown", "removed if ideal"]
    return "\n".join([text_table(heads, rows, width=output_width()), *notes])
