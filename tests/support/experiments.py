"""The published experiments: a row of the reference table, and the case of a sweep that stands for it."""

import csv
import dataclasses
from collections.abc import Sequence
from concurrent.futures import Executor
from fractions import Fraction

import pytest

from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.runner import sweep_rows
from support.paths import GOLDEN, SCENARIOS

FOLDER = SCENARIOS / "experiments"
FILES = {
    "weak_scaling": "weak_scaling",
    "strong_scaling": "strong_scaling",
    "recompute": "recompute",
    "mbs": "microbatches",
    "chunks": "chunks",
    "tb_tw_ratio": "weight_share",
    "tc_sensitivity": "message_time",
    "imbalanced": "imbalance",
}
KINDS = {
    "Gpipe": "gpipe",
    "1F1B": "1f1b",
    "1F1B vpp=2": "interleaved-1f1b",
    "Interleaved 1F1B": "interleaved-1f1b",
    "Hanayo": "hanayo",
    "Hanayo wave=1": "hanayo",
    "Hanayo wave=2": "hanayo",
    "ZBH1": "zb-h1",
}
PARAMETERS = {  # the table's parameter → a swept path, and what it says there
    "r_recomp": ("workload.recompute", lambda value: Fraction(value)),
    "T_B/(T_B+T_W)": ("workload.weight", lambda value: f"{round(100 * (1 - Fraction(value)))} %"),
    "T_ext/T_F": ("workload.ends.forward", lambda value: f"{round(400 * Fraction(value))} ms"),
}
SIZES = {"p": 1, "2p": 2, "4p": 4, "8p": 8}


def references(experiment: str) -> list[dict[str, str]]:
    with (GOLDEN / "schedule_experiments.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["experiment"] == experiment]


def compare(experiment: str, ranks: Sequence[int], executor: Executor | None = None) -> int:
    """Run the cases of an experiment on some numbers of ranks; return how many rows of the table they agree with."""
    whole = load_sweep(FOLDER / f"{FILES[experiment]}.yaml")
    sizes, *others = whole.axes
    chosen = dataclasses.replace(whole, axes=([case for case in sizes if case["parallel.pipeline"] in ranks], *others))
    rows = sweep_rows(chosen, executor=executor)
    found = {place_of_case(case, chosen): row for case, row in zip(chosen.cases(), rows, strict=True)}
    wanted = [row for row in references(experiment) if int(row["D"]) in ranks]
    for reference in wanted:
        row = found[place_of_reference(reference, chosen)]
        time, bubble = float(reference["total_time"]) / 1000, float(reference["bubble_ratio"])
        if reference["schedule"].startswith("Hanayo"):
            assert row["pipeline_time_s"] <= time * (1 + 1e-9), reference
            assert row["bubble_ratio"] <= bubble * (1 + 1e-9), reference
        else:
            assert row["pipeline_time_s"] == pytest.approx(time, rel=1e-9), reference
            assert row["bubble_ratio"] == pytest.approx(bubble, rel=1e-9), reference
    return len(wanted)


def place_of_reference(row: dict[str, str], sweep) -> tuple:
    """What tells a case of the sweep from the others, as the table says it."""
    place = {"parallel.pipeline": int(row["D"]), "cluster.nvlink.latency": f"{row['T_C']} ms"}
    place |= {"schedule.kind": KINDS[row["schedule"]], "schedule.chunks": int(row["chunks"])}
    place |= {"schedule.microbatches": int(row["MBS"])}
    name, _, value = row["param"].partition("=")
    if name in PARAMETERS:
        path, said = PARAMETERS[name]
        place[path] = said(value)
    return tuple(place[path] for path in _telling(sweep))


def place_of_case(case, sweep) -> tuple:
    """The same, as the case says it."""
    sizes = {"schedule.microbatches": SIZES.get(case.get("schedule.microbatches"), 0) * case["parallel.pipeline"]}
    case = {**case, **sizes}
    return tuple(case[path] for path in _telling(sweep))


def _telling(sweep) -> list[str]:
    return [path for path in sweep.paths if path != "workload.ends.backward"]
