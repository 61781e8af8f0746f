"""A lower bound on the cycle of a loop, known without simulating it, and whether its engines hold their model.

With M cycles after the warm-up (`warm_up_of`), each of C batches, all of this has to fit into their time:

    trainer     M·(C·(least training of a batch + rest) + sync)
    engines     least work of the prompts trained in them, but for those begun before / replicas, and syncs, in which
                engines rest; lent ones generate only while the trainer neither trains nor sends weights
    in turns    where no prompt is begun before the last batch is trained: for each batch, the longer of its work /
                replicas and of its longest sample alone on an engine, and then the trainer's last take and the sync;
                where engines have the trainer's GPUs, all of its training and both switches

A sample of L tokens after a prompt of p is in L decode steps. Its share of a step with b sequences is at least
min over b of step(b)/b, and what its own cached tokens add, which no other shares; its prompt is read at least once.
Which prompts are trained, if more may be begun, is not known: the bound takes those with the least work.

A simulated trainer is bounded by the FLOP of products at the peak: three times those of a forward pass, of all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybrid_des.cost_model.decode import DecodeCosts
from hybrid_des.cost_model.decode_sizes import Division, decode_sizes
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.data import Lengths
from hybrid_des.scenario.sections.rl import MeasuredTrainer, Rl
from hybrid_des.studies.rl.draws import drawn_lengths
from hybrid_des.studies.rl.figures import warm_up_of
from hybrid_des.studies.rl.measured_trainer import ConstantTimes, read_times
from hybrid_des.studies.rl.parts import EngineCosts, EngineKind, LoopParts
from hybrid_des.studies.rl.parts_of_scenario import parts_of
from hybrid_des.units import PICOSECONDS_PER_SECOND
from hybrid_des.workload.draws import stream

MOST_SEQUENCES = 1024  # numbers of sequences whose decode steps are compared
SAFE = 1 - 1e-9  # for sums in floating point
TRAINED = 3  # a backward has twice the products of a forward; one of frozen weights, as many


class _Prompts(NamedTuple):
    """What was drawn: tokens of each prompt, and of its responses, a row each."""

    prompts: NDArray[np.float64]
    responses: NDArray[np.float64]

    @property
    def tokens(self) -> NDArray[np.float64]:
        """Tokens of all samples of each prompt."""
        return np.asarray(self.prompts * self.responses.shape[1] + self.responses.sum(axis=1), dtype=float)


class _Engine(NamedTuple):
    """Least picoseconds of an engine: of a step per sequence, of a step, for a token in the cache, to read one."""

    sequence: float
    step: float
    cached: float
    read: float

    @classmethod
    def of(cls, kind: EngineKind) -> _Engine:
        """Those of a kind."""
        counts = range(1, min(kind.concurrency, MOST_SEQUENCES) + 1)
        steps = np.array([_least_step(kind.costs, count) for count in counts])
        shares = [*(steps / np.array(counts)), steps[-1] / kind.concurrency]  # a step of still more is no shorter
        return cls(
            float(min(shares)), float(steps.min()), _least_cached(kind.costs), kind.costs.prefill_ps(2**20) / 2**20
        )

    def work(self, drawn: _Prompts) -> _Work:
        """What prompts need of it."""
        lengths, prompts = drawn.responses, drawn.prompts[:, None]
        beside = self.cached * (lengths * prompts + lengths * (lengths - 1) / 2)
        whole = (self.sequence * lengths + beside).sum(axis=1) + np.maximum(0, self.read * drawn.prompts - 1)
        return _Work(whole, (self.step * lengths + beside).max(axis=1))


def _least_cached(costs: EngineCosts) -> int:
    """Picoseconds that a cached token adds to a decode step; 0 if that is measured, and may differ."""
    if isinstance(costs, DecodeCosts) and costs.table is not None:
        return 0
    return costs.stretch_ps(1, 1, 1) - costs.stretch_ps(1, 0, 1)


def _least_step(costs: EngineCosts, sequences: int) -> int:
    """Picoseconds of a decode step, however many tokens are cached."""
    if isinstance(costs, DecodeCosts):
        return min(piece.value for piece in costs.pieces(sequences))
    return costs.stretch_ps(sequences, 0, 1)


class _Work(NamedTuple):
    """Least picoseconds of an engine for each prompt: its share of steps, and its longest sample alone."""

    whole: NDArray[np.float64]
    longest: NDArray[np.float64]


def least_cycle(scenario: Scenario) -> float:
    """Seconds that a cycle takes at least, the mean over those after the warm-up.

    Raises:
        Refusal: an engine has no room for a sample.
    """
    assert scenario.rl is not None
    return _Bound(scenario, scenario.rl, sides_of(scenario)).seconds


def sides_of(scenario: Scenario) -> LoopParts:
    """Engines and weight syncs of a loop, with a trainer that takes no time.

    Raises:
        Refusal: an engine has no room for a sample.
    """
    return parts_of(scenario, trainer=ConstantTimes(0, 1))


def allowed_age(scenario: Scenario) -> float:
    """The mean age that a loop may have when all that may be begun is: its allowance, in weight syncs.

    With `order: completed` single samples are older, which were begun before others and end after them.
    """
    rl = scenario.rl
    assert rl is not None
    if rl.barrier:
        return 1 / rl.sync.every
    return float(rl.ahead) + (rl.counted == "now")


@dataclass(frozen=True)
class _Bound:
    """The bound of a loop; times in picoseconds."""

    scenario: Scenario
    rl: Rl
    parts: LoopParts

    @property
    def seconds(self) -> float:
        """Of a cycle."""
        whole = max(self._trainer, self._engines, self._in_turns)
        return SAFE * whole / self._cycles / PICOSECONDS_PER_SECOND

    @cached_property
    def _batch(self) -> int:
        """Prompts of a batch."""
        assert self.scenario.batch is not None
        return self.rl.updates * self.scenario.batch // self.rl.samples

    @property
    def _warm_up(self) -> int:
        """Cycles of the warm-up."""
        return warm_up_of(self.rl, self.scenario.steps)

    @property
    def _cycles(self) -> int:
        """Cycles after it."""
        return self.scenario.steps - self._warm_up

    @property
    def _of_cycle(self) -> int:
        """Prompts of a cycle."""
        return self._batch * self.rl.sync.every

    @property
    def _ahead(self) -> int:
        """The most prompts that are begun and not trained after a sync."""
        if self.rl.barrier:
            return self._batch
        allowed = floor((1 + self.rl.ahead) * self._of_cycle)
        return allowed if self.rl.counted == "now" else allowed - self._of_cycle

    @property
    def _known(self) -> bool:
        """Whether all prompts that are begun are trained, or wait for it."""
        return not self.rl.filter and self.rl.stale != "drop"

    @cached_property
    def _drawn(self) -> _Prompts:
        """All prompts that are begun."""
        count = self.scenario.steps * self._of_cycle + self._ahead
        return _draw(self.rl.prompt, self.rl.response, self.rl.samples, self.scenario.seed, count)

    @cached_property
    def _work(self) -> _Work:
        """The least that prompts need of any engine."""
        works = [_Engine.of(kind).work(self._drawn) for kind in self._kinds]
        return _Work(*(np.min(column, axis=0) for column in zip(*works, strict=True)))

    @property
    def _kinds(self) -> tuple[EngineKind, ...]:
        return (*self.parts.engines, *((self.parts.lent,) if self.parts.lent is not None else ()))

    @property
    def _replicas(self) -> int:
        return sum(kind.replicas for kind in self._kinds)

    @property
    def _trainer(self) -> float:
        """Of the trainer and its syncs."""
        rest = self.rl.sync.every * int(self.rl.rest * PICOSECONDS_PER_SECOND)
        trained = sum(self._training(self._cycles * self.rl.sync.every))
        return trained + self._cycles * (rest + self.parts.sync_ps)

    def _training(self, batches: int) -> tuple[float, ...]:
        """Of the optimizer steps of some batches."""
        trainer, updates = self.rl.trainer, self.rl.updates
        if isinstance(trainer, MeasuredTrainer) and trainer.time is not None:
            return (batches * int(trainer.time * PICOSECONDS_PER_SECOND),)
        if isinstance(trainer, MeasuredTrainer) and trainer.table is not None:
            return (batches * updates * min(time for _, time in read_times(trainer.table).table),)
        if not self._known:
            return (0.0,)
        return (float(np.sort(self._drawn.tokens)[: batches * self._batch].sum()) * _token(self.scenario),)

    @property
    def _last_take(self) -> float:
        """Of the optimizer steps of the last take of a batch."""
        takes = self.rl.updates // self.rl.take
        return max(0.0, sum(self._training(1)) / takes - self.rl.updates)  # picoseconds are divided as whole numbers

    @property
    def _engines(self) -> float:
        """Of engines that are never idle."""
        if not self._known:
            return 0.0
        begun = self._ahead if self._warm_up else 0
        own = max(0, self._cycles * self._of_cycle - begun)
        work = float(np.sort(self._work.whole)[:own].sum())
        lent = 0 if self.parts.lent is None else self.parts.lent.replicas
        resting = (self._replicas - lent) * self._cycles * self.parts.sync_ps
        return (work + resting + lent * self._trainer) / self._replicas

    @property
    def _in_turns(self) -> float:
        """Of batches that do not overlap."""
        rl = self.rl
        alone = rl.colocated or not (rl.ahead or rl.barrier or rl.counted == "now")
        if not self._known or not (alone or rl.barrier):
            return 0.0
        if alone:
            waits = sum(self._generation(cycle * self._of_cycle, self._of_cycle) for cycle in range(self._cycles))
            if rl.colocated:
                return waits + self._trainer + 2 * self._cycles * int(rl.rollout[0].switch * PICOSECONDS_PER_SECOND)
            return waits + self._cycles * (self._last_take + self.parts.sync_ps)
        batches = range(self._warm_up * rl.sync.every + 1, self.scenario.steps * rl.sync.every)
        waits = sum(self._generation(batch * self._batch, self._batch) for batch in batches)
        return waits + self._last_take + self.parts.sync_ps

    def _generation(self, first: int, count: int) -> float:
        """Of prompts that are begun together, until the last has ended."""
        among = slice(first, first + count)
        return max(float(self._work.whole[among].sum()) / self._replicas, float(self._work.longest[among].max()))


@lru_cache(maxsize=4)
def _draw(prompt: Lengths, response: Lengths, samples: int, seed: int, count: int) -> _Prompts:
    """The first prompts that a loop begins, and their responses."""
    prompts = drawn_lengths(prompt, stream(seed, "rl", "prompt"))
    responses = drawn_lengths(response, stream(seed, "rl", "response"))
    table = np.array([responses.take() for _ in range(count * samples)], dtype=float).reshape(count, samples)
    return _Prompts(np.array([prompts.take() for _ in range(count)], dtype=float), table)


def _token(scenario: Scenario) -> float:
    """Least picoseconds of the trainer for a token."""
    assert scenario.model is not None
    sizes = decode_sizes(scenario.model.network, Division(1, 1, scenario.precision, 2))
    amounts = sizes.amounts
    flop = amounts.flop + amounts.flop16 + amounts.logits
    flop += sum(layers * experts.flop for experts, layers in sizes.experts.items())
    peaks = [max(kind.gpu.peak_in(scenario.precision), float(kind.gpu.peak or 0)) for kind in scenario.cluster.kinds]
    times = TRAINED if getattr(scenario.model.options, "frozen", None) is None else 1
    return times * flop / (scenario.parallel.ranks * max(peaks)) * PICOSECONDS_PER_SECOND if max(peaks) else 0.0
