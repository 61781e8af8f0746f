"""The command line: `hybrid-des FILE`, or `hybrid-des COMMAND …`; errors become one line and an exit code.

Heavy modules are imported only when needed, so that `--help` is fast.
"""

import _thread
import argparse
import atexit
import gc
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from math import inf
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hybrid_des.errors import HybridDesError, SimulationError, UsageError, unknown
from hybrid_des.interface.cli import command_files, old_names, simulate
from hybrid_des.interface.cli.arguments import Parser, import_files, left_out, stand_ins, unused
from hybrid_des.interface.cli.output import discard_output, make_output_safe, say, warn

SIGNALED = 128  # plus the signal number, as in shells
GARBAGE = 150_000  # objects until Python looks for garbage: imports make 110,000 and no garbage
AGAIN_S = 0.01  # long enough to leave the code that dropped an interrupt


def program() -> NoReturn:
    """Run one command as a process of its own."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own pools keep much of the freed memory
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
    code = main()
    if code > SIGNALED:
        # Python may end by another signal, or crash, if an interrupt has left exec() or the import of compiled code
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)
    gc.freeze()  # or Python would search all objects for garbage once more: a fifth of the shortest run
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns 0 on success, 1 if the simulation failed, 2 on a user error, 130 or 143 by signal."""
    make_output_safe()
    interrupts: list[int] = []
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _noted(interrupts), _never_lost(interrupts):
            code = _run(words)
            sys.stdout.flush()
    except (KeyboardInterrupt, Exception) as error:
        if interrupts or isinstance(error, KeyboardInterrupt):
            number = interrupts[0] if interrupts else signal.SIGINT
            say("terminated" if number == signal.SIGTERM else "interrupted")
            return SIGNALED + number
        return _explain(error, as_json="--json" in words)
    return code


@contextmanager
def _noted(interrupts: list[int]) -> Iterator[None]:
    """Append the number of every Ctrl-C or SIGTERM to a list before it raises KeyboardInterrupt.

    Compiled code, such as matplotlib's, may replace KeyboardInterrupt with another exception.
    """

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    expected = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = {number: handler for number, handler in expected.items() if signal.getsignal(number) is handler}
    if threading.current_thread() is not threading.main_thread():
        ours = {}  # signals are handled elsewhere
    try:
        for number in ours:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


@contextmanager
def _never_lost(interrupts: Sequence[int]) -> Iterator[None]:
    """Send a signal again if Python drops its KeyboardInterrupt, as in `__del__` and callbacks of weak references."""
    before, timers = sys.unraisablehook, list[threading.Timer]()

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if interrupts and isinstance(dropped.exc_value, KeyboardInterrupt):
            timers.append(threading.Timer(AGAIN_S, _send_again, [signal.Signals(interrupts[-1])]))
            timers[-1].start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()
            timer.join()


def _send_again(number: signal.Signals) -> None:
    main_thread = threading.main_thread().ident
    if sys.platform == "win32" or main_thread is None:
        _thread.interrupt_main(number)
    else:
        signal.pthread_kill(main_thread, number)  # also ends a wait


def _explain(error: Exception, *, as_json: bool) -> int:
    """Print a user or system error and return its exit code; re-raise any other, which is a bug."""
    if isinstance(error, BrokenPipeError):
        discard_output()  # the reader has closed the pipe
        return 0
    message, code = _told(error)
    say(message)
    if as_json and not hasattr(error, "facts"):  # which are on stdout already
        import json

        from hybrid_des.interface.failures import error_document

        with suppress(OSError):  # stdout is what cannot be written
            print(json.dumps({"error": error_document(error, message, code)}, indent=2))
    return code


def _told(error: Exception) -> tuple[str, int]:
    """The message and the exit code of an error; any that is not the user's or the system's is raised again."""
    if isinstance(error, HybridDesError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError):
        _let_go(error)
        detail = f" ({error})" if str(error) else ""
        return f"out of memory: the scenario needs more than this machine has{detail}", SimulationError.exit_code
    from hybrid_des.registry import user_line

    if line := user_line(error):
        return str(UsageError(line)), UsageError.exit_code
    if not isinstance(error, OSError):
        raise error
    if error.filename is None:
        discard_output()  # /dev/full
        return f"cannot write the output: {error.strerror or error}", UsageError.exit_code
    return str(UsageError(f"{error.filename}: {error.strerror}")), UsageError.exit_code


def _let_go(error: BaseException | None) -> None:
    """Free what the frames of an error hold, so that there is memory to report it."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _run(arguments: list[str]) -> int:
    called = "python -m hybrid_des" if Path(sys.argv[0]).name == "__main__.py" else "hybrid-des"
    try:
        if arguments and (arguments[0] in old_names.OLD or arguments[0] in command_files.names()):
            return _run_command(called, *arguments)
        return _simulate(called, arguments)
    except SystemExit as done:  # --help and --version, or a plug-in
        registry = sys.modules.get("hybrid_des.registry")  # without it, no plug-in was imported: `--help` is fast
        if registry is not None and (line := registry.user_line(done)):
            raise UsageError(line) from None
        return int(done.code or 0)


def _run_command(called: str, name: str, *arguments: str) -> int:
    """Run a command by its name, or by an old one."""
    old = old_names.find(name, arguments)
    new = name if old is None else old.command
    command = command_files.find(new)
    parser = Parser(f"{called} {name}", description=command.__doc__)
    command.add_arguments(parser)
    if old is not None:
        old_names.hint(old.old, old.now)
    args = parser.parse_args(arguments)
    if old is not None:
        old.adapt(args)
    from hybrid_des.interface.cli.loops import loop_notes

    verifies = new == "schedules" and args.file is not None  # which checks collectives itself
    with _checked_within(args):
        import_files(getattr(args, "imports", ()), checked=not verifies)
        notices = *stand_ins(args), *left_out(args), *loop_notes(new, args)
        args.warnings = [] if new == "search" else unused(args)  # which says what its plans leave
    for notice in notices:
        say(f"note: {notice}")
    code = int(command.run(args))
    if new != "search":
        warn(args)
    return code


def _simulate(called: str, arguments: list[str]) -> int:
    """Simulate a file, or show what there is to run."""
    listed = "\n".join(f"  {name:<12} {command_files.summary(name)}" for name in command_files.names())
    parser = Parser(
        called,
        description=simulate.__doc__,
        usage=f"{called} FILE [options]\n       {called} COMMAND ...",
        epilog=f"commands (each has its own --help):\n{listed}",
    )
    simulate.add_arguments(parser)
    args, rest = parser.parse_known_args(arguments)
    if args.file is None:
        parser.error("expected a scenario FILE or a command")
    _refuse_command(args.file, called)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    with _checked_within(args):
        import_files(args.imports)
    for notice in stand_ins(args):
        say(f"note: {notice}")
    return simulate.run(args)


def _checked_within(args: argparse.Namespace) -> AbstractContextManager[None]:
    """A limit on the import of plug-ins, their checks and what is first asked of them: the budget of the command."""
    budget = getattr(args, "budget", inf)
    if budget == inf or not getattr(args, "imports", ()):
        return nullcontext()
    from hybrid_des.interface.cli.deadline import within

    return within(budget, args.imports[0])


def _refuse_command(file: str, called: str) -> None:
    """Refuse a FILE that is a command: one that is misspelled, or that follows an option.

    Raises:
        UsageError: there is no such file, and its name has the form of a command.
    """
    if Path(file).exists() or not re.fullmatch(r"[A-Za-z_][\w-]*", file):
        return
    if file in old_names.OLD or file in command_files.names():
        raise UsageError(f"{called}: the command {file} comes first: {called} {file} …")
    raise UsageError(f"{called}: {unknown(file, command_files.names(), 'command')}")
