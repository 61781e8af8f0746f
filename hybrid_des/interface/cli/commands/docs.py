"""Show the documentation of this version: a page, a section, the entry of a key or word, or the JSON Schema.

`hybrid-des docs gradients` prints the section on `gradients`, `hybrid-des docs gradients.bucket` the entry of that key
in the reference, and `hybrid-des docs MFU` the meaning of a word of the output. With the page, as in `hybrid-des docs
reference gradients`, the section includes its subsections. --schema prints the JSON Schema of scenario files instead,
for completion and validation in editors.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hybrid_des.errors import UsageError, unknown
from hybrid_des.interface.cli.arguments import add_import, refuse_given
from hybrid_des.interface.cli.glossary import PAGE as GLOSSARY
from hybrid_des.interface.cli.glossary import SECTION as GLOSSED
from hybrid_des.interface.cli.glossary import meanings
from hybrid_des.interface.cli.output import output_width, show_result, terminal_width
from hybrid_des.interface.cli.reference_keys import Entry, about
from hybrid_des.report.text import folded, labelled
from hybrid_des.report.text_tables import text_table

PACKAGE = Path(__file__).resolve().parents[3]
INSTALLED, CHECKOUT = PACKAGE / "shipped/docs", PACKAGE.parent
NAMED = {"reference": "scenarios/REFERENCE.md", "changes": "CHANGELOG.md"}
SKILL = "skill"  # what agents read first
MADE = ("index", "reference/python")  # pages that only the site shows
HEADING = re.compile(r"^(#+) (.+)$", flags=re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a page and a section, or the schema."""
    page = parser.add_argument(
        "page",
        metavar="PAGE|KEY",
        nargs="?",
        help="a page, a key of a scenario or summary, or a word of the output; without one, all pages are listed",
    )
    parser.add_argument("section", metavar="SECTION", nargs="?", help="words of a heading (default: the whole page)")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of scenario files")
    parser.add_argument("--json", action="store_true", help="print pages, or the text, as JSON")
    add_import(parser)
    parser.set_defaults(not_schema=[page])


def run(args: argparse.Namespace) -> int:
    """Print the list of pages, a page, a section, or the schema."""
    if args.schema:
        from hybrid_des.scenario.export import json_schema

        refuse_given("docs", args, args.not_schema, "does not go with --schema")
        print(json.dumps(json_schema(), indent=2))
        return 0
    files = pages()
    if args.page is None:
        titles = {name: title(path) for name, path in files.items()}
        lines = list(titles.items())
        show_result(args, lambda: titles, lambda: text_table(("page", "title"), lines, width=output_width()))
        return 0
    if args.page not in files:
        return _show_key(args, files)
    text = files[args.page].read_text(encoding="utf-8")
    if args.section is not None:
        text = section(text, args.section)
    show_result(args, lambda: {"page": args.page, "text": text}, text.rstrip, verbatim=True)
    return 0


def _show_key(args: argparse.Namespace, files: Mapping[str, Path]) -> int:
    """Print what the glossary and the reference say: the section that a key heads, or else its rows and notes."""
    glossary = files[GLOSSARY].read_text(encoding="utf-8")
    several = [] if args.section is None else meanings(glossary, f"{args.page} {args.section}")
    entries = several or meanings(glossary, args.page)
    if not several:
        try:
            entries += about(files["reference"].read_text(encoding="utf-8"), args.page, files)
        except UsageError:
            if not entries:
                raise
    show_result(
        args,
        lambda: {"key": args.page, "entries": list(map(asdict, entries))},
        lambda: _as_text(entries),
        verbatim=True,
    )
    return 0


def _as_text(entries: Sequence[Entry]) -> str:
    room = terminal_width()
    sections = [entry.text for entry in entries if entry.heads]
    rows = [entry for entry in entries if not entry.heads]
    if sections:
        said = (f": {entry.text}" if entry.section == GLOSSED else "" for entry in rows)
        also = [
            line
            for entry, text in zip(rows, said, strict=True)
            for line in folded(f"see also {entry.head}{text}", room)
        ]
        return "\n\n".join([*sections, *(["\n".join(also)] if also else [])])
    return "\n\n".join(
        "\n".join([*folded(entry.head, room), *labelled([("", [entry.text])], room, 2)]) for entry in rows
    )


def pages() -> dict[str, Path]:
    """The pages by their names: those in the package or, in a checkout, beside it.

    Raises:
        UsageError: they are missing.
    """
    folder = INSTALLED if INSTALLED.is_dir() else CHECKOUT
    files = sorted((folder / "docs").rglob("*.md"))
    named = {file.relative_to(folder / "docs").with_suffix("").as_posix(): file for file in files}
    pages_of = {name: file for name, file in named.items() if name not in MADE}
    if not pages_of:
        raise UsageError(f"{INSTALLED}: the documentation is missing; install hybrid-des again")
    return pages_of | {name: folder / path for name, path in NAMED.items()} | {SKILL: PACKAGE / "SKILL.md"}


def title(page: Path) -> str:
    """The first heading of a page."""
    heading = HEADING.search(page.read_text(encoding="utf-8"))
    return heading[2] if heading else page.stem


def section(text: str, words: str) -> str:
    """The part of a page below the first heading that contains some words, until one as high.

    Raises:
        UsageError: no heading contains them.
    """
    headings = list(HEADING.finditer(text))
    for number, heading in enumerate(headings):
        if words.lower() in heading[2].lower():
            ends = (other.start() for other in headings[number + 1 :] if len(other[1]) <= len(heading[1]))
            return text[heading.start() : next(ends, len(text))]
    raise UsageError(f"section: {unknown(words, [one[2].strip('`') for one in headings])}")
