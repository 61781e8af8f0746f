"""The report on the terminal: headline, a small Gantt chart in characters, idle time by cause, memory, traffic.

A line is a list of (text, style) parts; styles apply only with colour, for which rich is imported.
"""

import html
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybrid_des.analysis.metrics import Findings
from hybrid_des.errors import LONGEST_LINE, one_line
from hybrid_des.report.bars import Line, Part, chart_of, style_of
from hybrid_des.report.content import Fact, Share, content_of
from hybrid_des.units import format_bytes, format_seconds

WEIGHTS = {"alarm": "bold red"}  # other weights are styles themselves
LABEL = 24
MOST_SHOWN = 8  # pipeline ranks of a run that is not complete


def render(findings: Findings, color: bool = False, width: int = 100) -> str:
    """Render the report at `width` columns, optionally with colours; no newline at the end."""
    width = max(width, 40)
    content = content_of(findings)
    title: Line = [(content.name, "bold"), *([(f": {content.description}", "")] if content.description else [])]
    alarm: list[Line] = [[(line, WEIGHTS["alarm"])] for line in textwrap.wrap(content.alarm, width)]
    blocks: list[list[Line]] = [
        [title, *alarm, *([(line, "dim")] for line in content.setup)],
        [_headline(fact) for fact in content.headline],
        chart_of(findings.run.timeline, width),
        [[("average step per rank", "bold")], *(_share(share, width) for share in content.shares)],
        [_resource(fact) for fact in content.resources],
        [[(line, "dim")] for line in textwrap.wrap(content.limits, width)],
    ]
    parts = [line for block in blocks if block for line in (*block, [])][:-1]
    lines = [[(one_line(text, max(width, LONGEST_LINE)), style) for text, style in line] for line in parts]
    return _paint(lines, width) if color else "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _headline(fact: Fact) -> Line:
    return [(f"{fact.label:<{LABEL}}", ""), (f"{fact.value:>10}", "bold"), (f"   {fact.note}", "dim")]


def _share(share: Share, width: int) -> Line:
    room = max(width - 36 - 24, 8)
    row = f"  {share.label:<34}{format_seconds(share.seconds):>10}{share.fraction:>9.1%}  "
    return [(row, ""), ("█" * round(share.fraction * room), style_of(share.activity))]


def _resource(fact: Fact) -> Line:
    style = WEIGHTS.get(fact.weight, fact.weight)
    label: Part = (f"{fact.label:<{LABEL}}", "dim" if fact.weight == "dim" else "")
    return [label, (fact.value, style), *([(f"   {fact.note}", "")] if fact.note else [])]


def _paint(lines: Sequence[Line], width: int) -> str:
    """Add terminal colours."""
    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, color_system="256", width=width, no_color=False, legacy_windows=False
    )
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)
    return file.getvalue().rstrip("\n")


def as_html(text: str) -> str:
    """A report, for notebooks."""
    return f'<pre style="line-height:1.15;white-space:pre;overflow-x:auto">{html.escape(text)}</pre>'


def unfinished_report(facts: Mapping[str, Any]) -> str:
    """What is known of a run that its budget stopped, as text; nothing in it looks like the result of a step."""
    budget, simulated = format_seconds(facts["budget_s"]), format_seconds(facts["simulated_s"])
    rows = (
        ("ops that have ended", f"{facts['share_of_ops']:.1%}   {facts['steps_done']} steps are complete"),
        ("simulated time", f"{simulated}   on {facts['ranks_simulated']} of {facts['ranks']} ranks"),
        ("computing so far", _of_ranks([format_seconds(time) for time in facts["busy_s"]])),
        ("memory so far", _of_ranks([format_bytes(size) for size in facts["peak_memory_bytes"]])),
        ("sent so far", f"{facts['messages']:,} messages"),
        ("real time", f"{format_seconds(facts['wall_s'])} for {facts['events']:,} events"),
    )
    title = f"{one_line(facts['name'])}: not complete, stopped by the budget of {budget}"
    return "\n".join([title, "", *(f"{label:<{LABEL}}{value}" for label, value in rows)])


def _of_ranks(values: list[str]) -> str:
    """Values of pipeline ranks; if there are many, only the first ones."""
    more = f"  … ({len(values)} pipeline ranks)" if len(values) > MOST_SHOWN else "   per pipeline rank"
    return "  ".join(values[:MOST_SHOWN]) + more


# Text that fits a terminal: wrapped, in as many parts as there is room for, in labelled blocks, in tables.


NO_BREAK = "\N{NO-BREAK SPACE}"
NARROWEST = 30  # columns of wrapped text


def folded(text: str, room: int) -> list[str]:
    """Wrap a text into lines of at most `room` characters; numbers stay with their units."""
    if len(text) <= room:
        return [text]
    kept = re.sub(r"(?<=[\d)]) (?=%|[µmn]?s\b)", NO_BREAK, text)
    lines = textwrap.wrap(kept, room, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def fitting(head: str, parts: Sequence[str], room: int, between: str = ", ") -> str:
    """As many parts as a line has room for, at least one, and the number of parts left out."""
    for shown in range(len(parts), 0, -1):
        more = [f"{len(parts) - shown} more"] if shown < len(parts) else []
        text = head + between.join([*parts[:shown], *more])
        if len(text) <= room or shown == 1:
            return text
    return head.rstrip()


def labelled(blocks: Iterable[tuple[str, Sequence[str]]], width: int, label: int = 10) -> list[str]:
    """The lines of texts, wrapped beside the label of their block, which takes some columns of the width."""
    lines = []
    for name, texts in blocks:
        wrapped = [line for text in texts for line in folded(text, max(width - label, NARROWEST))]
        heads = [name, *[""] * len(wrapped)]
        lines += [f"{head:<{label}}{line}".rstrip() for head, line in zip(heads, wrapped, strict=False)]
    return lines


def text_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "", *, align: str = "<", width: int | None = None
) -> str:
    """Format rows of cells as aligned lines below their heads; cells may hold any text.

    Columns are two spaces apart, or one if the lines would be longer than `width`.
    """
    cells = [[one_line(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    gap = " " if width is not None and sum(widths) + 2 * len(widths) > width + 2 else "  "
    lines = (gap.join(f"{cell:{align}{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(f"{indent}{line}".rstrip() for line in lines)
