"""List the scenarios that come with the package.

`hybrid-des init NAME` copies one of them to the current folder.
"""

import argparse
import json

from hybrid_des.cli.output import text_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output option."""
    parser.add_argument("--json", action="store_true", help="print names, descriptions and files as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from hybrid_des.scenario.composition import shipped, shipped_description

    rows = [
        {"name": name, "description": shipped_description(file), "file": str(file)} for name, file in shipped().items()
    ]
    if args.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        print(text_table(("name", "description"), [(row["name"], row["description"]) for row in rows]))
    return 0
