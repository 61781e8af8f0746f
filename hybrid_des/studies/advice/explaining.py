"""Why a step takes as long as it does, with advice on its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hybrid_des.analysis import explanation
from hybrid_des.analysis.counterfactual.what_if import Build
from hybrid_des.analysis.explanation import TOP, Explanation
from hybrid_des.analysis.tasks import AtOnce, in_turn
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.pipeline.plan import Plan
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.studies.advice.advising import advise


def explain(
    scenario: Source,
    what_if: Sequence[str] = (),
    *,
    overrides: Overrides = (),
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    build: Build | None = None,
    top: int = TOP,
    at_once: AtOnce = in_turn,
) -> Explanation:
    """Find out why a step takes as long as it does, and simulate what would help.

    Advice on settings is computed when the result's `advice` is first read, or shown in a notebook.

    Args:
        scenario: the scenario to explain, the path of its file, or a mapping.
        what_if: changes, such as "cluster.nvlink.bandwidth=2x".
        overrides: changes to it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.
        plan: replaces the schedule's plan; then there is no advice.
        fabric: replaces the topology's fabric; then there is no advice.
        build: builds a scenario from overrides, for one that was read from a file.
        top: number of rows in lists.
        at_once: runs what-ifs of a long run; by default one after the other, with `hybrid_des.studies.forked.forked(4)`
            in four processes.

    Raises:
        HybridDesError: the scenario cannot be simulated, or a what-if is wrong.

    Example:
        >>> from hybrid_des import explain
        >>> found = explain("scenarios/a100_8x.yaml", ["cluster.nvlink.bandwidth=2x"])
        >>> found
        <Explanation of a100_8x: step 1.435 s; 72 % computing, 27 % bubble>
        >>> found.advice
        <Advice on a100_8x: step 1.435 s; 2 lines; PP4 → PP1, DP2 → DP8: 1.052 s>
        >>> found["ladder"].round(3)
                             step  step_time_s
        0                   as is        1.435
        1             no queueing        1.435
        2          infinite links        1.430
        3              no latency        1.430
        4   all ranks at the mean        1.430
        5  split backward (zb-h1)        1.190
        6            work / ranks        1.040
    """
    valid = load(scenario, overrides)
    explained = explanation.explain(valid, what_if, plan=plan, fabric=fabric, build=build, top=top, at_once=at_once)
    if plan is not None or fabric is not None:
        return explained
    return replace(explained, advised=partial(advise, scenario, overrides, run=explained.run))
