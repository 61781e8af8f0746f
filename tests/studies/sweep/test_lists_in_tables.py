"""Lists of a summary are lists in DataFrames, and JSON in CSV files."""

import csv
import json

from support.scenarios import values

from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.page import write
from hybrid_des.studies.sweep.results import run_sweep
from hybrid_des.studies.sweep.runner import sweep_rows

SWEEP = {**values("1f1b", 2, 4), "name": "lists", "sweep": [{"schedule.microbatches": [2, 4]}]}


def test_lists_of_a_sweep_are_lists():
    table = run_sweep(SWEEP)
    assert table["peak_activations"].tolist() == [[2, 1], [2, 1]]
    assert table["peak_activations"].str[0].tolist() == table["peak_activations.max"].tolist() == [2, 2]


def test_lists_of_a_sweep_are_json_in_its_file(tmp_path):
    sweep = load_sweep(SWEEP)
    write(list(sweep_rows(sweep)), sweep, tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert [json.loads(row["peak_activations"]) for row in csv.DictReader(file)] == [[2, 1], [2, 1]]
