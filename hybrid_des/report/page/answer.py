"""What a page says before it draws anything, as HTML: parts that the pages of runs and of studies share.

    verdict     the step, and what it is lost to, in one sentence
    cards       what to change: setting, gain, memory, and flags to copy
    bar         what the mean GPU does in a step, in parts that sum to it
    interval    how sure the step is, and what that rests on
    tabs        what is only there for those who ask: figures, details, the text report

All text is escaped here; arguments named `*_html` are HTML already. `page.js` serves the buttons.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from hybrid_des.analysis.advice import Advice, AdviceLine
from hybrid_des.analysis.idle import HOST
from hybrid_des.analysis.inside_ops import AXES
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.step_breakdown import BUBBLE, COMPUTING, RECOMPUTING, SHARES, SLOWER
from hybrid_des.analysis.verdict import SHARE_NAMES, share_name
from hybrid_des.cluster.purposes import ACTIVATION, PARAMETERS, REDUCTION
from hybrid_des.report import palette
from hybrid_des.report.content import content_of
from hybrid_des.report.explained import DROP, signed
from hybrid_des.report.memory_text import of_memory
from hybrid_des.report.step_rows import COLOURS
from hybrid_des.units import format_seconds, format_share

SHOWN = 0.0005  # a share of the step that is named beside its bar

ROOM = 1.15  # the scale of an interval ends at so many times its upper end

CAUSE_OF = {  # what idle time of a share of the step is called in `palette`
    "pipeline": ACTIVATION.cause, "gradients": REDUCTION.cause, "parameters": PARAMETERS.cause,
    SLOWER: "slower_replica", HOST: HOST, **{axis: f"{axis}_collective" for axis in AXES},
}  # fmt: skip


class Card(NamedTuple):
    """One thing to change.

    Attributes:
        change: what changes, in words.
        gain: what that gives, such as "−42 %"; empty if there is nothing to compare with.
        likely: how sure the gain is.
        facts: the new step, memory, and what the change costs.
        copied: flags or settings to copy.
        dropped: flags to remove.
    """

    change: str
    gain: str
    likely: str
    facts: Sequence[str]
    copied: str
    dropped: Sequence[str] = ()


class Part(NamedTuple):
    """A part of a bar: its name, fraction of the whole, colour, hatch (see `palette.HATCHES`), and a note."""

    name: str
    fraction: float
    colour: str
    hatch: str = ""
    note: str = ""


def verdict(sentence: str, figure: str = "") -> str:
    """The first sentence of a page, after a figure in bold if there is one."""
    begin = f"<b>{html.escape(figure)}</b> " if figure else ""
    return f'<p class="verdict">{begin}<span>{html.escape(sentence)}</span></p>'


def section(title: str, body_html: str, note: str = "") -> str:
    """A part of a page under a title, with a note beside it; empty without a body."""
    said = f"<small>{html.escape(note)}</small>" if note else ""
    return f'<section class="part"><h2>{html.escape(title)} {said}</h2>{body_html}</section>' if body_html else ""


def cards(offers: Iterable[Card]) -> str:
    """What to change, side by side."""
    return f'<div class="offers">{"".join(map(_card, offers))}</div>'


def _card(card: Card) -> str:
    gain = f"<b>{html.escape(card.gain)}</b> " if card.gain else ""
    facts = "".join(f"<li>{html.escape(fact)}</li>" for fact in card.facts)
    dropped = "".join(f"<li>{DROP}<code>{html.escape(flag)}</code></li>" for flag in card.dropped)
    return (
        f'<article class="card"><h3>{html.escape(card.change)}</h3><p>{gain}{html.escape(card.likely)}</p>'
        f"<ul>{facts}{dropped}</ul>{copied(card.copied)}</article>"
    )


def copied(text: str) -> str:
    """Text in a box, and a button that copies it; empty without text."""
    button = '<button class="copy" type="button">copy</button>'
    words = " ".join(f"<span>{html.escape(word)}</span>" for word in text.split(" "))
    return f'<div class="flags"><code>{words}</code>{button}</div>' if text else ""


def bar(parts: Sequence[Part], whole_s: float) -> str:
    """A bar whose parts sum to a whole of so many seconds, and below it their names, shares and times."""
    drawn = "".join(
        f'<i style="width:{100 * one.fraction:.3f}%;background-color:{one.colour}" data-hatch="{one.hatch}" '
        f'title="{html.escape(_named(one, whole_s))}"></i>'
        for one in parts
    )
    return f'<div class="shares">{drawn}</div><ul class="names">{"".join(_names(parts, whole_s))}</ul>'


def _named(part: Part, whole_s: float) -> str:
    note = f" ({part.note})" if part.note else ""
    return f"{part.name}{note}: {format_share(part.fraction)}, {format_seconds(part.fraction * whole_s)}"


def _names(parts: Sequence[Part], whole_s: float) -> Iterable[str]:
    """The name of each part, those of one name together."""
    for name in dict.fromkeys(one.name for one in parts):
        mine = [one for one in parts if one.name == name]
        whole = sum(one.fraction for one in mine)
        if whole < SHOWN:
            continue
        finer = ", ".join(f"{one.note} {format_share(one.fraction)}" for one in mine if one.note)
        boxes = "".join(
            f'<i style="background-color:{one.colour}" data-hatch="{one.hatch}"></i>' for one in mine if one.fraction
        )
        note = f"<small>{format_seconds(whole * whole_s)}{f': {html.escape(finer)}' if finer else ''}</small>"
        yield f"<li>{boxes}<span>{html.escape(name)} <b>{format_share(whole)}</b> {note}</span></li>"


def interval(step_s: float, low_s: float, high_s: float) -> str:
    """A predicted time on a scale from 0, with the interval around it."""
    end = ROOM * high_s
    at, left, wide = (f"{100 * value / end:.2f}%" for value in (step_s, low_s, high_s - low_s))
    return f'<div class="interval"><i style="left:{left};width:{wide}"></i><b style="left:{at}"></b></div>'


def tabs(panels: Sequence[tuple[str, str]]) -> str:
    """Panels of HTML, of which one is seen at a time, by their titles; the first one is seen first."""
    heads, bodies = [], []
    for number, (title, body_html) in enumerate(panels):
        chosen = "false" if number else "true"
        heads.append(f'<button role="tab" type="button" aria-selected="{chosen}">{html.escape(title)}</button>')
        bodies.append(f'<div role="tabpanel"{" hidden" if number else ""}>{body_html}</div>')
    return f'<div class="tabs"><div role="tablist">{"".join(heads)}</div>{"".join(bodies)}</div>'


def wide(body_html: str) -> str:
    """HTML such as a table or a picture, which scrolls by itself where the screen is narrow."""
    return f'<div class="wide">{body_html}</div>'


def parts_of(findings: RunAnalysis) -> list[Part]:
    """The parts of the step of the mean GPU, which sum to it: computing, then what it is lost to, the largest first."""
    shares, traced = findings.breakdown.shares, findings.run.scenario.traced
    phases = [one for one in content_of(findings).shares if one.label.startswith(palette.BUBBLE)]
    parts = []
    losses = sorted(SHARES[2:], key=lambda name: -shares[name])
    for name in (*SHARES[:2], *losses):
        if name == BUBBLE and phases:
            for phase in phases:
                note = phase.label.removeprefix(palette.BUBBLE).removeprefix(": ")
                cause = f"{palette.BUBBLE}: {note}" if note else palette.BUBBLE
                parts.append(Part(share_name(name), phase.fraction, phase.colour, palette.hatch(cause), note))
        elif shares[name]:
            parts.append(Part(share_name(name, traced), float(shares[name]), *_look(name)))
    return parts


def _look(name: str) -> tuple[str, str]:
    """The colour and the hatch of a share of the step."""
    if name == COMPUTING:
        return palette.ACTIVITIES["F"].colour, ""
    if name == RECOMPUTING:
        return COLOURS[SHARE_NAMES[RECOMPUTING]], "x"
    cause = CAUSE_OF.get(name, name)
    colour = palette.CAUSES[cause].colour if name in AXES else palette.cause_colour(cause)
    return colour, palette.CAUSES[cause].hatch


def sure_of(facts: Mapping[str, Any]) -> str:
    """How sure a predicted step is, from its summary: the interval, and the measured runs that it rests on."""
    known, step = facts.get("experience"), facts["step_time_s"]
    if known is None:
        return "<p>The times of ops are those of the scenario: the step is as sure as they are.</p>"
    if not known["interval_s"]:
        return "<p>Nothing like this was measured: how far off the step may be is not known.</p>"
    low, high = known["interval_s"]
    places = "".join(f"<li>{html.escape(place)} <b>{number}</b></li>" for place, number in known["rests_on"].items())
    stacks = facts.get("step_time_by_stack_s", {})
    by_stack = ", ".join(f"{name} {format_seconds(took)}" for name, took in stacks.items())
    still_open = f"<p>The scenario leaves the software stack open (model.written): {by_stack}.</p>" if stacks else ""
    return (
        f"{interval(step, low, high)}<p>Predicted: <b>{format_seconds(step)}</b>. Nine of ten measured runs would take "
        f"<b>{format_seconds(float(f'{low:.2g}'))} to {format_seconds(float(f'{high:.2g}'))}</b>.</p>"
        f"<p>{_unmeasured(known)}{_met(known)}The interval rests on measured runs of:</p>"
        f'<ul class="places">{places}</ul>{still_open}'
    )


def _unmeasured(known: Mapping[str, Any]) -> str:
    few = [] if known["stack_measured"] else [f"Too few runs of {known['stack']}"]
    lacking = [*few, *(f"No runs of {more}" for more in known["beyond_measured"])]
    return "".join(f"{html.escape(runs)} were measured, which makes the interval wider. " for runs in lacking)


def _met(known: Mapping[str, Any]) -> str:
    """How well the nearest runs were met."""
    if not known["runs"]:
        return ""
    usual, most = (format_share(known[key] / 100) for key in ("median_error_percent", "p90_error_percent"))
    return f"The {known['runs']} most similar runs were predicted within {usual} (median) and {most} (nine of ten). "


def cards_of(advice: Advice) -> list[Card]:
    """The proposals of an advice."""
    return [_card_of(line, fits=advice.fits) for line in advice.lines]


def _card_of(line: AdviceLine, *, fits: bool) -> Card:
    copied = [flag for flag in line.flags if not flag.startswith(DROP)]
    if not line.flags:
        copied = [f"--set {quote(f'{key}={value}')}" for key, value in line.overrides.items()]
    return Card(
        line.change,
        signed(-line.gain) if fits else "",
        _likely(line) if fits else "",
        [f"{format_seconds(line.step_s)} per step", f"{of_memory(line.held, line.memory)} of memory", *line.remarks],
        " ".join(copied),
        [flag.removeprefix(DROP) for flag in line.flags if flag.startswith(DROP)],
    )


def _likely(line: AdviceLine) -> str:
    if line.sure is None:
        return ""
    low, high = line.sure.interval(-line.gain)
    certain = "" if high < 0 else ": not certain to help"
    return f"likely {signed(low).removesuffix(' %')} to {signed(high)}{certain}"
