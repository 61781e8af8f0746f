"""The ops in traces that this program wrote for Holistic Trace Analysis, as a table of durations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid_des.interchange.profiles.kineto import KinetoTrace
from hybrid_des.interchange.profiles.kineto_ranks import KinetoRanks

if TYPE_CHECKING:
    import pandas as pd

KERNELS = {"forward": "F", "backward": "B", "weight_gradient": "W"}  # of `report.files.kineto`
DURATIONS = ("step", "replica", "stage", "chunk", "kind", "microbatch", "seconds", "start_s")
ORDERS = (["tensor", "data", "pipeline"], ["tensor", "pipeline", "data"])


@dataclass(frozen=True)
class OwnLayout:
    """Replica and pipeline rank of every rank, and the order of axes that numbers them so."""

    replica: Mapping[int, int]
    stage: Mapping[int, int]
    order: list[str]

    @property
    def parallel(self) -> dict[str, Any]:
        """The section of a scenario."""
        sizes = {"pipeline": max(self.stage.values()) + 1, "data": max(self.replica.values()) + 1}
        return {**sizes, **({"order": self.order} if self.order != ORDERS[0] else {})}


def own_rows(job: KinetoRanks) -> tuple[OwnLayout, pd.DataFrame] | None:
    """The layout, and one row per op of the step of median length; None if another program wrote the traces."""
    import pandas as pd

    if not all(one.facts for one in job.traces):
        return None
    stages = {one.rank: min(facts["stage"] for facts in one.facts.values()) for one in job.traces}
    places = sorted(set(stages.values()))
    turns: dict[int, int] = {}
    replica = {}
    for rank in sorted(stages):
        replica[rank] = turns[stages[rank]] = turns.get(stages[rank], -1) + 1
    layout = layout_of(replica, {rank: places.index(stage) for rank, stage in stages.items()})
    if layout is None or [one.rank for one in job.traces] != list(range(len(job.traces))):
        return None
    rows = [row for one in job.traces for row in _rows(one, job.chosen, layout)]
    table = pd.DataFrame(rows, columns=[*DURATIONS])
    return layout, table.assign(row=table.index)


def _rows(one: KinetoTrace, step: int, layout: OwnLayout) -> list[tuple[Any, ...]]:
    place = layout.replica[one.rank], layout.stage[one.rank]
    split = any(one.names[int(one.name[event])] == "weight_gradient" for event in one.facts)
    found = []
    for event, facts in one.facts.items():
        name = one.names[int(one.name[event])]
        if int(one.step[event]) == step and name in KERNELS:
            kind = "I" if split and KERNELS[name] == "B" else KERNELS[name]
            seconds = one.duration[event] / 10**9
            found.append((step, *place, facts["chunk"], kind, facts["microbatch"], seconds, one.start[event] / 10**9))
    return found


def layout_of(replica: Mapping[int, int], stage: Mapping[int, int]) -> OwnLayout | None:
    """The layout in which ranks have these places; None if no order of axes numbers them so."""
    replicas, stages, count = max(replica.values()) + 1, max(stage.values()) + 1, len(replica)
    if replicas * stages != count or sorted(replica) != list(range(count)):
        return None
    ranks = range(count)
    if all(stage[rank] * replicas + replica[rank] == rank for rank in ranks):
        return OwnLayout(replica, stage, ORDERS[0])
    if all(replica[rank] * stages + stage[rank] == rank for rank in ranks):
        return OwnLayout(replica, stage, ORDERS[1])
    return None
