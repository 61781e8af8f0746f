"""How many replicas a run simulates: as few as is exact, or as its scenario asks for.

A fold that looks exact (`simulation.folds`) may turn out not to be while it is simulated; then others are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from hybrid_des.errors import Refusal
from hybrid_des.folding import FoldRefusal
from hybrid_des.folding.orbits import Fold
from hybrid_des.scenario import Scenario
from hybrid_des.scenario.sizes import too_large
from hybrid_des.simulation.folds import INNER, Replicas, folds_of

Outcome = TypeVar("Outcome")


class Folded(NamedTuple, Generic[Outcome]):
    """The outcome, the fold that was simulated (None: all ranks were), and why replicas were not folded."""

    outcome: Outcome
    fold: Fold | None
    reason: str


def simulated_once(replicas: Replicas, simulate: Callable[[Fold | None], Outcome], *, whole: bool) -> Folded[Outcome]:
    """Simulate as few replicas as is exact, or as the scenario asks for; or the whole cluster.

    Raises:
        FoldRefusal: the scenario asks for a fold that is not exact.
        Refusal: the run is too large to simulate.
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


def check_size(scenario: Scenario, fold: Fold | None, reasons: Sequence[str]) -> None:
    """Check the size of a run, which validation leaves open for scenarios that may be folded.

    Raises:
        Refusal: it is too large; the message says why it was not folded, or not further.
    """
    kept = scenario.parallel.data if fold is None else fold.kept("data")
    if found := too_large(scenario, kept):
        raise Refusal("; ".join([found, *(f"replicas differ: {reason}" for reason in reasons[-1:])]))
