"""What `explain --details` adds: critical path, what is nearly critical, what-ifs, ladder, ranking, idle time, ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import log10

from hybrid_des.analysis.counterfactual.attribution import Straggler, Stragglers
from hybrid_des.analysis.counterfactual.what_if import SimulatedChange
from hybrid_des.analysis.critical_path.rows import near_rows
from hybrid_des.analysis.explanation import TWICE, Explanation
from hybrid_des.analysis.holding_document import HoldingDocument
from hybrid_des.analysis.idle import OTHERS
from hybrid_des.analysis.step_breakdown import SLOWER
from hybrid_des.analysis.ties import Ties
from hybrid_des.report.content import count
from hybrid_des.report.palette import cause_name
from hybrid_des.report.step_rows import idle_parts
from hybrid_des.report.text import fitting
from hybrid_des.simulation.memory_remedies import fits
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds

NEAR = 6  # up to this many activities near the path are all shown


SLIGHT = 0.005  # a share of the step that is not worth a line


COSTLY = 0.03  # a share of the step from which the network has a line of its own


LEAST = 0.0001  # the smallest share that is given in figures


MISFIT = "does not fit into memory"  # a change of a step that does


RUNGS = {"all ranks at the mean": "even ranks", "split backward (zb-h1)": "zb-h1"}  # short names


def detail_blocks(explanation: Explanation, room: int) -> Iterator[tuple[str, Sequence[str]]]:
    """Lines of at most `room` characters by their labels."""
    yield "Path", [_parts(explanation, room), _stops(explanation, room)]
    if near := _near(explanation):
        yield "Nearly", [near]
    if explanation.document is not None:
        yield "Document", [_document(explanation, explanation.document)]
    if explanation.what_if:
        yield "What if", _what_ifs(explanation, room)
    if network := _network(explanation):
        yield "Network", [network]
    if slow := _slow(explanation):
        yield "Slow", slow
    yield "Ladder", [_ladder(explanation)]
    if ranked := _ranked(explanation, room):
        yield "Ranking", [ranked]
    yield "Idle", _idle(explanation, room)
    if explanation.ties is not None:
        yield "Ties", [ties_text(explanation.ties, explanation.run.scenario.steps)]
    if explanation.ties_not_tried:
        yield "Ties", [f"not tried: {explanation.ties_not_tried}"]


def rounded_count(number: int) -> str:
    """A count in digits; from a billion on by its first digit and power of ten, also where no float reaches."""
    if number < 10**9:
        return f"{number:,}"
    power = int(log10(number))
    return f"{number // 10**power}e+{power}"


def _parts(explanation: Explanation, room: int) -> str:
    """The parts of the critical path, in words."""
    parts, inside = explanation.on_path, explanation.inside_on_path
    busy = Counter[int]()
    for piece in explanation.path:
        if piece.compute:
            busy[explanation.names.rank(piece.activity)] += piece.compute
    most = sorted(busy.items(), key=lambda entry: (-entry[1], entry[0]))
    words = {"transfer": "on links", "queueing": "in queues", OTHERS: "behind other jobs", "latency": "latency"}
    texts = [f"{_time(explanation, parts[part])} {word}" for part, word in words.items() if parts.get(part)]
    number = explanation.paths
    many = "very many" if number is None else rounded_count(number)
    tail = "".join(f"   {text}" for text in [*texts, "one path" if number == 1 else f"{many} paths"])
    if not busy:
        return f"no compute{tail}"
    named = [f"collectives {_time(explanation, inside)}"] if inside else []
    named += [f"rank {rank} {_time(explanation, time)}" for rank, time in most]
    head = f"{_time(explanation, parts['compute'])} {'in ops' if inside else 'compute'}"
    line = fitting(f"{head} (", named, room - len(tail) - 1) + f"){tail}"
    return line if len(line) <= room else f"{head}{tail}"


def _stops(explanation: Explanation, room: int) -> str:
    """The activities along the path, of a long one its ends; consecutive messages of one collective are one stop."""
    names = [explanation.names(piece.activity) for piece in explanation.path if piece.end > piece.start]
    stops = []
    for name, same in groupby(names, key=lambda text: text.split(" ")[0] if ">" in text else text):
        number = len(list(same))
        stops.append(name if number == 1 else f"{name} ×{number}")
    for left_out in range(len(stops)):
        half = (len(stops) - left_out + 1) // 2
        shown = [*stops[:half], f"… {left_out} more …", *stops[half + left_out :]] if left_out else stops
        if len(text := " > ".join(shown)) <= room or len(shown) <= 3:
            return text
    return ""


def _near(explanation: Explanation) -> str:
    """The activities closest to the critical path."""
    rows = near_rows(explanation.slack, explanation.names, explanation.top)
    texts = []
    for away, group in groupby(rows, key=lambda row: row["total_float_s"]):
        names = list(dict.fromkeys(row["activity"] for row in group))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        share = away * 1e12 / explanation.duration if explanation.duration else 0
        texts.append(f"{shown} {'is' if len(names) == 1 else 'are'} {format_seconds(away)} ({_percent(share)}) from it")
    return "; ".join(texts[: 2 if len(rows) <= NEAR else 1])


def _document(explanation: Explanation, held: HoldingDocument) -> str:
    """The document that held the step, in words, and what other packings would give."""
    step = f" of step {held.step}" if explanation.run.scenario.steps > 1 else ""
    context = "" if held.context is None else f", context rank {held.context}"
    others = f" and {held.documents - 1} shorter" if held.documents > 1 else ""
    took = f"{format_seconds(held.time / PICOSECONDS_PER_SECOND)}, {held.over_mean:.2f}× the mean micro-batch"
    gains = [_proposed(one) for one in explanation.proposals if one.against == "documents"]
    packed = f"; {' · '.join(gains)}" if gains else ""
    where = f"micro-batch {held.microbatch}{step} of replica {held.replica}{context}"
    return f"{held.tokens:,} tokens{others} in {where}: {took}{packed}"


def _what_ifs(explanation: Explanation, room: int) -> list[str]:
    asked = [one for one in explanation.what_if if _worth(explanation, one)]
    width = max(24, *(len(one.change) for one in asked)) + 2
    lines = [f"{'':<{width}}{'first order':>12}{'simulated':>12}"]
    for tried in asked:
        first = "–" if tried.first_order is None else _change(tried.first_order, explanation.duration)
        steps = explanation.run.scenario.steps
        simulated = _change(tried.duration * steps, explanation.duration * tried.steps)
        note = note_of(explanation, tried)
        line = f"{tried.change:<{width}}{first:>12}{simulated:>12}"
        beside = len(line) + 3 + len(note) <= room
        lines += [f"{line}   {note}"] if note and beside else [line, *([f"{note:>{len(line)}}"] if note else [])]
    return lines


def _worth(explanation: Explanation, tried: SimulatedChange) -> bool:
    """Whether the result of a usual what-if is worth a line; those of the user always are."""
    steps = explanation.run.scenario.steps
    usual = tried.steps != steps or tried.change == TWICE
    return (
        not usual
        or abs(tried.duration * steps - explanation.duration * tried.steps)
        > SLIGHT * explanation.duration * tried.steps
    )


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
    return "another path turns critical" if simulated > first else "the order changes"


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
    stated = [group for group in explanation.slow.groups if group.stated]
    rest = [
        group for group in stated if not (first.startswith(f"{group.name} ") and group is explanation.slow.groups[0])
    ]
    return [*([first] if first else []), *(_stated_cost(explanation, group) for group in rest)]


def _stated_cost(explanation: Explanation, group: Straggler) -> str:
    """What an entry of `slow` costs, however little, or those together that were not simulated each without."""
    cost = explanation.duration - group.least
    costs = "is slow and costs" if group.together == 1 else "are slow and together cost"
    if cost <= 0:
        longer = f": {_time(explanation, -cost)} longer without" if cost else ""
        return f"{group.name} {costs} nothing{longer}"
    share = _percent(cost / explanation.duration)
    return f"{group.name} {costs} {_time(explanation, cost)}, {share} of the step"


def _costliest(explanation: Explanation, slow: Stragglers) -> str:
    """The cost of the costliest node, rank or link; empty if it is slight."""
    group, least = slow.groups[0], explanation.duration * (1 - SLIGHT)
    uneven = slow.ideal < least
    if not uneven and group.least >= least:
        return ""
    even = f"all even {_change(slow.ideal, explanation.duration)}"
    waits = float(explanation.breakdown.shares[SLOWER])
    waiting = f"; waiting for slower GPUs {_percent(waits)}" if waits > SLIGHT else ""
    if group.least >= least:
        return f"no single node or rank costs much: {even}{waiting}"
    is_slow, verb = ("is slow", "computes") if group.together == 1 else ("are slow", "compute")
    computes = is_slow if group.slow is None else f"{verb} {group.slow:.2f}× the mean"
    mended = "at the mean" if group.usual is None else "like the others"
    more = f", {even}" if uneven else ""
    return f"{group.name} {computes}: {mended} {_change(group.least, explanation.duration)}{more}{waiting}"


def _ladder(explanation: Explanation) -> str:
    """The step on each rung that shortens it, and the last one."""
    before, texts = explanation.duration, []
    for rung in explanation.rungs:
        if before - rung.duration > SLIGHT / 5 * explanation.duration or rung is explanation.rungs[-1]:
            texts.append(f"{RUNGS.get(rung.name, rung.name)} {_time(explanation, rung.duration)}")
            before = rung.duration
    return " · ".join(texts)


def _ranked(explanation: Explanation, room: int) -> str:
    helping = [gain for gain in explanation.gains[: explanation.top] if gain.duration < explanation.duration]
    named = [f"{one.part.name} {one.change} {_change(one.duration, explanation.duration)}" for one in helping]
    return fitting("", named, room, " · ") if named else ""


def ties_text(ties: Ties, steps: int) -> str:
    """How far a step depends on ties, in words."""
    whole = ties.to_mapping(steps)
    least, most = format_seconds(whole["least_s"]), format_seconds(whole["most_s"])
    orders = count(whole["orders"], "other order")
    return f"step {least} … {most} in {orders} of simultaneous arrivals at links"


def _idle(explanation: Explanation, room: int) -> list[str]:
    """Idle time: the mean by cause, and of the rank that idles the most by what happened meanwhile."""
    parts = idle_parts(explanation.run, explanation.breakdown)
    whole, step = explanation.breakdown.whole, explanation.seconds(explanation.duration)
    named = sorted(((name, part) for name, part in parts.items() if part), key=lambda entry: -entry[1])
    if not named:
        return ["none"]
    mean = format_seconds(float(sum(parts.values()) / whole) * step)
    large = [(name, part) for name, part in named if part > SLIGHT * whole] or named
    means = [f"{cause_name(name)} {format_seconds(float(part / whole) * step)}" for name, part in large]
    worst = int(explanation.idle_time.of_ranks.argmax())
    during = [f"{what} {_time(explanation, time)}" for what, time in explanation.during(worst).items()]
    return [
        fitting(f"mean {mean}: ", means, room),
        fitting(f"rank {worst}  {_time(explanation, int(explanation.idle_time.of_ranks[worst]))}: ", during, room),
    ]


def _proposed(tried: SimulatedChange) -> str:
    per = " per micro-batch" if "microbatches=" in tried.change else ""
    likely = f", {tried.sure.likely(-tried.gain)}" if tried.sure is not None else ""
    return f"{tried.change} ({_gain(tried.gain)}{per}{likely})"


def _gain(share: float) -> str:
    return f"{-share * 100:+.1f} %"


def _time(explanation: Explanation, picoseconds: int) -> str:
    return format_seconds(explanation.seconds(picoseconds))


def _change(after: int, before: int) -> str:
    share = after / before - 1 if before else 0.0
    return f"{share * 100:+.1f} %".replace("-", "−") if abs(share) >= 0.0005 else "0 %"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %" if abs(share) >= LEAST or not share else f"less than {LEAST:.2%}".replace("%", " %")
