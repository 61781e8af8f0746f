"""What `explain --details` adds: critical path, what-ifs, idealized steps, sensitivity, idle time, arrival order.

Names of the tables, which `--json` has, are those of programs (`F0@4`, "all bytes free"); here they are in words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import log10

from hybrid_des.analysis.counterfactual.attribution import Straggler, Stragglers
from hybrid_des.analysis.counterfactual.what_if import SimulatedChange
from hybrid_des.analysis.critical_path.rows import near_rows
from hybrid_des.analysis.explanation import FREE, TWICE, Explanation
from hybrid_des.analysis.holding_document import HoldingDocument
from hybrid_des.analysis.idle import OTHERS
from hybrid_des.analysis.step_breakdown import SLOWER
from hybrid_des.analysis.ties import Ties
from hybrid_des.analysis.verdict import named, times
from hybrid_des.report.content import count
from hybrid_des.report.palette import cause_name
from hybrid_des.report.step_rows import idle_parts
from hybrid_des.report.text import fitting
from hybrid_des.simulation.memory_remedies import fits
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_change, format_seconds, format_share

FEW = 4  # parts of a sentence


NEAR = 6  # up to this many activities near the path are all shown


SLIGHT = 0.005  # a share of the step that is not worth a line


COSTLY = 0.03  # a share of the step from which the network has a line of its own


LEAST = 0.0001  # the smallest share that is given in figures


LINK_NAMES = {"nvlink": "NVLink", "nic": "NICs", "pcie": "PCIe"}


MISFIT = "does not fit into memory"  # a change of a step that does


DETAIL_LABEL = 15  # characters of a label


RUNGS = {  # of `ladder`, in words
    "all ranks at the mean": "equal work on all ranks", "split backward (zb-h1)": "ZB-H1 schedule",
    "work / ranks": "no idle time",
}  # fmt: skip


ACTIVITIES = {"F": "forward", "B": "backward", "W": "weight gradients", "a": "activations", "g": "gradients"}


ACTIVITY = re.compile(r"([FBWag])(\d+)(?:\.(\d+))?")  # kind, micro-batch, chunk


CHANGES = {FREE: "communication takes no time"}  # usual what-ifs, in words


MEANWHILE = {"link": "messages on links", "queue": "messages in queues", "collective": "collectives"}


def detail_blocks(explanation: Explanation, room: int) -> Iterator[tuple[str, Sequence[str]]]:
    """Lines of at most `room` characters by their labels."""
    yield "Critical path", [_parts(explanation), _stops(explanation, room)]
    if near := _near(explanation):
        yield "Near-critical", [near]
    if explanation.document is not None:
        yield "Long document", [_document(explanation, explanation.document)]
    if explanation.what_if:
        yield "What if", _what_ifs(explanation, room)
    if network := _network(explanation):
        yield "Network", [network]
    if slow := _slow(explanation):
        yield "Slow parts", slow
    yield "Idealized", [_ladder(explanation)]
    if ranked := _ranked(explanation, room):
        yield "Sensitivity", [ranked]
    yield "Idle time", _idle(explanation)
    if explanation.ties is not None:
        yield "Arrival order", [ties_text(explanation.ties, explanation.run.scenario.steps)]
    if explanation.ties_not_tried:
        yield "Arrival order", [f"not tried: {explanation.ties_not_tried}"]


def rounded_count(number: int) -> str:
    """A count in digits; from a billion on by its first digit and power of ten, also where no float reaches."""
    if number < 10**9:
        return f"{number:,}"
    power = int(log10(number))
    return f"{number // 10**power}e+{power}"


def _parts(explanation: Explanation) -> str:
    """The parts of the critical path, in words."""
    parts, inside = explanation.on_path, explanation.inside_on_path
    busy = Counter[int]()
    for piece in explanation.path:
        if piece.compute:
            busy[explanation.names.rank(piece.activity)] += piece.compute
    most = sorted(busy.items(), key=lambda entry: (-entry[1], entry[0]))
    words = {"transfer": "on links", "queueing": "in queues", OTHERS: "behind other jobs", "latency": "of latency"}
    texts = [f"{_time(explanation, parts[part])} {word}" for part, word in words.items() if parts.get(part)]
    number = explanation.paths
    many = "very many" if number is None else rounded_count(number)
    tail = "".join(f", {text}" for text in texts) + ("." if number == 1 else f"; {many} paths are equally long.")
    if not busy:
        return f"no computing{tail}"
    spent = [f"collectives {_time(explanation, inside)}"] if inside else []
    spent += [f"rank {rank} {_time(explanation, time)}" for rank, time in most]
    return f"{_time(explanation, parts['compute'])} {'in ops' if inside else 'computing'} ({_first(spent)}){tail}"


def _first(parts: Sequence[str]) -> str:
    """The first parts, and how many there are besides."""
    left = len(parts) - FEW
    return ", ".join([*parts[:FEW], f"{left} more"] if left > 1 else parts)


def _stops(explanation: Explanation, room: int) -> str:
    """The activities along the path, of a long one its ends; consecutive messages of one collective are one stop."""
    names = [explanation.names(piece.activity) for piece in explanation.path if piece.end > piece.start]
    stops = []
    for name, same in groupby(names, key=lambda text: text.rpartition(" ")[0] if ">" in text else text):
        number = len(list(same))
        stops.append(f"{in_words(name)}{f' (×{number})' if number > 1 else ''}")
    for left_out in range(len(stops)):
        half = (len(stops) - left_out + 1) // 2
        shown = [*stops[:half], f"… {left_out} more …", *stops[half + left_out :]] if left_out else stops
        if len(text := " → ".join(shown)) <= room or len(shown) <= 3:
            return text
    return ""


def in_words(name: str) -> str:
    """An activity, such as `B1@0` or `ring 0>4`, in words: "backward 1 on rank 0", "ring from rank 0 to 4"."""
    step, _, short = name.rpartition(": ")
    what, _, rank = short.partition("@")
    if match := ACTIVITY.fullmatch(what):
        kind, microbatch, chunk = match.groups()
        what = f"{ACTIVITIES[kind]} {microbatch}{f' of chunk {chunk}' if chunk else ''}"
    what = re.sub(r" (\d+)>(\d+)$", r" from rank \1 to \2", what)
    return f"{f'{step}: ' if step else ''}{what}{f' on rank {rank}' if rank else ''}"


def _near(explanation: Explanation) -> str:
    """The activities closest to the critical path."""
    rows = near_rows(explanation.slack, explanation.names, explanation.top)
    texts = []
    for away, group in groupby(rows, key=lambda row: row["total_float_s"]):
        names = list(dict.fromkeys(in_words(row["activity"]) for row in group))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        share = away * 1e12 / explanation.duration if explanation.duration else 0
        longer = f"{format_seconds(away)} ({_percent(share)})"
        texts.append(f"{shown} could take {longer} longer without delaying the step")
    return "; ".join(texts[: 2 if len(rows) <= NEAR else 1])


def _document(explanation: Explanation, held: HoldingDocument) -> str:
    """The document that held the step, in words, and what other packings would give."""
    step = f" of step {held.step}" if explanation.run.scenario.steps > 1 else ""
    context = "" if held.context is None else f", context rank {held.context}"
    others = f" and {held.documents - 1} shorter" if held.documents > 1 else ""
    took = f"{format_seconds(held.time / PICOSECONDS_PER_SECOND)}, {held.over_mean:.2f}× the mean micro-batch"
    gains = [_proposed(one) for one in explanation.proposals if one.against == "documents"]
    packed = f"; {', '.join(gains)}" if gains else ""
    where = f"micro-batch {held.microbatch}{step} of replica {held.replica}{context}"
    return f"{held.tokens:,} tokens{others} in {where}: {took}{packed}"


def _what_ifs(explanation: Explanation, room: int) -> list[str]:
    asked = [one for one in explanation.what_if if _worth(explanation, one)]
    names = [CHANGES.get(one.change, faster(one.change)) for one in asked]
    width = max(24, *map(len, names)) + 2
    lines = [f"{'':<{width}}{'first order':>12}{'simulated':>12}"]
    for name, tried in zip(names, asked, strict=True):
        first = "–" if tried.first_order is None else _change(tried.first_order, explanation.duration)
        steps = explanation.run.scenario.steps
        simulated = _change(tried.duration * steps, explanation.duration * tried.steps)
        note = note_of(explanation, tried)
        line = f"{name:<{width}}{first:>12}{simulated:>12}"
        beside = len(line) + 3 + len(note) <= room
        lines += [f"{line}   {note}"] if note and beside else [line, *([f"{note:>{len(line)}}"] if note else [])]
    return lines


def faster(change: str) -> str:
    """A usual change in words: "pipeline rank 3 25 % faster"."""
    return re.sub(r" quicker$", " faster", change)


def _worth(explanation: Explanation, tried: SimulatedChange) -> bool:
    """Whether the result of a usual what-if is worth a line; those of the user always are."""
    steps = explanation.run.scenario.steps
    if tried.steps == steps and tried.change != TWICE:
        return True
    before = explanation.duration * tried.steps
    return abs(tried.duration * steps - before) > SLIGHT * before


def note_of(explanation: Explanation, tried: SimulatedChange) -> str:
    """An explanation if both numbers differ, or if a step has a different number of micro-batches."""
    simulated = tried.duration * explanation.run.scenario.steps // tried.steps
    if not tried.fits and fits(explanation.run):
        return MISFIT
    before = explanation.run.scenario.schedule.microbatches
    if tried.microbatches != before:
        return f"{_change(simulated * before, explanation.duration * tried.microbatches)} per micro-batch"
    first = tried.first_order
    if first is None or abs(first - simulated) <= SLIGHT * explanation.duration:
        return ""
    if (first <= explanation.duration) != (simulated <= explanation.duration):
        return "the order on links changes"
    return "another path turns critical" if simulated > first else "the order of ops or messages changes"


def _network(explanation: Explanation) -> str:
    """The cost of the network, in words."""
    if not explanation.duration or explanation.network <= COSTLY * explanation.duration:
        return ""
    queue = explanation.duration - explanation.rung("no queueing")
    share = _percent(explanation.network / explanation.duration)
    parts = f"costs {_time(explanation, explanation.network)}, {share} of the step"
    queued = f" (queueing {_time(explanation, queue)})" if queue > SLIGHT * explanation.duration else ""
    return f"{parts}{queued}"


def _slow(explanation: Explanation) -> list[str]:
    """The cost of what is slow: in words of the costliest, and a line for everything else that `slow` names."""
    if explanation.slow is None or not explanation.slow.groups:
        return []
    first = _costliest(explanation, explanation.slow)
    costliest, *others = explanation.slow.groups
    told = first.startswith(f"{named(costliest.name)} ")
    rest = [group for group in ([] if told else [costliest]) + others if group.stated]
    return [*([first] if first else []), *(_stated_cost(explanation, group) for group in rest)]


def _stated_cost(explanation: Explanation, group: Straggler) -> str:
    """What an entry of `slow` costs, however little, or those together that were not simulated each without."""
    cost = explanation.duration - group.least
    costs = "is slow and costs" if group.together == 1 else "are slow and together cost"
    if cost <= 0:
        longer = f": {_time(explanation, -cost)} longer without" if cost else ""
        return f"{named(group.name)} {costs} nothing{longer}"
    share = _percent(cost / explanation.duration)
    return f"{named(group.name)} {costs} {_time(explanation, cost)}, {share} of the step"


def _costliest(explanation: Explanation, slow: Stragglers) -> str:
    """The cost of the costliest node, rank or link; empty if it is slight."""
    group, least = slow.groups[0], explanation.duration * (1 - SLIGHT)
    uneven = slow.ideal < least
    if not uneven and group.least >= least:
        return ""
    even = f"with equal work on all ranks {_change(slow.ideal, explanation.duration)}"
    waits = float(explanation.breakdown.shares[SLOWER])
    waiting = f"; waiting for slower GPUs takes {_percent(waits)} of the step" if waits > SLIGHT else ""
    if group.least >= least:
        return f"no single node or rank costs much: {even}{waiting}"
    is_slow, verb = ("is slow", "computes") if group.together == 1 else ("are slow", "compute")
    computes = is_slow if group.slow is None else f"{verb} for {times(group.slow)} as long as the average rank"
    repaired = "with average work" if group.usual is None else "like the others"
    more = f", {even}" if uneven else ""
    return f"{named(group.name)} {computes}: {repaired} {_change(group.least, explanation.duration)}{more}{waiting}"


def _ladder(explanation: Explanation) -> str:
    """The step on each rung that shortens it, and the last one."""
    before, texts = explanation.duration, []
    for rung in explanation.rungs:
        if before - rung.duration > SLIGHT / 5 * explanation.duration or rung is explanation.rungs[-1]:
            texts.append(f"{RUNGS.get(rung.name, rung.name)} {_time(explanation, rung.duration)}")
            before = rung.duration
    return f"with {', then '.join(texts)}"


def _ranked(explanation: Explanation, room: int) -> str:
    helping = [gain for gain in explanation.gains[: explanation.top] if gain.duration < explanation.duration]
    names = {**LINK_NAMES, **ACTIVITIES}
    changes = [
        f"{names.get(one.part.name, one.part.name)} {faster(one.change)} {_change(one.duration, explanation.duration)}"
        for one in helping
    ]
    return fitting("", changes, room) if changes else ""


def ties_text(ties: Ties, steps: int) -> str:
    """How far a step depends on ties, in words."""
    whole = ties.to_mapping(steps)
    least, most = format_seconds(whole["least_s"]), format_seconds(whole["most_s"])
    orders = count(whole["orders"], "other order")
    return f"step {least} to {most} in {orders} of messages that reach a link at the same time"


def _idle(explanation: Explanation) -> list[str]:
    """Idle time: the mean by cause, and of the rank that idles the most by what happened meanwhile."""
    parts = idle_parts(explanation.run, explanation.breakdown)
    whole, step = explanation.breakdown.whole, explanation.seconds(explanation.duration)
    timed = sorted(((name, part) for name, part in parts.items() if part), key=lambda entry: -entry[1])
    if not timed:
        return ["none"]
    mean = format_seconds(float(sum(parts.values()) / whole) * step)
    large = [(name, part) for name, part in timed if part > SLIGHT * whole] or timed
    means = [f"{cause_name(name)} {format_seconds(float(part / whole) * step)}" for name, part in large]
    worst = int(explanation.idle_time.of_ranks.argmax())
    during = [
        f"{MEANWHILE.get(what, what)} {_time(explanation, time)}" for what, time in explanation.during(worst).items()
    ]
    longest = _time(explanation, int(explanation.idle_time.of_ranks[worst]))
    return [
        f"average rank {mean}: {_first(means)}",
        f"rank {worst}, which idles the most, {longest}; meanwhile {_first(during)}",
    ]


def _proposed(tried: SimulatedChange) -> str:
    per = " per micro-batch" if "microbatches=" in tried.change else ""
    likely = f", {tried.sure.likely(-tried.gain)}".replace("-", "−") if tried.sure is not None else ""
    return f"{tried.change} ({format_change(-tried.gain)}{per}{likely})"


def _time(explanation: Explanation, picoseconds: int) -> str:
    return format_seconds(explanation.seconds(picoseconds))


def _change(after: int, before: int) -> str:
    return format_change(after / before - 1 if before else 0.0)


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %" if abs(share) >= LEAST or not share else f"less than {format_share(LEAST, 2)}"
