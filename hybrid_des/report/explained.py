"""The text of an explanation: verdict, path, what is nearly critical, what-ifs, ladder, ranking, idle time, next."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from hybrid_des.analysis.critical_path.gaps import REPLICA
from hybrid_des.analysis.critical_path.tables import near_rows
from hybrid_des.analysis.explanation import Explanation
from hybrid_des.report.content import count
from hybrid_des.units import format_seconds

LABEL = 10
NO_BREAK = "\N{NO-BREAK SPACE}"
MOST_STOPS = 12  # of the path in one line
NEAR = 6  # activities near the path, of which all are told
SLIGHT = 0.005  # a share of the step that is not worth a line
SLOW = 0.03  # a share of the step that slow ranks cost, from which they are the verdict


def render_explanation(found: Explanation, width: int = 100) -> str:
    """The explanation as text of about fifteen lines."""
    scenario, step = found.run.scenario, found.seconds(found.duration)
    parallel, schedule = scenario.parallel, scenario.schedule
    sizes = [count(parallel.ranks, "rank"), count(schedule.microbatches, "micro-batch")]
    steps = f", {count(scenario.steps, 'step')}" if scenario.steps > 1 else ""
    title = f"{scenario.name}: {schedule.kind or schedule.file}, {', '.join(sizes)}{steps}"
    total = f"step {format_seconds(step)}"
    lines = [f"{title:<{max(width - len(total) - 1, 0)}} {total}"]
    for label, texts in _blocks(found):
        for number, text in enumerate(texts):
            for more, line in enumerate(_folded(text, width - LABEL)):
                lines.append(f"{label if not number and not more else '':<{LABEL}}{line}".rstrip())
    return "\n".join(lines)


def _folded(text: str, room: int) -> list[str]:
    if len(text) <= room:
        return [text]
    kept = re.sub(r"(?<=[\d)]) (?=%|[µmn]?s\b)", NO_BREAK, text)  # a number stays with its unit
    lines = textwrap.wrap(kept, room, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _blocks(found: Explanation) -> Iterator[tuple[str, Sequence[str]]]:
    yield "Verdict", [verdict(found)]
    yield "Path", [_parts(found), _stops(found)]
    if near := _near(found):
        yield "Nearly", [near]
    if found.what_if:
        yield "What if", _what_ifs(found)
    if network := _network(found):
        yield "Network", [network]
    if slow := _slow(found):
        yield "Slow", [slow]
    yield "Ladder", [_ladder(found)]
    if ranked := _ranked(found):
        yield "Ranking", [ranked]
    yield "Idle", _idle(found)
    yield "Next", [advice(found)]


def verdict(found: Explanation) -> str:
    """What bounds the step, in one sentence."""
    shares = found.shares
    split = (
        f"ranks compute {shares['compute']:.0%} of the step, wait for each other {shares['other ranks']:.0%}, "
        f"for bytes {shares['bytes']:.0%}"
    ).replace("%", " %")
    culprit = culprit_of(found)
    if culprit:
        name, slow, saved = culprit
        return f"held up by {name}, which computes {slow:.2f}× the mean ({saved:.0%} of the step): {split}".replace(
            "% of the step)", " % of the step)"
        )
    if shares["compute"] >= 0.9:
        return f"compute-bound: {split}"
    return f"{'network' if shares['bytes'] > shares['other ranks'] else 'bubble'}-bound: {split}"


def culprit_of(found: Explanation) -> tuple[str, float, float] | None:
    """The slow ranks that hold up the step: their name, time over the mean, and what they alone cost of the step."""
    if found.slow is None or not found.slow.groups or not found.duration:
        return None
    name, slow, alone = found.slow.groups[0]
    cost = 1 - alone / found.duration
    even = 1 - found.slow.ideal / found.duration
    return (name, slow, cost) if even >= SLOW and cost >= even / 2 and slow > 1 else None


def _parts(found: Explanation) -> str:
    """What the critical path consists of."""
    parts = found.on_path
    busy: dict[int, int] = {}
    for piece in found.path:
        if piece.compute:
            rank = found.names.rank(piece.activity)
            busy[rank] = busy.get(rank, 0) + piece.compute
    most = sorted(busy.items(), key=lambda one: (-one[1], one[0]))
    named = ", ".join(f"rank {rank} {_time(found, time)}" for rank, time in most[:3])
    more = f", {len(most) - 3} others" if len(most) > 3 else ""
    texts = [f"{_time(found, parts['compute'])} compute ({named}{more})" if busy else "no compute"]
    words = {"transfer": "on links", "queueing": "behind other messages", "latency": "latency"}
    texts += [f"{_time(found, parts[part])} {word}" for part, word in words.items() if parts[part]]
    number = found.paths
    many = "very many critical paths" if number is None else f"{number:,} critical paths" if number < 10**9 else (
        f"{float(number):.0e} critical paths"
    )  # fmt: skip
    return "   ".join([*texts, "one critical path" if number == 1 else many])


def _stops(found: Explanation) -> str:
    """The activities along the path; messages of one collective in a row are one stop."""
    names = [found.names(piece.activity) for piece in found.path if piece.end > piece.start]
    stops = []
    for name, same in groupby(names, key=lambda one: one.split(" ")[0] if ">" in one else one):
        number = len(list(same))
        stops.append(name if number == 1 else f"{name} ×{number}")
    if len(stops) > MOST_STOPS:
        half = MOST_STOPS // 2
        stops = [*stops[:half], f"… {len(stops) - 2 * half} more …", *stops[-half:]]
    return " > ".join(stops)


def _near(found: Explanation) -> str:
    """What is off the critical path by the least."""
    rows = near_rows(found.slack, found.names, found.top)
    texts = []
    for away, group in groupby(rows, key=lambda row: row["total_float_s"]):
        names = list(dict.fromkeys(row["activity"] for row in group))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        share = away * 1e12 / found.duration if found.duration else 0
        texts.append(f"{shown} {'is' if len(names) == 1 else 'are'} {format_seconds(away)} ({_percent(share)}) from it")
    return "; ".join(texts[: 2 if len(rows) <= NEAR else 1])


def _what_ifs(found: Explanation) -> list[str]:
    width = max(24, *(len(one.change) for one in found.what_if)) + 2
    lines = [f"{'':<{width}}{'first order':>14}{'simulated':>14}"]
    for one in found.what_if:
        first = "–" if one.first_order is None else _change(one.first_order, found.duration)
        steps = found.run.scenario.steps
        simulated = _change(one.duration * steps, found.duration * one.steps)
        note = _note(found, one.first_order, one.duration * steps // one.steps)
        lines.append(f"{one.change:<{width}}{first:>14}{simulated:>14}{note}".rstrip())
    return lines


def _note(found: Explanation, first: int | None, simulated: int) -> str:
    """What it means that both numbers differ."""
    if first is None or abs(first - simulated) <= SLIGHT * found.duration:
        return ""
    if (first <= found.duration) != (simulated <= found.duration):
        return "   the order on links changes"
    return "   another path becomes critical" if simulated > first else "   the order changes"


def _network(found: Explanation) -> str:
    """What the network costs, in words."""
    if not found.duration or found.network <= SLIGHT * found.duration:
        return ""
    queue = found.duration - found.rung("no queueing")
    waits = found.shares["bytes"] * found.duration
    parts = f"costs {_time(found, found.network)}, {_percent(found.network / found.duration)} of the step"
    queued = f"; queueing alone {_time(found, queue)}" if queue > SLIGHT * found.duration else ""
    return f"{parts} (a free one would save that){queued}. Ranks wait for bytes for {_time(found, round(waits))} of it"


def _slow(found: Explanation) -> str:
    """What slow ranks cost."""
    if found.slow is None or not found.duration or found.slow.ideal >= found.duration * (1 - SLIGHT):
        return ""
    name, slow, alone = found.slow.groups[0]
    even = f"all ranks at the mean {_time(found, found.slow.ideal)} ({_change(found.slow.ideal, found.duration)})"
    waits = found.reasons[REPLICA] / max(found.whole, 1)
    waiting = f"; waiting for a slower replica is {_percent(waits)} of the step" if waits > SLIGHT else ""
    return f"{name} computes {slow:.2f}× the mean; at the mean {_change(alone, found.duration)}; {even}{waiting}"


def _ladder(found: Explanation) -> str:
    return " · ".join(f"{rung.name} {_time(found, rung.duration)}" for rung in found.rungs)


def _ranked(found: Explanation) -> str:
    return " · ".join(
        f"{gain.name} {gain.change} {_change(gain.duration, found.duration)}"
        for gain in found.gains[: min(found.top, 4)]
        if gain.duration < found.duration
    )


def _idle(found: Explanation) -> list[str]:
    """Idle time: of all ranks by reason, and of the rank that idles the most by what went on."""
    ranks = found.run.timeline.layout.ranks
    reasons = {name: time for name, time in found.reasons.items() if time}
    if not reasons:
        return ["none"]
    large = {name: time for name, time in reasons.items() if time > SLIGHT * found.whole} or reasons
    named = ", ".join(f"{name} {_time(found, round(time / ranks))}" for name, time in large.items())
    totals: dict[int, int] = {}
    for one in found.idle:
        totals[one.rank] = totals.get(one.rank, 0) + one.end - one.start
    worst = min(totals, key=lambda rank: (-totals[rank], rank))
    during = list(found.during(worst).items())
    parts = ", ".join(f"{what} {_time(found, time)}" for what, time in during[:4])
    more = f", {len(during) - 4} others" if len(during) > 4 else ""
    return [f"mean {_time(found, round(sum(reasons.values()) / ranks))}: {named}",
            f"rank {worst}  {_time(found, totals[worst])}: {parts}{more}"]  # fmt: skip


def advice(found: Explanation) -> str:
    """What to try next: the largest of what the simulations show."""
    whole = max(found.duration, 1)
    culprit = culprit_of(found)
    names = [rung.name for rung in found.rungs]
    saved = {b: (found.rungs[i].duration - found.rungs[i + 1].duration) / whole for i, b in enumerate(names[1:])}
    split = next((name for name in names if name.startswith("split")), "")
    if culprit:
        return f"give {culprit[0]} less work or find out why it is slow, before anything else"
    network, bubble = found.network / whole, saved.get(split, 0.0)
    steps = found.run.scenario.steps
    hidden = max(
        (1 - one.duration * steps / (whole * one.steps) for one in found.what_if if one.steps != steps), default=0
    )
    if hidden > max(network, bubble, SLOW):
        return "the barrier between steps hides what this schedule gains: several steps without one (barrier: false)"
    if network > max(bubble, SLOW):
        if saved.get("no queueing", 0.0) > network / 2:
            return "less queueing first: another layout or order, smaller buckets, more NICs; then faster links"
        return "faster links or fewer bytes (a smaller codec, overlap, replicas within nodes), before the schedule"
    if bubble > SLOW:
        return "a schedule with less warm-up (zb-h1) before faster links"
    if found.shares["compute"] < 0.9:
        return "more micro-batches per step, or fewer pipeline ranks: the rest is the pipeline's own bubble"
    return "quicker ops: " + (found.gains[0].name if found.gains else "the step is all computation")


def _time(found: Explanation, picoseconds: int) -> str:
    return format_seconds(found.seconds(picoseconds))


def _change(after: int, before: int) -> str:
    share = after / before - 1 if before else 0.0
    return f"{share * 100:+.1f} %" if abs(share) >= 0.0005 else "0 %"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
