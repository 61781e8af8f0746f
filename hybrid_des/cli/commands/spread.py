"""Simulate a scenario with many seeds, and print how its step time is distributed under jitter.

Printed are mean, median, 90 % and 99 % with their 95 % confidence intervals, and the step time without jitter. With a
second scenario, or values of the first to change (--with), both run with the same random numbers, and the differences
of runs with the same seed tell them apart. With --ties N, the order varies in which links serve messages that arrive
at the same time, instead of the seed.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.cli.arguments import add_common, count, distinct, import_files, processes
from hybrid_des.cli.output import progress_bar, say, show, text_table
from hybrid_des.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from hybrid_des.scenario import Scenario

WORDS = {"mean": "mean", "p50": "median", "p90": "90 %", "p99": "99 %"}
MOST_STEPS = 12  # step times in a report of ties


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one or two scenarios, the number of runs, and output options."""
    parser.add_argument("file", metavar="SCENARIO", help="a scenario with jitter, such as scenarios/jitter_64.yaml")
    parser.add_argument("other", nargs="?", metavar="OTHER", help="a scenario to compare with (default: the same one)")
    parser.add_argument("--with", action="append", default=[], dest="changes", metavar="PATH=VALUE",
                        help="compare with these values, such as --with schedule.kind=zb-h1")  # fmt: skip
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--runs", metavar="N", type=count, default=200, help="number of seeds (default: 200)")
    number.add_argument("--ties", metavar="N", type=count, help="instead, N orders of simultaneous arrivals at links")
    parser.add_argument("--jobs", metavar="N", type=processes, help="local worker processes (default: by their length)")
    add_common(parser, out="also write spread.csv, spread.json and spread.png to this folder")
    parser.add_argument("--json", action="store_true", help="print only the figures, as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run both scenarios, print the figures and write files."""
    from hybrid_des.report.files.workshop import reserved
    from hybrid_des.scenario import load

    import_files(args.imports)
    if args.runs < 2:
        raise UsageError("--runs 1: one run has no spread; expected at least 2")
    scenarios = [load(args.file, args.set)]
    if args.other is not None or args.changes:
        scenarios.append(load(args.other or args.file, [*args.set, *args.changes]))
    names = distinct([scenario.name for scenario in scenarios], args.changes)
    if args.ties is not None:
        return _ties(args, dict(zip(names, scenarios, strict=True)))
    if args.out is None:
        tables, usual = _tables(args, dict(zip(names, scenarios, strict=True)))
    else:
        with reserved(args.out):  # fails before a long simulation
            tables, usual = _tables(args, dict(zip(names, scenarios, strict=True)))
    figures = _figures(tables, usual)
    if args.out is not None:
        _write(args.out, tables, usual, figures)
    show(json.dumps(figures, indent=2, allow_nan=False) if args.json else _report(tables, figures))
    return 0


def _tables(
    args: argparse.Namespace, scenarios: Mapping[str, Scenario]
) -> tuple[dict[str, pd.DataFrame], dict[str, float]]:
    """The runs of every scenario, and its step time without jitter."""
    from hybrid_des.seeds.runs import spread, without_jitter

    seed = next(iter(scenarios.values())).seed  # both have the seeds of the first
    tables = {}
    with progress_bar(args.json) as progress:
        for number, (name, scenario) in enumerate(scenarios.items()):
            shown = None
            if progress is not None:
                before, every = number * args.runs, len(scenarios) * args.runs

                def shown(done: int, total: int, before: int = before, every: int = every) -> None:
                    progress(before + done, every)

            alike = scenario.model_copy(update={"seed": seed})
            tables[name] = spread(alike, args.runs, jobs=args.jobs, imports=args.imports, progress=shown)
    return tables, {name: without_jitter(scenario) for name, scenario in scenarios.items()}


def _ties(args: argparse.Namespace, scenarios: Mapping[str, Scenario]) -> int:
    """Run every scenario with random orders of simultaneous arrivals, and print the step times that occur."""
    import pandas as pd

    from hybrid_des.analysis.spreadsheets import write_csv
    from hybrid_des.report.files import write_whole
    from hybrid_des.seeds.runs import as_simulated, spread

    tables = {
        name: spread(scenario, args.ties, jobs=args.jobs, imports=args.imports, ties=True)
        for name, scenario in scenarios.items()
    }
    found = [
        {"name": name, "orders": args.ties, "as_simulated_s": as_simulated(scenarios[name]),
         "step_times": [{"step_time_s": step, "orders": int(number)}
                        for step, number in table.step_time_s.value_counts().sort_index().items()]}
        for name, table in tables.items()
    ]  # fmt: skip
    if args.out is not None:

        def fill(workshop: Path) -> None:
            rows = pd.concat([table.assign(name=name) for name, table in tables.items()])
            write_csv(rows, workshop / "spread.csv")
            (workshop / "spread.json").write_text(json.dumps({"ties": found}, indent=2) + "\n", encoding="utf-8")

        say(f"wrote {len(write_whole(args.out, fill).paths)} files to {args.out}")
    show(json.dumps({"ties": found}, indent=2) if args.json else "\n\n".join(map(_ties_report, found)))
    return 0


def _ties_report(found: Mapping[str, Any]) -> str:
    from hybrid_des.units import format_seconds

    usual, steps = format_seconds(found["as_simulated_s"]), Counter[str]()
    for one in found["step_times"]:
        steps[format_seconds(one["step_time_s"])] += one["orders"]
    title = f"{found['name']}: {found['orders']} orders of simultaneous arrivals at links; as simulated {usual}"
    if len(steps) == 1:
        return f"{title}\n  the step takes {usual} in all of them"
    rows = [[step, str(orders)] for step, orders in [*steps.items()][:MOST_STEPS]]
    more = f"\n  and {len(steps) - MOST_STEPS} more step times" if len(steps) > MOST_STEPS else ""
    return f"{title}\n{text_table(['step time', 'orders'], rows, '  ')}{more}"


def _figures(tables: Mapping[str, pd.DataFrame], usual: Mapping[str, float]) -> dict[str, Any]:
    from hybrid_des.seeds.estimates import as_mapping

    found: dict[str, Any] = {
        "runs": [
            {"name": name, "seeds": [int(table.seed.iloc[0]), int(table.seed.iloc[-1])],
             "step_time_s": as_mapping(table.step_time_s), "without_jitter_s": usual[name]}
            for name, table in tables.items()
        ]
    }  # fmt: skip
    if len(tables) == 2:
        first, second = (table.step_time_s.to_numpy() for table in tables.values())
        found["difference_s"] = as_mapping(second - first)
        found["second_faster_ratio"] = float((second < first).mean())
    return found


def _report(tables: Mapping[str, pd.DataFrame], figures: Mapping[str, Any]) -> str:
    from hybrid_des.units import format_seconds

    parts = []
    for one in figures["runs"]:
        times, usual = one["step_time_s"], one["without_jitter_s"]
        longer = f"; on average {times['mean'] / usual - 1:+.2%} with it" if usual else ""
        rows = [*_rows(times), ["standard deviation", format_seconds(times["std"]), ""]]
        rows.append(["without jitter", format_seconds(usual), longer.removeprefix("; ")])
        title = f"{one['name']}: {times['n']} runs, seeds {one['seeds'][0]} … {one['seeds'][1]}"
        parts.append(f"{title}\n{text_table(['', 'step time', '95 % confidence'], rows, '  ')}")
    if "difference_s" in figures:
        first, second = tables
        faster = f"  {second} is faster in {figures['second_faster_ratio']:.0%} of runs"
        table = text_table(["", "difference", "95 % confidence"], _rows(figures["difference_s"]), "  ")
        parts.append(f"{second} − {first}, run by run\n{table}\n{faster}")
    return "\n\n".join(parts)


def _rows(figures: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, word in WORDS.items():
        low, high = figures[f"{name}_ci95"]
        ends = " … ".join("?" if end is None else _signed(end) for end in (low, high))
        rows.append([word, _signed(figures[name]), ends])
    return rows


def _signed(seconds: float) -> str:
    from hybrid_des.units import format_seconds

    return f"−{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _write(
    folder: Path, tables: Mapping[str, pd.DataFrame], usual: Mapping[str, float], figures: Mapping[str, Any]
) -> None:
    import pandas as pd

    from hybrid_des.analysis.spreadsheets import write_csv
    from hybrid_des.report.files import write_whole
    from hybrid_des.report.plots.style import save
    from hybrid_des.seeds.histogram import histogram

    def fill(workshop: Path) -> None:
        table = pd.concat([one.assign(name=name) for name, one in tables.items()])
        write_csv(table, workshop / "spread.csv")
        (workshop / "spread.json").write_text(json.dumps(figures, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        save(histogram({name: one.step_time_s for name, one in tables.items()}, usual), workshop, "spread")

    say(f"wrote {len(write_whole(folder, fill).paths)} files to {folder}")
