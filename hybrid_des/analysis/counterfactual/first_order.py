"""The saving of a variant in frozen order: its durations on the critical paths of the original run."""

from __future__ import annotations

import numpy as np

from hybrid_des.analysis.counterfactual.what_if import (
    Variant,
)
from hybrid_des.analysis.critical_path.graph import lags_with
from hybrid_des.analysis.critical_path.messages import Messages
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import change_of
from hybrid_des.analysis.critical_path.traced import Traced
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.errors import HybridDesError
from hybrid_des.pipeline.plan import Action
from hybrid_des.planning.program import Call, Program, Send
from hybrid_des.planning.program_table import NONE, Column
from hybrid_des.scenario.definition import LABELS, Scenario
from hybrid_des.simulation.outcome import Run

TIMES = {"forward", "backward", "weight", "recompute", "ends", "optimizer"}  # keys of `workload` that are durations


def first_order(traced: Traced, variant: Variant) -> int | None:
    """The end of the run in picoseconds if order and messages stay; None if they do not.

    This is the longest of the currently critical paths: a speed-up saves at most, a slow-down costs at least this much.
    """
    base = traced.run
    scaled = all(slow.permanent and slow.stage is None for slow in base.scenario.slow)  # durations can be
    if not scaled or not only_times_differ(base.scenario, variant.scenario):
        return None
    try:
        parts = variant.parts
        programs = variant.programs
    except HybridDesError:
        return None
    before = Variant.of(base).programs
    slack = traced.slack
    messages = _messages(slack, parts.fabric)
    pairs = dict.fromkeys(zip(before, programs, strict=True))
    if messages is None or any(new.ops.keys() - old.ops.keys() or _sends(old) != _sends(new) for old, new in pairs):
        return None
    duration = _durations(base, before, programs, variant)
    lags = lags_with(slack.graph, slack.critical, messages, duration)
    return base.timeline.duration + change_of(slack, lags)


def only_times_differ(this: Scenario, other: Scenario) -> bool:
    """Whether two scenarios differ only in durations, bandwidths and latencies."""
    ignored = LABELS | {"cluster", "workload", "efficiency"}
    same = all(getattr(this, key) == getattr(other, key) for key in type(this).model_fields.keys() - ignored)
    wiring = all(getattr(this.cluster, key) == getattr(other.cluster, key) for key in ("sharing", "topology", "gpus"))
    if this.workload is None or other.workload is None:
        return same and wiring and this.workload is other.workload
    sizes = type(this.workload).model_fields.keys() - TIMES
    return same and wiring and all(getattr(this.workload, key) == getattr(other.workload, key) for key in sizes)


def _messages(slack: Slack, fabric: Fabric) -> Messages | None:
    """The messages of critical paths on other links; None if routes, of any message, would differ."""
    messages = slack.graph.messages
    latency = np.zeros(messages.link.shape, dtype=np.int64)
    for flow, message in enumerate(messages.first_of_flow.tolist()):
        if message == NONE:
            continue
        route = fabric.route(int(messages.sender[message]), int(messages.receiver[message]))
        used = [messages.links[link] for link in messages.link[flow].tolist() if link >= 0]
        if list(route.links) != used:
            return None
        latency[flow, : len(used)] = route.latencies
    critical = slack.graph.edges.message(slack.critical)
    return messages.over_links(np.unique(critical[critical >= 0]), fabric, latency)


def _sends(program: Program) -> list[tuple[Action, tuple[int, ...]]]:
    return [(call.ops, tuple(send.message.size for send in call.block.every(Send))) for call in program.rows]


def _durations(base: Run, before: list[Program], after: list[Program], variant: Variant) -> Column:
    """The durations of all op rows under a variant, computation only."""
    ops = base.timeline.ops
    assert base.trace is not None
    pieces = base.trace.pieces.table()
    lags = base.trace.points.mapped()["lag"][pieces["point"]]
    took: Column = np.bincount(pieces["row"], weights=lags, minlength=len(ops["step"])).astype(np.int64)
    known: dict[tuple[Program, Program, object, int], int] = {}  # equal ranks share programs

    def more(rank: int, index: int) -> int:
        now = after[rank].ops.get(index)
        return (_retimed(now, rank, variant) if now else 0) - before[rank].ops[index].duration

    alike = (lambda rank: None) if variant.retime is None else variant.retime.alike
    keys = [(this, other, alike(rank)) for rank, (this, other) in enumerate(zip(before, after, strict=True))]
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
