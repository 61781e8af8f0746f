"""How many replicas a run simulates: as few as is exact, or as its scenario asks for.

A fold that looks exact (`planning.folds`) may turn out not to be while it is simulated; then others are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import prod
from typing import Generic, NamedTuple, TypeVar

from hybrid_des.errors import Refusal
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.orbits import Fold, FoldedAxis
from hybrid_des.planning.folds import Replicas, check
from hybrid_des.scenario import Scenario, folded
from hybrid_des.scenario.sizes import too_large

MOST_TRIES = 4  # folds that turn out to be wrong while they are simulated
INNER = ("tensor", "context")  # axes of ranks that share layers

Outcome = TypeVar("Outcome")


class Folded(NamedTuple, Generic[Outcome]):
    """What was simulated, for which other ranks those stand (None: all are simulated), and why replicas do not."""

    outcome: Outcome
    fold: Fold | None
    reason: str


def simulated_once(replicas: Replicas, simulate: Callable[[Fold | None], Outcome], *, whole: bool) -> Folded[Outcome]:
    """Simulate as few replicas as is exact, or as the scenario asks for; or the whole cluster.

    Raises:
        FoldRefusal: the scenario asks for a fold that is not exact.
        Refusal: more must be simulated than can be.
    """
    scenario, reasons = replicas.scenario, list[str]()
    for fold in () if whole else folds_of(replicas, reasons):
        check_size(scenario, fold, reasons)
        try:
            outcome = simulate(fold)
        except FoldRefusal as refusal:
            if not any(turn.axis in INNER for turn in fold.turns):  # else others will be tried
                if isinstance(scenario.fold, int):
                    raise FoldRefusal(f"fold: {scenario.fold}: {refusal}") from None
                reasons.append(str(refusal))
        else:
            unfolded = fold.kept("data") == scenario.parallel.data
            return Folded(outcome, fold, reasons[-1] if reasons and unfolded else "")
    check_size(scenario, None, reasons)
    return Folded(simulate(None), None, reasons[-1] if reasons else "")


def folds_of(replicas: Replicas, reasons: list[str]) -> Iterator[Fold]:
    """The folds that look exact, those with the fewest replicas first; why others do not is added to `reasons`.

    Of each, those come first that also fold ranks which share layers.

    Raises:
        FoldRefusal: the scenario asks for a fold that is not exact.
    """
    asked, parallel = replicas.scenario.fold, replicas.scenario.parallel
    if asked == "off" or (asked == "auto" and parallel.ranks < folded.FROM):
        return
    sizes = [asked] if isinstance(asked, int) else [k for k in range(1, parallel.data) if parallel.data % k == 0]
    tried = 0
    for keep in sizes:
        found = None
        if tried == MOST_TRIES:
            break
        try:
            found = _first(replicas, keep)
        except FoldRefusal as refusal:
            if isinstance(asked, int):
                raise FoldRefusal(f"fold: {keep}: {refusal}") from None
            reasons.append(str(refusal))
        if found is not None:
            tried += 1
            if asked == "auto":
                yield from _narrower(replicas, found.turns)
            yield found
    if asked == "auto" and not replicas.differ:
        yield from _narrower(replicas, ())


def _narrower(replicas: Replicas, turns: Sequence[FoldedAxis]) -> Iterator[Fold]:
    """A fold with tensor and context ranks folded too, where their collectives are replayed and all do the same."""
    layout = replicas.scenario.parallel.layout
    if replicas.exchanging or replicas.meeting is not None:
        return
    keeps = [
        [k for k in range(1, layout.sizes.get(axis, 1) + 1) if layout.sizes.get(axis, 1) % k == 0] for axis in INNER
    ]
    tried = 0
    for kept in sorted(product(*keeps), key=prod)[:-1]:
        inner = [FoldedAxis(axis, k) for axis, k in zip(INNER, kept, strict=True) if k < layout.sizes.get(axis, 1)]
        fold = Fold(layout, [*turns, *inner])
        with suppress(FoldRefusal):
            check(fold, replicas)
            tried += 1
            yield fold
        if tried == MOST_TRIES:
            return


def _first(replicas: Replicas, keep: int) -> Fold | None:
    """The exact fold that keeps so many replicas; None if that is all of them."""
    layout, every = replicas.scenario.parallel.layout, replicas.scenario.parallel.data
    if every % keep:
        raise FoldRefusal(f"{every} replicas are not a multiple of it")
    if keep == every:
        return None
    if found := replicas.differ:
        raise FoldRefusal(found)
    powers = not (keep & (keep - 1) or every & (every - 1))
    refusals = []
    for swap in (False, True)[: 1 + powers]:
        fold = Fold(layout, [FoldedAxis("data", keep, swap)])
        try:
            check(fold, replicas)
        except FoldRefusal as refusal:
            refusals.append(refusal)
        else:
            return fold
    raise refusals[0]


def check_size(scenario: Scenario, fold: Fold | None, reasons: Sequence[str]) -> None:
    """Check that a run is not too large, which a scenario that may be folded has been allowed to be.

    Raises:
        Refusal: it is, with the reason why it was not folded, or not more.
    """
    kept = scenario.parallel.data if fold is None else fold.kept("data")
    if found := too_large(scenario, kept):
        raise Refusal("; ".join([found, *(f"replicas differ: {reason}" for reason in reasons[-1:])]))
