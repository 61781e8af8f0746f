"""Splits of a loop's GPUs between engines and trainer, as plans of a search, and what they leave to the trainer.

    rl.rollout.nodes    the last k nodes of the cluster, for every k that leaves the trainer some
    rl.rollout.tensor   the powers of 2 up to the GPUs of a node
    rl.ahead            0, 0.5, 1 and 2 batches, and that of the file
    rl.lend             none, and that of the file

Engines that take turns on the trainer's GPUs are a split too, if the file has them. The trainer's layout is that of the
file with other replicas, or as other axes have it. A measured trainer takes a time that is inverse to its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from hybrid_des.scenario.composition import value_at
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.rl import MeasuredTrainer, Rollout, engine_gpus
from hybrid_des.scenario.strict_yaml import Document

NODES, TENSOR, AHEAD, LEND = "rl.rollout.nodes", "rl.rollout.tensor", "rl.ahead", "rl.lend"
NAMES = (NODES, TENSOR, AHEAD, LEND)
USUAL = (NODES, TENSOR, AHEAD)  # what varies if a search has no axes
ON = "rl.rollout.on"
TIME = "rl.trainer.time"
ALLOWANCES = (0, 0.5, 1, 2)

Values = Mapping[str, Any]


def of_one_kind(rl: Any) -> Any:
    """An unread section whose only kind of engines is no list, so that axes can name its keys."""
    engines = rl.get("rollout") if isinstance(rl, Mapping) else None
    if isinstance(engines, list | tuple) and len(engines) == 1:
        return {**rl, "rollout": engines[0]}
    return rl


def values_of_axis(document: Document, written: Scenario, name: str) -> Sequence[Values]:
    """The cases of an axis that is named without values.

    Raises:
        ScenarioError: the file's engines are of several kinds.
    """
    assert written.rl is not None
    if name == NODES:
        return _splits(document, written)
    if name == TENSOR:
        widest = max(kind.gpus_per_node for kind in written.cluster.kinds)
        return [{TENSOR: 2**power} for power in range(widest.bit_length()) if 2**power <= widest]
    if name == AHEAD:
        own = written.rl.ahead
        return [{AHEAD: value} for value in sorted({*ALLOWANCES, int(own) if own.denominator == 1 else float(own)})]
    given = value_at(document.value, LEND)
    return [{LEND: "none"}, *([{LEND: given}] if written.rl.lend is not None else [])]


def _splits(document: Document, written: Scenario) -> Sequence[Values]:
    rl, nodes = written.rl, sum(kind.count for kind in written.cluster.kinds)
    assert rl is not None
    if len(rl.rollout) > 1:
        raise document.error(("search", "axes"), f"{NODES}: expected engines of one kind in `rl.rollout`")
    apart = {ON: None} if rl.colocated else {}
    turns: list[Values] = [{NODES: None, ON: "trainer"}] if rl.colocated else []
    lasts = [f"{first}-{nodes - 1}" if first < nodes - 1 else first for first in range(nodes - 1, 0, -1)]
    return [*turns, *({NODES: last, **apart} for last in lasts)]


def is_measured(written: Scenario) -> bool:
    """Whether the trainer of a loop is measured, so that of its layout only the number of GPUs counts."""
    return written.rl is not None and isinstance(written.rl.trainer, MeasuredTrainer)


def ranked_gpus(written: Scenario, plan: Values) -> int:
    """GPUs of the cluster that a plan leaves to ranks: all, but for those whose engines generate samples.

    Nodes that the cluster does not have, or all of them, leave all: the plan says what is wrong.
    """
    rl = written.rl
    if rl is None or (plan.get(NODES, rl.rollout[0].nodes) is None):
        return written.cluster.gpus
    kinds = rl.rollout
    with suppress(ValidationError, IndexError):
        if plan.get(NODES) is not None:
            kinds = (Rollout.model_validate({"nodes": plan[NODES]}),)
        left = written.cluster.gpus - sum(len(engine_gpus(kind, written.cluster, 0)) for kind in kinds)
        return left or written.cluster.gpus
    return written.cluster.gpus


def measured_time(written: Scenario, plan: Values) -> Iterator[Values]:
    """The time of a measured trainer on the GPUs of a plan."""
    rl = written.rl
    if rl is None or not isinstance(rl.trainer, MeasuredTrainer) or rl.trainer.time is None:
        yield {}
        return
    gpus, own = ranked_gpus(written, plan), written.parallel.ranks
    yield {} if gpus in (0, own) else {TIME: round(float(rl.trainer.time) * own / gpus, 6)}
