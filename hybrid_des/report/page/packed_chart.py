"""The packed micro-batches of the first step as a picture: tokens and squared lengths of every replica.

    replica 0  ▒▒▒▒░░░░▒▒▒░░░░       ▒▒░░░░░░░▒░░
    replica 1  ▒▒▒░░░░▒▒▒▒░░░        ▒▒▒░▒▒▒
               tokens                squared lengths

A piece per micro-batch, in their order; a dashed line at the mean of all rows.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from hybrid_des.analysis.documents import amounts_of
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.report.packed import context_apart
from hybrid_des.report.plots.style import LINES
from hybrid_des.scenario.definition import Scenario
from hybrid_des.units import format_number

MOST = 32  # rows; of more, those with the most squares
LEFT, COLUMNS, GAP, ROW, BAR, BELOW = 120, 360, 60, 18, 13, 24  # pixels


def packed_chart(scenario: Scenario) -> str:
    """The picture as HTML; empty where all micro-batches hold the same."""
    packed = packed_steps(scenario)
    if packed is None or not packed.varies:
        return ""
    amounts = amounts_of(packed)
    tokens, squares = amounts.tokens[0].tolist(), amounts.squares[0].tolist()
    rows = sorted(sorted(range(len(tokens)), key=lambda row: -sum(squares[row]))[:MOST])
    name = "context rank" if context_apart(scenario) else "replica"
    left_out = f"; the {MOST} with the most squares of {len(tokens)}" if len(tokens) > MOST else ""
    pieces, right = [], LEFT + COLUMNS + GAP
    for line, row in enumerate(rows):
        height = line * ROW + BAR - 2
        pieces.append(f'<text x="{LEFT - 8}" y="{height}" text-anchor="end">{name} {row}</text>')
    for x, label, values in ((LEFT, "tokens", tokens), (right, "squared lengths", squares)):
        pieces += _bars(x, label, values, rows)
    width, height = right + COLUMNS + GAP, len(rows) * ROW + BELOW
    return (
        f"<h2>Packed micro-batches of the first step, by {name}{left_out}</h2>"
        f'<svg id="packed" width="{width}" height="{height}" viewBox="0 0 {width} {height}" fill="currentColor" '
        f'font-size="11">{"".join(pieces)}</svg>'
    )


def _bars(left: int, label: str, values: Sequence[Sequence[int]], rows: Sequence[int]) -> Iterator[str]:
    """A bar per row, in pieces by micro-batch; a line at the mean of all rows, and the largest sum."""
    sums = [sum(row) for row in values]
    most, mean = max(sums), sum(sums) / len(sums)
    bottom = len(rows) * ROW
    for line, row in enumerate(rows):
        begin = 0
        for number, amount in enumerate(values[row]):
            x, width = left + begin / most * COLUMNS, amount / most * COLUMNS
            begin += amount
            if amount:
                said = html.escape(f"micro-batch {number}: {amount:,} {label}")
                yield (
                    f'<rect x="{x:.1f}" y="{line * ROW}" width="{width:.1f}" height="{BAR}" fill="{LINES[0]}" '
                    f'fill-opacity="{0.9 if number % 2 == 0 else 0.55}"><title>{said}</title></rect>'
                )
    yield f'<path d="M{left + mean / most * COLUMNS:.1f} 0V{bottom}" stroke="currentColor" stroke-dasharray="3 2"/>'
    words = f"{label}, mean {format_number(mean)}, largest {most / mean:.2f} of it"
    yield f'<text x="{left}" y="{bottom + 14}">{words}</text>'
