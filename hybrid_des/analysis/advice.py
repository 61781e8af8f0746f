"""Advice on a scenario: a few changes of its settings that make the step shorter, or make it fit into memory.

`hybrid_des.studies.advice` finds them; what stands here is what is shown of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_des.analysis.difference import Difference
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.export import flow_text
from hybrid_des.units import format_bytes, format_seconds


@dataclass(frozen=True)
class AdviceLine:
    """One proposal, simulated.

    Attributes:
        words: what changes, one item per change, such as ("no recompute", "TP8 → TP4, DP2 → DP4").
        settings: key of the scenario → new value, as plain values; None removes a key that the file has.
        kinds: the kinds of its moves, such as ("recompute", "layout").
        scenario: the scenario with these settings.
        step_s: seconds of its step.
        gain: the share of today's step that it saves; below 0 if it takes longer, as what makes a step fit may.
        sure: how sure that difference is; None if too few measured pairs of runs tell.
        held, memory: bytes held by the GPU closest to its memory, and bytes that this GPU has.
        remarks: what it costs beside time, such as "checkpoints change their layout".
        flags: what changes in the launch line of `Advice.framework`, in its own words.
    """

    words: tuple[str, ...]
    settings: Mapping[str, object]
    kinds: tuple[str, ...]
    scenario: Scenario
    step_s: float
    gain: float
    sure: Difference | None
    held: int
    memory: int
    remarks: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def change(self) -> str:
        """What changes, in words: "no recompute; TP8 → TP4, DP2 → DP4"."""
        return "; ".join(self.words)

    @property
    def overrides(self) -> dict[str, str]:
        """The settings as `--set` takes them, by key; "null" removes a key."""
        return {key: flow_text(value) for key, value in self.settings.items()}

    @property
    def likely(self) -> str:
        """The interval of the gain in words, such as "likely -45 to -27 %"; empty if it is unknown."""
        return "" if self.sure is None else self.sure.likely(-self.gain)

    def to_mapping(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "change": self.change,
            "settings": dict(self.settings),
            "kinds": list(self.kinds),
            "step_time_s": self.step_s,
            "gain": self.gain,
            "held_bytes": self.held,
            "memory_bytes": self.memory,
            "remarks": list(self.remarks),
            "flags": list(self.flags),
            **({} if self.sure is None else {"difference": self.sure.to_mapping(-self.gain)}),
        }


@dataclass(frozen=True, repr=False)
class Advice:
    """What to change in a scenario, the best first.

    Attributes:
        scenario: the scenario before any change.
        step_s: seconds of its step; if it does not fit, those on GPUs with enough memory.
        held, memory: bytes held by the GPU closest to its memory, and bytes that this GPU has.
        lines: at most three proposals, all simulated, all of which fit.
        nearest: where the scenario does not fit, and nothing does: what needs the fewest bytes more than there are.
        framework: whose flags the lines have; empty if there are none, as without a model.
        assumed: whether the file leaves the framework open.
        priced, weighed, simulated: how many plans were evaluated, and how far.
    """

    scenario: Scenario
    step_s: float
    held: int
    memory: int
    lines: Sequence[AdviceLine] = ()
    nearest: AdviceLine | None = None
    framework: str = ""
    assumed: bool = False
    priced: int = 0
    weighed: int = 0
    simulated: int = 0

    @property
    def fits(self) -> bool:
        """Whether the scenario fits into memory before any change."""
        return self.held <= self.memory

    def __repr__(self) -> str:
        first = f"; {self.lines[0].change}: {format_seconds(self.lines[0].step_s)}" if self.lines else ""
        memory = "" if self.fits else f", needs {format_bytes(self.held)} of {format_bytes(self.memory)}"
        number = f"{len(self.lines)} line{'' if len(self.lines) == 1 else 's'}"
        return f"<Advice on {self.scenario.name}: step {format_seconds(self.step_s)}{memory}; {number}{first}>"

    def to_mapping(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "step_time_s": self.step_s,
            "held_bytes": self.held,
            "memory_bytes": self.memory,
            "lines": [line.to_mapping() for line in self.lines],
            "nearest": None if self.nearest is None else self.nearest.to_mapping(),
            "framework": self.framework,
            "framework_assumed": self.assumed,
            "plans": {"priced": self.priced, "weighed": self.weighed, "simulated": self.simulated},
        }
