"""Copy a shipped scenario, and the files that it builds on, to the current folder.

Files that exist are left alone, unless they are the same. `hybrid-des scenarios` lists the names.
"""

import argparse
import json
from pathlib import Path

from hybrid_des.cli.arguments import add_out
from hybrid_des.cli.output import say, show, write_file
from hybrid_des.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name and a folder."""
    parser.add_argument("name", metavar="NAME", help="a shipped scenario, such as a100_8x")
    parser.add_argument("--json", action="store_true", help="print the written files as JSON")
    add_out(parser, "copy to this folder instead")


def run(args: argparse.Namespace) -> int:
    """Write the files, the scenario last."""
    from hybrid_des.scenario.composition import with_bases

    files = {(args.out or Path()) / name: text for name, text in reversed(with_bases(args.name).items())}
    for path, text in files.items():
        if path.exists() and (not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text):
            raise UsageError(f"{path}: exists and differs; move it away, or choose a folder with --out")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_file(path, text)
    *_, scenario = files
    if args.json:
        print(json.dumps([str(path) for path in files]))
    else:
        show(f"{scenario}: run it with hybrid-des {scenario}")
    for path in [*files][:-1]:
        say(f"wrote {path}, which it builds on")
    return 0
