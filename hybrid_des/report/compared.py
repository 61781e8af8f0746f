"""The text of a comparison, and its picture: both runs on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.compare import Comparison
from hybrid_des.report.billed import bill_changes
from hybrid_des.report.content import ALARM, CANNOT_RUN
from hybrid_des.report.palette import cause_name
from hybrid_des.report.plots.gantt import gantt, size_of
from hybrid_des.report.plots.style import new_figure, title
from hybrid_des.report.text import labelled
from hybrid_des.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from hybrid_des.report.explained_details import ties_text

SIDE_LABEL = 10


MOST = 6  # rows per list


def render_comparison(comparison: Comparison, width: int = 100) -> str:
    """The comparison as text.

    Args:
        comparison: what `compare` found.
        width: columns to wrap at.

    Example:
        >>> from hybrid_des import compare, render_comparison
        >>> render_comparison(compare("scenarios/a100_8x.yaml", overrides={"schedule.kind": "zb-h1"})).splitlines()[0]
        'a100_8x → a100_8x: step 1.435 s → 1.194 s, -240.9 ms (-16.8 %)'
    """
    return "\n".join([*_title(comparison), *labelled(_compared_blocks(comparison), width, SIDE_LABEL)])


def _title(comparison: Comparison) -> Iterator[str]:
    before, after = (format_seconds(side.summary["step_time_s"]) for side in (comparison.a, comparison.b))
    change = f"{_signed(comparison.change)} ({comparison.regression * 100:+.1f} %)"
    yield f"{comparison.a.name} → {comparison.b.name}: step {before} → {after}, {change}"
    if comparison.difference is not None and comparison.change:
        yield comparison.difference.text(comparison.regression)
    yield from (
        f"{ALARM}: {side.name}: {CANNOT_RUN}"
        for side in (comparison.a, comparison.b)
        if side.summary.get("out_of_memory")
    )


def _compared_blocks(comparison: Comparison) -> Iterator[tuple[str, Sequence[str]]]:
    whole = comparison.to_mapping()
    yield from _changes(comparison, whole)
    yield _effects(comparison, whole)
    if whole["bounds_s"] is not None:
        low, high = whole["bounds_s"]
        yield _listed("Bounds", [f"{_signed(low)} … {_signed(high)} if the order stays the same"])
    sides = zip((comparison.a, comparison.b), comparison.ties, strict=True)
    texts = [f"{side.name}: {ties_text(ties, comparison.a.steps)}" for side, ties in sides if ties]
    if texts:
        yield "Ties", ["; ".join(texts)]
    first = whole["first_difference"]
    text = "the same everywhere"
    if first is not None:
        at = format_seconds(first["at_s"])
        text = f"first differs on {first['place']} at {at}: {first['in_a']}, in {comparison.b.name} {first['in_b']}"
    yield "Order", [text]
    if "bill" in whole:
        yield _listed("Bill", bill_changes(whole["bill"], comparison.a.summary["bill"].get("currency", "")))


def _changes(comparison: Comparison, whole: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """What takes longer or shorter: by cause, op and link, and what only one side has."""
    causes = [(cause_name(row["cause"]), row["change_s"]) for row in comparison.causes() if row["change_s"]]
    causes.sort(key=lambda cause: -abs(cause[1]))
    yield _listed("Causes", [f"{name} {_signed(change)}" for name, change in causes], "no change, mean per rank")
    ops = [f"{row['kind']}@{row['rank']} {_signed(row['change_s'])} in {row['rows']}" for row in whole["ops"]]
    yield _listed("Ops", ops, "all take as long as before")
    links = [f"{row['lane']} {_signed(row['change_s'])} in {row['rows']}" for row in whole["links"]]
    yield _listed("Links", links, "all messages occupy them as long as before")
    alone = {name: number for name, number in whole["unmatched"].items() if number}
    if alone:
        yield _listed("Unmatched", [f"{number} {name.replace('_', ' ')}" for name, number in alone.items()])


def _effects(comparison: Comparison, whole: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """What each difference does to the step alone, and what only several do together."""
    a, b = comparison.a, comparison.b
    if comparison.effects is None:
        why = "one side is a folder" if not (a.run and b.run) else "the runs have different ops"
        return _listed("Alone", [], f"not known: {why}, so nothing can be exchanged and simulated")
    each = [
        f"{row['name']} {_signed(row['in_a_s'])}"
        + (f" ({_signed(row['in_b_s'])} in {b.name})" if row["in_b_s"] != row["in_a_s"] else "")
        for row in whole["effects"]
    ]
    more = [f"{len(each) - MOST} more"] if len(each) > MOST else []
    rest = [f"interaction {_signed(comparison.interaction or 0.0)}"] if each else []
    text = " · ".join([*each[:MOST], *more, *rest])
    return "Alone", [text or "no duration, bandwidth or latency differs"]


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw the computation of both runs, one below the other, on one time axis.

    Example:
        >>> from hybrid_des import compare, draw_comparison
        >>> figure = draw_comparison(compare("scenarios/a100_8x.yaml", overrides={"schedule.kind": "zb-h1"}))
        >>> [ax.get_title(loc="left") for ax in figure.axes]
        ['a100_8x:  step 1.435 s', 'a100_8x:  step 1.194 s']
    """
    ranks = int(comparison.a.summary["ranks"])
    width, height = size_of(ranks)
    figure = new_figure((width, 2 * height))
    upper = figure.add_subplot(2, 1, 1)
    lower = figure.add_subplot(2, 1, 2, sharex=upper)
    longest = 0.0
    for ax, side in ((upper, comparison.a), (lower, comparison.b)):
        gantt(side.rows, ax)
        step = format_seconds(side.summary["step_time_s"])
        title(ax, side.name, f":  step {step}")
        longest = max(longest, ax.get_xlim()[1])
    upper.set_xlim(0, longest)
    return figure


def _listed(label: str, texts: Sequence[str], otherwise: str = "") -> tuple[str, Sequence[str]]:
    shown = list(texts[:MOST]) + ([f"{len(texts) - MOST} more"] if len(texts) > MOST else [])
    return label, [" · ".join(shown) or otherwise]


def _signed(seconds: float) -> str:
    if not seconds:
        return "0"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
