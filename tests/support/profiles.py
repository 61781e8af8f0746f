"""Profiles written from simulated runs, in the formats of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybrid_des import simulate
from hybrid_des.scenario import Scenario

GROWING = {1: 0.8, 2: 0.95}  # share of the memory in the first steps


def event_dumps(scenario: Scenario, folder: Path, changes: Any = None) -> Path:
    """Event dumps of a run with whole backwards; `changes` may change the dumps by rank before they are written."""
    table = simulate(scenario).timeline.query("lane == 'compute' and kind in ('F', 'B')").sort_values("start_s")
    pipeline, chunks = scenario.parallel.pipeline, scenario.schedule.chunks
    dumps: dict[int, dict[str, Any]] = {}
    for (rank, number), rows in table.groupby(["pipeline_rank", "step"]):
        zero = table[table.step == number].start_s.min()
        step: dict[str, Any] = {"total": 0.0, "memory": 10.0 * (pipeline - rank) * GROWING.get(number + 1, 1)}
        for kind, name in (("F", "fwd"), ("B", "bwd")):
            for end in ("start", "end"):
                step[f"{name}_{end}"] = [1000 * (one - zero) for one in rows[rows.kind == kind][f"{end}_s"]]
        dumps.setdefault(rank, {})[str(number + 1)] = step
    if changes is not None:
        changes(dumps)
    folder.mkdir(exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(dump))
    config = {"pp_size": pipeline, "vp_size": chunks, "num_mbs": scenario.schedule.microbatches}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
