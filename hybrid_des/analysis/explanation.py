"""Why a step takes as long as it does, and what would help: everything that `explain` prints, as numbers and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_des.analysis.counterfactual.attribution import Loss
from hybrid_des.analysis.counterfactual.ladder import Gain, Rung
from hybrid_des.analysis.counterfactual.proposals import Proposal
from hybrid_des.analysis.counterfactual.slowest import Straggler, Stragglers
from hybrid_des.analysis.critical_path.classes import Span, class_weights, spans
from hybrid_des.analysis.critical_path.gaps import Idle, idle_pieces
from hybrid_des.analysis.critical_path.graph import Graph
from hybrid_des.analysis.critical_path.paths import Piece, count_paths, critical_path
from hybrid_des.analysis.critical_path.slack import Slack
from hybrid_des.analysis.critical_path.tables import (
    Names,
    activities,
    class_rows,
    collective_rows,
    idle_table,
    near_rows,
    path_rows,
)
from hybrid_des.analysis.idle import BARRIER, EXPOSED, REASONS, REPLICA
from hybrid_des.analysis.ties import Ties
from hybrid_des.simulation.run import Run
from hybrid_des.units import PICOSECONDS_PER_SECOND

if TYPE_CHECKING:
    import pandas as pd

TOP = 10
TWICE = "links twice as fast"  # one of the usual what-ifs


class Tried(NamedTuple):
    """A change: its name, the end of the run to first order (None if order or messages change), and the simulated end.

    `steps` and `microbatches` (per replica and step) are those of the changed run.
    """

    change: str
    first_order: int | None
    duration: int
    steps: int
    microbatches: int


@dataclass(frozen=True)
class Explanation:
    """Why a run takes as long as it does.

    Times are picoseconds of the whole run; `to_mapping` and the tables have seconds per step.

    Attributes:
        run: the run, traced.
        slack: its graph of causes, with how late each point may be.
        what_if: the usual what-ifs and those of the user.
        rungs, gains, slow: the ladder of idealisations, the ranking of classes, the cost of slow ranks.
        proposals: changes that help, in the order in which to try them.
        top: number of rows in lists.
        ties: how far the step depends on which of equal arrivals a link serves first; None if it does not.
    """

    run: Run
    slack: Slack
    what_if: Sequence[Tried]
    rungs: Sequence[Rung]
    gains: Sequence[Gain]
    slow: Stragglers | None
    proposals: Sequence[Proposal] = ()
    top: int = TOP
    ties: Ties | None = None

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

    @cached_property
    def path(self) -> list[Piece]:
        """The critical path that is shown."""
        return critical_path(self.graph)

    @cached_property
    def paths(self) -> int | None:
        """Number of critical paths; None if the graph is too large to count them."""
        return count_paths(self.slack)

    @cached_property
    def idle(self) -> list[Idle]:
        """All idle time in pieces."""
        return idle_pieces(self.graph)

    @cached_property
    def classes(self) -> dict[Any, Span]:
        """Least and most time of classes over all critical paths."""
        return spans(self.slack, class_weights(self.slack))

    @cached_property
    def on_path(self) -> dict[str, int]:
        """The parts of the critical path, in picoseconds that sum to the run."""
        parts = ("compute", "transfer", "latency", "queue")
        sums = {part: sum(getattr(piece, part) for piece in self.path) for part in parts}
        return {"compute": sums["compute"], "transfer": sums["transfer"], "latency": sums["latency"],
                "queueing": sums["queue"]}  # fmt: skip

    @cached_property
    def reasons(self) -> dict[str, int]:
        """Idle picoseconds of all ranks by reason."""
        sums = Counter[str]()
        for one in self.idle:
            sums[one.reason] += one.end - one.start
        return {reason: sums[reason] for reason in REASONS}

    @property
    def whole(self) -> int:
        """Picoseconds of all ranks together."""
        return self.duration * self.run.timeline.layout.ranks

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the time of all ranks: computing, waiting for other ranks to compute, waiting for bytes."""
        waits = {name: time for name, time in self.reasons.items() if name in REASONS[: REASONS.index(BARRIER) + 1]}
        idle, others = sum(self.reasons.values()), sum(waits.values())
        whole = max(self.whole, 1)
        return {"compute": 1 - idle / whole, "other ranks": others / whole, "bytes": (idle - others) / whole}

    def seconds(self, picoseconds: int) -> float:
        """Picoseconds of the run as seconds per step."""
        return picoseconds / PICOSECONDS_PER_SECOND / self.run.scenario.steps

    def rung(self, name: str) -> int:
        """The end of the run on a rung of the ladder."""
        return next(rung.duration for rung in self.rungs if rung.name == name)

    @property
    def culprit(self) -> Straggler | None:
        """What holds up the run."""
        return self.slow.culprit(self.duration) if self.slow else None

    @property
    def network(self) -> int:
        """The cost of the network: picoseconds that a free one would save."""
        return self.duration - self.rung("no latency")

    def to_mapping(self) -> dict[str, Any]:
        """Everything as plain values, in seconds per step."""
        return {
            "name": self.run.scenario.name,
            "step_time_s": self.seconds(self.duration),
            "shares": self.shares,
            "critical_paths": self.paths,
            "critical_path_s": {name: self.seconds(time) for name, time in self.on_path.items()},
            "path": path_rows(self.path, self.slack, self.names)[: 100 * self.top],
            "nearly_critical": near_rows(self.slack, self.names, self.top),
            "classes": class_rows(self.classes),
            "what_if": [self._what_if(one) for one in self.what_if],
            "ladder": [{"step": rung.name, "step_time_s": self.seconds(rung.duration)} for rung in self.rungs],
            "ranking": [
                {"class": gain.sort, "name": gain.name, "change": gain.change,
                 "step_time_s": self.seconds(gain.duration)}
                for gain in self.gains
            ],
            "proposals": [self._proposal(one) for one in self.proposals],
            "idle": self._idle(),
            "stragglers": self._stragglers(),
            "collectives": collective_rows(self.run.timeline)[: self.top],
            "network_cost_s": self.seconds(self.network),
            "ties": None if self.ties is None else self.ties.to_mapping(self.run.scenario.steps),
        }  # fmt: skip

    def _what_if(self, one: Tried) -> dict[str, Any]:
        steps = self.run.scenario.steps
        first = None if one.first_order is None else one.first_order / PICOSECONDS_PER_SECOND / steps
        return {
            "change": one.change,
            "first_order_s": first,
            "step_time_s": one.duration / PICOSECONDS_PER_SECOND / one.steps,
            "microbatches": one.microbatches,
        }

    def _proposal(self, one: Proposal) -> dict[str, Any]:
        return {
            "against": one.against,
            "change": one.change,
            "step_time_s": one.duration / PICOSECONDS_PER_SECOND / one.steps,
            "microbatches": one.microbatches,
            "gain": one.gain,
        }

    def _idle(self) -> dict[str, Any]:
        """Idle time: means per rank by reason and by the summary's causes, and each rank's."""
        ranks = self.run.timeline.layout.ranks
        causes, each = Counter[str](), {rank: Counter[str]() for rank in range(ranks)}
        for one in self.idle:
            causes[one.cause] += one.end - one.start
            each[one.rank][one.reason] += one.end - one.start
        worst = sorted(each, key=lambda rank: (-sum(each[rank].values()), rank))[: self.top]
        return {
            "by_reason_s": {name: self.seconds(time) / ranks for name, time in self.reasons.items()},
            "by_cause_s": {name: self.seconds(time) / ranks for name, time in sorted(causes.items())},
            "exposed_communication_s": self.seconds(sum(causes[cause] for cause in EXPOSED)) / ranks,
            "ranks": [
                {
                    "rank": rank,
                    "idle_s": self.seconds(sum(each[rank].values())),
                    **{name: self.seconds(time) for name, time in sorted(each[rank].items())},
                    "during": {name: self.seconds(time) for name, time in self.during(rank).items()},
                }
                for rank in worst
            ],
        }

    def during(self, rank: int) -> dict[str, int]:
        """What happened while a rank was idle, longest first: ranks that computed, links, latency, queues."""
        sums = Counter[str]()
        for one in self.idle:
            if one.rank == rank:
                computes = self.names.is_op(one.activity)
                what = f"rank {self.names.rank(one.activity)} computing" if computes else _BYTES[one.reason]
                sums[what] += one.end - one.start
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

    def tables(self) -> dict[str, pd.DataFrame]:
        """The same as DataFrames, by the keys of `to_mapping`; `activities` has a row per op and message."""
        import pandas as pd

        whole = self.to_mapping()
        lists = {name: pd.DataFrame(rows) for name, rows in whole.items() if isinstance(rows, list)}
        lists["path"] = pd.DataFrame(path_rows(self.path, self.slack, self.names))
        lists["collectives"] = pd.DataFrame(collective_rows(self.run.timeline))
        slow = whole["stragglers"] or {"at_the_mean": []}
        return {
            **lists,
            "idle": idle_table(self.idle, self.names),
            "activities": activities(self.slack),
            "stragglers": pd.DataFrame(slow["at_the_mean"]),
        }


_BYTES = {"transfer": "link", "latency": "latency", "queueing": "queue", REPLICA: "collective"}
