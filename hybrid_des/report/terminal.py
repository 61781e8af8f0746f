"""The report on the terminal: headline, a small Gantt chart in characters, idle time by cause, memory, traffic.

A line is a list of (text, style) parts; styles apply only with colour, for which rich is imported.
"""

import io
import textwrap
from collections.abc import Sequence

from hybrid_des.analysis.metrics import Findings
from hybrid_des.errors import LONGEST_LINE, one_line
from hybrid_des.report.content import Fact, content_of
from hybrid_des.report.shares import Share
from hybrid_des.report.text_chart import Line, Part, chart_of, style_of
from hybrid_des.units import format_seconds

WEIGHTS = {"alarm": "bold red"}  # other weights are styles themselves
LABEL = 24


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
