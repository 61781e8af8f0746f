"""Sweeps whose cases are the rows of a CSV file."""

import json

import pytest
from support.scenarios import MINIMAL
from support.tables import from_table

from hybrid_des.errors import ScenarioError
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.results import render
from hybrid_des.studies.sweep.rows import table
from hybrid_des.studies.sweep.runner import sweep_rows

SWEEP = MINIMAL + "sweep: {file: rows.csv}\n"
ROWS = """\
name,parallel.pipeline,schedule.kind,cluster.nvlink.bandwidth,barrier,measured.step_time_s,split
one,1,gpipe,,,12,fit
"two, faster",2,,inf,false,9.5,kept
"""


def test_a_row_is_a_case_and_empty_cells_say_nothing(write):
    write(ROWS, "rows.csv")
    sweep = load_sweep(write(SWEEP))
    assert list(sweep.cases()) == [
        {"name": "one", "parallel.pipeline": 1, "schedule.kind": "gpipe", "measured.step_time_s": 12, "split": "fit"},
        {
            "name": "two, faster", "parallel.pipeline": 2, "cluster.nvlink.bandwidth": "inf", "barrier": False,
            "measured.step_time_s": 9.5, "split": "kept",
        },
    ]  # fmt: skip
    assert sweep.paths[:2] == ["name", "parallel.pipeline"]
    assert not {"split", "measured.step_time_s"} & set(sweep.paths)


def test_a_table_of_rows_keeps_the_columns_beside_the_keys(write):
    write(ROWS, "rows.csv")
    sweep = load_sweep(write(SWEEP))
    rows = sweep_rows(sweep)
    assert [row["pipeline_time_s"] for row in rows] == pytest.approx([12, 15], rel=1e-6)
    assert list(table(rows)["split"]) == ["fit", "kept"]
    assert "two, faster" in render(rows, sweep)
    assert "inf" not in render(rows, sweep)


def test_the_command_runs_rows_and_reports_those_that_fail(run, write):
    write("parallel.pipeline,schedule.kind\n3,dualpipe\n1,1f1b\n", "rows.csv")
    code, out, err = run(write(SWEEP), "--json")
    assert (code, err) == (0, [])
    failed, done = json.loads(out)
    assert failed["error"].startswith("dualpipe pairs rank")
    assert done["step_time_s"] == 12


@from_table
def test_a_wrong_block_is_refused(sweep, said, write):
    write(ROWS, "rows.csv")
    with pytest.raises(ScenarioError, match="sweep") as error:
        load_sweep(write(f"{MINIMAL}sweep: {sweep}\n"))
    assert said in str(error.value)
