"""The report on the terminal: headline, a small Gantt chart in characters, idle time by cause, memory, traffic.

A line is a list of (text, style) parts; styles apply only with colour, for which rich is imported.
"""

import io
import textwrap
from collections.abc import Sequence

import numpy as np

from hybrid_des.analysis.metrics import Findings
from hybrid_des.errors import LONGEST_LINE, one_line
from hybrid_des.report.bars import ACTIVITIES, BLACK, Bars, bars_of
from hybrid_des.report.content import Fact, Share, content_of
from hybrid_des.timeline import OP_KINDS, Column, Timeline
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds

Part = tuple[str, str]  # text, style
Line = list[Part]

KINDS = (*OP_KINDS, "reduction", "idle")
WEIGHTS = {"alarm": "bold red"}  # other weights are styles themselves
MOST_LINES = 16
LABEL = 24


def render(findings: Findings, color: bool = False, width: int = 100) -> str:
    """Render the report at `width` columns, optionally with colours; no newline at the end."""
    width = max(width, 40)
    content = content_of(findings)
    title: Line = [(content.name, "bold"), *([(f": {content.description}", "")] if content.description else [])]
    blocks: list[list[Line]] = [
        [title, *([(line, "dim")] for line in content.setup)],
        [_headline(fact) for fact in content.headline],
        _chart(findings.run.timeline, width),
        [[("average step per rank", "bold")], *(_share(share, width) for share in content.shares)],
        [_resource(fact) for fact in content.resources],
        [[(line, "dim")] for line in textwrap.wrap(content.limits, width)],
    ]
    parts = [line for block in blocks if block for line in (*block, [])][:-1]
    lines = [[(one_line(text, max(width, LONGEST_LINE)), style) for text, style in line] for line in parts]
    return _paint(lines, width) if color else "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def style_of(kind: str) -> str:
    """The terminal style of an activity: its colour, bold default for black, dim for idle."""
    colour = ACTIVITIES[kind].colour
    return "dim" if kind == "idle" else "bold" if colour == BLACK else colour


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


def _chart(timeline: Timeline, width: int) -> list[Line]:
    """The first step, one line per pipeline rank; only the first replica of many, and the two ends of a long pipeline.

    Tensor and context ranks share the stages of one line.
    """
    bars, steps = bars_of(timeline), timeline.steps
    first = steps["step"] == 0
    begin, end = int(steps["begin"][first].min()), int(steps["end"][first].max())
    if end <= begin:
        return []
    layout = timeline.layout
    inner = [axis for axis in layout.order if axis not in ("data", "pipeline")]
    alike = [layout.group(rank, *inner) for rank in bars.ranks]
    firsts = [i for i, group in enumerate(alike) if bars.ranks[i] == group[0]]
    shown, note = _shown(bars, firsts, len(alike[0]), layout.sizes["data"])
    label = max(len(_name(alike[i])) for i in shown) + 2
    cells = _cells(bars, shown, begin / PICOSECONDS_PER_SECOND, end / PICOSECONDS_PER_SECOND, width - label)
    lines: list[Line] = []
    for place, i in enumerate(shown):
        if place == MOST_LINES // 2 and "without" in note:
            lines.append([(" " * label + "⋮", "dim")])
        lines.append([(f"{_name(alike[i]):<{label}}", ""), *_parts(cells[i])])
    scale = format_seconds((end - begin) / PICOSECONDS_PER_SECOND)
    lines.append([(f"{'':<{label}}{'0':<{width - label - len(scale)}}{scale}", "dim")])
    key: Line = [(" " * label, "")]
    for kind in [kind for i, kind in enumerate(KINDS) if (cells[shown] == i).any()]:
        key += [(ACTIVITIES[kind].letter, style_of(kind)), (f" {ACTIVITIES[kind].label}   ", "dim")]
    return [*lines, key, *([[(" " * label + note, "dim")]] if note else [])]


def _name(ranks: Sequence[int]) -> str:
    """The ranks of a line: "rank 3", "ranks 0-7", "ranks 0 … 28"."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) == 1:
        return f"rank {first}"
    return f"ranks {first}-{last}" if last - first == len(ranks) - 1 else f"ranks {first} … {last}"


def _shown(bars: Bars, lines: list[int], ranks: int, replicas: int) -> tuple[list[int], str]:
    """Those of some lines, of so many ranks each, that are shown in the chart, and a note about the others."""
    if len(lines) <= MOST_LINES and len(set(bars.replicas)) == replicas:
        return lines, ""
    mine = [i for i in lines if bars.replicas[i] == bars.replicas[0]]
    note = f"the first of {replicas:,} replicas" if replicas > 1 else ""
    if len(mine) > MOST_LINES:
        left_out = (len(mine) - MOST_LINES) * ranks
        note = ", ".join(filter(None, [note, f"without its middle {left_out} ranks"]))
        mine = mine[: MOST_LINES // 2] + mine[-MOST_LINES // 2 :]
    return mine, f"({note})"


def _cells(bars: Bars, shown: list[int], begin: float, end: float, columns: int) -> Column:
    """Content of each cell, line × column, as an index into `KINDS`: the longest one, reduction instead of idle."""
    width = (end - begin) / columns
    filled = np.zeros((len(bars.ranks), columns, len(KINDS)))
    idle, reduction = KINDS.index("idle"), KINDS.index("reduction")
    waits = bars.waits.T
    line = np.concatenate([bars.line, waits[0].astype(np.int64)])
    kind = np.concatenate([bars.kind, np.full(len(bars.waits), reduction)])
    start, stop = (np.concatenate(pair) for pair in ((bars.start, waits[1]), (bars.end, waits[2])))
    inside = (start < end) & np.isin(line, shown)
    for row, what, low, high in zip(*(column[inside].tolist() for column in (line, kind, start, stop)), strict=True):
        last = min(int((high - begin) / width), columns - 1)
        for column in range(min(int((low - begin) / width), last), last + 1):
            left = begin + column * width
            filled[row, column, what] += max(min(high, left + width) - max(low, left), 0.0)
    filled[..., idle] = width - filled[..., : len(OP_KINDS)].sum(axis=2)
    reduced = filled[..., reduction].copy()
    filled[..., reduction] = 0.0
    cells = np.asarray(filled.argmax(axis=2), dtype=np.int64)
    cells[(cells == idle) & (reduced >= filled[..., idle] / 2)] = reduction
    return cells


def _parts(cells: Column) -> Line:
    """Merge adjacent cells of equal style into parts."""
    line: Line = []
    for cell in cells.tolist():
        letter, style = ACTIVITIES[KINDS[cell]].letter, style_of(KINDS[cell])
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + letter, style)
        else:
            line.append((letter, style))
    return line


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
