"""A comparison of two runs: the step, its causes, what changed, and what each change did."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.comparison.difference import changes, first_difference, matched, unmatched
from hybrid_des.analysis.comparison.effects import Effect, bounds, effects
from hybrid_des.analysis.comparison.sides import Side, side_of
from hybrid_des.analysis.table import COMPUTE
from hybrid_des.analysis.ties import Ties, ties_of
from hybrid_des.errors import UsageError
from hybrid_des.scenario import Source
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd


DIGITS = 12  # decimal places of seconds: picoseconds


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side: A and B."""

    a: Side
    b: Side

    @property
    def change(self) -> float:
        """The change of the step in seconds."""
        return round(float(self.b.summary["step_time_s"] - self.a.summary["step_time_s"]), DIGITS)

    @property
    def regression(self) -> float:
        """The change of the step as a share of A's."""
        before = self.a.summary["step_time_s"]
        return self.change / before if before else 0.0

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """The rows of both timelines, matched."""
        return matched(self.a.rows, self.b.rows)

    @cached_property
    def effects(self) -> list[Effect] | None:
        """The effect of each changed class; None if a side is a folder."""
        if self.a.run is None or self.b.run is None:
            return None
        return effects(self.a.run, self.b.run, self.a.given, self.b.given)

    @cached_property
    def bounds(self) -> tuple[int, int] | None:
        """Lower and upper bound of the change if order and messages are the same, in picoseconds of the whole run."""
        return bounds(self.a.run, self.b.run) if self.a.run and self.b.run else None

    @cached_property
    def ties(self) -> tuple[Ties | None, Ties | None]:
        """How far each side's step depends on ties; None if it does not, or is a folder."""
        return (
            None if self.a.run is None else ties_of(self.a.run),
            None if self.b.run is None else ties_of(self.b.run),
        )

    @property
    def interaction(self) -> float | None:
        """The effect that the changed classes have only together, in seconds per step."""
        if self.effects is None or self.a.run is None or self.b.run is None:
            return None
        whole = self.b.run.timeline.duration - self.a.run.timeline.duration
        return self._seconds(whole - sum(effect.in_a for effect in self.effects))

    def causes(self) -> list[dict[str, Any]]:
        """Busy and idle time by cause, mean per rank."""
        first, second = ({"busy": side.summary["busy_s"], **side.summary["idle_s"]} for side in (self.a, self.b))
        return [
            {"cause": name, "a_s": first.get(name, 0.0), "b_s": second.get(name, 0.0),
             "change_s": round(second.get(name, 0.0) - first.get(name, 0.0), DIGITS)}
            for name in dict.fromkeys([*first, *second])
        ]  # fmt: skip

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values; times in seconds, effects and bounds in seconds per step."""
        found = None if self.effects is None else [
            {"name": one.name, "in_a_s": self._seconds(one.in_a), "in_b_s": self._seconds(one.in_b)}
            for one in self.effects
        ]  # fmt: skip
        return {
            **{key: {"name": side.name, "step_time_s": side.summary["step_time_s"]} for key, side in self._sides()},
            "change_s": self.change,
            "change": self.regression,
            "causes": self.causes(),
            "ranks": changes(self.pairs, ["rank"], COMPUTE),
            "ops": changes(self.pairs, ["rank", "kind"], COMPUTE),
            "links": changes(self.pairs, ["lane"], "links"),
            "unmatched": unmatched(self.pairs),
            "first_difference": first_difference(self.pairs),
            "effects": found,
            "interaction_s": self.interaction,
            "ties": {
                key: None if ties is None else ties.to_mapping(self.a.steps)
                for (key, _), ties in zip(self._sides(), self.ties, strict=True)
            },
            "bounds_s": None if self.bounds is None else [self._seconds(bound) for bound in self.bounds],
        }

    def _sides(self) -> tuple[tuple[str, Side], tuple[str, Side]]:
        return ("a", self.a), ("b", self.b)

    def _seconds(self, picoseconds: int) -> float:
        return picoseconds / PICOSECONDS_PER_SECOND / max(self.a.steps, 1)


def compare(first: Side | Source, second: Side | Source) -> Comparison:
    """Compare two runs: scenarios, paths of their files, mappings, or folders written by `--out`.

    Raises:
        UsageError: they have different numbers of ranks or steps.
    """
    a, b = side_of(first), side_of(second)
    ranks = [side.summary["ranks"] for side in (a, b)]
    if ranks[0] != ranks[1]:
        raise UsageError(f"compare: {a.name} has {ranks[0]} ranks, {b.name} has {ranks[1]}; expected the same number")
    if a.steps != b.steps:
        raise UsageError(f"compare: {a.name} has {a.steps} steps, {b.name} has {b.steps}; expected the same number")
    return Comparison(a, b)
