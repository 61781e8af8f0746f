"""List the models of the catalogue, or the figures and options of one.

Parameters in billions, with those of prediction modules; those that a token passes; 10⁹ FLOP of training per token (a
sample for convolutions), forward and backward; tokens of a training sample; the longest context; and the source of the
sizes. `model` takes a name, or `{base: NAME, ...}` with changes. --out writes all of it as a page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import yaml

from hybrid_des.interface.cli.arguments import add_out
from hybrid_des.interface.cli.output import output_width, show_result, write_out
from hybrid_des.report.text_tables import markdown_table, text_table
from hybrid_des.workload.models.catalogue import about, expanded, model, names

HEADS = ("model", "parameters", "active", "FLOP/token", "tokens", "context", "source")
PAGE = """# Models

Written by `hybrid-des models --out docs/reference/catalogue.md` from the catalogue
([catalogue.yaml](../../hybrid_des/workload/models/catalogue.yaml)). Parameters are in billions, counted from the sizes,
with those of prediction modules and without encoders of other modalities; the tests compare them with published
figures. *Active* are those that a token passes. *FLOP/token* are 10⁹ FLOP of training, forward and backward, per token
of a sample of so many *tokens*, or per sample where it has none; causal attention counts half. *Context* is the longest
that the publisher states. `hybrid-des models qwen3-8b` prints the options of one.

Other models are read from their `config.json` ([list](models.md)) or described by their layers
([reference](../../scenarios/REFERENCE.md)).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a name."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a model; default: list all")
    parser.add_argument("--json", action="store_true", help="print the table, or one model, as JSON")
    add_out(parser, "write all models as a page in Markdown", metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Print the table, or the figures and options of one model."""
    if args.name is None:
        rows = [figures(name) for name in names()]
        show_result(args, lambda: rows, lambda: text_table(HEADS, map(cells, rows), width=output_width()))
    else:
        shown = figures(args.name) | {"options": expanded({"base": args.name})}
        show_result(args, lambda: shown, lambda: _options(shown))
    write_out(args.out, page)
    return 0


def figures(name: str) -> dict[str, Any]:
    """The figures of a model by name.

    Raises:
        UsageError: the name is unknown.
    """
    network, said = model(name), about(name)
    return {
        "model": name,
        "parameters": network.parameters,
        "active_parameters": network.active,
        "flop_per_token": 3 * float(network.flop) / network.tokens,
        "tokens": network.tokens,
        "context": said.get("context"),
        "source": said["source"],
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    scaled = (f"{row[key] / 1e9:.4g}" for key in ("parameters", "active_parameters", "flop_per_token"))
    counts = ("-" if row[key] in (None, 1) else f"{row[key]:,}" for key in ("tokens", "context"))
    return row["model"], *scaled, *counts, row["source"]


def _options(model_figures: Mapping[str, Any]) -> str:
    """The figures of a model as a table of one row, and its options as a scenario has them."""
    options = yaml.safe_dump({"model": model_figures["options"]}, sort_keys=False, default_flow_style=None, width=100)
    return f"{text_table(HEADS, [cells(model_figures)], width=output_width())}\n\n{options}".rstrip()


def page() -> str:
    """All models as a page in Markdown."""
    return "\n".join([PAGE, *markdown_table(HEADS, [cells(figures(name)) for name in names()])]) + "\n"
