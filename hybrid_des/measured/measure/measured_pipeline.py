"""The scenario of measured pipelines, and how well it predicts those that were run but not used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.analysis.metrics import summary
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.measured.measure.machine import MACHINE, seconds
from hybrid_des.measured.measure.pipelines import SPLIT, Run
from hybrid_des.measured.measure.proof import Proof
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run

if TYPE_CHECKING:
    import pandas as pd


def durations_name(chunks: int, first: int) -> str:
    """The file of the durations with so many chunks; the first number has the plain name."""
    return "durations.csv" if chunks == first else f"durations_{chunks}.csv"


def scenario_name(chunks: int, first: int) -> str:
    """The file of the scenario with so many chunks."""
    return "pipeline.yaml" if chunks == first else f"pipeline_{chunks}.yaml"


def sections_of(folder: Path, runs: Sequence[Run], chunks: int, sizes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The scenario of a pipeline with so many chunks per rank, on the machine of the folder.

    Args:
        folder: where recordings and durations are.
        runs: the schedules whose recordings tell host time and latency.
        chunks: the number whose durations it takes.
        sizes: rows of stages, with their parameters and outputs.
    """
    first = runs[0].chunks
    recordings = [folder / run.table for run in runs if (folder / run.table).exists()]
    imported = import_profile(folder / durations_name(chunks, first), overheads_from=recordings)
    values, overhead = imported.values, imported.figures["overhead"]
    mine = [row for row in sizes if int(row["chunks"]) == chunks]
    activation = max((int(row["output_bytes"]) for row in mine[:-1]), default=0)  # the last stage sends none
    ranks = range(values["parallel"]["pipeline"])
    held = [[row for row in mine if int(row["pipeline_rank"]) == rank] for rank in ranks]
    sections: dict[str, Any] = {
        "base": MACHINE,
        "name": f"{folder.resolve().name}_pipeline",
        "parallel": {"pipeline": len(ranks)},
        "schedule": {
            "kind": "1f1b" if chunks == 1 else "interleaved-1f1b",
            "chunks": chunks,
            "microbatches": values["schedule"]["microbatches"],
        },
        "efficiency": None,  # a model's, as are its collectives
        "layer_collectives": "nccl",
        "workload": {
            "durations": durations_name(chunks, first),
            "timing": "mean",
            "overhead": {name: seconds(value) for name, value in overhead.items() if value and name != "latency"},
            "activation": activation,
            "parameters": [sum(int(row["parameters"]) for row in rows) for rows in held],
            "optimizer": [seconds(sum(float(row["update_s"]) for row in rows)) for rows in held],
        },
    }
    latency = overhead["latency"]
    if latency is not None:  # from op to op, which holds the transfer of one output
        bandwidth = _bandwidth(folder)
        left = latency - (activation / bandwidth if bandwidth else 0)
        sections["cluster"] = {"nvlink": {"latency": seconds(max(0.0, left))}}
    return sections


def _bandwidth(folder: Path) -> float | None:
    """Bytes per second between ranks of a node; None if a message takes its latency alone."""
    rate = load({"base": str(folder / MACHINE), "parallel": {"pipeline": 1}, "workload": {"forward": 0, "backward": 0},
                 "efficiency": None, "layer_collectives": "nccl"}).cluster.kinds[0].nvlink.bandwidth  # fmt: skip
    return None if rate is None else float(rate)


def durations_of_runs(runs: Sequence[Run], tables: Mapping[str, pd.DataFrame], chunks: int) -> pd.DataFrame | None:
    """The recording whose durations are taken: backwards in parts where they were split."""
    mine = [run for run in runs if run.chunks == chunks and not run.proves and run.table in tables]
    chosen = next((run for run in mine if run.kind == SPLIT), mine[0] if mine else None)
    return None if chosen is None else tables[chosen.table]


def proofs(folder: Path, runs: Sequence[Run], tables: Mapping[str, pd.DataFrame]) -> Iterator[Proof]:
    """Each schedule that was run but not used, as measured and as predicted, from first to last op."""
    first = runs[0].chunks
    for recorded in runs:
        if not recorded.proves or recorded.table not in tables:
            continue
        bounds = tables[recorded.table].groupby("step").agg({"start_s": "min", "end_s": "max"})
        spans = bounds.end_s - bounds.start_s
        base = scenario_name(first if recorded.wave else recorded.chunks, first)  # other stages are on a rank of a wave
        changes = [f"schedule.kind={recorded.kind}", f"schedule.chunks={recorded.chunks}", "workload.optimizer=0"]
        predicted = summary(run(load(folder / base, changes)))["pipeline_time_s"]
        yield Proof.of(f"{recorded.kind}, chunks: {recorded.chunks}", spans.tolist(), float(predicted))
