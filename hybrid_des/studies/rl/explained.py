"""Why the cycle of a loop takes as long as it does, and what would change it: every change simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from hybrid_des.report.text import labelled
from hybrid_des.scenario.overrides import changes_of as overrides_of
from hybrid_des.studies.rl.report import LABEL, WIDTH, engines_said, told_what_if, trainer_said, verdict_of
from hybrid_des.studies.rl.result import RlResult
from hybrid_des.studies.rl.whatifs import BOUNDS, Change, WhatIf, simulated
from hybrid_des.units import format_change


@dataclass(frozen=True)
class ExplainedLoop:
    """A loop, and changes of it that were simulated with the same draws.

    Attributes:
        result: the loop.
        asked: changes that were asked for.
    """

    result: RlResult
    asked: Sequence[WhatIf] = ()

    @property
    def verdict(self) -> str:
        """What is lost, and what would help, in a sentence."""
        return verdict_of(self.result.figures, self.result.what_ifs)

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values."""
        what_ifs = [what_if.to_mapping() for what_if in (*self.asked, *self.result.all_what_ifs)]
        return {"verdict": self.verdict, **self.result.summary, "what_if": what_ifs}

    def report(self, width: int = WIDTH) -> str:
        """The verdict, both sides, and a line per change with its gain."""
        figures, changes = self.result.figures, self.result.all_what_ifs
        possible = [what_if for what_if in changes if what_if.change.kind not in BOUNDS]
        bounds = [what_if for what_if in changes if what_if.change.kind in BOUNDS]
        blocks = [
            ("Verdict", [self.verdict]),
            ("Trainer", [trainer_said(figures)]),
            ("Engines", [*engines_said(figures)]),
            *([("Asked", [*self._lines(self.asked)])] if self.asked else []),
            *([("What if", [*self._lines(possible)])] if possible else []),
            *([("Bounds", [*self._lines(bounds)])] if bounds else []),
        ]
        return "\n".join([self.result.scenario.name, *labelled(blocks, width, LABEL)])

    def details(self, width: int = WIDTH) -> str:
        """The same, and the whole report."""
        return f"{self.report(width)}\n\n{self.result.report(width)}"

    def _lines(self, changes: Sequence[WhatIf]) -> Iterator[str]:
        for what_if in changes:
            told = told_what_if(self.result.figures, what_if)
            flags = " ".join(f"--set {quote(flag)}" for flag in what_if.change.flags) or what_if.change.remark
            shown = f"; {flags}" if flags and what_if.change.kind not in BOUNDS else ""
            yield f"{format_change(-what_if.gain):>8}  {told}{shown}"


def explain_loop(result: RlResult, asked: Sequence[str] = ()) -> ExplainedLoop:
    """Simulate changes of a loop.

    Args:
        result: the loop.
        asked: what-ifs such as "rl.ahead=1", beside those proposed.

    Raises:
        HybridDesError: a change that was asked for is not possible.
    """
    cycle = result.figures.cycle
    return ExplainedLoop(result, [simulated(_change(text), cycle, result.build, result.loop) for text in asked])


def _change(text: str) -> Change:
    """A change as it was asked for.

    Raises:
        ScenarioError: it is not of the form KEY=VALUE.
    """
    settings: dict[str, object] = {}
    for change in overrides_of([text]):
        if isinstance(change, Exception):
            raise change
        settings[".".join(change.path)] = None if change.removes else change.value
    return Change("asked", text, settings)
