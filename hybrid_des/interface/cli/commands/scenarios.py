"""List the scenarios that come with the package.

`hybrid-des init NAME` copies one of them to the current folder.
"""

import argparse

from hybrid_des.interface.cli.output import output_width, show_result
from hybrid_des.report.text_tables import text_table
from hybrid_des.scenario.shipped import shipped, shipped_description


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output option."""
    parser.add_argument("--json", action="store_true", help="print names, descriptions and files as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    rows = [
        {"name": name, "description": shipped_description(file), "file": str(file)} for name, file in shipped().items()
    ]
    table = [(row["name"], row["description"]) for row in rows]
    show_result(
        args, lambda: rows, lambda: text_table(("name", "description"), table, width=output_width()), ascii_only=False
    )
    return 0
