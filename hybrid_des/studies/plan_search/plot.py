"""The plot of a search, one point per plan: time against memory or, where money is the objective, against days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybrid_des.report.plots import style
from hybrid_des.studies.plan_search.branch import (
    EXCLUDED,
    SIMULATED,
    UNKNOWN,
    Candidate,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from hybrid_des.studies.plan_search.outcome import SearchResult
from hybrid_des.studies.plan_search.scenario_files import with_values

GB = 1e9


BLUE, ORANGE, GREY = style.LINES[0], style.LINES[1], "#999999"


def draw(result: SearchResult, ax: Axes | None = None) -> Axes:
    """Draw every plan whose memory is known: simulated ones, the Pareto front among them, and the bounds of the others.

    A plan that was not simulated is drawn at its bound: its value is there or higher, for `tokens_per_gpu_s` lower.
    What plans are weighed against, such as days against money, takes the place of memory.
    """
    ax = style.axes(ax, (8, 5))
    objective = result.settings.objective
    against = objective.against
    best = result.front() if against is None else result.frontier()

    def points(plans: Sequence[Candidate]) -> list[tuple[float, float]]:
        return [(one.held / GB if against is None else one.against, objective.value(one.least)) for one in plans]

    groups: tuple[tuple[str, Sequence[Candidate], dict[str, object]], ...] = (
        (
            "not simulated: its bound",
            with_values(result, EXCLUDED, UNKNOWN),
            {"color": GREY, "marker": "_", "linewidths": 1},
        ),
        ("simulated", with_values(result, SIMULATED), {"color": BLUE, "s": 16}),
        ("none is better in both", best, {"color": ORANGE, "s": 28, "zorder": 3}),
    )
    for label, plans, look in groups:
        if plans:
            ax.scatter(*zip(*points(plans), strict=True), label=label, **look)  # type: ignore[arg-type]
    if len(best) > 1:
        ax.plot(*zip(*points(best), strict=True), color=ORANGE, linewidth=1, zorder=2)
    if against is not None:
        ax.set_xlabel(against.axis)
    else:
        for limit in {result.settings.allowed(kind.gpu) for kind in result.settings.written.cluster.kinds}:
            ax.axvline(limit / GB, color=GREY, linewidth=0.8, linestyle=":")
        ax.set_xlabel("memory of the fullest GPU (GB); dotted: usable")
    ax.set_xlim(left=max(0.0, ax.get_xlim()[0]))  # points, whose distances matter, not their distance from 0
    ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
    ax.set_ylabel(objective.axis)
    style.title(ax, str(result.settings.document.value.get("name", "")))
    if result.ranked:
        style.legend(ax, loc="best", bbox_to_anchor=None)
    return style.plain(ax)
