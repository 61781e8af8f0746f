"""The result of a run for users: summary, timeline, pictures and files of one `Run`.

result = simulate(load("scenarios/a100_8x.yaml"))
result.summary["bubble_ratio"]
result.timeline.query("kind == 'B'")
result.write("out/a100_8x")

What only some results are asked for is imported when it is, so that a run starts fast.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hybrid_des.analysis.metrics import RunAnalysis
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.errors import OutOfMemoryError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.planner import plan_of
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.report.files.registration import write
from hybrid_des.report.files.staging import Written
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.watch import Show, Watch
from hybrid_des.units import format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from hybrid_des.analysis.explanation import Explanation
    from hybrid_des.report.plots.figure import Shown


def simulate(
    scenario: Source,
    plan: Plan | None = None,
    fabric: Fabric | None = None,
    *,
    overrides: Overrides = (),
    scratch: Path | None = None,
    budget_s: float = inf,
    progress: Show | None = None,
) -> Result:
    """Simulate a scenario.

    Args:
        scenario: what to simulate: a scenario, the path of its file, or a mapping with its content.
        plan: a plan instead of the schedule's.
        fabric: a fabric instead of the topology's.
        overrides: changes to it, such as ["schedule.kind=gpipe"] or {"schedule.kind": "gpipe"}.
        scratch: folder for rows that do not fit into memory; default: the system's folder for temporary files.
        budget_s: limit in real seconds; planning is not interrupted (by the command line it is).
        progress: called a few times per second with the progress of the simulation.

    Raises:
        HybridDesError: the scenario cannot be simulated (`exit_code` 2) or its simulation failed (1).
        UnfinishedError: the budget is spent (3); `facts` says what is known.

    Example:
        >>> from hybrid_des import simulate
        >>> result = simulate("scenarios/a100_8x.yaml")
        >>> result
        <Result a100_8x: 8 ranks, step 1.435 s, bubble 27.3 %>
        >>> result.summary["peak_activations"]
        [4, 3, 2, 1]
        >>> result.timeline.query("rank == 0 and lane == 'compute'")[["kind", "microbatch", "start_s", "end_s"]].head(3)
           kind  microbatch  start_s  end_s
        0     F           0     0.00   0.05
        2     F           1     0.05   0.10
        10    F           2     0.10   0.15
    """
    scenario = load(scenario, overrides)
    try:
        watch = None if budget_s == inf and progress is None else Watch(budget_s, progress)
        given = plan is not None or fabric is not None
        return Result(run(scenario, plan, fabric, scratch=scratch, watch=watch), given=given)
    except OutOfMemoryError as error:
        from hybrid_des.simulation.memory_remedies import what_would_fit

        fabric = fabric or fabric_of(scenario)
        advice = what_would_fit(scenario, plan or plan_of(scenario, fabric), fabric)
        raise OutOfMemoryError(f"{error}; would fit: {advice}" if advice else str(error)) from None


class Result(RunAnalysis):
    """A run with its tables, pictures and files.

    Args:
        run: the run.
        given: whether its plan or its fabric is not that of its scenario.
    """

    def __init__(self, run: Run, *, given: bool = False) -> None:
        super().__init__(run)
        self._given = given

    @property
    def plan(self) -> Plan:
        """The schedule as data."""
        return self.run.plan

    @property
    def weights(self) -> dict[int, dict[int, list[Any]]] | None:
        """With numerics: rank → stage → arrays at the end; None otherwise."""
        return self.run.weights

    def gantt(self, ax: Axes | None = None, **shown: Unpack[Shown]) -> Axes:
        """Draw the ops of each rank over time, on the given axes or on a new figure; options as in `plots.gantt`."""
        from hybrid_des.report.plots import gantt

        return gantt.gantt(self.run, ax, **shown)

    def link_use(self, ax: Axes | None = None, **shown: Unpack[Shown]) -> Axes:
        """Draw the use of the busiest links over time; options as in `plots.link_use`."""
        from hybrid_des.report.plots import curves

        return curves.link_use(self.run, ax, **shown)

    def memory_curve(self, ax: Axes | None = None, **shown: Unpack[Shown]) -> Axes:
        """Draw the memory of the GPUs of a replica over time; options as in `plots.memory_curve`."""
        from hybrid_des.report.plots import curves

        return curves.memory_curve(self.run, ax, **shown)

    def link_table(self, windows: int = 200) -> pd.DataFrame:
        """The use of links over time: a row per link and window of the run.

        Columns: `link`, `start_s` and `end_s` of the window, `bytes` carried in it, `bytes_per_s`, and
        `utilisation_ratio`, the share of the link's bandwidth (NaN where that is infinite or measured as times by
        size). Empty without rows of messages. The bytes of a message are spread evenly over the time that it occupies
        the link.

        Args:
            windows: number of equal windows.

        Example:
            >>> from hybrid_des import simulate
            >>> table = simulate("scenarios/a100_8x.yaml").link_table(windows=10)
            >>> table.groupby("link").utilisation_ratio.max().round(3).tolist()[:2]
            [0.013, 0.012]
        """
        from hybrid_des.analysis.run_tables import link_table

        return link_table(self.run, windows)

    def memory_table(self) -> pd.DataFrame:
        """The memory of GPUs over time: a row per change, by time.

        Columns: `rank`, `replica`, `pipeline_rank`, `time_s`, `held_bytes` from then on, and `activations`: of how many
        micro-batches (with several chunks per rank, chunks of them) activations are held.

        Example:
            >>> from hybrid_des import simulate
            >>> table = simulate("scenarios/a100_8x.yaml").memory_table()
            >>> table.groupby("pipeline_rank").activations.max().tolist()
            [4.0, 3.0, 2.0, 1.0]
        """
        from hybrid_des.analysis.run_tables import memory_table

        return memory_table(self.run)

    def wait_table(self) -> pd.DataFrame:
        """All idle time of GPUs in pieces, by time.

        Columns: `step`, `rank`, `replica`, `pipeline_rank`, `cause` (as in the summary's `idle_s`), `start_s`, `end_s`
        and `waited_s`. The waits of a cause sum to its `idle_s` × steps × ranks with rows.

        Example:
            >>> from hybrid_des import simulate
            >>> result = simulate("scenarios/a100_8x.yaml")
            >>> waits = result.wait_table().groupby("cause").waited_s.sum() / result.summary["ranks"]
            >>> abs(float(waits["dependency"]) - result.summary["idle_s"]["dependency"]) < 1e-9
            True
        """
        from hybrid_des.analysis.run_tables import wait_table

        return wait_table(self.run)

    def collective_table(self) -> pd.DataFrame:
        """The collectives whose messages were simulated: a row per collective and rank, by start.

        Columns: `step`, `rank`, `replica`, `pipeline_rank`, `kind` (`gradients`, `parameters`, or the axis of one
        inside ops, such as `expert`), `stage`, `bucket` and `layer` (missing where a kind has none), `start_s` and
        `end_s`.

        Example:
            >>> from hybrid_des import simulate
            >>> table = simulate("scenarios/a100_8x.yaml").collective_table()
            >>> table.kind.unique().tolist(), len(table)
            (['gradients'], 8)
        """
        from hybrid_des.analysis.run_tables import collective_table

        return collective_table(self.run)

    def report(self, color: bool = False, width: int = 100) -> str:
        """Return the report of the command line as text."""
        from hybrid_des.report.terminal import render

        return render(self, color=color, width=width)

    def explain(self, *what_if: str) -> Explanation:
        """Explain the step time, and what would shorten it; as a mapping, tables, times in seconds per step.

        The step is simulated again with all causes recorded, then with each change.

        Args:
            what_if: changes to simulate too, such as "cluster.nvlink.bandwidth=2x".

        Returns:
            What `hybrid_des.explain` does, with `advice` unless `simulate` was given a plan or a fabric. Its tables by
            name: `path` (pieces of the critical path), `nearly_critical`, `classes` (least and most time over
            all critical paths), `what_if`, `ladder`, `ranking`, `idle` (pieces, each with its reason), `stragglers`,
            `collectives`, and `activities` with float, drag and releaser of every op and message.

        Raises:
            UsageError: a what-if is wrong.
        """
        from hybrid_des.studies.advice import explain

        plan, fabric = (self.run.plan, self.run.fabric) if self._given else (None, None)
        return explain(self.run.scenario, what_if, plan=plan, fabric=fabric)

    def write(self, folder: str | Path) -> Written:
        """Write summary, timeline, trace, pictures and order into a folder: all of them or none.

        Returns:
            The files' paths, and notes for the user.

        Raises:
            UsageError: the folder cannot be written.
        """
        return write(self, folder)

    def __repr__(self) -> str:
        facts = self.summary
        return (
            f"<Result {facts['name']}: {facts['ranks']} ranks, step {format_seconds(facts['step_time_s'])}, "
            f"bubble {format_share(facts['step_shares']['bubble'])}>"
        )

    def _repr_html_(self) -> str:
        """The report, for notebooks."""
        from hybrid_des.report.terminal import as_html

        return as_html(self.report())
