"""Open a page on which every change of a scenario is simulated and drawn at once.

It shows the timeline of GPUs and links, step time, bubble, memory and idle time by cause, beside the run before the
change; pinned runs are compared. The page is served to this machine only, reads scenarios of the file's folder only,
and can save the changed scenario as YAML or copy the command that simulates it. Ctrl-C ends it.
"""

import argparse
import asyncio
import json
import webbrowser
from pathlib import Path

from hybrid_des.errors import UsageError, installing
from hybrid_des.interface.cli.arguments import add_budget, add_common, whole
from hybrid_des.interface.cli.output import say, show

DEFAULT = "a100_8x"
BUDGET_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file and where the page is."""
    parser.add_argument("file", nargs="?", metavar="FILE", help=f"a scenario (default: the shipped {DEFAULT})")
    parser.add_argument("--port", type=whole, default=0, metavar="N", help="port of this machine (default: any)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    parser.add_argument("--json", action="store_true", help="print the address as JSON; implies --no-browser")
    add_budget(parser, f"longest time of one simulation (default {BUDGET_S:.0f}s)")
    parser.set_defaults(budget=BUDGET_S)
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    try:
        from hybrid_des.interface.live.server import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "tornado":
            raise
        raise UsageError(f"live needs the live extra: {installing('live')}") from None
    from hybrid_des.interface.live.frames import ServerState
    from hybrid_des.scenario.jobs import has_jobs
    from hybrid_des.scenario.loading import SEVERAL, read_scenario
    from hybrid_des.scenario.shipped import shipped

    file = Path(args.file) if args.file is not None else shipped()[DEFAULT]
    document = read_scenario(file, args.set)  # its mistakes are seen here, those of changes on the page
    if has_jobs(document):
        raise document.error(("jobs",), SEVERAL)

    def ready(address: str) -> None:
        if args.json:
            print(json.dumps({"address": address}), flush=True)
            return
        show(f"{file}: {address}")
        say("the page works while this runs; Ctrl-C ends it")
        if not args.no_browser:
            webbrowser.open(address)

    asyncio.run(serve(ServerState(file, tuple(args.set), tuple(args.imports), args.budget), args.port, ready))
    return 0
