"""A traced run that was folded beside the same run of all ranks: what their graphs of causes differ in."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
from system.fuzzing.valid import scenario as small_values

from hybrid_des.analysis.critical_path.idle_pieces import IdleTime
from hybrid_des.analysis.critical_path.paths import count_paths, critical_path, time_by_part
from hybrid_des.analysis.critical_path.rows import Names, collective_rows, near_rows, path_rows
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import class_spans
from hybrid_des.analysis.critical_path.traced import Traced, traced_run
from hybrid_des.errors import HybridDesError
from hybrid_des.scenario.loading import scenario_from
from support.foldings import paired_values, scenario_values
from support.layered_foldings import model_values, spanning_values
from support.switch_foldings import switched_layers, switched_values

UNORDERED = "parameter-server"  # serves equal arrivals in an order that images do not share: labels depend on it
KINDS = {
    "folding": scenario_values, "paired": paired_values, "spanning": spanning_values, "model": model_values,
    "small": small_values, "switches": switched_values, "switched layers": switched_layers,
}  # fmt: skip


def both_of(kind: str, seed: int) -> tuple[Traced, Traced] | None:
    """A random scenario traced folded and whole; None if it is impossible, or does not fold."""
    try:
        scenario = scenario_from(KINDS[kind](Random(seed)))
        folded = Traced(traced_run(scenario, fold_from=2))
    except HybridDesError:
        return None
    return None if folded.run.fold is None else (folded, folded.whole)


def differences(folded: Traced, whole: Traced) -> Iterator[str]:
    """What is not the same, in words."""
    this, other = folded.slack, whole.slack
    if not (this.graph.recomputed() == this.graph.time).all():
        yield "recomputed times"
    for rows in (_ops, _messages):
        mine, theirs = rows(this), rows(other)
        if mine != theirs:
            only = [*(mine - theirs).elements(), *(theirs - mine).elements()]
            yield f"{len(only)} of {theirs.total()} rows of {rows.__name__.strip('_')}: {sorted(only)[:2]}"
    facts = zip(_facts(folded).items(), _facts(whole).values(), strict=True)
    yield from (f"{name}: {a} instead of {b}" for (name, a), b in facts if a != b)


def _facts(traced: Traced) -> dict[str, Any]:
    graph, idle = traced.slack.graph, IdleTime(traced.slack.graph)
    path = critical_path(graph)
    facts = {
        "number of paths": count_paths(traced.slack),
        "path": time_by_part(path),
        "pieces": [piece[1:] for piece in path],
        "classes": list(class_spans(traced.slack).items()),
        "idle by reason": idle.reasons,
        "idle by cause": idle.causes,
        "idle by rank": idle.of_ranks.tolist(),
        "idle of ranks by reason": [_by_reason(idle, rank) for rank in range(len(idle.of_ranks))],
    }
    return facts if traced.run.algorithm == UNORDERED else {**facts, **_labels(traced, idle)}


def _labels(traced: Traced, idle: IdleTime) -> dict[str, Any]:
    """What names ranks."""
    graph = traced.slack.graph
    names = Names(graph.timeline, graph)
    return {
        "idle": sorted((*piece[:-1], names(piece.activity)) for piece in idle.pieces()),
        "names": path_rows(critical_path(graph), traced.slack, names),
        "nearly": near_rows(traced.slack, names, 20),
        "collectives": collective_rows(graph),
    }


def _by_reason(idle: IdleTime, rank: int) -> dict[str, int]:
    sums = Counter[str]()
    for piece in idle.of(rank):
        sums[piece.reason] += piece.end - piece.start
    return dict(sorted(sums.items()))


def _ops(slack: Slack) -> Counter[tuple[int, ...]]:
    ops = slack.graph.timeline.ops
    facts = [ops["step"], ops["index"], ops["start"], slack.of_ops, slack.free_of_ops, slack.drag_of_ops]
    return _images(slack, [ops["rank"]], facts)


def _messages(slack: Slack) -> Counter[tuple[int, ...]]:
    graph, messages = slack.graph, slack.graph.messages
    times = graph.time[graph.head], graph.time[graph.places.delivered]
    sizes = messages.timeline.messages["bytes"][messages.rows[:, 0]]
    facts = [sizes, *times, slack.of_messages, slack.free_of_messages]
    return _images(slack, [messages.sender, messages.receiver], facts)


def _images(slack: Slack, ranks: list[Any], facts: list[Any]) -> Counter[tuple[int, ...]]:
    images, rows = slack.graph.images, Counter[tuple[int, ...]]()
    for image in range(images.order):
        moved = [images.moved(column, image) for column in ranks]
        rows.update(zip(*(np.asarray(column).tolist() for column in (*moved, *facts)), strict=True))
    return rows
