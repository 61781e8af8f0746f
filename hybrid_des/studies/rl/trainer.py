"""The trainer of a loop: how long optimizer steps and forward passes over given samples take.

    step    the scenario's own step, whose documents are the samples of an optimizer step, packed as `data` says
    pass    the forwards of that step alone, on the same ranks and micro-batches: no gradients, nothing kept, weights
            gathered where `zero-3` divides them. It ends with the logits and their loss; that of a critic, which has
            one output, without
    times   of many steps: each simulated, or some of them, of which others take the time of the nearest

A step begins when the one before has ended, on idle links, and steps differ in their documents only. Of steps that are
not simulated, two are as near as their tokens and sums of squared lengths are, relatively.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import hypot, inf, log
from typing import NamedTuple, Protocol

from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.pipeline_ranks import costs_per_rank
from hybrid_des.errors import Refusal, UsageError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.wiring import fabric_of, times_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.data import Data, Lengths
from hybrid_des.scenario.sections.training import ModelChoice
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.memory_remedies import fits
from hybrid_des.simulation.outcome import Run
from hybrid_des.workload.lengths import LengthTable
from hybrid_des.workload.models.frozen import forward_only
from hybrid_des.workload.models.layer import Model

MOST_EVENTS = 10**6  # of all steps of a loop, about 10 s; beyond them not every step is simulated
MOST_SAMPLED, FIRST_SAMPLED = 32, 8  # steps that are simulated then; those of them that come first


class UpdateTime(NamedTuple):
    """Picoseconds of an optimizer step: of the forward passes before it, and of itself."""

    passes: int
    step: int


class Trainer(Protocol):
    """Tells how long the trainer takes.

    Attributes:
        simulated, sampled: numbers of optimizer steps so far that were simulated, and that took the time of another.
        error: of `sampled` ones, as a share of their time: the mean over the simulated ones of what would be wrong if
            they had taken the time of the nearest other one; None if all were simulated, or measured.
        notes: what a report should say, a sentence each.
    """

    simulated: int
    sampled: int

    @property
    def error(self) -> float | None:
        """As above."""

    @property
    def notes(self) -> tuple[str, ...]:
        """As above."""

    def take(self, updates: Sequence[Sequence[int]]) -> tuple[UpdateTime, ...]:
        """The times of optimizer steps, each given by the tokens of its samples, in the order in which they came."""


def with_samples(scenario: Scenario, lengths: Sequence[int]) -> Scenario:
    """The scenario of one optimizer step on samples with these numbers of tokens, in this order.

    It equals a file with `data.lengths: {kind: file, order: given}` and as many documents as `batch`.

    Raises:
        UsageError: there are no samples.
        Refusal: a micro-batch has no room for the longest one, or the scenario has no model of sequences.
    """
    if not len(lengths):
        raise UsageError("an optimizer step without samples; expected at least one")
    if scenario.model is None or scenario.model.network.sample != "sequence":
        raise Refusal("model: samples have tokens; expected a model of sequences")
    table, longest = LengthTable("samples of a step", lengths, [1] * len(lengths)), int(max(lengths))
    given = Lengths.model_validate({"kind": "file", "file": table, "order": "given", "max": longest})
    data = Data(lengths=given) if scenario.data is None else scenario.data.model_copy(update={"lengths": given})
    room = data.places(data.request(scenario.model.network, scenario.parallel, scenario.schedule, given=True))
    if room is not None and longest > room:
        raise Refusal(f"data.tokens: a sample of {longest} tokens does not fit; {data.packing} has room for {room}")
    changes = {"data": data, "batch": len(lengths), "steps": 1, "rl": None, "record": "none"}
    return scenario.model_copy(update=changes)


def trainer_step(scenario: Scenario, lengths: Sequence[int]) -> int:
    """Picoseconds of one optimizer step on samples with these numbers of tokens, simulated.

    Args:
        scenario: the trainer; its `data.packing` divides the samples over replicas and micro-batches.
        lengths: tokens of each sample, prompt and response, in the order in which they came.

    Raises:
        UsageError, Refusal: as `with_samples`; the schedule or the packing does not support these samples.

    Example:
        >>> from hybrid_des import load
        >>> from hybrid_des.studies.rl.trainer import trainer_step
        >>> scenario = load("scenarios/llama3.1-8b_8.yaml", ["data={lengths: {kind: fixed}, packing: balanced}"])
        >>> trainer_step(scenario, [800] * 64) < trainer_step(scenario, [1600] * 64)
        True
    """
    return run(with_samples(scenario, lengths), detailed=False).duration


class _Forwards(Plan):
    """The forwards of a plan that has been checked, in their order."""

    def check(self) -> None:
        """Nothing: what is left of an order that is possible is possible."""

    @classmethod
    def of_plan(cls, plan: Plan) -> _Forwards:
        """Those of a plan."""
        each = ((tuple(op for op in action if op.kind == "F") for action in program) for program in plan.programs)
        return cls(tuple(tuple(filter(None, program)) for program in each), plan.paths, plan.path_of)


class _ForwardModel(ModelChoice):
    """The network of the same name without gradients."""

    @cached_property
    def network(self) -> Model:
        """Its layers."""
        return forward_only(super().network)


class _Critic(_ForwardModel):
    """The same with one output instead of logits."""

    @cached_property
    def network(self) -> Model:
        """Its layers."""
        return forward_only(super().network, logits=False)


def _passed(scenario: Scenario, parts: Parts, kind: type[_ForwardModel]) -> Scenario:
    """The scenario of a forward pass, with the stages of the step with these parts."""
    assert scenario.model is not None
    model = kind.model_construct(**dict(scenario.model))
    held = {stage: parts.costs.stages[place].layers for place, stage in parts.plan.stage_of.items()}
    blocks = tuple(sum(not layer.end for layer in held[stage]) for stage in sorted(held))
    stages = blocks if scenario.parallel.stages == "balanced" else scenario.parallel.stages
    sharding = "zero-3" if scenario.sharding == "zero-3" else "none"  # others divide what a pass does not need
    parallel = scenario.parallel.model_copy(update={"stages": stages})
    changes = {"model": model, "parallel": parallel, "sharding": sharding}
    unused = {"recompute": "none", "recompute_layers": None, "on_oom": "warn"}
    return scenario.model_copy(update={**changes, **unused})


class KnownStep(NamedTuple):
    """An optimizer step whose time is known: its tokens, the sum of their squared lengths, and the time."""

    tokens: int
    squares: int
    time: UpdateTime

    def distance(self, tokens: int, squares: int) -> float:
        """How far another step is, as a relative difference."""
        return hypot(log(tokens / self.tokens), log(squares / self.squares))


def sums_of(lengths: Sequence[int]) -> tuple[int, int]:
    """Tokens of samples, and the sum of their squared lengths; at least 1."""
    return max(1, sum(lengths)), max(1, sum(int(length) ** 2 for length in lengths))


class TrainerTimes:
    """Optimizer steps and forward passes of a scenario, simulated.

    Args:
        scenario: the trainer.
        passes: the forward passes before each step: old, reference, critic.
        updates: how many optimizer steps there will be; None if it is not known.
        most_events: of all of them, before only some are simulated.

    Attributes:
        simulated, sampled: as in `Trainer`.
        fits: whether all simulated steps fit into memory.
    """

    def __init__(
        self,
        scenario: Scenario,
        passes: Sequence[str] = (),
        updates: int | None = None,
        *,
        most_events: int = MOST_EVENTS,
    ) -> None:
        self._scenario, self._passes = scenario, tuple(passes)
        self._updates, self._most_events, self._events = updates, most_events, 0
        self._known, self._distances = list[KnownStep](), list[float]()
        self._fabric = fabric_of(scenario)
        self._times = times_of(scenario, self._fabric)
        self.simulated = self.sampled = 0
        self.fits = True

    def take(self, updates: Sequence[Sequence[int]]) -> tuple[UpdateTime, ...]:
        """The times of optimizer steps, each given by the tokens of its samples.

        Raises:
            UsageError, Refusal: as `with_samples`; the schedule or the packing does not support these samples.
        """
        return tuple(map(self._time, updates))

    def _time(self, lengths: Sequence[int]) -> UpdateTime:
        tokens, squares = sums_of(lengths)
        nearest = min(self._known, key=lambda step: step.distance(tokens, squares), default=None)
        if nearest is not None and self._is_sampled(nearest.distance(tokens, squares)):
            self.sampled += 1
            return nearest.time
        time = self._simulate(lengths)
        self._known.append(KnownStep(tokens, squares, time))
        self.simulated += 1
        return time

    def _is_sampled(self, distance: float) -> bool:
        """Whether a step so far from the nearest known one takes its time.

        Beyond what all may take, steps are simulated until `MOST_SAMPLED` are, and after the first ones only those that
        are farther from any known one than most before them were, so that they spread: by as many as are left.
        """
        per_step, done = self._events / self.simulated, self.simulated + self.sampled
        expected = self._events + per_step if self._updates is None else per_step * self._updates
        if expected <= self._most_events:
            return False
        insort(self._distances, distance)
        if self.simulated < FIRST_SAMPLED or self.simulated >= MOST_SAMPLED:
            return self.simulated >= MOST_SAMPLED
        coming = 2 * (MOST_SAMPLED - self.simulated) if self._updates is None else max(1, self._updates - done)
        share = min(1.0, (MOST_SAMPLED - self.simulated) / coming)
        return distance < self._distances[int((1 - share) * (len(self._distances) - 1))]

    def _nearest(self, step: KnownStep) -> KnownStep:
        """The nearest other known step."""
        others = (one for one in self._known if one is not step)
        return min(others, key=lambda other: other.distance(step.tokens, step.squares))

    @property
    def error(self) -> float | None:
        """As in `Trainer`."""
        if not self.sampled:
            return None
        if len(self._known) < 2:
            return inf
        wrong = (abs(sum(self._nearest(one).time) / sum(one.time) - 1) for one in self._known)
        return sum(wrong) / len(self._known)

    @property
    def notes(self) -> tuple[str, ...]:
        """As in `Trainer`."""
        if not self.sampled:
            return ()
        of, error = self.simulated + self.sampled, self.error
        about = "" if error is None or error == inf else f" ({100 * error:.1f} % off on average)"
        others = f"others take the time of the nearest by tokens and squared lengths{about}"
        return (f"{self.simulated} of {of} optimizer steps are simulated; {others}",)

    def _simulate(self, lengths: Sequence[int]) -> UpdateTime:
        """Simulate a step and its passes."""
        scenario = with_samples(self._scenario, lengths)
        if scenario.jitter:
            scenario = scenario.model_copy(update={"seed": (scenario.seed + self.simulated) % 2**63})
        with scenario.cluster.unit_asked_for():
            parts = parts_of(scenario, fabric=self._fabric, times=self._times)
        step = self._run(scenario, parts)
        self.fits &= fits(step)
        kinds = [_Critic if name == "critic" else _ForwardModel for name in self._passes]
        known = {kind: self._run(*self._pass(scenario, parts, kind)).duration for kind in dict.fromkeys(kinds)}
        return UpdateTime(sum(known[kind] for kind in kinds), step.duration)

    def _pass(self, scenario: Scenario, parts: Parts, kind: type[_ForwardModel]) -> tuple[Scenario, Parts]:
        """A forward pass over the micro-batches of a step with these parts."""
        passed = _passed(scenario, parts, kind)
        ranks = costs_per_rank(CostBasis.of(passed), self._times)
        ranks = replace(ranks, optimizer=(0,) * len(ranks.optimizer), orthogonalised=None, routing=())
        forwards = _Forwards.of_plan(parts.plan)
        return passed, parts_of(passed, forwards, self._fabric, ranks=ranks, times=self._times)

    def _run(self, scenario: Scenario, parts: Parts) -> Run:
        result = run(scenario, parts=parts, detailed=False)
        self._events += result.events
        return result
