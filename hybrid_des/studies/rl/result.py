"""What `simulate_rl` returns: a loop of engines, queue and trainer, with its figures, tables, report, page and files.

from hybrid_des import simulate_rl
loop = simulate_rl("scenarios/rl/async.yaml", ["rl.ahead=1"])
loop.summary["rl"]["cycle_s"], loop.samples.groupby("age").size()
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.tasks import AtOnce, in_turn
from hybrid_des.cost_model.model_version import MODEL_VERSION
from hybrid_des.errors import SimulationError, UsageError
from hybrid_des.report.files.staging import Written, write_files
from hybrid_des.report.terminal import as_html
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import Source, document_of, scenario_of, stated_of
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.scenario.sections.rl import Rl
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.studies.rl.few_steps import Loop, Loops
from hybrid_des.studies.rl.figures import LoopFigures, figures_of
from hybrid_des.studies.rl.page import loop_page
from hybrid_des.studies.rl.plot import picture
from hybrid_des.studies.rl.record import LoopRecord
from hybrid_des.studies.rl.report import WIDTH, render
from hybrid_des.studies.rl.summary import summary
from hybrid_des.studies.rl.whatifs import SHORT, Change, WhatIf, changes_of, tried_change
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TIMES = ("begun", "started", "ended", "ready")  # of a sample, in picoseconds; -1: never


def simulate_rl(source: Source, overrides: Overrides = (), *, at_once: AtOnce = in_turn) -> RlResult:
    """Simulate the loop of a scenario with `rl`: engines, queue, trainer and weight syncs.

    What-ifs are simulated when `what_ifs`, the report or the page is first asked for.

    Args:
        source: a scenario with `rl`, the path of its file, or a mapping.
        overrides: changes to it, such as ["rl.ahead=1"] or {"rl.ahead": 1}.
        at_once: runs what-ifs; `hybrid_des.studies.forked.forked(4)` uses four processes. Default: one after the other.

    Raises:
        UsageError: the scenario has no `rl`.
        HybridDesError: it cannot be simulated.

    Example:
        >>> from hybrid_des import simulate_rl
        >>> loop = simulate_rl("scenarios/rl/colocated.yaml", {"rl.response.max": 4096, "steps": 2})
        >>> loop
        <RlResult rl_colocated: cycle 61.87 s, trainer waits 0 s>
        >>> loop.samples.groupby("age").size().to_dict()
        {0: 1024}
    """
    return result_of(stated_of(source, overrides), at_once)


def result_of(document: Document, at_once: AtOnce = in_turn, loop: Loop | None = None) -> RlResult:
    """Simulate the loop of a document.

    Args:
        document: what is stated of its scenario.
        at_once: runs what-ifs.
        loop: simulates it, and what-ifs after it. Default: `Loops`.

    Raises:
        UsageError: the scenario has no `rl`.
        HybridDesError: it cannot be simulated.
    """
    began = time.perf_counter()
    scenario = scenario_of(document)
    if scenario.rl is None:
        raise UsageError(
            f"{document.source}: has no `rl`; expected engines, a queue and a weight sync beside the trainer"
        )
    simulate = loop or Loops()
    record = simulate(scenario)
    return RlResult(scenario, record, document, simulate, at_once, time.perf_counter() - began)


@dataclass(frozen=True, eq=False, repr=False)
class RlResult:
    """A simulated loop of engines, queue and trainer.

    Attributes:
        scenario: what was simulated.
        record: every sample, span and sync, in picoseconds.
        document: what its file says, which what-ifs change.
        loop: simulates them.
        at_once: runs them.
        wall_s: real seconds of the simulation.
        unfinished: whether there was no time for what-ifs, of which there are none then.
    """

    scenario: Scenario
    record: LoopRecord
    document: Document
    loop: Loop
    at_once: AtOnce = in_turn
    wall_s: float = 0.0
    unfinished: bool = False

    @property
    def rl(self) -> Rl:
        """The section `rl`."""
        assert self.scenario.rl is not None
        return self.scenario.rl

    @cached_property
    def figures(self) -> LoopFigures:
        """The figures of the loop, times in picoseconds."""
        return figures_of(self.scenario, self.record)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The summary by its public keys; seconds."""
        names = {"version": self.scenario.version, "model_version": MODEL_VERSION, "name": self.scenario.name}
        return {**names, "rl": summary(self.figures)}

    @cached_property
    def what_ifs(self) -> Sequence[WhatIf]:
        """The changes that the verdict speaks of, simulated with the same draws, the shortest cycle first."""
        if self.unfinished:
            return ()
        return self.simulated([change for change in self.changes if change.kind in SHORT[self.rl.colocated]])

    def with_what_ifs(self, limit: AbstractContextManager[None], *, every: bool = False) -> RlResult:
        """The same with what-ifs that are simulated now, or with none if the limit ends that; `every`: all of them."""
        try:
            with limit:
                simulated = self.all_what_ifs if every else self.what_ifs
        except SimulationError:
            return replace(self, unfinished=True)
        assert simulated is not None
        return self

    @cached_property
    def all_what_ifs(self) -> Sequence[WhatIf]:
        """All changes, simulated with the same draws, the shortest cycle first."""
        if self.unfinished:
            return ()
        known = {what_if.change.words: what_if for what_if in self.what_ifs}
        others = self.simulated([change for change in self.changes if change.words not in known])
        return sorted([*known.values(), *others], key=_order)

    @property
    def changes(self) -> Sequence[Change]:
        """The changes that are worth a simulation."""
        return changes_of(self.scenario, self.rl, self.figures, self.build)

    def simulated(self, changes: Sequence[Change]) -> Sequence[WhatIf]:
        """Simulate changes; those that are not possible are left out."""
        cycle = self.figures.cycle
        tried = self.at_once([partial(tried_change, change, cycle, self.build, self.loop) for change in changes])
        return sorted(filter(None, tried), key=_order)

    def build(self, settings: Mapping[str, object]) -> Scenario:
        """The scenario with other values.

        Raises:
            ScenarioError: one line per problem.
        """
        return scenario_of(document_of(self.document.value, settings))

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per sample that was begun: its tokens, when it was begun, started, ended and ready, age and fate."""
        import pandas as pd

        columns: dict[str, Any] = {}
        for name, column in self.figures.columns.items():
            if name in TIMES:
                columns[f"{name}_s"] = pd.Series(column / PICOSECONDS_PER_SECOND).where(column >= 0)
            else:
                columns[name] = column
        names = {"prompt": "prompt_tokens", "response": "response_tokens"}
        names |= {"recomputed": "recomputed_tokens", "discarded": "discarded_tokens"}
        return pd.DataFrame(columns).rename(columns=names)

    @cached_property
    def engine_timeline(self) -> pd.DataFrame:
        """One row per span of a replica: what it does, and with how many sequences."""
        return _seconds(self.record.engines, ("replica", "begin", "end", "state", "sequences"))

    @cached_property
    def trainer_timeline(self) -> pd.DataFrame:
        """One row per span of the trainer: what it does, and for which batch."""
        return _seconds(self.record.trainer, ("begin", "end", "state", "batch"))

    @cached_property
    def syncs(self) -> pd.DataFrame:
        """One row per weight sync, with the cycle that it ends."""
        table = _seconds(self.record.syncs, ("begin", "end", "version"))
        return table.assign(cycle_s=self.figures.cycles, warm_up=table["version"] <= self.figures.warm_up)

    @cached_property
    def queue(self) -> pd.DataFrame:
        """One row per change of the queue: groups in it from then on, and samples that are running."""
        return _seconds(self.record.queue, ("time", "groups", "running"))

    def report(self, width: int = WIDTH) -> str:
        """The report of the command line as text."""
        tried = "; the budget left no time for what-ifs" if self.unfinished else ""
        ended = f"real time {format_seconds(self.wall_s)} for {len(self.record.samples):,} samples{tried}"
        return render(self.scenario, self.figures, self.what_ifs, width, ended)

    def page(self) -> str:
        """The page, in one file of HTML."""
        return loop_page(self.scenario, self.figures, self.all_what_ifs, self.report())

    def plot(self) -> Figure:
        """Draw the timeline: running samples, queue, trainer and syncs on one axis, and histograms below it."""
        return picture(self.scenario, self.figures)

    def write(self, folder: str | Path) -> Written:
        """Write summary, tables, report, what-ifs, picture and page; all of them or none.

        Raises:
            UsageError: the folder cannot be written.
        """
        contents = {
            "summary.json": self.summary, "report.txt": f"{self.report()}\n",
            "what_ifs.json": [one.to_mapping() for one in self.all_what_ifs],
            "samples.csv": self.samples, "engines.csv": self.engine_timeline, "trainer.csv": self.trainer_timeline,
            "syncs.csv": self.syncs, "queue.csv": self.queue, "loop": self.plot(), "loop.html": self.page(),
        }  # fmt: skip
        return write_files(folder, contents)

    def __repr__(self) -> str:
        figures = self.figures
        return f"<RlResult {self.scenario.name}: cycle {figures.cycle:.4g} s, trainer waits {figures.wait:.4g} s>"

    def _repr_html_(self) -> str:
        """The report, for notebooks."""
        return as_html(self.report())


def _order(what_if: WhatIf) -> tuple[float, float]:
    """The shortest cycle first; of those that are as short in what is shown of them, that with the youngest samples."""
    return float(f"{what_if.cycle:.4g}"), what_if.age


def _seconds(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> pd.DataFrame:
    """A table of rows whose times are picoseconds."""
    import pandas as pd

    table = pd.DataFrame([*rows], columns=[*names])
    times = {name: f"{name}_s" for name in ("begin", "end", "time") if name in names}
    for name in times:
        table[name] = table[name] / PICOSECONDS_PER_SECOND
    return table.rename(columns=times)
