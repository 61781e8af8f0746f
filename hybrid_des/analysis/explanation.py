"""Why a step takes as long as it does, and what would help: everything that `explain` prints, as numbers and tables.

A run is traced, its graph of causes gives the critical paths, and what-ifs are simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_des.analysis.advice import Advice
from hybrid_des.analysis.counterfactual.attribution import Loss, Stragglers, stragglers_of
from hybrid_des.analysis.counterfactual.first_order import first_order
from hybrid_des.analysis.counterfactual.ladder import (
    NO_LATENCY,
    Gain,
    Idealisation,
    gains_of,
    gains_of_ranks,
    never_queues,
    rungs_of,
)
from hybrid_des.analysis.counterfactual.proposals import Trials, trials_of
from hybrid_des.analysis.counterfactual.what_if import (
    Build,
    SimulatedChange,
    Variant,
    builder_of,
    part_at,
    variant_of,
)
from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.idle_pieces import Idle, IdleTime
from hybrid_des.analysis.critical_path.paths import Piece, count_paths, time_by_part
from hybrid_des.analysis.critical_path.rows import (
    Names,
    activities,
    class_rows,
    collective_rows,
    idle_table,
    near_rows,
    path_rows,
)
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.spans import Span
from hybrid_des.analysis.critical_path.traced import TRACED, Traced, traced_parts
from hybrid_des.analysis.difference import difference
from hybrid_des.analysis.first_runs import SHORT, traced_beside_ladder
from hybrid_des.analysis.holding_document import HoldingDocument, holding_document
from hybrid_des.analysis.idle import EXPOSED, HOST, OTHERS, REPLICA, busy_share
from hybrid_des.analysis.inside_ops import own_time, replayed_inside
from hybrid_des.analysis.losses import LINKS, Losses
from hybrid_des.analysis.notebook_view import as_html
from hybrid_des.analysis.step_breakdown import BUBBLE, SLOWER, StepBreakdown
from hybrid_des.analysis.tasks import AtOnce, LocalTask, Task, grouped, in_turn
from hybrid_des.analysis.verdict import shares_text
from hybrid_des.cluster.fabric import Fabric
from hybrid_des.cost_model.documents import packed_steps
from hybrid_des.errors import HybridDesError
from hybrid_des.pipeline.plan import Plan
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.scenario.loading import Source, load
from hybrid_des.scenario.overrides import Overrides
from hybrid_des.simulation.memory_remedies import fits
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.run import reduced_gc
from hybrid_des.units import PICOSECONDS_PER_SECOND, format_seconds, format_share

if TYPE_CHECKING:
    import pandas as pd
from hybrid_des.analysis.ties import Ties, tie_tasks, ties_from, why_untried

TOP = 10


TWICE, FREE = "links twice as fast", "all bytes free"  # usual what-ifs


QUARTER = Fraction(3, 4)  # factor of a duration that is "25 % quicker"


WITHOUT_BARRIER = 4  # steps that show what a schedule gains across steps


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(Mapping[str, "pd.DataFrame"]):
    """Why a run takes as long as it does; of its `tables`, each is an item: `explanation["ladder"]`.

    Times are picoseconds of the whole run; `to_mapping` and the tables have seconds per step.

    Attributes:
        traced: the run, folded if that is possible, with its causes.
        what_if: the usual what-ifs and those of the user.
        rungs, gains, slow: the idealisations (`ladder`), the ranking of classes, the cost of slow ranks.
        proposals: changes that help, in the order in which to try them.
        top: number of rows in lists.
        ties: how far the step depends on which of equal arrivals a link serves first; None if it does not.
        ties_not_tried: why that was not tried; empty if it was, or nothing depends on it.
        at_once: runs the tasks that were simulated, and those of pages.
        advised: finds which settings to change.
    """

    traced: Traced
    what_if: Sequence[SimulatedChange]
    rungs: Sequence[Idealisation]
    gains: Sequence[Gain]
    slow: Stragglers | None
    proposals: Sequence[SimulatedChange] = ()
    top: int = TOP
    ties: Ties | None = None
    ties_not_tried: str = ""
    at_once: AtOnce = in_turn
    advised: Callable[[], Advice] | None = None

    @cached_property
    def advice(self) -> Advice | None:
        """Which settings to change, looked for when first asked, which takes as long again; None for a user's plan."""
        return None if self.advised is None else self.advised()

    def __repr__(self) -> str:
        step, shares = format_seconds(self.seconds(self.duration)), self.breakdown.shares
        parts = {
            "computing": self.breakdown.efficiency,
            "bubble": shares[BUBBLE],
            "waiting for slower GPUs": shares[SLOWER],
            "exposed communication": self.breakdown.exposed,
            "host": shares[HOST],
        }
        text = ", ".join(f"{format_share(float(share), 0)} {name}" for name, share in parts.items() if round(share, 2))
        return f"<Explanation of {self.run.scenario.name}: step {step}; {text}>"

    def _repr_html_(self) -> str:
        """Where the time goes and what would help, for notebooks."""
        import pandas as pd

        tables, lines = self.tables(), () if self.advice is None else self.advice.lines
        shares = f"Time: {shares_text(self.breakdown.shares, self.run.scenario.traced)}"
        said = [repr(self)[1:-1].partition(";")[0], shares, f"Main loss: {self.verdict}"]
        shown = ("change", "step_time_s", "gain", "held_bytes", "remarks", "flags")
        changes = pd.DataFrame([{name: _joined(line.to_mapping()[name]) for name in shown} for line in lines])
        some = {"Change": changes, "What if": tables["what_if"], "Idealized": tables["ladder"]}
        return as_html("\n".join(said), some)

    @property
    def run(self) -> Run:
        """The run, traced."""
        return self.traced.run

    @property
    def slack(self) -> Slack:
        """Its graph of causes, with how late each point may be."""
        return self.traced.slack

    @property
    def graph(self) -> Graph:
        """The graph of causes."""
        return self.slack.graph

    @property
    def duration(self) -> int:
        """The end of the run in picoseconds."""
        return self.graph.duration

    @cached_property
    def names(self) -> Names:
        """The names of activities."""
        return Names(self.run.timeline, self.graph)

    @property
    def path(self) -> list[Piece]:
        """The critical path that is shown."""
        return self.traced.path

    @cached_property
    def document(self) -> HoldingDocument | None:
        """The document that held the run; None if micro-batches do not differ."""
        return holding_document(packed_steps(self.run.scenario), self.graph, self.names, self.path)

    @cached_property
    def paths(self) -> int | None:
        """Number of critical paths; None if the graph is too large to count them."""
        return count_paths(self.slack)

    @property
    def idle_time(self) -> IdleTime:
        """All idle time, by rank, cause and reason."""
        return self.traced.idle_time

    @property
    def idle(self) -> list[Idle]:
        """All idle time in pieces."""
        return list(self.idle_time.pieces())

    @property
    def classes(self) -> dict[Any, Span]:
        """Least and most time of classes over all critical paths."""
        return self.traced.classes

    @cached_property
    def on_path(self) -> dict[str, int]:
        """The parts of the critical path, in picoseconds that sum to the run."""
        return {name: time for name, time in time_by_part(self.path).items() if time or name != OTHERS}

    @cached_property
    def inside_on_path(self) -> int:
        """Picoseconds of the path's ops in which they wait for collectives inside them that take no messages."""
        spent, whole = replayed_inside(self.run), own_time(self.run.timeline)
        within = Fraction(0)
        for piece in self.path:
            if piece.compute and self.names.is_op(piece.activity):
                row = piece.activity % self.graph.activities
                within += Fraction(piece.compute * int(spent[row]), max(int(whole[row]), 1))
        return round(within)

    @cached_property
    def reasons(self) -> dict[str, int]:
        """Idle picoseconds of all ranks by reason."""
        return self.idle_time.reasons

    @cached_property
    def losses(self) -> Losses:
        """What the step is lost to, all that the short text says of it."""
        return Losses(self.run, self.slow, [gain for gain in self.gains if gain.part.sort == LINKS])

    @property
    def breakdown(self) -> StepBreakdown:
        """What the mean GPU does in a step, as in the summary."""
        return self.losses.breakdown

    @property
    def verdict(self) -> str:
        """What costs the most, and why."""
        return self.losses.verdict

    @property
    def whole(self) -> int:
        """Picoseconds of all ranks together."""
        return self.duration * self.run.timeline.layout.ranks

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the step of the mean GPU: computing, bubble and slower GPUs, exposed communication, and the host."""
        shares = self.breakdown.shares
        sums = {
            "compute": self.breakdown.efficiency,
            "other ranks": shares[BUBBLE] + shares[SLOWER],
            "bytes": self.breakdown.exposed,
            "host": shares[HOST],
        }
        return {name: float(share) for name, share in sums.items()}

    def seconds(self, picoseconds: int) -> float:
        """Picoseconds of the run as seconds per step."""
        return self.losses.seconds(picoseconds)

    def rung(self, name: str) -> int:
        """The end of the run with one of the idealisations (`ladder`)."""
        return next(rung.duration for rung in self.rungs if rung.name == name)

    @property
    def network(self) -> int:
        """The cost of the network: picoseconds that a free one would save."""
        return self.duration - self.rung(NO_LATENCY)

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values, in seconds per step."""
        return {
            "name": self.run.scenario.name,
            "step_time_s": self.seconds(self.duration),
            "shares": self.shares,
            "step_shares": {name: float(share) for name, share in self.breakdown.shares.items()},
            "main_loss": self.losses.main_loss,
            "efficiency": float(self.breakdown.efficiency),
            "busy_ratio": float(busy_share(self.run.timeline)),
            "critical_paths": self.paths,
            "critical_path_s": {name: self.seconds(time) for name, time in self.on_path.items()},
            "path": path_rows(self.path, self.slack, self.names)[: 100 * self.top],
            "document": self._document(),
            "nearly_critical": near_rows(self.slack, self.names, self.top),
            "classes": class_rows(self.classes),
            "what_if": [
                {"change": one.change,
                 "first_order_s": None if one.first_order is None else self.seconds(one.first_order), **_outcome(one),
                 "out_of_memory": not one.fits, **self._sure(one)}
                for one in self.what_if
            ],
            "ladder": [{"step": rung.name, "step_time_s": self.seconds(rung.duration)} for rung in self.rungs],
            "ranking": [
                {"class": gain.part.sort, "name": gain.part.name, "change": gain.change,
                 "step_time_s": self.seconds(gain.duration)}
                for gain in self.gains
            ],
            "proposals": [
                {"against": one.against, "change": one.change, **_outcome(one), "gain": one.gain, **self._sure(one)}
                for one in self.proposals
            ],
            "idle": self._idle(),
            "stragglers": self._stragglers(),
            "collectives": collective_rows(self.graph, self.top),
            "network_cost_s": self.seconds(self.network),
            "ties": None if self.ties is None else self.ties.to_mapping(self.run.scenario.steps),
            **({"ties_not_tried": self.ties_not_tried} if self.ties_not_tried else {}),
        }  # fmt: skip

    def _sure(self, tried: SimulatedChange) -> dict[str, Any]:
        """How sure a change of the step is, where that is known."""
        change = tried.duration * self.run.scenario.steps / (self.duration * tried.steps) - 1 if self.duration else 0.0
        return {} if tried.sure is None else {"difference": tried.sure.to_mapping(change)}

    def _document(self) -> dict[str, Any] | None:
        if self.document is None:
            return None
        values = self.document._asdict()
        time = values.pop("time")
        return {**values, "time_s": time / PICOSECONDS_PER_SECOND}

    def _idle(self) -> dict[str, Any]:
        """Idle time: means per rank by reason and by the summary's causes, and each rank's."""
        ranks, causes, idle = self.run.timeline.layout.ranks, self.idle_time.causes, self.idle_time.of_ranks
        worst = np.argsort(-idle, kind="stable")[: self.top].tolist()
        return {
            "by_reason_s": {name: self.seconds(time) / ranks for name, time in self.reasons.items()},
            "by_cause_s": {name: self.seconds(time) / ranks for name, time in sorted(causes.items())},
            "exposed_communication_s": self.seconds(sum(causes.get(cause, 0) for cause in EXPOSED)) / ranks,
            "ranks": [
                {"rank": rank, "idle_s": self.seconds(int(idle[rank])), **self._idle_of(self.idle_time.of(rank))}
                for rank in worst
            ],
        }

    def _idle_of(self, pieces: Sequence[Idle]) -> dict[str, Any]:
        """The idle time of a rank by reason, and what happened during it."""
        reasons = Counter[str]()
        for piece in pieces:
            reasons[piece.reason] += piece.end - piece.start
        return {
            **{name: self.seconds(time) for name, time in sorted(reasons.items())},
            "during": {name: self.seconds(time) for name, time in self._during(pieces).items()},
        }

    def during(self, rank: int) -> dict[str, int]:
        """What happened while a rank was idle, longest first: ranks that computed, links, latency, queues."""
        return self._during(self.idle_time.of(rank))

    def _during(self, pieces: Sequence[Idle]) -> dict[str, int]:
        sums = Counter[str]()
        for piece in pieces:
            computes = self.names.is_op(piece.activity)
            what = f"rank {self.names.rank(piece.activity)} computing" if computes else _BYTES[piece.reason]
            sums[what] += piece.end - piece.start
        return dict(sums.most_common())

    def _stragglers(self) -> dict[str, Any] | None:
        if self.slow is None:
            return None
        return {
            "ideal_step_time_s": self.seconds(self.slow.ideal),
            "slowdown": Loss(self.duration, self.slow.ideal).slowdown,
            "at_the_mean": [
                {"name": group.name, "compute_over_mean": group.slow, "step_time_s": self.seconds(group.mean),
                 "cost_s": self.seconds(self.duration - group.mean),
                 "usual_step_time_s": None if group.usual is None else self.seconds(group.usual)}
                for group in self.slow.groups
            ],
        }  # fmt: skip

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The same as DataFrames, by the keys of `to_mapping`; `activities` has a row per op and message."""
        return dict(self._tables)

    @cached_property
    def _tables(self) -> dict[str, pd.DataFrame]:
        import pandas as pd

        whole = self.to_mapping()
        lists = {name: pd.DataFrame(rows) for name, rows in whole.items() if isinstance(rows, list)}
        lists["path"] = pd.DataFrame(path_rows(self.path, self.slack, self.names))
        lists["collectives"] = pd.DataFrame(collective_rows(self.graph))
        slow = whole["stragglers"] or {"at_the_mean": []}
        return {
            **lists,
            "idle": idle_table(self.idle, self.names),
            "activities": activities(self.slack),
            "stragglers": pd.DataFrame(slow["at_the_mean"]),
        }


_BYTES = {"transfer": "link", "latency": "latency", "queueing": "queue", REPLICA: "collective",
          OTHERS: "another job"}  # fmt: skip


def _joined(value: Any) -> Any:
    """A value of a table; a list as text."""
    return ", ".join(value) if isinstance(value, list) else value


def _outcome(tried: SimulatedChange) -> dict[str, Any]:
    return {"step_time_s": tried.duration / PICOSECONDS_PER_SECOND / tried.steps, "microbatches": tried.microbatches}


@reduced_gc()
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
    """Find out why a step takes as long as it does, without advice; see `advice.explain` for arguments and errors."""
    scenario = load(scenario, overrides)
    build = build or builder_of(scenario)
    planned = Variant(scenario, plan, fabric or fabric_of(scenario))
    for text in what_if:  # errors are found before a long simulation
        variant_of(text, planned, build)
    planned = Variant.planned(scenario.model_copy(update=TRACED), traced_parts(scenario, plan, fabric))
    base, slowed, ends, of_kinds = traced_beside_ladder(planned, at_once)
    traced, rungs, not_tried = Traced(base), rungs_of(base, ends), why_untried(base)
    changes = {text: variant_of(text, Variant.of(base), build) for text in what_if}
    at_once = at_once if base.events + base.parts.times.messages >= SHORT else in_turn
    trials_with = partial(trials_of, base, rungs, build=build, own=fabric is None)
    early = Trials(base) if slowed else trials_with(None)  # what is tried depends on who was slow
    kinds = gains_of(Variant.of(base), base)
    left = {part: task for part, task in kinds.items() if part not in of_kinds}
    ties = [] if not_tried else tie_tasks(base)
    # what may take longest is begun first, so that no process is left alone with it
    causes = [*map(LocalTask, (lambda: traced.slack, lambda: traced.classes, lambda: traced.slack.graph.released))]
    known = causes, early.tasks, _without_barrier(base), slowed, [*left.values()], ties
    _, tried, free, slow_ones, further, orders = grouped(known, at_once)
    of_kinds |= dict(zip(left, further, strict=True))
    slow, busiest = stragglers_of(base, slow_ones), _busiest(traced)
    trials = trials_with(slow) if slowed else early
    usual, ends_known = _usual(base, busiest), _known(base, rungs)
    every = usual | changes
    asked = [
        partial(_simulated, name, one, traced, ends_known.get(name), asked=name in changes)
        for name, one in every.items()
    ]
    shown = [*map(LocalTask, (lambda: traced.path, lambda: traced.idle_time.reasons))]
    second = trials.tasks if slowed else (), gains_of_ranks(base, busiest), asked, shown
    more, gains, rows, _ = grouped(second, at_once)
    tried, gains = [*tried, *more], sorted([*gains, *map(of_kinds.get, kinds)], key=lambda gain: gain.duration)
    rows += [one for one in free if one is not None]
    proposed, range_of_ties = trials.proposals(tried, gains), ties_from(base, orders)
    return Explanation(traced, rows, rungs, gains, slow, proposed, top, range_of_ties, not_tried, at_once)


def _busiest(traced: Traced) -> list[int]:
    """The pipeline ranks on critical paths, those with the most time first, then the others."""
    layout = traced.run.timeline.layout
    spans_of = {int(str(name)): span for (sort, name), span in traced.classes.items() if sort == "rank"}
    order = sorted(spans_of, key=lambda rank: (-spans_of[rank].least, -spans_of[rank].most, rank))
    places = [layout.coordinate(rank, "pipeline") for rank in order]
    return list(dict.fromkeys([*places, *range(layout.sizes["pipeline"])]))


def _usual(base: Run, busiest: Sequence[int]) -> dict[str, Variant]:
    """The usual what-ifs: the busiest rank quicker, faster links, a free network."""
    at = Variant.of(base)
    slowest = part_at(at, busiest[0])
    free = at.with_all_links(None).with_latency(Fraction(0))
    changes = {f"{slowest.name} 25 % quicker": slowest.scaled(at, QUARTER)}
    if base.messages:
        changes |= {TWICE: at.with_all_links(Fraction(2)), FREE: free}
    return changes


def _known(base: Run, rungs: Sequence[Idealisation]) -> dict[str, int]:
    """The ends of usual what-ifs that the ladder has simulated."""
    return {FREE: next(rung.duration for rung in rungs if rung.name == NO_LATENCY)} if never_queues(base) else {}


def _simulated(name: str, change: Variant, traced: Traced, end: int | None, *, asked: bool) -> SimulatedChange:
    """A what-if, simulated unless its end is known."""
    changed, run = change.scenario, traced.run
    if end is None:  # first: it refuses durations that no column holds
        run = change.simulated(detailed=False)
        end = run.duration
    first, sure = first_order(traced.fitting(run.fold), change), difference(traced.run.scenario, changed)
    count = changed.schedule.microbatches
    return SimulatedChange(name, end, changed.steps, count, first, fits=fits(run), sure=sure, asked=asked)


def _without_barrier(base: Run) -> list[Task]:
    """A task that simulates several steps without the barrier between them; none where there is no barrier."""
    scenario = base.scenario
    if not scenario.barrier or scenario.parallel.pipeline == 1:
        return []
    free = scenario.model_copy(update={"barrier": False, "steps": WITHOUT_BARRIER})
    return [partial(_several_steps, Variant(free, base.plan, base.fabric, times=base.parts.times))]


def _several_steps(free: Variant) -> SimulatedChange | None:
    """Several steps without a barrier; None if that many cannot be simulated."""
    try:
        run = free.simulated(detailed=False)
    except HybridDesError:
        return None
    name = f"no barrier between {WITHOUT_BARRIER} steps"
    return SimulatedChange(name, run.duration, WITHOUT_BARRIER, free.scenario.schedule.microbatches, fits=fits(run))
