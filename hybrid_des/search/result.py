"""The outcome of a search: the best plans, the reason why each of the others is ruled out, and the remaining gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hybrid_des.analysis.table import write_csv
from hybrid_des.report.files import Written, write_whole
from hybrid_des.report.plots import style
from hybrid_des.scenario import Scenario
from hybrid_des.scenario.composition import anchor
from hybrid_des.search.branch import EXCLUDED, IMPOSSIBLE, MISFIT, SAME, SIMULATED, UNKNOWN, Candidate
from hybrid_des.search.evaluation import scenario_in
from hybrid_des.search.terms import Settings
from hybrid_des.sweep.axes import plain
from hybrid_des.sweep.runner import cells, with_case

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_WORDS = {SAME: "the same as others", MISFIT: "do not fit"}
_ALWAYS = (SIMULATED, EXCLUDED, MISFIT, UNKNOWN)


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search.

    Attributes:
        settings: the scenario and its `search` block.
        candidates: every plan of the space.
        least: a cost that no plan undercuts.
        stopped: why it ended before that was proved; empty if it was.
        wall_s: real seconds.
    """

    settings: Settings
    candidates: Sequence[Candidate]
    least: float
    stopped: str = ""
    wall_s: float = 0.0

    @cached_property
    def ranked(self) -> list[Candidate]:
        """The simulated plans, the best first."""
        simulated = (one for one in self.candidates if one.status == SIMULATED)
        return sorted(simulated, key=lambda one: (one.least, one.held, one.number))

    @property
    def best(self) -> Candidate | None:
        """The best plan; None if none was found."""
        return self.ranked[0] if self.ranked else None

    @property
    def gap(self) -> float:
        """The share by which the best plan could still be undercut; 0 if it is proved to be the best."""
        best = self.best
        if best is None or not best.least:
            return 0.0
        return max(0.0, 1 - self.least / best.least)

    @property
    def counts(self) -> Counter[str]:
        """The number of plans by status."""
        return Counter(one.status for one in self.candidates)

    def front(self) -> list[Candidate]:
        """The simulated plans that no other simulated one undercuts in both time and memory, fastest first."""
        found: list[Candidate] = []
        for one in self.ranked:
            if not found or one.held < found[-1].held:
                found.append(one)
        return found

    def nearest(self) -> Candidate | None:
        """Of the plans that do not fit, the one that exceeds the memory least."""
        return min((one for one in self.candidates if one.status == MISFIT), key=lambda one: one.excess, default=None)

    def scenario(self, candidate: Candidate) -> Scenario:
        """The scenario of a plan."""
        return scenario_in(self.settings, candidate.case)

    @property
    def sentence(self) -> str:
        """How the search ended, with its counts."""
        counts = self.counts
        listed = ", ".join(
            f"{counts[name]} {_WORDS.get(name, name)}"
            for name in (SIMULATED, EXCLUDED, SAME, MISFIT, IMPOSSIBLE, UNKNOWN)
            if counts[name] or name in _ALWAYS
        )
        if not self.stopped:
            return f"{'optimal' if self.best else 'no plan'}: {listed}"
        if self.best is None:
            return f"stopped ({self.stopped}), no plan yet: {listed}"
        least = self.settings.objective.text(self.least) if self.least else "any"
        return f"stopped ({self.stopped}), a gap of {self.gap:.1%} is left to {least}: {listed}"

    def table(self) -> pd.DataFrame:
        """One row per plan, the best first: its values, its status and reason, its bound, and its summary.

        Columns: `plan`, `status`, `reason`, the keys that vary, `least` (a bound of the objective, or its value),
        `held_bytes` of the fullest GPU, and the keys of the summary for simulated plans.
        """
        import pandas as pd

        rest = [one for one in self.candidates if one.status != SIMULATED]
        order = [SIMULATED, UNKNOWN, EXCLUDED, SAME, MISFIT, IMPOSSIBLE]
        rest.sort(key=lambda one: (order.index(one.status), one.least))
        return pd.DataFrame([self._row(one) for one in (*self.ranked, *rest)])

    def _row(self, one: Candidate) -> dict[str, Any]:
        objective = self.settings.objective
        known = one.status not in (MISFIT, IMPOSSIBLE) and one.least
        return {
            "plan": one.number,
            "status": one.status,
            "reason": one.reason,
            **{path: value for path, value in plain(one.case).items() if value is not None},
            f"{objective.key}_bound": objective.value(one.least) if known else None,
            "held_bytes": one.held or None,
            **cells({key: value for key, value in one.row.items() if key not in ("name", "version")}),
        }


# The scenario file of a plan found by a search.


def scenario_file(found: SearchResult, candidate: Candidate) -> str:
    """The text of a scenario file: the content of the searched file with the values of a plan.

    The paths in it are made absolute, so that it can be placed anywhere.
    """
    document = with_case(found.settings.document, candidate.case, "search")
    anchor(document, Path.cwd())
    values = {key: value for key, value in document.value.items() if value not in ({}, None)}
    values["name"] = f"{values.get('name', 'scenario')}, plan {candidate.number}"
    lines = ["# Found by hybrid-des search.", f"# {found.sentence}", ""]
    return "\n".join(lines) + yaml.safe_dump(_plain(values), sort_keys=False, allow_unicode=True, width=120)


def _plain(value: Any) -> Any:
    """Numbers as YAML writes them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value


# The plot of a search: time against memory, one point per plan.


GB = 1e9
BLUE, ORANGE, GREY = style.LINES[0], style.LINES[1], "#999999"


def draw(found: SearchResult, ax: Axes | None = None) -> Axes:
    """Draw every plan whose memory is known: simulated ones, the Pareto front among them, and the bounds of the others.

    A plan that was not simulated is drawn at its bound: its value is there or higher, for `tokens_per_gpu_s` lower.
    """
    ax = style.axes(ax, (8, 5))
    objective = found.settings.objective
    groups: tuple[tuple[str, Sequence[Candidate], dict[str, object]], ...] = (
        ("not simulated: its bound", _with(found, EXCLUDED, UNKNOWN), {"color": GREY, "marker": "_", "linewidths": 1}),
        ("simulated", _with(found, SIMULATED), {"color": BLUE, "s": 16}),
        ("none is better in both", found.front(), {"color": ORANGE, "s": 28, "zorder": 3}),
    )
    for label, plans, look in groups:
        if plans:
            points = [(one.held / GB, objective.value(one.least)) for one in plans]
            ax.scatter(*zip(*points, strict=True), label=label, **look)  # type: ignore[arg-type]
    front = [(one.held / GB, objective.value(one.least)) for one in found.front()]
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color=ORANGE, linewidth=1, zorder=2)
    for one in {found.settings.allowed(kind.gpu) for kind in found.settings.written.cluster.kinds}:
        ax.axvline(one / GB, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xlim(left=max(0.0, ax.get_xlim()[0]))  # points, whose distances matter, not their distance from 0
    ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
    ax.set_xlabel("memory of the fullest GPU (GB); dotted: usable")
    ax.set_ylabel(objective.axis)
    ax.set_title(style.verbatim(str(found.settings.document.value.get("name", ""))), loc="left", fontsize=10)
    if found.ranked:
        style.legend(ax, loc="best", bbox_to_anchor=None)
    return style.plain(ax)


def _with(found: SearchResult, *statuses: str) -> list[Candidate]:
    return [one for one in found.candidates if one.status in statuses and one.weighed]


def write(found: SearchResult, folder: str | Path) -> Written:
    """Write `search.csv`, the table of all plans; `search.png` and `.svg`; and `best.yaml`, if there is a best one.

    Raises:
        UsageError: the folder cannot be written.
    """

    def fill(staging: Path) -> None:
        write_csv(found.table(), staging / "search.csv")
        if found.best is not None:
            figure = style.new_figure((8, 5))
            draw(found, figure.subplots())
            style.save(figure, staging, "search")
            (staging / "best.yaml").write_text(scenario_file(found, found.best), encoding="utf-8")

    return write_whole(folder, fill, replaces=["search.csv", "search.png", "search.svg", "best.yaml"])
