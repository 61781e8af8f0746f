"""The outcome of a search: the best plans, the reason why each of the others is ruled out, and the remaining gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.difference import LEAST, difference
from hybrid_des.analysis.notebook_view import as_html
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.definition import Scenario
from hybrid_des.studies.plan_search.bound import least_step
from hybrid_des.studies.plan_search.branch import (
    EXCLUDED,
    IMPOSSIBLE,
    MISFIT,
    SAME,
    SIMULATED,
    UNKNOWN,
    Candidate,
)
from hybrid_des.studies.plan_search.evaluation import scenario_in
from hybrid_des.studies.plan_search.terms import Settings
from hybrid_des.studies.sweep.axes import plain
from hybrid_des.studies.sweep.rows import cells
from hybrid_des.units import format_share, to_seconds

if TYPE_CHECKING:
    import pandas as pd

_WORDS = {SAME: "the same as others", MISFIT: "do not fit"}


_ALWAYS = (SIMULATED, EXCLUDED, MISFIT, UNKNOWN)


SAME_OF_ALL = ("version", "model_version", "name")  # of a summary: the same for all plans


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The outcome of a search.

    Attributes:
        settings: the scenario and its `search` block.
        candidates: every plan of the space.
        least: lower bound on the cost of every plan.
        stopped: why it ended before that was proved; empty if it was.
        wall_s: real seconds.
    """

    settings: Settings
    candidates: Sequence[Candidate]
    least: float
    stopped: str = ""
    wall_s: float = 0.0

    def __repr__(self) -> str:
        return f"<SearchResult {self.sentence}>"

    def _repr_html_(self) -> str:
        """The best plans, for notebooks."""
        return as_html(self.sentence, {"Plans": self.table()})

    @cached_property
    def ranked(self) -> list[Candidate]:
        """The simulated plans, the best first."""
        simulated = (one for one in self.candidates if one.status == SIMULATED)
        return sorted(simulated, key=lambda candidate: (candidate.least, candidate.held, candidate.number))

    @property
    def best(self) -> Candidate | None:
        """The best plan; None if none was found."""
        return self.ranked[0] if self.ranked else None

    @property
    def gap(self) -> float:
        """The relative gap between the best plan and the lower bound; 0 if the plan is proven optimal."""
        best = self.best
        if best is None or not best.least:
            return 0.0
        return max(0.0, 1 - self.least / best.least)

    @property
    def counts(self) -> Counter[str]:
        """The number of plans by status."""
        return Counter(one.status for one in self.candidates)

    @cached_property
    def ties(self) -> list[Candidate]:
        """The simulated plans that are as good as the best: that differ by less than 2 %, and not for certain."""
        best = self.best
        if best is None or not best.least or self.settings.written.rl is not None:  # no interval is known of loops
            return []
        close = [one for one in self.ranked if one is not best and one.least < best.least * (1 + LEAST)]
        scenario = self.scenario(best) if close else None
        known = [(one, difference(scenario, self.scenario(one))) for one in close if scenario is not None]
        return [one for one, sure in known if sure is not None and sure.is_tie(one.least / best.least - 1)]

    def front(self) -> list[Candidate]:
        """The Pareto front of the simulated plans in time and memory, fastest first."""
        return _each_less(self.ranked, attrgetter("held"))

    def frontier(self) -> list[Candidate]:
        """The Pareto front of the simulated plans in cost and what it is weighed against, the lowest cost first."""
        plans = sorted(self.ranked, key=attrgetter("least", "against", "held", "number"))
        return _each_less(plans, attrgetter("against"))

    def nearest(self) -> Candidate | None:
        """Of the plans that do not fit, the one that exceeds the memory least."""
        return min(
            (one for one in self.candidates if one.status == MISFIT),
            key=lambda candidate: candidate.excess,
            default=None,
        )

    def scenario(self, candidate: Candidate) -> Scenario:
        """The scenario of a plan."""
        return scenario_in(self.settings, candidate.case)

    def least_step(self, candidate: Candidate) -> float:
        """A bound on the step of a plan in seconds, known without simulating it."""
        scenario = self.scenario(candidate)
        return to_seconds(least_step(scenario, parts_of(scenario)))

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
            return f"{'optimal' if self.best else 'no plan'}{self._beyond}: {listed}"
        if self.best is None:
            return f"stopped ({self.stopped}), no plan yet: {listed}"
        screened = [one for one in self.candidates if one.done and one.status in (SIMULATED, UNKNOWN)]
        least, among = self.least, ""
        if any(not one.done for one in self.candidates):
            least, among = min(one.least for one in screened), " among the plans screened"
        inside = next((one for one in self.ranked if not one.beyond), self.best)
        gap, text = 1 - least / inside.least, self.settings.objective.text(least) if least else "any"
        left = f"a gap of {format_share(max(0.0, gap))} is left to {text}{among}"
        return f"stopped ({self.stopped}), {left}{self._beyond}: {listed}"

    @property
    def _beyond(self) -> str:
        """What a plan beyond those listed gains, in words; empty if none is better."""
        best = self.best
        if best is None or not best.beyond:
            return ""
        inside = next((one for one in self.ranked if not one.beyond), None)
        gain = "fits" if inside is None else f"is {format_share(1 - best.least / inside.least)} better"
        among = "" if self.stopped else " among the plans listed"
        return f"{among}; plan {best.number}, beyond the plans listed, {gain}"

    def table(self) -> pd.DataFrame:
        """One row per plan, the best first: its values, its status and reason, its bound, and its summary.

        Columns: `plan`, `status`, `reason`, the keys that vary, `least` (a bound of the objective, or its value),
        `held_bytes` of the fullest GPU, and the keys of the summary for simulated plans.
        """
        import pandas as pd

        rest = [one for one in self.candidates if one.status != SIMULATED]
        order = [SIMULATED, UNKNOWN, EXCLUDED, SAME, MISFIT, IMPOSSIBLE]
        rest.sort(key=lambda candidate: (order.index(candidate.status), candidate.least))
        return pd.DataFrame([self._row(one) for one in (*self.ranked, *rest)])

    def frontier_table(self) -> pd.DataFrame:
        """The rows of the frontier, such as that of days against money, the lowest cost first."""
        import pandas as pd

        return pd.DataFrame([self._row(one) for one in self.frontier()])

    def _row(self, candidate: Candidate) -> dict[str, Any]:
        objective, against = self.settings.objective, self.settings.objective.against
        known = candidate.status not in (MISFIT, IMPOSSIBLE) and candidate.least
        return {
            "plan": candidate.number,
            "status": candidate.status,
            "reason": candidate.reason,
            **{path: value for path, value in plain(candidate.case).items() if value is not None},
            f"{objective.key}_bound": objective.value(candidate.least) if known else None,
            **({} if against is None else {f"{against.key}_bound": candidate.against if known else None}),
            "held_bytes": candidate.held or None,
            **cells({key: value for key, value in candidate.row.items() if key not in SAME_OF_ALL}),
        }


def _each_less(plans: Iterable[Candidate], figure: Callable[[Candidate], float]) -> list[Candidate]:
    """The plans that have less of a figure than all before them."""
    kept: list[Candidate] = []
    for plan in plans:
        if not kept or figure(plan) < figure(kept[-1]):
            kept.append(plan)
    return kept
