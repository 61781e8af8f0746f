"""Simulated idealisations: cumulative, down to the shortest possible step, and of each class by itself.

The curves of a class show how the step shrinks as it gets quicker (causal profiling, Coz, SOSP 2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from hybrid_des import collectives
from hybrid_des.analysis.counterfactual.attribution import SLOW, Straggler, Stragglers, at_the_mean_of, work_of_ranks
from hybrid_des.analysis.counterfactual.what_if import (
    Build,
    Part,
    Tried,
    Variant,
    kinds_in,
    links_in,
    part_at,
    variant_of,
)
from hybrid_des.analysis.critical_path.graph import lags_with
from hybrid_des.analysis.critical_path.messages import Messages, service_alone
from hybrid_des.analysis.critical_path.slack import Slack, change_of
from hybrid_des.errors import HybridDesError
from hybrid_des.models.stages import RULES
from hybrid_des.network.fabric import Fabric
from hybrid_des.pipeline.plan import Action
from hybrid_des.planning.program import Call, Program, Send
from hybrid_des.scenario import LABELS, Scenario
from hybrid_des.scenario.sections.cluster import WITHOUT_PRIORITIES
from hybrid_des.scenario.sections.perturbations import Slow
from hybrid_des.simulation.memory import worst_peak
from hybrid_des.simulation.run import Run
from hybrid_des.timeline import Column

QUICKER = Fraction(9, 10)  # factor of a duration that is "10 % quicker"
FASTER = Fraction(2)  # factor of a bandwidth that is "twice as fast"
EVENTS = 2_000_000  # approximate total over all simulations of a ranking
FEWEST, MOST = 3, 24  # simulations per sort of class in a ranking
SPLIT = "zb-h1"  # the schedule with a split backward that holds no more activations than 1F1B
UNSPLIT = ("1f1b", "gpipe", "eager-1f1b")
SAVED = (Fraction(1, 2), Fraction(1, 4), Fraction(3, 4), Fraction(1, 8))  # shares of a class's time, by priority
EACH = 2  # curves of each sort
EVENTS_OF_CURVES = 4_000_000  # approximate total over all simulations of curves


class Rung(NamedTuple):
    """An idealisation on top of those before it, and the end of the run under it, in picoseconds."""

    name: str
    duration: int


class Gain(NamedTuple):
    """A class changed by itself: what it is, how it was changed, and the end of the run, in picoseconds."""

    part: Part
    change: str
    duration: int


class Curve(NamedTuple):
    """A class, and the end of the run with it quicker: (share of its time saved, picoseconds), from (0, as it is)."""

    name: str
    points: Sequence[tuple[float, int]]


def ladder(base: Run) -> list[Rung]:
    """The run as it is, and under cumulative idealisations, each no longer than the one before it.

    Ranks are made even, and the backward is split, where that shortens the run: it is not bound to (a rank whose ops
    are off the critical path may give them to one whose ops are on it). The last rung is what ranks compute, on
    average, in the run of the rung above it, and no run is shorter than what its ranks compute.
    """
    rungs = [Rung("as is", base.timeline.duration)]
    at = Variant.of(base).without_queueing()
    rungs.append(Rung("no queueing", at.simulated().duration))
    at = at.with_all_links(None)
    rungs.append(Rung("infinite links", at.simulated().duration))
    at = at.with_latency(Fraction(0))
    free = at.simulated()
    rungs.append(Rung("no latency", free.duration))
    last = min(free, at_the_mean_of(free, at).simulated(), key=attrgetter("duration"))
    rungs.append(Rung("all ranks at the mean", last.duration))
    split = _split(free, at)
    if split is not None:
        last = min(last, split, key=attrgetter("duration"))
        rungs.append(Rung(f"split backward ({SPLIT})", last.duration))
    rungs.append(Rung("work / ranks", sum(work_of_ranks(last).tolist()) // base.timeline.layout.ranks))
    return rungs


def _split(free: Run, at: Variant) -> Run | None:
    """The run with the backward split; None if the schedule already splits it or cannot."""
    schedule = at.scenario.schedule
    if schedule.kind not in UNSPLIT or at.scenario.parallel.pipeline == 1:
        return None
    try:
        changed = at.scenario.schedule.model_copy(update={"kind": SPLIT, "options": None})
        split = replace(at, scenario=at.scenario.model_copy(update={"schedule": changed}), plan=None)
        return at_the_mean_of(free, split).simulated()
    except HybridDesError:
        return None


def ranking(base: Run, busiest: Sequence[int]) -> list[Gain]:
    """The gain of each class alone, largest first: pipeline ranks and kinds of ops 10 % quicker, links twice as fast.

    Args:
        base: the run.
        busiest: pipeline ranks, those with the most time on critical paths first.
    """
    at, each = Variant.of(base), min(MOST, max(FEWEST, EVENTS // 3 // max(base.events, 1)))
    places = busiest if at.scenario.parallel.pipeline > 1 else ()
    found = []
    for parts in ((part_at(at, place) for place in places), kinds_in(at), links_in(at)):
        for part in islice(parts, each):
            change, factor = ("twice as fast", FASTER) if part.sort == "link" else ("10 % quicker", QUICKER)
            found.append(Gain(part, change, part.scaled(at, factor).simulated().duration))
    return sorted(found, key=lambda gain: gain.duration)


def curves(base: Run, gains: Sequence[Gain]) -> list[Curve]:
    """The classes that gain the most of each sort: pipeline ranks, kinds of ops, kinds of links."""
    helping = [gain for gain in gains if gain.duration < base.timeline.duration]
    chosen = [
        gain for sort in ("rank", "kind", "link") for gain in [one for one in helping if one.part.sort == sort][:EACH]
    ]
    points = max(1, min(len(SAVED), EVENTS_OF_CURVES // max(base.events, 1) // max(len(chosen), 1)))
    found = []
    for part in (gain.part for gain in chosen):
        ends = [(0.0, base.timeline.duration)]
        for share in SAVED[:points]:
            factor = 1 / (1 - share) if part.sort == "link" else 1 - share
            ends.append((float(share), part.scaled(Variant.of(base), factor).simulated().duration))
        noun = {"rank": part.name, "kind": f"{part.name} ops", "link": f"{part.name} links"}[part.sort]
        found.append(Curve(noun, sorted(ends)))
    return found


# What to try next: changes that reduce the largest costs, each simulated.
#
#     slow ranks    the component at the speed of most
#     uneven ranks  other cuts of the layers into stages
#     bubble        schedules with a smaller one that fit into memory; more micro-batches
#     network       overlap, buckets, the codec, the layout; then faster links, which have to be bought, unless a slow
#                   link is to blame: its cost is not the network's
#
# Only costs that are a large enough share of the step are addressed. A change that adds micro-batches to the step is
# measured by the time per micro-batch.


EVENTS_OF_PROPOSALS = 2_000_000  # approximate total over all simulations
WITH_PRIORITIES = {without: name for name, without in WITHOUT_PRIORITIES.items()}
FEWEST_SIMULATED, MOST_PROPOSALS = 3, 16  # simulations per cost
WORTH = 0.005  # share of the step above which a saving is worth a proposal
SMALL_BUCKET = 25_000_000  # bytes, about PyTorch's default
LESS_BUBBLE = {
    "zb-h1": 1,
    "interleaved-1f1b": 2,
    "zb-v": 2,
    "dualpipe-v": 2,
    "zb-h2": 1,
}  # schedules, with their chunks


def proposals(
    base: Run, rungs: Sequence[Rung], gains: Sequence[Gain], slow: Stragglers | None, build: Build
) -> list[Tried]:
    """Changes that help: first what is slow at the speed of most, then for the largest costs, the most helpful first.

    Args:
        base: the run.
        rungs: the ladder of idealisations.
        gains: the ranking of classes.
        slow: who was slow.
        build: builds a scenario from overrides.
    """
    end = base.timeline.duration
    if not end:
        return []
    rung = {one.name: one.duration for one in rungs}
    culprit = slow.culprit(end) if slow else None
    broken = culprit if culprit is not None and culprit.slow is None else None  # a link
    network = ((broken.least if broken else end) - rung["no latency"]) / end
    bubble = (rung["all ranks at the mean"] - rung["work / ranks"]) / end
    least = max(SLOW, max(network, bubble) / 2)
    most = min(MOST_PROPOSALS, max(FEWEST_SIMULATED, EVENTS_OF_PROPOSALS // max(base.events, 1)))
    tried: dict[str, list[Tried | None]] = {}
    if network >= least:
        tried["network"] = [_tried("network", text, base, build) for text in [*_less_exposed(base.scenario)][:most]]
        tried["network"] += [
            _proposal("links", f"{gain.part.name} links {gain.change}", base, base.scenario, gain.duration)
            for gain in gains
            if gain.part.sort == "link" and not broken
        ]
    if culprit is not None and culprit.usual is None:
        tried["uneven ranks"] = [_tried("uneven ranks", text, base, build) for text in _evener(base.scenario)]
    if bubble >= least:
        tried["bubble"] = [_tried("bubble", text, base, build) for text in [*_less_bubble(base.scenario)][:most]]
    helping = {
        name: sorted((one for one in ones if one is not None and one.gain > WORTH), key=lambda one: -one.gain)
        for name, ones in tried.items()
    }
    costs = {"network": network, "bubble": bubble}
    if slow is not None and "uneven ranks" in tried:
        costs["uneven ranks"] = 1 - slow.ideal / end
    costliest = max(reversed(costs), key=costs.__getitem__)  # first unless another helps more than twice as much
    best = {name: ones[0].gain * (2 if name == costliest else 1) for name, ones in helping.items() if ones}
    return [
        *_mended(base, culprit),
        *(one for name in sorted(best, key=lambda name: -best[name]) for one in helping[name]),
    ]


def _mended(base: Run, culprit: Straggler | None) -> Iterator[Tried]:
    """What holds up the run, at the speed of most; nothing where it only has more work than the others."""
    if culprit is not None and culprit.usual is not None:
        change = f"{culprit.name} as quick as the others"
        yield _proposal("slow ranks", change, base, base.scenario, culprit.usual)


def _evener(scenario: Scenario) -> Iterator[str]:
    """Other cuts of the layers into stages; where times per stage are given, no setting moves work."""
    if scenario.model is not None and scenario.parallel.pipeline > 1:
        yield from (f"parallel.stages={rule}" for rule in RULES if rule != scenario.parallel.stages)


def _less_bubble(scenario: Scenario) -> Iterator[str]:
    schedule = scenario.schedule
    if scenario.parallel.pipeline == 1 or scenario.traced:
        return
    for kind, chunks in LESS_BUBBLE.items() if schedule.kind else ():
        if kind != schedule.kind:
            yield f"schedule.kind={kind}" + (f",schedule.chunks={chunks}" if chunks != schedule.chunks else "")
    if scenario.batch is None:
        yield f"schedule.microbatches={2 * schedule.microbatches}"
    if scenario.model is not None and schedule.microbatch_size % 2 == 0:
        half = f"schedule.microbatch_size={schedule.microbatch_size // 2}"
        yield half if scenario.batch else f"{half},schedule.microbatches={2 * schedule.microbatches}"


def _less_exposed(scenario: Scenario) -> Iterator[str]:
    gradients, parallel = scenario.gradients, scenario.parallel
    if parallel.data > 1 and not scenario.traced:
        large = gradients.bucket is None or gradients.bucket > SMALL_BUCKET
        small = ["gradients.bucket=25 MB"] if large else []
        if not gradients.overlap:
            yield "gradients.overlap=true"
            yield from (f"gradients.overlap=true,{text}" for text in small)
        else:
            yield from small
            yield "gradients.overlap=false"
        if gradients.codec == "fp32":
            yield "gradients.codec=bf16"
        if gradients.channels is not None:
            yield "gradients.channels=auto"
        if gradients.algorithm != collectives.AUTO and scenario.sharding in ("none", "zero-1"):
            yield f"gradients.algorithm={collectives.AUTO}"
        if parallel.pipeline > 1:
            places = {"data": "pipeline", "pipeline": "data"}
            yield f"parallel.order=[{', '.join(places.get(axis, axis) for axis in parallel.order)}]"
            if (urgent := WITH_PRIORITIES.get(scenario.cluster.sharing)) is not None:
                yield f"cluster.sharing={urgent},cluster.priorities.pipeline=2,cluster.priorities.gradients=1"
    if scenario.schedule.p2p == "blocking":
        yield "schedule.p2p=async"


def _tried(against: str, text: str, base: Run, build: Build) -> Tried | None:
    """A change of keys, simulated; None if it is impossible or needs memory that the GPUs do not have."""
    with suppress(HybridDesError):
        variant = variant_of(text, Variant.of(base), build)
        run = variant.simulated()
        if _fits(run) or not _fits(base):
            return _proposal(against, text, base, variant.scenario, run.timeline.duration)
    return None


def _proposal(against: str, change: str, base: Run, scenario: Scenario, duration: int) -> Tried:
    microbatches = scenario.schedule.microbatches * scenario.schedule.microbatch_size
    each = Fraction(duration, scenario.steps * microbatches)
    before = base.scenario.schedule.microbatches * base.scenario.schedule.microbatch_size
    was = Fraction(base.timeline.duration, base.scenario.steps * before)
    return Tried(
        change,
        duration,
        scenario.steps,
        scenario.schedule.microbatches,
        against=against,
        gain=float(1 - each / was),
    )


def _fits(run: Run) -> bool:
    return worst_peak(run.ranks, run.peak_memory, run.scenario.cluster.gpus_of(run.ranks)).fits


# The saving of a variant in frozen order: its durations on the critical paths of the original run.


TIMES = {"forward", "backward", "weight", "recompute", "ends", "optimizer"}  # keys of `workload` that are durations


def first_order(base: Run, slack: Slack, variant: Variant) -> int | None:
    """The end of the run in picoseconds if order and messages stay; None if they do not.

    This is the longest of the currently critical paths: a speed-up saves at most, a slow-down costs at least this much.
    """
    if not only_times_differ(base.scenario, variant.scenario) or not all(map(_for_good, base.scenario.slow)):
        return None
    try:
        parts = variant.parts()
        programs = variant.programs()
    except HybridDesError:
        return None
    before = Variant.of(base).programs()
    messages = _messages(slack.graph.messages, parts.fabric)
    if messages is None or not _same_messages(before, programs):
        return None
    duration = _durations(base, before, programs, variant)
    return base.timeline.duration + change_of(slack, lags_with(base, messages, duration))


def _for_good(one: Slow) -> bool:
    """Whether an entry of `slow` applies all the time, so that durations can be scaled."""
    return one.stage is None and not one.from_ and one.until is None and one.flap is None


def only_times_differ(one: Scenario, other: Scenario) -> bool:
    """Whether two scenarios differ only in durations, bandwidths and latencies."""
    ignored = LABELS | {"cluster", "workload", "efficiency"}
    same = all(getattr(one, key) == getattr(other, key) for key in type(one).model_fields.keys() - ignored)
    wiring = all(getattr(one.cluster, key) == getattr(other.cluster, key) for key in ("sharing", "topology", "gpus"))
    if one.workload is None or other.workload is None:
        return same and wiring and one.workload is other.workload
    sizes = type(one.workload).model_fields.keys() - TIMES
    return same and wiring and all(getattr(one.workload, key) == getattr(other.workload, key) for key in sizes)


def _messages(messages: Messages, fabric: Fabric) -> Messages | None:
    """The messages of a run on other links; None if their routes would differ."""
    if not len(messages.flow):
        return messages
    _, first, place = np.unique(messages.flow, return_index=True, return_inverse=True)
    latency = messages.latency[first]
    for flow, message in enumerate(first.tolist()):
        route = fabric.route(int(messages.sender[message]), int(messages.receiver[message]))
        used = [messages.links[link] for link in messages.link[message].tolist() if link >= 0]
        if list(route.links) != used:
            return None
        latency[flow, : len(used)] = route.latencies
    there = messages.rows >= 0
    size = np.broadcast_to(messages.sizes[:, None], there.shape)
    own = np.zeros_like(messages.own)
    own[there] = service_alone(fabric, messages.links, messages.link[there], size[there])
    slower = own.max(axis=1) / np.maximum(messages.slowest[:, -1], 1)
    return replace(messages, own=own, latency=latency[place], took=np.rint(messages.took * slower).astype(np.int64))


def _same_messages(before: list[Program], after: list[Program]) -> bool:
    """Whether the order of ops is the same, none is new, and every op sends as many bytes as before."""
    known: set[tuple[int, int]] = set()
    for one, other in zip(before, after, strict=True):
        if (id(one), id(other)) in known:
            continue
        known.add((id(one), id(other)))
        if other.ops.keys() - one.ops.keys() or _sends(one) != _sends(other):
            return False
    return True


def _sends(program: Program) -> list[tuple[Action, tuple[int, ...]]]:
    return [(call.ops, tuple(send.message.size for send in call.block.every(Send))) for call in program.rows]


def _durations(base: Run, before: list[Program], after: list[Program], variant: Variant) -> Column:
    """The durations of all op rows under a variant, computation only."""
    ops = base.timeline.ops
    assert base.trace is not None
    tables = base.trace.columns()
    pieces = tables["pieces"]
    lags = tables["points"]["lag"][pieces["point"]]
    took: Column = np.bincount(pieces["row"], weights=lags, minlength=len(ops["step"])).astype(np.int64)
    known: dict[tuple[int, int, object, int], int] = {}  # equal ranks share programs

    def more(rank: int, index: int) -> int:
        now = after[rank].ops.get(index)
        return (_retimed(now, rank, variant) if now else 0) - before[rank].ops[index].duration

    alike = (lambda rank: None) if variant.retime is None else variant.retime.alike
    keys = [(id(before[rank]), id(after[rank]), alike(rank)) for rank in range(len(before))]
    for row, (rank, index) in enumerate(zip(ops["rank"].tolist(), ops["index"].tolist(), strict=True)):
        key = *keys[rank], index
        if key not in known:
            known[key] = more(rank, index)
        took[row] += known[key]
    return took


def _retimed(call: Call, rank: int, variant: Variant) -> int:
    if variant.retime is None:
        return call.duration
    return sum(variant.retime.duration(rank, call, took) for took in call.block.durations)
