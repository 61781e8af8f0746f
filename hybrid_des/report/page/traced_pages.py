"""Pages of runs whose causes were traced: with the critical path, what released everything, and idle time by reason."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import numpy as np

from hybrid_des.analysis.counterfactual.ladder import Curve, curves
from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.paths import critical_path
from hybrid_des.analysis.critical_path.rows import released_by
from hybrid_des.analysis.explanation import Explanation
from hybrid_des.analysis.idle import REASONS
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.reasons import Reasons, reasons_of
from hybrid_des.planning.program_table import NONE, Column
from hybrid_des.report.explained import KEPT, detail_lines, in_brief, offered
from hybrid_des.report.page.answer import cards, cards_of, section, wide
from hybrid_des.report.page.document import WIDTH, PageRun, page_of
from hybrid_des.report.plots.style import LINES
from hybrid_des.units import format_change, format_seconds

ACROSS, HEIGHT, LEFT, BELOW, NAMES = 520, 220, 70, 34, 150  # pixels


LINE = 13  # pixels between names


IN_ANSWER = ("Time", "Main loss")  # of `in_brief`, what verdict and bar of a page tell


def explanation_page(explanation: Explanation) -> str:
    """The page of `explain`: what the step is lost to and what would help above the run; details in tabs beside it."""
    shown = explanation.traced.shown
    drawn = curves_svg(curves(explanation.run, explanation.gains, explanation.at_once), explanation.seconds(1))
    why = f"<pre>{html.escape(chr(10).join(detail_lines(explanation, WIDTH)))}</pre>"
    return page_of([
        PageRun(
            RunAnalysis(shown.run), traced_reasons(shown.slack.graph), verdict=explanation.losses.verdict,
            advice_html=advice_html(explanation),
            panels=[("Critical path", why), ("What if", drawn + what_if_table(explanation))],
        )
    ])  # fmt: skip


def advice_html(explanation: Explanation) -> str:
    """What to change: a slow part to mend, settings as cards, and what faster links would give."""
    lost, advice = explanation.losses, explanation.advice
    said = [(label, text) for label, texts in in_brief(lost).items() if label not in IN_ANSWER for text in texts]
    paragraphs = "".join(f"<p><b>{label}:</b> {html.escape(text)}</p>" for label, text in said)
    if advice is None:
        return section("What to change", paragraphs)
    told = offered(lost, advice)
    offers = cards(cards_of(advice)) if advice.lines else f"<p>{html.escape(told['none'])}</p>"
    hardware = f"<p>{html.escape(told['hardware'])}</p>" if "hardware" in told else ""
    flags = f"flags of {advice.framework}" if advice.framework else "settings for the command line"
    title = "What to change" if advice.fits else "What would make it fit"
    return section(title, paragraphs + offers + hardware, f"{KEPT}; {flags}")


def traced_reasons(graph: Graph) -> Reasons:
    """The reasons that a graph of causes gives for the rows of its timeline; images are shown by what was simulated."""
    rows_of = graph.messages.rows
    known = reasons_of(graph.timeline)
    ops = len(graph.timeline.ops["rank"])
    released = released_by(graph)
    released = np.where(released == NONE, NONE, released % max(graph.activities, 1))
    first = np.concatenate([np.arange(ops), ops + rows_of[:, 0], [NONE]])  # the row that shows each activity
    by = np.full(len(known.released_by), NONE, dtype=np.int64)
    by[:ops] = first[released[:ops]]
    for hop in range(rows_of.shape[1]):
        there = np.flatnonzero(rows_of[:, hop] >= 0)
        before = first[released[ops:][there]] if hop == 0 else ops + rows_of[there, hop - 1]
        by[ops + rows_of[there, hop]] = before
    queued = known.released_by[ops:] != NONE  # behind another message on the link
    by[ops:][queued] = known.released_by[ops:][queued]
    idle = IdleTime(graph).simulated()
    places = {reason: place for place, reason in enumerate(REASONS)}
    rows = [(one.rank, one.start, one.end, places[one.reason]) for one in idle]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    columns = dict(zip(("rank", "start", "end", "cause"), table.T, strict=True))
    return Reasons(by, columns, REASONS, _path(graph, ops))


def _path(graph: Graph, ops: int) -> Column:
    """The rows on the critical path: ops, and messages on all of their links."""
    rows: list[int] = []
    for activity in (piece.activity % graph.activities for piece in critical_path(graph) if piece.activity != NONE):
        if activity < ops:
            rows.append(activity)
        else:
            hops = graph.messages.rows[activity - ops]
            rows += (ops + hops[hops >= 0]).tolist()
    return np.array(rows, dtype=np.int64)


def curves_svg(curves: Sequence[Curve], seconds: float) -> str:
    """The curves as an SVG element; empty without curves.

    Args:
        curves: ends of the run in picoseconds.
        seconds: seconds of a step per picosecond of the run.
    """
    if not curves:
        return ""
    ends = [end for curve in curves for _, end in curve.points]
    last = max(share for curve in curves for share, _ in curve.points)
    most, least = max(ends), min(ends)
    low = least - 0.08 * (most - least or most or 1)
    high = most + 0.04 * (most - least or most or 1)

    def x(share: float) -> float:
        return LEFT + share / last * (ACROSS - LEFT - NAMES)

    def y(end: float) -> float:
        return 8 + (high - end) / (high - low) * (HEIGHT - BELOW - 8)

    pieces = [*_axes(x(last), [(y(end), format_seconds(end * seconds)) for end in (most, (most + least) / 2, least)])]
    pieces += [f'<text x="{x(share):.0f}" y="{HEIGHT - 18}" text-anchor="middle">{share * 100:.0f} %</text>'
               for share in (0, 0.25, 0.5, 0.75) if share <= last]  # fmt: skip
    pieces.append(f'<text x="{x(last / 2):.0f}" y="{HEIGHT - 3}" text-anchor="middle">less time in the class</text>')
    places = _spread([y(curve.points[-1][1]) for curve in curves])
    for curve, height, colour in zip(curves, places, (*LINES, *LINES), strict=False):
        line = " ".join(f"{x(share):.1f},{y(end):.1f}" for share, end in curve.points)
        pieces.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        pieces += [f'<circle cx="{x(share):.1f}" cy="{y(end):.1f}" r="2.5" fill="{colour}"/>'
                   for share, end in curve.points]  # fmt: skip
        end = x(curve.points[-1][0])
        pieces.append(f'<path d="M{end + 3:.1f} {y(curve.points[-1][1]):.1f}L{x(last) + 14:.1f} {height:.1f}" '
                      f'stroke="{colour}" stroke-width="0.7"/>')  # fmt: skip
        pieces.append(f'<text x="{x(last) + 17:.0f}" y="{height + 4:.0f}">{html.escape(curve.name)}</text>')
    return (
        "<h2>What if one class were quicker: the step, simulated</h2>"
        f'<svg id="curves" width="{ACROSS}" height="{HEIGHT}" '
        f'viewBox="0 0 {ACROSS} {HEIGHT}" fill="currentColor" font-size="11">{"".join(pieces)}</svg>'
    )


def _axes(right: float, ticks: Sequence[tuple[float, str]]) -> Iterator[str]:
    for height, text in ticks:
        yield f'<path d="M{LEFT} {height:.1f}H{right:.0f}" stroke="var(--line)"/>'
        yield f'<text x="{LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{text}</text>'


def _spread(places: Sequence[float]) -> list[float]:
    """Heights of names, near the given ones, so that names do not overlap."""
    order = sorted(range(len(places)), key=places.__getitem__)
    heights, last = [0.0] * len(places), -float(LINE)
    for number in order:
        last = heights[number] = max(places[number], last + LINE)
    over = max(0.0, last - (HEIGHT - BELOW)) if places else 0.0
    for number in reversed(order):
        if over <= 0:
            break
        heights[number] -= over
    return heights


def what_if_table(explanation: Explanation) -> str:
    """Every change that was simulated, the most helpful first, as an HTML table."""
    steps, before = explanation.run.scenario.steps, explanation.run.scenario.schedule.microbatches
    rows = [(one.change, one.first_order, one.duration, one.steps, one.microbatches) for one in explanation.what_if]
    rows += [(f"{gain.part.name} {gain.change}", None, gain.duration, steps, before) for gain in explanation.gains]
    rows += [(one.change, None, one.duration, one.steps, one.microbatches) for one in explanation.proposals]
    unique = {row[0]: row for row in rows[::-1]}.values()
    base = max(explanation.duration, 1) / steps / before
    cells = []
    for name, first, end, count, microbatches in sorted(unique, key=lambda row: row[2] / row[3] / row[4]):
        order = "" if first is None else format_change(first / max(explanation.duration, 1) - 1)
        step = format_seconds(end * 1e-12 / count)
        gain = format_change(end / count / microbatches / base - 1)
        cells.append(f"<tr><td>{html.escape(name)}<td>{order}<td>{step}<td>{gain}</tr>")
    head = "<tr><th>change<th>first order<th>step, simulated<th>per micro-batch</tr>"
    table = f"<table>{head}{''.join(cells)}</table>"
    return f"<h2>{len(cells)} changes, simulated</h2>{wide(table)}"
