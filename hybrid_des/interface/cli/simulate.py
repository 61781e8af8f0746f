"""Simulate the training step described by a scenario file, and print a report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from math import inf
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import UsageError
from hybrid_des.interface.cli.arguments import add_budget, add_common, add_jobs, add_out
from hybrid_des.interface.cli.old_names import hint
from hybrid_des.interface.cli.output import (
    output_width,
    print_json,
    progress_bar,
    progress_line,
    say,
    say_written,
    show,
    status_line,
    terminal_width,
    warn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hybrid_des.report.files.staging import Written
    from hybrid_des.result import Result
    from hybrid_des.scenario.definition import Scenario
    from hybrid_des.scenario.strict_yaml import Document
    from hybrid_des.studies.sweep.axes import Sweep
    from hybrid_des.studies.sweep.rows import Row


LEAST_S = 0.001  # of a budget
OLD_TRACES = "hta", "chakra"  # options that `export --for` has replaced


class ShowVersion(argparse.Action):
    """Print the installed version, which takes longer to find than all help texts, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        from importlib.metadata import version

        print(f"hybrid-des {version('hybrid-des')}")
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a scenario or sweep file, and output options."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="a scenario, such as scenarios/a100_8x.yaml")
    add_common(parser, out="also write summary, timeline, trace and pictures to this folder")
    for old in OLD_TRACES:
        add_out(parser, argparse.SUPPRESS, name=f"--{old}")
    parser.add_argument("--json", action="store_true", help="print only the summary, as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print no report and no messages")
    add_jobs(parser, " for a sweep (default: by its size)")
    add_budget(
        parser,
        "stop a single run after this time, such as 60s, and report what is known; exit code 3; "
        "of several jobs, try starts and priorities for what is left of it",
    )
    parser.add_argument("--resume", action="store_true", help="resume an earlier sweep from its --out folder")
    parser.add_argument("--dask", metavar="ADDRESS", help="run a sweep on a Dask cluster, such as tcp://10.0.0.1:8786")
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the program's version number and exit")


def run(args: argparse.Namespace) -> int:
    """Simulate a scenario or run a sweep, output the results, and return the exit code."""
    from hybrid_des.interface.cli.deadline import ended_late
    from hybrid_des.scenario.jobs import has_jobs
    from hybrid_des.scenario.loading import read_scenario, scenario_of
    from hybrid_des.scenario.loops import has_loop
    from hybrid_des.simulation.watch import UnfinishedError

    for old, folder in _old_traces(args).items() if not args.quiet else ():
        if folder is not None:
            hint(old, f"export --for {old[2:]}")
    document = read_scenario(args.file, args.set)
    swept = document.value.get("sweep") not in (None, "none")
    if args.resume and not (swept and args.out is not None):
        raise UsageError(f"{args.file}: --resume needs a file with a sweep, and the --out of the sweep to resume")
    if has_jobs(document) and not swept:
        return _jobs(args, document)
    if has_loop(document) and not swept:
        return _loop(args, document)
    if swept:
        for option, given in (*_old_traces(args).items(), ("--budget", args.budget < inf)):
            if given:
                raise UsageError(f"{args.file}: {option} needs a file without a sweep")
        return _sweep(args, document)
    if args.jobs is not None or args.dask is not None:
        raise UsageError(f"{args.file}: --jobs and --dask need a file with a sweep")
    with ended_late(args.budget, args.file):  # a user's kind of model may not return
        scenario = scenario_of(document)
    _warn(args, document)
    try:
        result, written = _run(args, scenario)
    except UnfinishedError as unfinished:
        _show_unfinished(args, unfinished.facts)
        raise
    _say_unused(args, document, scenario)
    _warn_of_sizes(args, scenario, result)
    _output(args, result.summary, lambda: _report(result))
    if not args.quiet:
        if args.json and result.summary["out_of_memory"]:  # the report shows it
            say(f"warning: {args.file}: out of memory; see peak_memory_bytes")
        for folder, files in written.items():
            say_written(folder, files)
    return 0


def _old_traces(args: argparse.Namespace) -> dict[str, Path | None]:
    """The folders of traces that are asked for by old options."""
    return {f"--{old}": getattr(args, old) for old in OLD_TRACES}


def _jobs(args: argparse.Namespace, document: Document) -> int:
    """Simulate several jobs on one cluster, alone and together, and output what they do to each other."""
    from hybrid_des.interface.cli.deadline import within
    from hybrid_des.report.files.staging import reserved
    from hybrid_des.scenario.jobs import jobs_of
    from hybrid_des.studies.forked import forked
    from hybrid_des.studies.jobs.result import jobs_in_time

    for option, given in {**_old_traces(args), "--jobs": args.jobs, "--dask": args.dask}.items():
        if given is not None:
            raise UsageError(f"{args.file}: {option} is for other files; this one holds several jobs on one cluster")
    began = time.monotonic()
    with within(args.budget, args.file):
        jobs = jobs_of(document)

    def left() -> float | None:
        return None if args.budget == inf else args.budget - (time.monotonic() - began)

    with nullcontext() if args.out is None else reserved(args.out):  # fails before a long simulation
        with status_line(args.quiet):
            ended = within(args.budget, jobs.name)
            neighbours = jobs_in_time(jobs, ended, left, forked(), folded=args.out is None)
        written = {} if args.out is None else neighbours.write(args.out)
    _output(args, neighbours.summary, lambda: show(neighbours.report(output_width())))
    if not args.quiet:
        for folder, files in written.items():
            say_written(folder, files)
    return 0


def _loop(args: argparse.Namespace, document: Document) -> int:
    """Simulate a loop of engines, queue and trainer, with what-ifs for as long as the budget allows."""
    from hybrid_des.interface.cli.deadline import within
    from hybrid_des.report.files.staging import reserved
    from hybrid_des.studies.forked import forked
    from hybrid_des.studies.rl.result import result_of

    for option, given in {**_old_traces(args), "--jobs": args.jobs, "--dask": args.dask}.items():
        if given is not None:
            raise UsageError(f"{args.file}: {option} is for other files; this one has rl, a loop")
    _warn(args, document)
    with nullcontext() if args.out is None else reserved(args.out):  # fails before a long simulation
        with status_line(args.quiet) as show_status:
            began = time.monotonic()
            with within(args.budget, args.file):
                result = result_of(document, forked())
            if show_status is not None:
                show_status("what-ifs")
            if args.out is not None or not (args.json or args.quiet):
                left = max(args.budget - (time.monotonic() - began), LEAST_S)
                result = result.with_what_ifs(within(left, args.file), every=args.out is not None)
        written = None if args.out is None else result.write(args.out)
    _say_unused(args, document, result.scenario)
    _output(args, result.summary, lambda: show(result.report(terminal_width())))
    if written is not None and not args.quiet:
        say_written(args.out, written)
    return 0


def _run(args: argparse.Namespace, scenario: Scenario) -> tuple[Result, dict[Path, Written]]:
    """Simulate, and write what was asked for; folders that cannot be written are detected first."""
    from hybrid_des.interface.cli.deadline import ended_late
    from hybrid_des.report.files.staging import reserved
    from hybrid_des.result import simulate

    written, scratch = {}, None
    if scenario.record == "all" and (args.json or args.quiet) and not (args.out or args.hta):
        scenario = scenario.model_copy(update={"record": "compute"})  # the summary needs no rows of messages
    with ExitStack() as folders:
        for folder in filter(None, (args.hta, args.chakra, args.out)):
            scratch = folders.enter_context(reserved(folder))
        with status_line(args.quiet) as show:
            progress = None if show is None else lambda headway: show(progress_line(headway))
            with ended_late(args.budget, scenario.name):
                result = simulate(scenario, scratch=scratch, budget_s=args.budget, progress=progress)
        if args.out is not None:
            written[args.out] = result.write(args.out)
        if args.hta is not None:
            from hybrid_des.report.files.kineto import write_kineto

            written[args.hta] = write_kineto(result, args.hta)
        if args.chakra is not None:
            from hybrid_des.measured.imports.exporting import write_traces

            written[args.chakra] = write_traces(scenario, args.chakra)
    return result, written


def _show_unfinished(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Output what is known of a run that its budget stopped."""
    from hybrid_des.report.files.registration import write_unfinished
    from hybrid_des.report.terminal import unfinished_report

    if args.out is not None:
        write_unfinished(facts, args.out)
    _output(args, facts, lambda: show(unfinished_report(facts)))


def _warn(args: argparse.Namespace, document: Document) -> None:
    from hybrid_des.scenario.loading import models_differ, replicas_are_free

    doubts = [doubt(args.file, document, args.set) for doubt in (models_differ, replicas_are_free)]
    args.warnings = [doubt for doubt in doubts if doubt]
    warn(args)
    for notice in () if args.quiet else document.notices.values():
        say(f"note: {notice}")


def _say_unused(args: argparse.Namespace, document: Document, scenario: Scenario | None = None) -> None:
    """Warn that GPUs are unused, of a run that has ended: of one that fails, what went wrong is said alone."""
    from hybrid_des.scenario.unused_gpus import unused_gpus

    if unused := unused_gpus(document, scenario):
        _doubt(args, unused)


def _doubt(args: argparse.Namespace, warning: str) -> None:
    """Add a warning to those of the command, and say it."""
    args.warnings.append(warning)
    if not args.quiet:
        say(f"warning: {warning}")


def _sweep(args: argparse.Namespace, document: Document) -> int:
    """Run every case of a sweep; it fails only if all cases fail. Rows that finish before an interrupt are output."""
    from hybrid_des.interface.cli.dask_workers import workers
    from hybrid_des.studies import sweep

    cases = sweep.sweep_of(document, args.imports)
    _warn(args, document)
    for notice in () if args.quiet else sweep.dropped(cases):
        say(f"note: {notice}")
    with sweep.sweep_log(args.out, cases, resume=args.resume) as (known, keep):
        finished = dict(known)

        def note(number: int, row: sweep.Row) -> None:
            finished[number] = row
            keep(number, row)

        try:
            jobs = args.jobs or sweep.jobs_for(cases)
            with progress_bar(args.quiet) as progress, workers(args.dask, jobs) as where:
                rows = sweep.sweep_rows(cases, progress=progress, finished=note, known=known, **where)
            if args.out is not None:
                sweep.write(rows, cases, args.out)
        except (KeyboardInterrupt, sweep.WorkersLostError):
            if finished:
                _print_rows(args, [row for _, row in sorted(finished.items())], cases)
                file = "" if args.out is None else args.out / sweep.PARTIAL
                more = f"; their rows are in {file}, --resume simulates the others" if file else ""
                say(f"{len(finished)} of {len(cases)} cases finished{more}")
            raise
    _print_rows(args, rows, cases)
    if any("error" not in row for row in rows):
        _say_unused(args, document)
        return 0
    if args.json or args.quiet:  # the table shows it
        say(f"{args.file}: every case failed; the first: {rows[0]['error']}")
    return 1


def _print_rows(args: argparse.Namespace, rows: Sequence[Row], cases: Sweep) -> None:
    from hybrid_des.studies import sweep

    _output(args, rows, lambda: show(sweep.render(rows, cases, output_width())))


def _output(args: argparse.Namespace, value: Any, report: Callable[[], None]) -> None:
    """Print what was found as JSON with --json, else the report on it, unless --quiet."""
    if args.json:
        print_json(args, value)
    elif not args.quiet:
        report()


def _warn_of_sizes(args: argparse.Namespace, scenario: Scenario, result: Result) -> None:
    """Warn of sizes that cost tensor cores."""
    from hybrid_des.scenario.loading import read_scenario, scenario_of
    from hybrid_des.studies.alternatives import alignment

    def build(more: Sequence[str]) -> Scenario:
        return scenario_of(read_scenario(args.file, [*args.set, *more]))

    for doubt in alignment(scenario, result.summary["step_time_s"], result.summary["events"], build):
        _doubt(args, doubt)


def _report(result: Result) -> None:
    from hybrid_des.report.terminal import render

    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print(render(result, color=color, width=terminal_width()))
