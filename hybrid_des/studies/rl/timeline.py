"""What a picture of a loop draws: running sequences of replicas and the queue in bins of time, spans of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hybrid_des.report.plots.style import LINES
from hybrid_des.studies.rl.figures import BEFORE_SYNC, LoopFigures
from hybrid_des.studies.rl.report import SHOWN, trainer_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 400  # of the time
MOST_REPLICAS = 12  # that are drawn each
MOST_LENGTHS = 40  # bins of a histogram of lengths
WIDE = 20  # times the shortest response: a longest one beyond has a logarithmic axis
COLOURS = {  # of what the trainer does
    "train": LINES[0], "passes": "#56B4E9", "first samples": "#E69F00", "long tail": "#D55E00", "rest": "#888888",
    "sync": "#CC79A7", BEFORE_SYNC: "#AA3377", "lent": "#009E73", "switching": "#F0E442",
}  # fmt: skip
RUNNING, QUEUED, SYNC = "#009E73", "#7A5195", "#CC79A7"


class Lane(NamedTuple):
    """A line of a timeline: its name with the value at its full height, and its values in bins."""

    name: str
    values: NDArray[Any]
    most: float
    queue: bool = False


def lanes_of(figures: LoopFigures) -> list[Lane]:
    """Running sequences of each replica, of some of them if there are many, and the queue below."""
    count = len(figures.record.gpus_of_replicas)
    shown = sorted({round(number) for number in np.linspace(0, count - 1, min(count, MOST_REPLICAS))})
    running = {replica: _sequences(figures, replica) for replica in shown}
    lent = range(figures.own_replicas.stop, count)
    most = max((float(values.max()) for values in running.values()), default=0.0) or 1.0
    lanes = [
        Lane(f"{'lent ' * (number in lent)}replica {number} (up to {most:.0f})", values, most)
        for number, values in running.items()
    ]
    queue = _queued(figures)
    longest = float(queue.max()) or 1.0
    return [*lanes, Lane(f"queue (up to {longest:.0f} groups)", queue, longest, queue=True)]


def replicas_drawn(figures: LoopFigures) -> str:
    """How many of the replicas are drawn, ", 12 of 16 replicas"; empty if all are."""
    count = len(figures.record.gpus_of_replicas)
    return f", {MOST_REPLICAS} of {count} replicas" if count > MOST_REPLICAS else ""


def _sequences(figures: LoopFigures, replica: int) -> NDArray[Any]:
    """Mean number of sequences of a replica in each bin."""
    spans = [span for span in figures.record.engines if span.replica == replica]
    return _binned(figures, [(span.begin, span.end, span.sequences) for span in spans])


def _queued(figures: LoopFigures) -> NDArray[Any]:
    """Mean number of groups in the queue in each bin."""
    changes = figures.record.queue
    ends = [*(change.time for change in changes[1:]), figures.record.end]
    return _binned(figures, [(change.time, end, change.groups) for change, end in zip(changes, ends, strict=True)])


def _binned(figures: LoopFigures, spans: Sequence[tuple[int, int, int]]) -> NDArray[Any]:
    """The mean in each bin of what has a constant value in spans that do not overlap."""
    edges = np.linspace(0, figures.record.end, BINS + 1)
    if not spans:
        return np.zeros(BINS)
    begin, end, value = (np.array(column, dtype=float) for column in zip(*spans, strict=True))
    order = np.argsort(begin)
    begin, end, value = begin[order], end[order], value[order]
    known = np.concatenate([[0.0], np.cumsum(value * (end - begin))])
    at = np.searchsorted(begin, edges, side="right") - 1
    inside = np.clip(at, 0, None)
    partial = np.where(at >= 0, np.clip(edges - begin[inside], 0, (end - begin)[inside]) * value[inside], 0.0)
    return np.asarray(np.diff(known[inside] + partial) / np.diff(edges))


def trainer_spans(figures: LoopFigures) -> list[tuple[float, float, str]]:
    """What the trainer does: begin and length as shares of the time, and the state."""
    whole, begins = figures.record.end, {sync.end: sync.begin for sync in figures.record.syncs}
    spans = []
    for span in figures.record.trainer:
        sent = begins.get(span.end, span.begin) if span.state == "sync" else span.begin
        spans += [(span.begin, sent, BEFORE_SYNC), (sent, span.end, span.state)]
    return [(begin / whole, (end - begin) / whole, state) for begin, end, state in spans if end > begin]


def shown_states(figures: LoopFigures) -> dict[str, str]:
    """Names of what the trainer does at all, each with its colour."""
    spans = trainer_spans(figures)
    states = {state for *_, state in spans if sum(length for _, length, one in spans if one == state) > SHOWN}
    words = {state: words for state, (words, _) in trainer_parts(figures).items()}
    return {words[state]: colour for state, colour in COLOURS.items() if state in states}


def length_histograms(figures: LoopFigures) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Edges of bins in tokens, and the share of responses in each: of those drawn, and of those trained."""
    lengths = figures.columns["response"]
    if not len(lengths):
        return np.array([0.0, 1.0]), {}
    least, most = max(int(lengths.min()), 1), int(lengths.max()) + 1
    edges = (np.geomspace if most > WIDE * least else np.linspace)(least, most, MOST_LENGTHS + 1)
    kinds = {"drawn": lengths, "trained": lengths[figures.trained]}
    return edges, {name: np.histogram(one, edges)[0] / len(one) for name, one in kinds.items() if len(one)}
