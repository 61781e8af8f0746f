"""The text of a comparison, and its picture: both runs on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.compare import Comparison
from hybrid_des.analysis.verdict import SHARE_NAMES
from hybrid_des.errors import LONGEST_SHOWN, one_line
from hybrid_des.report.billed import bill_changes
from hybrid_des.report.content import ALARM, CANNOT_RUN
from hybrid_des.report.plots.gantt import gantt, size_of
from hybrid_des.report.plots.style import new_figure, title
from hybrid_des.report.text import labelled
from hybrid_des.scenario.export import flow_text
from hybrid_des.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from hybrid_des.report.explained_details import ties_text

SIDE_LABEL = 10


MOST = 6  # rows per list


SLIGHT = 0.002  # of the change of the step; a smaller part is not named


ROUNDING = 1e-9  # of a time: a smaller change of a mean is none


OTHER_OPS = "the ranks have other ops, so these are compared by what they do"


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
    change = f"{signed(comparison.change)} ({comparison.regression * 100:+.1f} %)"
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
    if changed := changed_settings(whole["settings"]):
        yield _listed("Changed", changed)
    yield _listed("Time", time_changes(comparison), "each GPU does the same for as long as before")
    yield from _changes(comparison, whole)
    yield _effects(comparison, whole)
    if whole["bounds_s"] is not None:
        low, high = whole["bounds_s"]
        yield _listed("Bounds", [f"{signed(low)} … {signed(high)} if the order stays the same"])
    sides = zip((comparison.a, comparison.b), comparison.ties, strict=True)
    texts = [f"{side.name}: {ties_text(ties, comparison.a.steps)}" for side, ties in sides if ties]
    if texts:
        yield "Ties", ["; ".join(texts)]
    if comparison.same_ops:
        yield "Order", [_order(comparison, whole["first_difference"])]
    if "bill" in whole:
        yield _listed("Bill", bill_changes(whole["bill"], comparison.a.summary["bill"].get("currency", "")))


def _order(comparison: Comparison, first: Mapping[str, Any] | None) -> str:
    """Where one side first does something else."""
    if first is None:
        return "the same everywhere"
    at = format_seconds(first["at_s"])
    return f"first differs on {first['place']} at {at}: {first['in_a']}, in {comparison.b.name} {first['in_b']}"


def changed_settings(settings: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """The settings that differ, each with its values: "schedule.kind 1f1b → zb-h1"."""
    return [f"{row['key']} {_given(row['a'])} → {_given(row['b'])}" for row in settings or ()]


def _given(value: Any) -> str:
    return "(not given)" if value is None else one_line(flow_text(value), LONGEST_SHOWN)


def time_changes(comparison: Comparison) -> list[str]:
    """What the change of the step consists of, the largest part first; all parts sum to it."""
    rows = [row for row in comparison.times() if abs(row["change_s"]) > abs(comparison.change) * SLIGHT]
    rows.sort(key=lambda row: -abs(row["change_s"]))
    return [f"{SHARE_NAMES[row['time']]} {signed(row['change_s'])}" for row in rows]


def _changes(comparison: Comparison, whole: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """What ops and links take longer or shorter: one by one, or by what they do if ranks have other ops."""
    if not comparison.same_ops:
        rows = [row for row in whole["classes"] if abs(row["change_s"]) > max(row["a_s"], row["b_s"]) * ROUNDING]
        texts = [f"{row['class']} {signed(row['change_s'])}" for row in rows]
        yield "Ops", [f"{OTHER_OPS}: {' · '.join(texts) or 'no change'}, mean per GPU"]
        return
    ops = [f"{row['kind']}@{row['rank']} {signed(row['change_s'])} in {row['rows']}" for row in whole["ops"]]
    yield _listed("Ops", ops, "all take as long as before")
    links = [f"{row['lane']} {signed(row['change_s'])} in {row['rows']}" for row in whole["links"]]
    yield _listed("Links", links, "all messages occupy them as long as before")
    alone = {name: number for name, number in whole["unmatched"].items() if number}
    if alone:
        yield _listed("Others", [f"{number} {name.replace('_', ' ')}" for name, number in alone.items()])


def _effects(comparison: Comparison, whole: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """What each difference does to the step by itself, and what only several do together."""
    a, b = comparison.a, comparison.b
    if comparison.effects is None:
        why = "one side is a folder" if not (a.run and b.run) else "the runs have different ops"
        return _listed("Effects", [], f"not known: {why}, so no difference can be simulated by itself")
    each = [
        f"{row['name']} {signed(row['in_a_s'])}"
        + (f" ({signed(row['in_b_s'])} in {b.name})" if row["in_b_s"] != row["in_a_s"] else "")
        for row in whole["effects"]
    ]
    more = [f"{len(each) - MOST} more"] if len(each) > MOST else []
    rest = [f"interaction {signed(comparison.interaction or 0.0)}"] if each else []
    text = " · ".join([*each[:MOST], *more, *rest])
    return "Effects", [text or "no duration, bandwidth or latency differs"]


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


def signed(seconds: float) -> str:
    """A change in seconds with its sign."""
    if not seconds:
        return "0"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
