"""Print the JSON Schema of scenario files, from which editors complete and check."""

from __future__ import annotations

import argparse
import json

from hybrid_des.cli.commands import add_import, import_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A user's own files add their names to the schema."""
    add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from hybrid_des.scenario import json_schema

    import_files(args.imports)
    print(json.dumps(json_schema(), indent=2))
    return 0
