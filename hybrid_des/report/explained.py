"""The text of `explain`: the step, where its time goes, what it is mainly lost to, and what would help.

    Step        what it takes, how sure that is, throughput and memory
    Time        what the mean GPU does in a step, in shares that sum to it
    Main loss   the largest of them that is not useful computing, and why
    Repair      what a slow node or link that delays the step would give if it were like the others
    Change      settings that make it shorter or, as "To fit", make it fit into memory, with the flags of the framework
    Hardware    what faster links would give, if no setting gives half as much

`opening` needs the run alone, so that it can be printed at once; `rest` comes when it is known. At most fifteen lines
together on eighty columns or more; what has no room is left to `--details`, `explained_details`: flags before changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import product
from shlex import quote
from typing import Any, NamedTuple

from hybrid_des.analysis.advice import Advice, AdviceLine
from hybrid_des.analysis.experience import experience, range_text
from hybrid_des.analysis.explanation import Explanation
from hybrid_des.analysis.losses import Losses
from hybrid_des.analysis.memory_use import memory_use
from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.analysis.verdict import listing, named, shares_text
from hybrid_des.pipeline.schedules import title_of
from hybrid_des.report.content import ALARM, count, recomputed
from hybrid_des.report.explained_details import DETAIL_LABEL, LINK_NAMES, detail_blocks, note_of
from hybrid_des.report.memory_text import gigabytes, of_memory, tensors_text
from hybrid_des.report.text import NARROWEST, folded, labelled
from hybrid_des.scenario.definition import Scenario
from hybrid_des.simulation.outcome import Run, fullest
from hybrid_des.units import format_number, format_seconds, format_share

LABEL = 11  # characters of a label


MOST_LINES = 15  # of the text, on `LIMITED` columns or more


LEAST_LINES = 4  # that changes have, whatever stands above and below them


USUAL = 100  # columns


LIMITED = 80  # columns


LEAST = 0.02  # a share of the step that a gain must be to be shown


DROP = "drop "  # begins a flag that is to go


FLAG = re.compile(r"^|(;? drop|[;,]?) (?=--)")  # what comes before a flag


HALF = 2  # hardware is shown if it gives so many times what the best setting gives


KEPT = "one or two settings, simulated; model, batch and machine stay the same"


GROUPS = {"TP": "tensor", "CP": "context", "PP": "pipeline", "DP": "data"}  # of GPUs, by their short names


def render_explanation(
    explanation: Explanation | Losses, width: int = USUAL, *, advice: Advice | None = None, details: bool = False
) -> str:
    """The explanation as text of at most fifteen lines.

    Args:
        explanation: what `explain` found, or `losses`.
        width: columns to wrap at; on fewer than 80, there are more lines.
        advice: what `advise` found; by default, that which the explanation has, if any.
        details: whether critical path, idle time and what-ifs follow; only of what `explain` found.

    Example:
        >>> from hybrid_des import explain, render_explanation
        >>> print(render_explanation(explain("scenarios/prototype_4gpu.yaml"), width=80).splitlines()[0])
        prototype_4gpu: 4 A100-80GB GPUs, PP2 DP2 (pipeline and data parallel), 1F1B
    """
    begin = opening(explanation.run, width)
    return "\n".join([begin, rest(explanation, width, advice=advice, details=details, above=begin.count("\n") + 1)])


def opening(run: Run, width: int = USUAL) -> str:
    """The text as far as the run alone tells: what it is, its step and what that is spent on."""
    return "\n".join([*folded(_title(run), width), *_alarm(run, width), *_labelled(_opening_blocks(run), width)])


def _labelled(blocks: Iterable[tuple[str, Sequence[str]]], width: int) -> list[str]:
    return labelled(blocks, width, LABEL, hang=0)


def rest(
    explanation: Explanation | Losses,
    width: int = USUAL,
    *,
    advice: Advice | None = None,
    details: bool = False,
    above: int = 0,
) -> str:
    """The text below `opening`; arguments as those of `render_explanation`, `above` are lines before it."""
    lost = explanation.losses if isinstance(explanation, Explanation) else explanation
    advice = advice or (explanation.advice if isinstance(explanation, Explanation) else None)
    asked = _what_ifs(explanation, width) if isinstance(explanation, Explanation) and not details else []
    loss = _labelled([("Main loss", [lost.verdict])] if fullest(lost.run).fits else [], width)
    faster = _faster_links(lost, advice)
    tail = [*asked, *_labelled([("Hardware", faster)] if faster else [], width)]
    room = max(MOST_LINES - above - len(loss) - len(tail), LEAST_LINES) if width >= LIMITED and not details else None
    lines = [*loss, *_changes(lost, advice, width, room), *tail]
    if details and isinstance(explanation, Explanation):
        lines += ["", *detail_lines(explanation, width)]
    return "\n".join(lines)


def detail_lines(explanation: Explanation, width: int) -> list[str]:
    """What `--details` adds."""
    return labelled(detail_blocks(explanation, max(width - DETAIL_LABEL, NARROWEST)), width, DETAIL_LABEL)


def in_brief(lost: Losses) -> dict[str, list[str]]:
    """What a page shows of a run before there is advice, as texts by the labels of the text."""
    fits = fullest(lost.run).fits
    said = {
        "Memory": [] if fits else [tensors_text(memory_use(lost.run))],
        "Time": [shares_text(lost.breakdown.shares, lost.run.scenario.traced)],
        "Main loss": [lost.verdict] if fits else [],
        "Repair": _repaired(lost),
    }
    return {label: texts for label, texts in said.items() if texts}


class OfferedLine(NamedTuple):
    """A line of advice that a page offers.

    Attributes:
        change: what changes, in words.
        outcome: the step, its gain, memory and what the change costs.
        flags: of the framework, that change; empty without one.
        changes: the keys with their values, as `--set` takes them.
    """

    change: str
    outcome: str
    flags: str
    changes: dict[str, str]


def offered(lost: Losses, advice: Advice) -> dict[str, Any]:
    """What a page offers to change: a label, lines, why there are none, and what faster links would give."""
    lines = [
        OfferedLine(
            line.change, ", ".join([*_outcome(line, fits=advice.fits), *line.remarks]), _flags(line), line.overrides
        )
        for line in advice.lines
    ]
    hardware = _faster_links(lost, advice)
    return {
        "label": _label(advice.fits),
        "lines": [line._asdict() for line in lines],
        **({} if lines else {"none": _nothing(advice)}),
        **({"hardware": hardware[0]} if hardware else {}),
    }


def _title(run: Run) -> str:
    scenario = run.scenario
    steps = f", {count(scenario.steps, 'step')}" if scenario.steps > 1 else ""
    return f"{scenario.name}: {', '.join(_plan(scenario))}{steps}"


def _plan(scenario: Scenario) -> Iterator[str]:
    """The plan in a few words: "128 H100 GPUs", "PP8 DP2 (pipeline and data parallel)", "1F1B schedule"."""
    parallel, schedule = scenario.parallel, scenario.schedule
    kinds = dict.fromkeys(kind.gpu.name for kind in scenario.cluster.kinds)
    named = "/".join(name.upper() for name in kinds if name != "custom")
    yield count(parallel.ranks, f"{named} GPU".lstrip())
    sizes = {short: size for short, axis in GROUPS.items() if (size := getattr(parallel, axis)) > 1}
    if sizes:
        shown = " ".join(f"{short}{size}" for short, size in sizes.items())
        yield f"{shown} ({listing([GROUPS[short] for short in sizes])} parallel)"
    if parallel.expert > 1:
        yield f"EP{parallel.expert} (experts spread over {parallel.expert} GPUs)"
    if parallel.pipeline > 1:
        given = "as traced" if schedule.file is None else str(schedule.file)
        chunks = f" with {schedule.chunks} chunks" if schedule.chunks > 1 else ""
        yield f"{title_of(schedule.kind)} schedule{chunks}" if schedule.kind else f"schedule {given}{chunks}"
    if scenario.sharding in ("zero-2", "zero-3"):
        yield f"ZeRO-{scenario.sharding[-1]}"
    if scenario.recompute != "none":
        yield f"{recomputed(scenario)} recomputation"


def _alarm(run: Run, width: int) -> list[str]:
    """What to say first of a run that exceeds the memory of its GPUs."""
    peak = fullest(run)
    if peak.fits:
        return []
    needs = f"{ALARM}: the fullest GPU needs {of_memory(peak.held, peak.gpu.memory)}"
    return folded(f"{needs}, {gigabytes(peak.excess)} too much", width)


def _opening_blocks(run: Run) -> Iterator[tuple[str, Sequence[str]]]:
    findings = RunAnalysis(run)
    if not fullest(run).fits:
        yield "Memory", [tensors_text(memory_use(run))]
    yield "Step", [_step(run, findings)]
    yield "Time", [shares_text(findings.breakdown.shares, run.scenario.traced)]


def _step(run: Run, findings: RunAnalysis) -> str:
    """The step, how sure it is, throughput, utilisation and memory, as a sentence."""
    facts, peak = findings.summary, fullest(run)
    step = facts["step_time_s"]
    known = experience(run.scenario)
    interval = known.interval(step) if known is not None and peak.fits else None
    takes = "takes" if peak.fits else "would take"
    told = [range_text(*interval), known.unmeasured] if known is not None and interval else []
    sure = f" (90 % prediction interval: {'; '.join(filter(None, told))})" if told else ""
    enough = "" if peak.fits else " with enough memory"
    also = [_throughput(run.scenario, facts)]
    if "mfu" in facts:
        also.append(f"MFU {format_share(facts['mfu'], 0)}")
    if peak.fits and _knows_memory(run.scenario):
        also.append(f"memory {of_memory(peak.held, peak.gpu.memory)} on the fullest GPU")
    return f"A step {takes} {format_seconds(step)}{sure}{enough}: {', '.join(also)}."


def _knows_memory(scenario: Scenario) -> bool:
    """Whether what a GPU holds is known: of a model, or if the file states what activations hold."""
    return scenario.workload is None or "activation" in scenario.workload.memory.model_fields_set


def _throughput(scenario: Scenario, facts: Mapping[str, Any]) -> str:
    """What a GPU processes per second or, where no model says what that is, micro-batches of all."""
    if scenario.model is None:
        return f"{format_number(facts['microbatches_per_s'])} micro-batches/s"
    noun = scenario.model.network.sample
    what, key = ("tokens", "tokens_per_gpu_s") if noun == "sequence" else (f"{noun}s", "samples_per_gpu_s")
    rate = facts[key]
    return f"{rate:,.0f} {what}/s per GPU" if rate >= 100 else f"{rate:.3g} {what}/s per GPU"


def _what_ifs(explanation: Explanation, width: int) -> list[str]:
    """What a user's own changes give, one each line, as they were written."""
    steps, lines = explanation.run.scenario.steps, []
    for tried in explanation.what_if:
        if tried.asked:
            note = note_of(explanation, tried)
            change = signed(-explanation.losses.gain(tried.duration * steps / tried.steps))
            lines.append(f"{tried.change}: {change}{f' ({note})' if note else ''}")
    return labelled([("What if", lines)] if lines else [], width, LABEL)


def _changes(lost: Losses, advice: Advice | None, width: int, room: int | None) -> list[str]:
    """What would help: what is slow repaired, then settings, in so many lines of text at most.

    As many changes as have room, each with as much of its flags as there is then room for.
    """
    fits = fullest(lost.run).fits
    repaired = _repaired(lost)
    heads = _labelled([("Repair", repaired)] if repaired else [], width)
    if advice is None:
        return heads
    lines = [*heads, *_labelled([(_label(fits), [_nothing(advice)])], width)]
    for number, flags in product(range(len(advice.lines), 0, -1), Flags):
        said = _heading(advice, number, flags)
        lines = [*heads, *_labelled([(_label(fits), [said])], width)]
        lines += _advised(advice.lines[:number], width, flags, fits=fits)
        if room is None or len(lines) <= room:
            return lines
    return lines if room is None or len(lines) <= room else [*lines[: room - 1], "    … (all of it with --details)"]


class Flags(Enum):
    """How much is shown of the flags or keys of changes; less needs fewer lines."""

    WHOLE = "whole"
    CUT = "cut"
    OF_FIRST = "of the first change, cut"
    NONE = "none"


def _heading(advice: Advice, shown: int, flags: Flags) -> str:
    """What holds for all proposals, of which so many are shown, and what `--details` has beside them."""
    left = [f"{len(advice.lines) - shown} more"] if shown < len(advice.lines) else []
    left += ["flags"] if flags is Flags.NONE else ["all flags"] if flags is not Flags.WHOLE else []
    framed = flags is not Flags.NONE and any(line.flags for line in advice.lines)
    parts = ["Same model, batch and machine"]
    parts += [f"flags for {advice.framework}{' (assumed)' if advice.assumed else ''}"] if framed else []
    parts += [f"{' and '.join(left)} with --details"] if left else []
    return f"{'; '.join(parts)}."


def _label(fits: bool) -> str:
    return "Change" if fits else "To fit"


def _repaired(lost: Losses) -> list[str]:
    """What the slow node or link that delays the step would give if it were like the others, as a sentence."""
    culprit = lost.culprit
    if culprit is None or culprit.usual is None or not fullest(lost.run).fits:
        return []
    step = f"{format_seconds(lost.seconds(culprit.usual))} ({signed(-lost.gain(culprit.usual))})"
    return [f"If {named(culprit.name)} were as fast as the others, the step would take {step}."]


def _nothing(advice: Advice) -> str:
    """Why no setting is proposed."""
    if advice.fits:
        return f"None of the settings that were tried makes the step {format_share(LEAST, 0)} shorter."
    nearest = advice.nearest
    if nearest is None:
        return "None of the settings that were tried needs less memory."
    lacks = gigabytes(nearest.held - nearest.memory)
    return f"None of the settings that were tried fits; the nearest is {nearest.change}, which lacks {lacks}."


def _advised(lines: Sequence[AdviceLine], width: int, flags: Flags, *, fits: bool) -> list[str]:
    """Proposals: what changes, the step, its gain and memory; below, the flags or keys that change.

    What a change costs otherwise stands beside it where there is room, or once below all of them.
    """
    below: dict[str, list[str]] = {}  # remarks, and the numbers of the changes that have them
    first: dict[str, int] = {}  # flags, and the number of the change that has them first
    texts = []
    for number, line in enumerate(lines, 1):
        told = f" {number}  {line.change}: {', '.join(_outcome(line, fits=fits))}"
        plain, whole = (folded(", ".join([told, *more]), width, 4) for more in ((), line.remarks))
        texts += plain if len(whole) > len(plain) else whole
        if len(whole) > len(plain):
            below.setdefault(", ".join(line.remarks), []).append(str(number))
        if flags in (Flags.WHOLE, Flags.CUT) or (flags is Flags.OF_FIRST and number == 1):
            keys = _keys(line)
            same = first.setdefault(keys, number)
            texts += _key_lines(keys if same == number else f"(flags as in {same})", width, flags)
    remarks = "; ".join(f"change{'s' if len(of) > 1 else ''} {listing(of)}: {told}" for told, of in below.items())
    return [*texts, *(f"    {text}" for text in folded(f"({remarks})", width - 4, 1) if below)]


def _key_lines(keys: str, width: int, flags: Flags) -> list[str]:
    """Flags or keys below a change; if they are cut, those that one line has room for."""
    room = max(width - 4, NARROWEST)
    if flags is not Flags.WHOLE and len(keys) > room:
        *_, end = (found.start() for found in FLAG.finditer(keys, 0, room - 1))
        keys = f"{keys[:end]} …"
    return [f"    {text}" for text in folded(keys, room, 0, cut=False)]


def _outcome(line: AdviceLine, *, fits: bool) -> Iterator[str]:
    """The step with a change, its gain if the step as it is fits, and the memory that it needs."""
    yield f"{format_seconds(line.step_s)}{f' ({signed(-line.gain)}{_likely(line)})' if fits else ''}"
    if not fits:
        yield of_memory(line.held, line.memory)
    elif _knows_memory(line.scenario):
        yield gigabytes(line.held)


def _keys(line: AdviceLine) -> str:
    """The flags that change: those to write, then those to drop; without a framework, the keys of the file."""
    return _flags(line) or " ".join(f"--set {quote(f'{key}={value}')}" for key, value in line.overrides.items())


def _flags(line: AdviceLine) -> str:
    """The flags that change: those to write, then those to drop; empty without a framework."""
    written = " ".join(flag for flag in line.flags if not flag.startswith(DROP))
    return "; ".join(filter(None, [written, *(flag for flag in line.flags if flag.startswith(DROP))]))


def _likely(line: AdviceLine) -> str:
    """How sure a gain is; empty if that is not known."""
    if line.sure is None:
        return ""
    low, high = line.sure.interval(-line.gain)
    return f", likely {signed(low).removesuffix(' %')} to {signed(high)}"


def _faster_links(lost: Losses, advice: Advice | None) -> list[str]:
    """What the links that help most would give twice as fast, if no setting gives half as much."""
    name, most = _helpful_links(lost, advice)
    links = LINK_NAMES.get(name, f"{name} links")
    return [f"{links[0].upper()}{links[1:]} twice as fast would change the step by {signed(-most)}."] if name else []


def _helpful_links(lost: Losses, advice: Advice | None) -> tuple[str, float]:
    """The kind of links that help most twice as fast, and their gain; none if a setting gives half as much."""
    gains = [(lost.gain(one.duration), one.part.name) for one in lost.links]
    most, name = max(gains, default=(0.0, ""))
    best = max((line.gain for line in advice.lines), default=0.0) if advice else 0.0
    broken = lost.culprit is not None and lost.culprit.slow is None  # a slow link is mended first
    if broken or most < LEAST or best * HALF > most or not fullest(lost.run).fits:
        return "", 0.0
    return name, most


def next_change(lost: Losses, advice: Advice) -> str:
    """What to change in one line, the key `next` of `explain --json`: what "Repair", "Change" and "Hardware" say."""
    if not advice.fits:
        lines = [f"{_set(line)} ({exact(-line.gain)})" for line in advice.lines]
        return f"to fit into memory: {'; or '.join(lines)}" if lines else _nothing(advice)
    lines = [f"{_set(line)} ({', '.join(filter(None, [exact(-line.gain), line.likely]))})" for line in advice.lines]
    links, saved = _helpful_links(lost, advice)
    bought = [f"to buy: {links} links twice as fast ({exact(-saved)})"] if links else []
    culprit = lost.culprit
    repaired = []
    if culprit is not None and culprit.usual is not None:
        repaired = [f"{culprit.name} as quick as the others ({exact(-lost.gain(culprit.usual))})"]
    settings = "; or ".join([*lines, *bought])
    return "; then ".join(filter(None, [*repaired, settings])) or _nothing(advice)


def _set(line: AdviceLine) -> str:
    """The settings of a line as `--set` takes them."""
    return ",".join(f"{key}={value}" for key, value in line.overrides.items())


def exact(share: float) -> str:
    """A change of a step with one decimal place: "-23.5 %"."""
    return f"{share * 100:+.1f} %"


def signed(share: float) -> str:
    """A change of a step in whole percent: "−37 %"; of less than one, with a digit more."""
    digits = 0 if abs(share) >= 0.01 else 1
    text = f"{share * 100:+.{digits}f}".replace("-", "−")
    return "0 %" if not float(text.replace("−", "-")) else f"{text} %"
