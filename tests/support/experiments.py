"""The published experiments: a row of the reference table, and the case of a sweep that stands for it."""

from __future__ import annotations

import csv
from fractions import Fraction

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
