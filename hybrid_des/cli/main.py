"""The command line: simulate a scenario and show, print or write what came out; or run one of the verbs.

Nothing heavy is imported before it is needed, so that `--help` comes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hybrid_des
from hybrid_des.cli import commands as verbs
from hybrid_des.cli.interrupts import noted_interrupts
from hybrid_des.errors import HybridDesError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.status import Status

    from hybrid_des.result import Result
    from hybrid_des.scenario.strict_yaml import Document

INTERRUPTED = 130
LONGEST_NAME = 200  # of a file, in a message
PATIENCE_S = 1.0  # before a single run says that it is still at it


class Parser(argparse.ArgumentParser):
    """An argument parser that says a mistake in one line, as everything else here does."""

    def error(self, message: str) -> NoReturn:
        """Give up on the command."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code: 0 done, 1 the simulation failed, 2 a user's mistake, 130 interrupted."""
    _bear_any_output()
    with noted_interrupts() as interrupts:
        try:
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
            sys.stdout.flush()
        except (KeyboardInterrupt, Exception) as error:
            if interrupts or isinstance(error, KeyboardInterrupt):
                _say("interrupted")
                return INTERRUPTED
            return _explain(error)
    return code


def _explain(error: Exception) -> int:
    """Say in a line what a user or a machine can do something about, and give its exit code; raise what is a bug."""
    if isinstance(error, HybridDesError):
        _say(str(error))
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        _drop_output()  # the reader has seen enough
        return 0
    if not isinstance(error, OSError):
        raise error
    if error.filename is None:
        _drop_output()  # /dev/full
        _say(f"cannot write the output: {error.strerror or error}")
    else:
        name = str(error.filename)
        _say(f"{name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + '…'}: {error.strerror}")
    return UsageError.exit_code


def _run(arguments: list[str]) -> int:
    program = "python -m hybrid_des" if Path(sys.argv[0]).name == "__main__.py" else "hybrid-des"
    try:
        if arguments and arguments[0] in verbs.names():
            verb = verbs.find(arguments[0])
            parser = Parser(f"{program} {arguments[0]}", description=verb.__doc__, allow_abbrev=False,
                            formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
            verb.add_arguments(parser)
            return verb.run(parser.parse_args(arguments[1:]))
        parser = _parser(program)
        args = parser.parse_args(arguments)
        if args.file is None:
            parser.error("expected a scenario FILE or a verb")
        return _simulate(args)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)


def _parser(program: str) -> Parser:
    listed = "\n".join(f"  {name:<12} {verbs.summary(name)}" for name in verbs.names())
    parser = Parser(
        program,
        usage=f"{program} FILE [options]\n       {program} VERB ...",
        description="Simulate the training step that a scenario file describes, and report on it.",
        epilog=f"verbs (each has its own --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a scenario, such as scenarios/a100_8x.yaml")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="also write summary, timeline, trace and pictures there"
    )
    verbs.add_set(parser)
    verbs.add_import(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object and nothing else")
    parser.add_argument("--quiet", action="store_true", help="no report and no messages")
    parser.add_argument(
        "--jobs", metavar="N", type=_count, help="local worker processes of a sweep (default: by its size)"
    )
    parser.add_argument("--dask", metavar="ADDRESS", help="run a sweep on a Dask cluster, such as tcp://10.0.0.1:8786")
    parser.add_argument("--version", action="version", version=f"hybrid-des {hybrid_des.__version__}")
    return parser


def _simulate(args: argparse.Namespace) -> int:
    _check_file(args.file)
    from hybrid_des.scenario import read_scenario, scenario_of

    verbs.import_files(args.imports)
    document = read_scenario(args.file, args.set)
    if document.value.get("sweep") not in (None, "none"):
        return _sweep(args, document)
    if args.jobs is not None or args.dask is not None:
        raise UsageError(f"{args.file}: --jobs and --dask are for a file with a sweep")
    scenario = scenario_of(document)
    if args.out is not None:
        _check_writable(args.out)
    from hybrid_des.result import simulate

    with _working(args):
        result = simulate(scenario)
    written = result.write(args.out) if args.out is not None else None
    if args.json:
        print(json.dumps(result.summary, indent=2, allow_nan=False))
    elif not args.quiet:
        _report(result)
    if not args.quiet:
        if args.json and result.summary["out_of_memory"]:  # the report says so by itself
            _say(f"warning: {args.file}: out of memory; see peak_memory_bytes")
        if written is not None:
            for note in written.notes:
                _say(note)
            _say(f"wrote {len(written.paths)} files to {args.out}")
    return 0


def _sweep(args: argparse.Namespace, document: Document) -> int:
    """Run every case of a sweep; it fails only where all of them do."""
    from hybrid_des import sweep

    cases = sweep.sweep_of(document, args.imports)
    if args.out is not None:
        _check_writable(args.out)
    with _progress(args) as progress, _executor(args) as executor:
        jobs = args.jobs or sweep.jobs_for(cases)
        rows = sweep.run_sweep(cases, jobs=jobs, executor=executor, progress=progress)
    if args.out is not None:
        sweep.write(rows, cases, args.out)
    if args.json:
        print(json.dumps(rows, indent=2, allow_nan=False))
    elif not args.quiet:
        print(sweep.render(rows, cases))
    if any("error" not in row for row in rows):
        return 0
    if args.json or args.quiet:  # the table says so by itself
        _say(f"{args.file}: every case failed; the first: {rows[0]['error']}")
    return 1


@contextlib.contextmanager
def _executor(args: argparse.Namespace) -> Iterator[Executor | None]:
    """A Dask cluster's executor, where one is asked for."""
    if args.dask is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--dask needs the dask extra: pip install 'hybrid-des[dask]'") from None
    try:
        client = Client(args.dask, timeout="10s")
    except (OSError, ValueError) as error:
        raise UsageError(f"--dask {args.dask}: no scheduler answers ({error})") from None
    with client, client.get_executor() as executor:
        yield executor


@contextlib.contextmanager
def _working(args: argparse.Namespace) -> Iterator[None]:
    """Say on the terminal that a simulation goes on, where it takes longer than a moment."""
    shown: list[Status] = []

    def show() -> None:
        from rich.console import Console

        shown.append(Console(stderr=True).status("simulating"))
        shown[0].start()

    timer = threading.Timer(PATIENCE_S, show)
    if sys.stderr.isatty() and not args.quiet:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        for status in shown:
            status.stop()


@contextlib.contextmanager
def _progress(args: argparse.Namespace) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on the terminal, where stderr is one."""
    if args.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("cases")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _check_file(file: str) -> None:
    """Answer a mistyped verb as such, before anything is loaded."""
    if not Path(file).exists() and not Path(file).suffix and file.isidentifier():
        from hybrid_des.registry import unknown

        raise UsageError(f"{file}: no such file, and no verb: {unknown(file, verbs.names())}")


def _report(result: Result) -> None:
    import shutil

    from hybrid_des.report.terminal import render

    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print(render(result, color=color, width=shutil.get_terminal_size((100, 24)).columns))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def _check_writable(folder: Path) -> None:
    """Try, before a long simulation, whether the results can be written, and leave nothing behind."""
    import tempfile

    made: list[Path] = []
    try:
        for place in [*reversed(folder.parents), folder]:
            if not place.exists():
                place.mkdir()
                made.append(place)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be written: {error.strerror or error}") from None
    finally:
        for place in reversed(made):
            place.rmdir()


def _bear_any_output() -> None:
    """Write a mark for a character that the terminal's encoding lacks; write to nowhere where output is closed."""
    import io

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (open as long as the program runs)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Send what is still buffered nowhere, so that closing it raises no second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> None:
    print(message, file=sys.stderr)
