"""The report on the terminal: headline, a small Gantt chart in characters, idle time by cause, memory, traffic.

A line is a list of (text, style) parts; styles apply only with colour, for which rich is imported.
"""

import html
import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_des.analysis.inside_ops import collectives_of
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.errors import LONGEST_LINE, one_line
from hybrid_des.report.content import content_of
from hybrid_des.report.fact import Fact
from hybrid_des.report.packed import context_apart
from hybrid_des.report.step_rows import Share
from hybrid_des.report.text import NARROWEST, folded
from hybrid_des.report.text_chart import Line, Part, chart_of, style_of
from hybrid_des.units import format_bytes, format_seconds, format_share

WEIGHTS = {"alarm": "bold red"}  # other weights are styles themselves


LABEL = 24


MOST_SHOWN = 8  # pipeline ranks of a run that is not complete


def render(findings: RunAnalysis, color: bool = False, width: int = 100) -> str:
    """Render the report at `width` columns, optionally with colours; no newline at the end."""
    width = max(width, 40)
    content = content_of(findings)
    title: Line = [(content.name, "bold"), *([(f": {content.description}", "")] if content.description else [])]
    alarm: list[Line] = [[(line, WEIGHTS["alarm"])] for line in textwrap.wrap(content.alarm, width)]
    blocks: list[list[Line]] = [
        [*_wrapped(title, width), *alarm, *([(line, "dim")] for text in content.setup for line in folded(text, width))],
        [line for fact in content.headline for line in _headline(fact, width)],
        chart_of(
            findings.run.timeline,
            width,
            apart=context_apart(findings.run.scenario),
            inside=collectives_of(findings.inside),
        ),
        [[("average step per rank", "bold")], *(_share(share, width) for share in content.shares)],
        [line for fact in content.resources for line in _resource(fact, width)],
        [[(line, "dim")] for line in textwrap.wrap(content.limits, width)],
    ]
    parts = [line for block in blocks if block for line in (*block, [])][:-1]
    lines = [[(one_line(text, max(width, LONGEST_LINE)), style) for text, style in line] for line in parts]
    return _paint(lines, width) if color else "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _wrapped(line: Line, width: int) -> list[Line]:
    """A line if it fits, else its text on several lines."""
    text = "".join(part for part, _ in line)
    return [line] if len(text) <= width else [[(part, line[0][1])] for part in folded(text, width)]


def _headline(fact: Fact, width: int) -> list[Line]:
    """A figure, and its note beside it."""
    figure: Line = [(f"{fact.label:<{LABEL}}", ""), (f"{fact.value:>10}   ", "bold")]
    before = sum(len(text) for text, _ in figure)
    first, *others = folded(fact.note, max(width - before, NARROWEST)) or [""]
    return [[*figure, (first, "dim")], *([(" " * before + text, "dim")] for text in others)]


def _share(share: Share, width: int) -> Line:
    room = max(width - 36 - 24, 8)
    row = f"  {share.label:<34}{format_seconds(share.seconds):>10}{format_share(share.fraction):>9}  "
    return [(row, ""), ("█" * round(share.fraction * room), style_of(share.activity))]


def _resource(fact: Fact, width: int) -> list[Line]:
    """A fact and its note, below it if they do not fit beside each other."""
    style = WEIGHTS.get(fact.weight, fact.weight)
    label: Part = (f"{fact.label:<{LABEL}}", "dim" if fact.weight == "dim" else "")
    line: Line = [label, (fact.value, style), *([(f"   {fact.note}", "")] if fact.note else [])]
    if sum(len(text) for text, _ in line) <= width:
        return [line]
    room = max(width - LABEL, NARROWEST)
    parts: Line = [(text, style) for text in folded(fact.value, room)]
    parts += [(text, "") for text in folded(fact.note, room) if fact.note]
    first, *others = parts
    return [[label, first], *([(" " * LABEL, ""), part] for part in others)]


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
        ("ops that have ended", f"{format_share(facts['share_of_ops'])}   {facts['steps_done']} steps are complete"),
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
