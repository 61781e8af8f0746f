"""Simulation of a scenario with as few events as is exact: attempts in order, the last of which is the plain run."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cluster.transport import Links, Transport
from hybrid_des.engine.causes import Causes, TracedEnvironment, traced
from hybrid_des.errors import Refusal
from hybrid_des.folding.folded_transport import folded_transport
from hybrid_des.folding.refusals import DisturbedError, FoldRefusal, TieError
from hybrid_des.folding.symmetry import Fold
from hybrid_des.folding.traced_fold import TracedFoldedTransport
from hybrid_des.folding.watched_links import WatchedLinks
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import Parts, parts_of
from hybrid_des.planning.training import Training
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario import sizes
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sizes import too_large
from hybrid_des.shortcuts.attempts import Attempt, Refusals, Refused, of_all_ranks_alone, of_fold
from hybrid_des.shortcuts.collectives_alone import CollectivesAlone
from hybrid_des.shortcuts.expansion import of_all_ranks
from hybrid_des.shortcuts.folds import INNER, Replicas, folds_of
from hybrid_des.shortcuts.stretches import Stretches
from hybrid_des.simulation.jobs import How, Network, groups_of, network_of, recorder_of
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.outer import InnerSteps, OuterPeriod, durations_of, groups_apart, period_of
from hybrid_des.simulation.run import reduced_gc, simulated
from hybrid_des.simulation.speeds import DurationOverride
from hybrid_des.simulation.watch import Watch


def plain() -> bool:
    """Whether the environment turns all shortcuts off (`HYBRID_DES_PLAIN=1`)."""
    return os.environ.get("HYBRID_DES_PLAIN", "") not in ("", "0")


class RunOptions(TypedDict, total=False):
    """How a scenario is simulated: the fields of `How`, and what concerns the attempts.

    Attributes:
        retime, trace, order, scratch, detailed: as in `How`.
        watch: shows the progress of the run, and ends it when its budget is spent.
        fold_from: the number of ranks from which `fold: auto` folds; default: more than a run shows.
        by_messages: no collective and no stretch of an op is taken at once.
    """

    retime: DurationOverride | None
    trace: Causes | None
    order: int | None
    scratch: Path | None
    detailed: bool
    watch: Watch | None
    fold_from: int | None
    by_messages: bool


@reduced_gc()
def run(
    scenario: Scenario,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    training: Training | None = None,
    *,
    parts: Parts | None = None,
    **how: Unpack[RunOptions],
) -> Run:
    """Simulate a scenario.

    Args:
        scenario: what to simulate.
        plan: a user-defined order, instead of the schedule's.
        fabric: a user-defined wiring, instead of the topology's; it must include permanent slowdowns (`slowed`).
        training: a training, such as a self-checking one, instead of the scenario's numerics.
        parts: those of a scenario without numerics that differs only in seed, jitter, steps, and slow intervals.
        how: how it is simulated (`RunOptions`).

    Raises:
        PlanError: the plan is incomplete.
        DeadlockError: the plan or a collective deadlocks.
        SimulationError: simulated time exceeds 64 bits, or a message is never received.
        UnfinishedError: the budget of the watch is spent.
        TooLateError: it does not end before the latest time of the watch.
        OutOfMemoryError: a GPU exceeds its memory, under `on_oom: error`.
        Refusal: the schedule or topology does not support these sizes.
    """
    began = time.perf_counter()
    options: dict[str, Any] = {**how}
    by_messages = options.pop("by_messages", False) or plain()
    watch, fold_from = options.pop("watch", None), options.pop("fold_from", None)
    asked = How(**options)
    exchanges = scenario.gradients.every > 1 and not any((asked.trace, parts, asked.retime))
    with scenario.cluster.unit_asked_for():
        if exchanges and not any((plan, fabric, training, scenario.numerics)) and (groups := groups_apart(scenario)):
            return _of_groups(scenario, groups, watch=watch, **options)
        parts = parts or parts_of(scenario, plan, fabric, training)
        least = 2 if scenario.steps * parts.messages >= sizes.MESSAGES_FOLDED else sizes.FOLDED_FROM
        replicas = Replicas(scenario, parts, asked.retime, fold_from or least)
        result = _Attempts(replicas, asked, watch, by_messages=by_messages).first()
    few = scenario.fold == "auto" and scenario.parallel.ranks < sizes.FOLDED_FROM
    if result.fold and fold_from is None and few and asked.trace is None:  # whose causes are of simulated ranks only
        result = of_all_ranks(result)
    result = replace(result, wall_s=time.perf_counter() - began)
    return replace(result, outer=_period(scenario, result, result.fabric)) if exchanges and asked.detailed else result


@dataclass
class _Attempts:
    """The attempts to simulate a run.

    Attributes:
        replicas: those of the run.
        how: how it is simulated.
        watch: ends it.
        by_messages: whether no collective, and no stretch of an op, is taken at once.
        reasons: why replicas are not folded, or not further.
        refused: what was tried before the attempt that holds.
    """

    replicas: Replicas
    how: How
    watch: Watch | None
    by_messages: bool
    reasons: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def first(self) -> Run:
        """The run by the first attempt that is not refused.

        Raises:
            FoldRefusal: the scenario asks for a fold that is not exact.
            Refusal: the run is too large to simulate.
        """
        scenario, parts, traced = self.replicas.scenario, self.replicas.parts, self.how.trace is not None
        refusals = Refusals.of(parts)
        for fold in self._folds():
            check_size(scenario, fold, self.reasons, traced=traced)
            for attempt in of_fold(fold, self.replicas, refusals, by_messages=self.by_messages or bool(self.how.trace)):
                if (made := self._made(attempt, refusals)) is not None:
                    unfolded = fold.kept("data") == scenario.parallel.data
                    return self._told(made, attempt, self.reasons[-1] if self.reasons and unfolded else "")
                if attempt.alone is None and not (attempt.watched and refusals.tied):
                    break  # the fold itself is refused
        check_size(scenario, None, self.reasons, traced=traced)
        taken_at_once = not (self.by_messages or self.how.trace)
        for attempt in of_all_ranks_alone(self.replicas) if taken_at_once else ():
            if (made := self._made(attempt, refusals)) is not None:
                return self._told(made, attempt, self.reasons[-1] if self.reasons else "")
        made = simulated(scenario, parts, how=self.how, watch=self.watch)
        return self._told(made, Attempt(), self.reasons[-1] if self.reasons else "")

    def _folds(self) -> Iterator[Fold]:
        """The folds to try; none where replicas start in an order of their own, and so differ."""
        none = self.how.order is not None or (plain() and not isinstance(self.replicas.scenario.fold, int))
        return iter(()) if none else folds_of(self.replicas, self.reasons)

    def _made(self, attempt: Attempt, refusals: Refusals) -> Run | None:
        """The run by an attempt; None if it is refused, now or before."""
        if attempt.watched and refusals.tied:
            return None
        if attempt.alone is not None and (why := refusals.disturbed.get(attempt.folded_axes, "")):
            self._refuse(attempt, why)
            return None
        try:
            return self._simulated(attempt)
        except TieError:
            refusals.tied, why = True, ""
        except (FoldRefusal, DisturbedError) as refusal:
            why = str(refusal)
            if attempt.alone is not None:
                refusals.disturbed[attempt.folded_axes] = why
            else:
                self._unfolded(attempt, why)
        if self.how.trace is not None:
            self.how.trace.clear()
        self._refuse(attempt, why)
        return None

    def _refuse(self, attempt: Attempt, why: str) -> None:
        """Keep why an attempt was refused, once."""
        if why and (refused := Refused(str(attempt), why)) not in self.refused:
            self.refused.append(refused)

    def _unfolded(self, attempt: Attempt, why: str) -> None:
        """Keep why a fold turned out not to be exact, unless tensor or context ranks were folded too."""
        fold, asked = attempt.fold, self.replicas.scenario.fold
        if fold is not None and not any(folded.axis in INNER for folded in fold.folded_axes):
            if isinstance(asked, int):
                raise FoldRefusal(f"fold: {asked}: {why}") from None
            self.reasons.append(why)

    def _simulated(self, attempt: Attempt) -> Run:
        """Simulate by an attempt.

        Raises:
            TieError, FoldRefusal, DisturbedError: it cannot be told so.
        """
        scenario, parts, how, any_order = self.replicas.scenario, self.replicas.parts, self.how, False
        if attempt.fold is not None and how.trace is not None and not attempt.watched:
            # the lineage of events, which a trace does not have, shows that the fold is exact
            untraced = scenario.model_copy(update={"record": "none"})
            quiet = replace(how, trace=None, detailed=False)
            any_order = simulated(untraced, parts, self._network(attempt, quiet), quiet, self.watch).any_order
        made = simulated(scenario, parts, self._network(attempt, how), how, self.watch)
        any_order = any_order or made.any_order or (attempt.watched and attempt.alone is None)
        return replace(made, any_order=any_order and attempt.alone is None)

    def _network(self, attempt: Attempt, how: How) -> Network:
        """The network of an attempt."""
        scenario, parts, fold = self.replicas.scenario, self.replicas.parts, attempt.fold
        if fold is None:
            network = network_of(scenario, parts, how=how)
            return network._replace(override=self._alone(attempt, network.transport))
        fabric, sharing, groups = parts.fabric, scenario.cluster.service, groups_of(parts)
        recorder, receipts = recorder_of(scenario, how), parts.programs.blocking
        if how.trace is not None:
            links = (WatchedLinks if attempt.watched else Links)(TracedEnvironment(how.trace), fabric, sharing)
            rows = traced(recorder, how.trace)
            return Network(recorder, TracedFoldedTransport(links, rows, fold, receipts, groups), fold)
        ordered = parts.meeting is not None
        how_ordered = {"receipts": receipts, "ordered": ordered, "watched": attempt.watched}
        transport = folded_transport(fabric, sharing, recorder, fold, groups, **how_ordered)
        shorter = None if self.by_messages else Stretches(slowed=parts.slowdown is not None).of
        return Network(recorder, transport, fold, self._alone(attempt, transport), shorter)

    def _alone(self, attempt: Attempt, transport: Transport) -> CollectivesAlone | None:
        """What takes collectives of an attempt at once, if it takes any."""
        service = self.replicas.scenario.cluster.service
        return CollectivesAlone(transport, self.replicas.parts, attempt.alone, service) if attempt.alone else None

    def _told(self, run: Run, attempt: Attempt, unfolded: str) -> Run:
        """A run that says what was left out, and what could not be."""
        return replace(run, unfolded=unfolded, left_out="" if attempt.is_plain else str(attempt), refused=self.refused)


def check_size(scenario: Scenario, fold: Fold | None, reasons: Sequence[str], *, traced: bool = False) -> None:
    """Check the size of a run, all of whose messages a trace needs; validation leaves open how far it is folded.

    Raises:
        Refusal: it is too large; the message says why it was not folded, or not further.
    """
    kept = scenario.parallel.data if fold is None else fold.kept("data")
    if problem := too_large(scenario, kept, "".join(reasons[-1:]), ("record",) if traced else ()):
        raise Refusal(problem)


def _of_groups(
    scenario: Scenario, groups: Sequence[tuple[Scenario, Parts]], *, detailed: bool = True, **how: Any
) -> Run:
    """The inner step of one group of replicas, the slowest, with what the exchange between all groups costs."""
    runs = (run(inner, parts=parts, detailed=detailed, **how) for inner, parts in groups)
    slowest = max(runs, key=lambda group: group.duration)
    return replace(slowest, outer=_period(scenario, slowest, fabric_of(scenario))) if detailed else slowest


def _period(scenario: Scenario, inner: Run, fabric: Fabric) -> OuterPeriod:
    steps = durations_of(inner.timeline.steps, inner.scenario.steps)
    ranks, all_ranks = len(inner.fold.ranks) if inner.fold else inner.timeline.layout.ranks, scenario.parallel.ranks
    events = inner.events * all_ranks // (ranks * len(steps))
    links = {channel.link for channel in inner.timeline.channels}
    return period_of(scenario, fabric, InnerSteps(inner.plan, inner.costs.parts, steps, links, events))
