"""Serve agents: simulate, explain, compare, search, init and docs as tools of the Model Context Protocol, over stdio.

A client starts this command: `{"command": "hybrid-des", "args": ["mcp", "--folder", "plans"]}` in its configuration.
Tools read scenarios of the folder, shipped ones by name, and YAML text; files are written into the folder only. Every
call has a budget in seconds (`budget_s`), after which it is stopped; a call that is cancelled ends at once.
"""

import argparse
import json
from pathlib import Path

from hybrid_des.errors import UsageError, installing
from hybrid_des.interface.cli.arguments import as_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder."""
    parser.add_argument(
        "--folder", type=as_path, default=Path(), metavar="DIR", help="what tools read and write (default: this folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the tools with their schemas, and serve nothing")


def run(args: argparse.Namespace) -> int:
    """Serve until standard input ends."""
    if args.json:
        from hybrid_des.interface.mcp.answers import described

        print(json.dumps(described(), indent=2))
        return 0
    try:
        import anyio

        from hybrid_des.interface.mcp.server import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("anyio", "mcp", "mcp_types"):
            raise
        raise UsageError(f"mcp needs the mcp extra: {installing('mcp')}") from None
    if not args.folder.is_dir():
        raise UsageError(f"{args.folder}: expected a folder")
    anyio.run(serve, args.folder.resolve())
    return 0
