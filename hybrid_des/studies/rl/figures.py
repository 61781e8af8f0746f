"""Figures of a loop: cycle, throughput, what either side does with its time, queue, ages, lengths, tokens lost.

All but `cycles`, and lengths as drawn, are those of the time after the warm-up: the first cycles, in which the queue
fills. There are as many of them as batches may be generated ahead, rounded up, and none where nothing may be.

    trainer    picoseconds by state, which sum to the time
    engines    GPU-picoseconds by state, which sum to GPUs × time; those of lent GPUs apart
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from hybrid_des.analysis.step_times import total
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.rl import Rl
from hybrid_des.studies.rl.record import EngineState, LoopRecord, Sample, TrainerState
from hybrid_des.units import PICOSECONDS_PER_SECOND, to_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENGINE_STATES: tuple[str, ...] = get_args(EngineState)
TRAINER_STATES: tuple[str, ...] = get_args(TrainerState)
GENERATING = ("decode", "prefill")  # states of busy engines
TRAINING = ("passes", "train")  # states of a busy trainer
BEFORE_SYNC = "before sync"  # the part of the trainer's state "sync" in which it waits for unfinished samples
WAITING = ("first samples", "long tail", BEFORE_SYNC)  # states of a trainer that waits for samples
PAUSED = ("allowance", "drained", "waiting")  # states of idle engines that no sync explains


class Lengths(NamedTuple):
    """Response lengths in tokens: their mean, median, 95th percentile and maximum, and the share at the cap."""

    mean: float
    median: float
    p95: float
    longest: int
    at_cap: float

    def to_mapping(self) -> dict[str, float]:
        """Values by the keys of the summary."""
        return dict(zip(("mean", "p50", "p95", "max", "at_max_ratio"), self, strict=True))


class Spread(NamedTuple):
    """Whole numbers of samples: their mean, 95th percentile, maximum, and how many samples have each."""

    mean: float
    p95: int
    largest: int
    counts: Mapping[int, int]

    def to_mapping(self) -> dict[str, Any]:
        """Values by the keys of the summary."""
        counts = {str(number): count for number, count in self.counts.items()}
        return {"mean": self.mean, "p95": self.p95, "max": self.largest, "samples": counts}


@dataclass(frozen=True)
class LoopFigures:
    """Figures of a loop.

    Attributes:
        record: what happened.
        rl: the section `rl` of its scenario.
        batch: samples per optimizer step.
    """

    record: LoopRecord
    rl: Rl
    batch: int

    @cached_property
    def warm_up(self) -> int:
        """Cycles of warm-up."""
        return warm_up_of(self.rl, len(self.record.syncs))

    @property
    def begin(self) -> int:
        """When the warm-up ended, in picoseconds."""
        return self.record.syncs[self.warm_up - 1].end if self.warm_up else 0

    @property
    def time(self) -> int:
        """Picoseconds after the warm-up."""
        return self.record.end - self.begin

    @property
    def measured(self) -> int:
        """Cycles after the warm-up."""
        return len(self.record.syncs) - self.warm_up

    @property
    def cycles(self) -> list[float]:
        """Seconds of every cycle, from sync to sync, those of the warm-up included."""
        ends = [0, *(sync.end for sync in self.record.syncs)]
        return [to_seconds(end - begin) for begin, end in pairwise(ends)]

    @property
    def cycle(self) -> float:
        """Mean seconds of a cycle after the warm-up."""
        return self.per_cycle(self.time)

    def per_cycle(self, picoseconds: int, gpus: int = 1) -> float:
        """Seconds per cycle, and per GPU of so many."""
        return picoseconds / (self.measured * gpus * PICOSECONDS_PER_SECOND)

    @property
    def own_replicas(self) -> range:
        """The replicas that no lent GPUs make."""
        return range(len(self.record.gpus_of_replicas) - self.record.lent)

    @property
    def rollout_gpus(self) -> int:
        """GPUs of the engines, without lent ones."""
        return sum(self.record.gpus_of_replicas[: len(self.own_replicas)])

    @property
    def gpus(self) -> int:
        """GPUs of both sides, those that they share once."""
        return self.record.trainer_gpus + (0 if self.rl.colocated else self.rollout_gpus)

    @cached_property
    def trainer(self) -> Mapping[str, int]:
        """Picoseconds of the trainer by state, `BEFORE_SYNC` apart; they sum to `time`."""
        spans = _Spans.of((span.begin, span.end, TRAINER_STATES.index(span.state), 1) for span in self.record.trainer)
        times = _by_state(spans, TRAINER_STATES, self.begin)
        sent = sum(sync.end - sync.begin for sync in self.record.syncs[self.warm_up :])
        return {**times, "sync": sent, BEFORE_SYNC: times["sync"] - sent}

    @cached_property
    def _engine_spans(self) -> _Spans:
        rows = ((span.begin, span.end, ENGINE_STATES.index(span.state), span.replica) for span in self.record.engines)
        return _Spans.of(rows)

    @cached_property
    def engines(self) -> Mapping[str, int]:
        """GPU-picoseconds of the engines by state, without lent GPUs; they sum to `rollout_gpus` × `time`."""
        return self._of_replicas(self.own_replicas)

    @cached_property
    def lent(self) -> Mapping[str, int]:
        """GPU-picoseconds of lent GPUs by state; they sum to their number × `time`."""
        return self._of_replicas(range(self.own_replicas.stop, len(self.record.gpus_of_replicas)))

    def _of_replicas(self, replicas: range) -> Mapping[str, int]:
        """GPU-picoseconds by state, replicas of one size together."""
        total = dict.fromkeys(ENGINE_STATES, 0)
        sizes = np.array(self.record.gpus_of_replicas, dtype=np.int64)
        spans = self._engine_spans
        ours = (spans.owner >= replicas.start) & (spans.owner < replicas.stop)
        for size in sorted({*sizes[replicas.start : replicas.stop].tolist()}):
            of_size = spans.where(ours & (sizes[spans.owner] == size))
            for state, time in _by_state(of_size, ENGINE_STATES, self.begin).items():
                total[state] += size * time
        return total

    @property
    def trainer_busy(self) -> float:
        """Share of the time in which the trainer computes."""
        return sum(self.trainer[state] for state in TRAINING) / self.time

    @property
    def rollout_busy(self) -> float:
        """Share of the engines' GPU time in which they generate."""
        return sum(self.engines[state] for state in GENERATING) / (self.rollout_gpus * self.time)

    @property
    def idle(self) -> float:
        """Share of the engines' GPU time in which they are idle, syncs apart; of colocated ones, in their turn."""
        paused = self.tail if self.rl.colocated else sum(self.engines[state] for state in PAUSED)
        return paused / (self.rollout_gpus * self.time)

    @property
    def wait(self) -> float:
        """Seconds per cycle in which the trainer waits for samples."""
        return self.per_cycle(sum(self.trainer[state] for state in WAITING))

    @property
    def generation(self) -> float:
        """Of colocated engines, seconds per cycle of their turn, in which the trainer lends its GPUs; else 0."""
        return self.per_cycle(self.trainer["lent"]) if self.rl.colocated else 0.0

    @property
    def tail(self) -> int:
        """Of colocated engines, GPU-picoseconds in which one is idle in their turn, since others still generate."""
        busy = sum(self.engines[state] for state in (*GENERATING, "waiting"))
        return self.trainer["lent"] * self.rollout_gpus - busy if self.rl.colocated else 0

    @cached_property
    def sequences(self) -> float:
        """Mean number of sequences of a replica while it decodes."""
        spans = [span for span in self.record.engines if span.state == "decode" and span.end > self.begin]
        times = np.array([span.end - max(span.begin, self.begin) for span in spans], dtype=float)
        return float(np.average([span.sequences for span in spans], weights=times)) if times.sum() else 0.0

    @cached_property
    def queue(self) -> tuple[float, float]:
        """Mean number of groups in the queue, and of running samples."""
        changes = [*self.record.queue]
        ends = [*(change.time for change in changes[1:]), self.record.end]
        times = np.array(
            [max(end - max(change.time, self.begin), 0) for change, end in zip(changes, ends, strict=True)]
        )
        if not times.sum():
            return 0.0, 0.0
        groups, running = ((change.groups for change in changes), (change.running for change in changes))
        return tuple(float(np.dot([*values], times / self.time)) for values in (groups, running))  # type: ignore[return-value]

    @cached_property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Columns of all samples; times in picoseconds."""
        rows = [*zip(*self.record.samples, strict=True)] or [()] * len(Sample._fields)
        return {name: np.array(column) for name, column in zip(Sample._fields, rows, strict=True)}

    @cached_property
    def trained(self) -> NDArray[np.bool_]:
        """Which samples are trained in the batches after the warm-up."""
        return np.asarray(self.columns["batch"] >= self.warm_up * self.rl.sync.every)

    def _per_second(self, amount: float) -> float:
        return amount * PICOSECONDS_PER_SECOND / self.time

    @property
    def samples_per_s(self) -> float:
        """Trained samples per second."""
        return self._per_second(int(self.trained.sum()))

    @property
    def tokens_per_s(self) -> float:
        """Tokens of trained samples, prompts included, per second."""
        both = (self.columns[name][self.trained].sum() for name in ("prompt", "response"))
        return self._per_second(float(sum(both)))

    @property
    def tokens_per_gpu_s(self) -> float:
        """The same per GPU of both sides."""
        return self.tokens_per_s / self.gpus

    @cached_property
    def ages(self) -> Spread:
        """Syncs between the beginning of samples and the take that they were trained with."""
        return _spread(self.columns["age"][self.trained])

    @cached_property
    def spans(self) -> Spread:
        """Versions of the weights within the response of a trained sample: 1 if no sync came between."""
        syncs = np.array([sync.end for sync in self.record.syncs])
        first = np.searchsorted(syncs, self.columns["started"][self.trained], side="right")
        return _spread(np.maximum(self.columns["last_version"][self.trained] - first + 1, 1))

    @cached_property
    def drawn(self) -> Lengths:
        """Lengths of the responses of all samples that were begun."""
        return self._lengths(self.columns["response"])

    @cached_property
    def trained_lengths(self) -> Lengths:
        """Lengths of the responses that were trained."""
        return self._lengths(self.columns["response"][self.trained])

    def _lengths(self, values: NDArray[Any]) -> Lengths:
        if not len(values):
            return Lengths(0.0, 0.0, 0.0, 0, 0.0)
        cap = self.rl.response.max
        median, high = (float(np.percentile(values, share)) for share in (50, 95))
        at_cap = 0.0 if cap is None else float((values >= cap).mean())
        return Lengths(float(values.mean()), median, high, int(values.max()), at_cap)

    @property
    def _lately(self) -> NDArray[np.bool_]:
        """Which samples were ended after the warm-up, whatever became of them."""
        return np.asarray(self.columns["ended"] > self.begin)

    def tokens(self, name: str) -> int:
        """Tokens of samples that ended after the warm-up: "response", "recomputed" or "discarded"."""
        return int(self.columns[name][self._lately].sum())

    def samples_with(self, fate: str) -> int:
        """Samples that ended after the warm-up, by what became of them."""
        return int((self.columns["fate"][self._lately] == fate).sum())

    @cached_property
    def idle_by_last_pause(self) -> float:
        """The engines' idle share as verl's rollouter/idle_ratio counts it: one pause per cycle, of all at once.

        It is 1 − (beginning of the pause − last sync) / (sync − last sync), the mean over cycles. A pause begins when
        none of the engines has a sample left; a later one replaces it, and without any the ratio is 0. Source: verl,
        fully_async_rollouter.py, and issue 6693.
        """
        ends = [0, *(sync.end for sync in self.record.syncs)]
        pauses = self._pauses()
        ratios = []
        for begin, end in pairwise(ends[self.warm_up :]):
            inside = pauses[(pauses > begin) & (pauses < end)]
            ratios.append((end - int(inside.max())) / (end - begin) if len(inside) else 0.0)
        return float(np.mean(ratios)) if ratios else 0.0

    def _pauses(self) -> NDArray[np.int64]:
        """When pauses of all engines at once begin."""
        spans, own = self._engine_spans, self.own_replicas.stop
        idle = np.isin(spans.state, [ENGINE_STATES.index(state) for state in PAUSED])
        quiet = spans.where((spans.owner < own) & idle & (spans.end > spans.begin))
        times = np.concatenate([quiet.begin, quiet.end])
        steps = np.concatenate([np.ones(len(quiet.begin), dtype=int), -np.ones(len(quiet.end), dtype=int)])
        order = np.lexsort((steps, times))  # of simultaneous changes, ends first
        idle_now = np.cumsum(steps[order])
        after_last = np.append(times[order][1:] != times[order][:-1], True) if len(order) else np.zeros(0, dtype=bool)
        at, count = times[order][after_last], idle_now[after_last]
        before = np.concatenate([[0], count[:-1]]) if len(count) else count
        return np.asarray(at[(count == own) & (before < own)], dtype=np.int64)


def figures_of(scenario: Scenario, record: LoopRecord) -> LoopFigures:
    """The figures of a loop of a scenario with `rl`."""
    assert scenario.rl is not None
    assert scenario.batch is not None
    return LoopFigures(record, scenario.rl, scenario.batch)


def warm_up_of(rl: Rl, cycles: int) -> int:
    """Cycles in which the queue fills: as many as batches may be generated ahead, rounded up; at least one is left."""
    return max(0, min(max(ceil(rl.ahead), int(rl.barrier)), cycles - 1))


class _Spans(NamedTuple):
    """Columns of spans."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    state: NDArray[np.int64]
    owner: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, int]]) -> _Spans:
        """The columns of rows."""
        table = np.array([*rows], dtype=np.int64).reshape(-1, len(cls._fields))
        return cls(*table.T)

    def where(self, chosen: NDArray[np.bool_]) -> _Spans:
        """Some of them."""
        return _Spans(*(column[chosen] for column in self))


def _by_state(spans: _Spans, states: Sequence[str], since: int) -> dict[str, int]:
    """Picoseconds of spans by state, without what was before a time."""
    times = np.maximum(spans.end - np.maximum(spans.begin, since), 0)
    return {name: total(times[spans.state == number]) for number, name in enumerate(states)}


def _spread(numbers: NDArray[Any]) -> Spread:
    if not len(numbers):
        return Spread(0.0, 0, 0, {})
    each, counts = np.unique(numbers, return_counts=True)
    high = int(np.percentile(numbers, 95, method="inverted_cdf"))
    together = dict(zip(each.tolist(), counts.tolist(), strict=True))
    return Spread(float(numbers.mean()), high, int(each[-1]), together)
