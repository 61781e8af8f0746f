"""The page of a loop: the verdict, what would help with flags to copy, both sides' time, a timeline, histograms."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

from hybrid_des.report.explained import signed
from hybrid_des.report.page.answer import Card, cards, verdict
from hybrid_des.report.page.study_page import (
    Cell,
    Part,
    Span,
    chart,
    chart_of,
    folded_text,
    legend,
    shares_bar,
    sorted_table,
    spans_bars,
    spans_strip,
    strip,
    strip_lanes,
    study_page,
    swatches,
)
from hybrid_des.report.plots.style import LINES
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.rl.figures import LoopFigures, Spread
from hybrid_des.studies.rl.report import ENGINE_WORDS, LEAST, engine_parts, trainer_parts, verdict_of, without_equals
from hybrid_des.studies.rl.timeline import (
    COLOURS,
    QUEUED,
    RUNNING,
    SYNC,
    WIDE,
    Lane,
    lanes_of,
    length_histograms,
    replicas_drawn,
    shown_states,
    trainer_spans,
)
from hybrid_des.studies.rl.whatifs import BOUNDS, SHORT, WhatIf
from hybrid_des.units import format_change, format_seconds, format_share

ENGINE_COLOURS = {
    "decode": RUNNING, "prefill": "#56B4E9", "allowance": "#E69F00", "drained": "#D55E00", "waiting": "#F0E442",
    "sync": SYNC, "switching": "#7F6A3F", "away": "#888888",
}  # fmt: skip
MOST_CARDS = 6
NARROWEST = 0.001  # of the time: a shorter sync is drawn this wide


def loop_page(scenario: Scenario, figures: LoopFigures, tried: Sequence[WhatIf], report: str) -> str:
    """The page, in one file."""
    short = [what_if for what_if in tried if what_if.change.kind in SHORT[figures.rl.colocated]]
    edges, shares = length_histograms(figures)
    helping = (one for one in without_equals(tried) if one.change.kind not in BOUNDS and one.gain > LEAST)
    offers = [_card(figures, what_if) for what_if in helping]
    body = [
        f"<p>{html.escape(scenario.description)}</p>" if scenario.description else "",
        verdict(verdict_of(figures, short)),
        cards(offers[:MOST_CARDS]),
        *_sides(figures), _timeline(figures), *_histograms(figures, bool(shares)), _what_ifs(tried),
        folded_text(report),
    ]  # fmt: skip
    return study_page(scenario.name, "".join(body), {"lengths": _lengths(edges, shares)} if shares else {})


def _card(figures: LoopFigures, what_if: WhatIf) -> Card:
    further = [] if what_if.change.flags else [what_if.change.remark]
    if f"{what_if.age:.2f}" != f"{figures.ages.mean:.2f}":
        further.append(f"mean age {what_if.age:.2f} instead of {figures.ages.mean:.2f}")
    facts = [
        f"{format_seconds(what_if.cycle)} per cycle", f"the trainer waits {format_seconds(what_if.wait)} of it",
        f"engines idle {format_share(what_if.idle)} of the time",
        *further,
    ]  # fmt: skip
    copied = " ".join(f"--set {quote(flag)}" for flag in what_if.change.flags)
    return Card(what_if.change.words, signed(-what_if.gain), "simulated with the same draws", facts, copied)


def _sides(figures: LoopFigures) -> Iterator[str]:
    """A bar for each side, whose parts sum to its time."""
    yield f"<h2>What the trainer does, of a cycle of {format_seconds(figures.cycle)}</h2>"
    yield shares_bar([*_parts(figures, trainer_parts(figures), 1, COLOURS)])
    yield "<h2>What the mean GPU of the engines does</h2>"
    yield shares_bar([*_parts(figures, engine_parts(figures), figures.rollout_gpus, ENGINE_COLOURS)])
    lent = sum(figures.record.gpus_of_replicas[figures.own_replicas.stop :])
    if lent:
        yield "<h2>What lent GPUs do</h2>"
        parts = {state: (ENGINE_WORDS[state], time) for state, time in figures.lent.items()}
        yield shares_bar([*_parts(figures, parts, lent, ENGINE_COLOURS)])


def _parts(
    figures: LoopFigures, parts: Mapping[str, tuple[str, int]], gpus: int, colours: Mapping[str, str]
) -> Iterator[Part]:
    whole = figures.time * gpus
    for state, (words, time) in parts.items():
        if time:
            seconds = format_seconds(figures.per_cycle(time, gpus))
            yield Part(words, time / whole, colours[state], f"{format_share(time / whole)}, {seconds}")


def _timeline(figures: LoopFigures) -> str:
    """Running sequences per replica, queue, trainer and syncs on one axis."""
    rows = [(lane.name, _lane(lane)) for lane in lanes_of(figures)]
    trainer = [Span(begin, length, COLOURS[state]) for begin, length, state in trainer_spans(figures)]
    whole = figures.record.end
    syncs = [
        Span(sync.begin / whole, max((sync.end - sync.begin) / whole, NARROWEST), SYNC) for sync in figures.record.syncs
    ]
    rows += [("trainer", spans_strip(trainer)), ("weight syncs", spans_strip(syncs))]
    shown = {"running sequences": RUNNING, "groups in the queue": QUEUED, **shown_states(figures)}
    seconds = format_seconds(whole / 10**12)
    warm = f", the first {format_seconds(figures.begin / 10**12)} of them warm-up" if figures.begin else ""
    head = f"<h2>{seconds} on one axis{replicas_drawn(figures)}{warm}</h2>"
    return f"{head}{swatches(shown)}{strip_lanes(rows, '0', seconds)}"


def _lane(lane: Lane) -> str:
    shares = [min(float(value), lane.most) / lane.most for value in lane.values]
    return strip([(QUEUED if lane.queue else RUNNING, [0.0] * len(shares), shares)])


def _histograms(figures: LoopFigures, lengths: bool) -> Iterator[str]:
    yield '<div class="multiples">'
    yield f"<div><h3>Age of trained samples, in weight syncs</h3>{_bars(figures.ages, '#D55E00')}</div>"
    yield f"<div><h3>Versions of the weights within a response</h3>{_bars(figures.spans, SYNC)}</div>"
    if lengths:
        yield f"<div><h3>Lengths of responses</h3>{legend('lengths')}{chart('lengths')}</div>"
    yield "</div>"


def _bars(spread: Spread, colour: str) -> str:
    whole, most = sum(spread.counts.values()) or 1, max(spread.counts.values(), default=1)
    return spans_bars([
        (str(number), [Span(0.0, count / most, colour)], format_share(count / whole))
        for number, count in spread.counts.items()
    ])  # fmt: skip


def _lengths(edges: Any, shares: Mapping[str, Any]) -> dict[str, Any]:
    middles = (edges[:-1] + edges[1:]) / 2
    series = []
    for number, (name, values) in enumerate(shares.items()):
        points = [
            [float(at), float(share), f"{name}: {format_share(float(share))} of {low:,.0f} to {high:,.0f} tokens"]
            for at, share, low, high in zip(middles, values, edges[:-1], edges[1:], strict=True)
        ]
        look = {"colour": LINES[number], "mark": number, "line": True, "size": 2.5}
        series.append({"name": name, **look, "points": points})
    x: dict[str, Any] = {"label": "tokens of a response", "kind": "number"}
    if edges[-1] > WIDE * edges[0]:
        powers = (10**power * factor for power in range(7) for factor in (1, 3))
        x |= {"log": True, "texts": [[at, f"{at:,}"] for at in powers if edges[0] <= at <= edges[-1]]}
    return chart_of(x, {"label": "share of the responses", "kind": "share", "zero": True}, series)


def _what_ifs(tried: Sequence[WhatIf]) -> str:
    if not tried:
        return ""
    heads = ["change", "cycle", "gain", "trainer waits", "engines idle", "mean age", "settings"]
    rows = [_row(what_if) for what_if in tried]
    return f"<h2>What if</h2>{sorted_table(heads, rows)}"


def _row(tried: WhatIf) -> list[Cell | str]:
    return [
        tried.change.words,
        Cell(format_seconds(tried.cycle), tried.cycle),
        Cell(format_change(-tried.gain), -tried.gain),
        Cell(format_seconds(tried.wait), tried.wait),
        Cell(format_share(tried.idle), tried.idle),
        Cell(f"{tried.age:.2f}", tried.age),
        " ".join(tried.change.flags) or tried.change.remark,
    ]
