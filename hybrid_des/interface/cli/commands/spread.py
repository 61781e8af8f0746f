"""Simulate a scenario with many seeds, and print how its step time is distributed.

A seed draws jitter and document lengths. Printed are the mean, the median, the 90th and the 99th percentile with their
95 % confidence intervals, and the step time without jitter, or of the first seed. With a second scenario, or with
--with, both scenarios use the same random numbers, and runs with the same seed are compared in pairs. With --ties N,
the seed stays and the order varies in which links serve messages that arrive at the same time.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from hybrid_des.analysis.bill import bill
from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import add_common, add_jobs, count, distinct
from hybrid_des.interface.cli.output import output_width, progress_bar, say_written, show_result
from hybrid_des.report.billed import bill_headline
from hybrid_des.report.files.staging import reserved, write_files
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.jobs import Jobs, has_jobs, load_jobs
from hybrid_des.scenario.loading import load, read_scenario
from hybrid_des.studies.jobs.seeds import spread_jobs
from hybrid_des.studies.spread.estimates import as_mapping
from hybrid_des.studies.spread.plot import histogram
from hybrid_des.studies.spread.seeds import as_simulated, random_parts, spread, without_jitter
from hybrid_des.units import format_change, format_seconds, format_share, signed_seconds

WORDS = {"mean": "mean", "p50": "median", "p90": "90 %", "p99": "99 %"}
MOST_STEPS = 12  # step times in a report of ties
OF_RUNS = "every step takes the mean of the simulated runs; no failures, restarts or evaluations"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one or two scenarios, the number of runs, and output options."""
    parser.add_argument(
        "file", metavar="SCENARIO", help="a scenario with jitter or documents, such as scenarios/jitter_64.yaml"
    )
    parser.add_argument("other", nargs="?", metavar="OTHER", help="a scenario to compare with (default: the same one)")
    parser.add_argument("--with", action="append", default=[], dest="changes", metavar="PATH=VALUE",
                        help="compare with these values, such as --with schedule.kind=zb-h1")  # fmt: skip
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--runs", metavar="N", type=count, default=200, help="number of seeds (default: 200)")
    number.add_argument(
        "--ties", metavar="N", type=count, help="instead of seeds, N orders of simultaneous arrivals at links"
    )
    add_jobs(parser, " (default: by their length)")
    add_common(parser, out="also write spread.csv, spread.json and spread.png to this folder")
    parser.add_argument("--json", action="store_true", help="print only the figures, as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run both scenarios, print the figures and write files."""
    if args.runs < 2:
        raise UsageError("--runs 1: one run has no spread; expected at least 2")
    if has_jobs(read_scenario(args.file, args.set)):
        return _jobs(args)
    loaded = [load(args.file, args.set)]
    if args.other is not None or args.changes:
        loaded.append(load(args.other or args.file, [*args.set, *args.changes]))
    scenarios = dict(zip(distinct([one.name for one in loaded], args.changes), loaded, strict=True))
    with nullcontext() if args.out is None else reserved(args.out):  # fails before a long simulation
        tables = _tables(args, scenarios)
        figures = _figures(tables, scenarios) if args.ties is None else _ties(tables, scenarios)
    if args.out is not None:
        _write(args.out, tables, figures)
    parts = _reports(figures) if args.ties is None else map(_ties_report, figures["ties"])
    show_result(args, lambda: figures, lambda: "\n\n".join(parts))
    return 0


def _jobs(args: argparse.Namespace) -> int:
    """Run several jobs with many seeds, and print how each one's step and slowdown are distributed."""
    if args.other is not None or args.changes or args.ties is not None:
        raise UsageError(f"{args.file}: several jobs; OTHER, --with and --ties need a file with one")
    jobs = load_jobs(args.file, args.set)
    with nullcontext() if args.out is None else reserved(args.out), progress_bar(args.json) as progress:
        table = spread_jobs(jobs, args.runs, progress)
    columns = [str(column) for column in table if str(column).startswith("jobs.")]
    figures: dict[str, Any] = {"name": jobs.name, "runs": len(table)}
    figures |= {column: as_mapping(table[column]) for column in columns}
    if args.out is not None:
        say_written(args.out, write_files(args.out, {"spread.csv": table, "spread.json": figures}))
    show_result(args, lambda: figures, lambda: _jobs_report(jobs, figures))
    return 0


def _jobs_report(jobs: Jobs, figures: Mapping[str, Any]) -> str:
    rows = []
    for job in jobs.jobs:
        for key, write in (("step_time_s", signed_seconds), ("slowdown", "{:.3f}×".format)):
            figure = figures[f"jobs.{job.name}.{key}"]
            rows.append([job.name, key.removesuffix("_time_s"), *(write(figure[name]) for name in WORDS)])
    table = text_table(["job", "", *WORDS.values()], rows, "  ", width=output_width())
    return f"{jobs.name}: {figures['runs']} runs\n{table}"


def _tables(args: argparse.Namespace, scenarios: Mapping[str, Scenario]) -> dict[str, pd.DataFrame]:
    """The runs of every scenario, over seeds or orders of arrivals."""
    seed = next(iter(scenarios.values())).seed  # both have the seeds of the first
    runs = args.ties or args.runs
    tables: dict[str, pd.DataFrame] = {}
    with progress_bar(args.json) as progress:

        def shown(before: int, done: int, total: int) -> None:
            if progress is not None:
                progress(before + done, total * len(scenarios))

        for name, scenario in scenarios.items():
            how = {"jobs": args.jobs, "imports": args.imports, "progress": partial(shown, runs * len(tables))}
            alike = scenario if args.ties else scenario.model_copy(update={"seed": seed})
            tables[name] = spread(alike, runs, ties=args.ties is not None, **how)
    return tables


def _ties(tables: Mapping[str, pd.DataFrame], scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """The step times that occur in random orders of simultaneous arrivals."""
    rows = []
    for name, table in tables.items():
        counts = table.step_time_s.value_counts().sort_index()
        steps = [{"step_time_s": step, "orders": int(number)} for step, number in counts.items()]
        simulated = as_simulated(scenarios[name])
        rows.append({"name": name, "orders": len(table), "as_simulated_s": simulated, "step_times": steps})
    return {"ties": rows}


def _ties_report(ties: Mapping[str, Any]) -> str:
    usual, steps = format_seconds(ties["as_simulated_s"]), Counter[str]()
    for row in ties["step_times"]:
        steps[format_seconds(row["step_time_s"])] += row["orders"]
    title = f"{ties['name']}: {ties['orders']} orders of simultaneous arrivals at links; as simulated {usual}"
    if len(steps) == 1:
        return f"{title}\n  the step takes {usual} in all of them"
    rows = [[step, str(orders)] for step, orders in [*steps.items()][:MOST_STEPS]]
    more = f"\n  and {len(steps) - MOST_STEPS} more step times" if len(steps) > MOST_STEPS else ""
    return f"{title}\n{text_table(['step time', 'orders'], rows, '  ', width=output_width())}{more}"


def _figures(tables: Mapping[str, pd.DataFrame], scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """The distribution of step times over seeds, and of the differences between two scenarios."""
    runs = [
        {"name": name, "seeds": [int(table.seed.iloc[0]), int(table.seed.iloc[-1])],
         "step_time_s": as_mapping(table.step_time_s), "without_jitter_s": without_jitter(scenarios[name]),
         "random": random_parts(scenarios[name]),
         **_bill(table, scenarios[name])}
        for name, table in tables.items()
    ]  # fmt: skip
    if len(tables) < 2:
        return {"runs": runs}
    first, second = (table.step_time_s.to_numpy() for table in tables.values())
    return {
        "runs": runs,
        "difference_s": as_mapping(second - first),
        "second_faster_ratio": float((second < first).mean()),
    }


def _bill(table: pd.DataFrame, scenario: Scenario) -> dict[str, Any]:
    """The bill of steps that take the mean of all runs; nothing without `train`."""
    step, busy = (Fraction(float(column.mean())) for column in (table.step_time_s, table.busy_s))
    facts = bill(scenario, step, busy / step if step else step, assumes=[OF_RUNS])
    return {"bill": facts} if facts else {}


def _reports(figures: Mapping[str, Any]) -> Iterator[str]:
    for row in figures["runs"]:
        times, usual = row["step_time_s"], row["without_jitter_s"]
        jitter = "jitter" in row["random"]
        of_all = "with it" if jitter else "over all seeds"
        longer = f"on average {format_change(times['mean'] / usual - 1, 2)} {of_all}" if usual else ""
        rows = [*_rows(times), ["standard deviation", format_seconds(times["std"]), ""]]
        rows.append(["without jitter" if jitter else "the first seed", format_seconds(usual), longer])
        title = f"{row['name']}: {times['n']} runs, seeds {row['seeds'][0]} … {row['seeds'][1]}"
        billed = [f"  {one.label:<18}  {one.value}  {one.note}".rstrip() for one in bill_headline(row)]
        table = text_table(["", "step time", "95 % confidence"], rows, "  ", width=output_width())
        yield "\n".join([title, table, *billed])
    if "difference_s" in figures:
        first, second = (one["name"] for one in figures["runs"])
        faster = f"  {second} is faster in {format_share(figures['second_faster_ratio'], 0)} of runs"
        heads = ["", "difference", "95 % confidence"]
        table = text_table(heads, _rows(figures["difference_s"]), "  ", width=output_width())
        yield f"{second} − {first}, run by run\n{table}\n{faster}"


def _rows(figures: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, word in WORDS.items():
        ends = " … ".join("?" if end is None else signed_seconds(end) for end in figures[f"{name}_ci95"])
        rows.append([word, signed_seconds(figures[name]), ends])
    return rows


def _write(folder: Path, tables: Mapping[str, pd.DataFrame], figures: Mapping[str, Any]) -> None:
    rows = pd.concat([table.assign(name=name) for name, table in tables.items()])
    contents = {"spread.csv": rows, "spread.json": json.dumps(figures, indent=2, allow_nan=False) + "\n"}
    if "runs" in figures:
        usual = {one["name"]: one["without_jitter_s"] for one in figures["runs"] if "jitter" in one["random"]}
        contents["spread"] = histogram({name: table.step_time_s for name, table in tables.items()}, usual)
    say_written(folder, write_files(folder, contents))
