"""Print the JSON Schema of scenario files, for completion and checks in editors."""

import argparse
import json

from hybrid_des.interface.cli.arguments import add_import


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add files of user-defined plug-ins to include."""
    parser.add_argument("--json", action="store_true", help="has no effect: the schema is JSON")
    add_import(parser)


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    from hybrid_des.scenario.export import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0
