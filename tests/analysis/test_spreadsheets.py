"""CSV files for spreadsheets: a text of the user is never a formula, and numbers stay numbers."""

import csv
import io

import pandas as pd
import pytest
from support.paths import PACKAGE
from support.scenarios import MINIMAL

from hybrid_des.analysis.safe_csv import FORMULA, read_cell, safe_cell, write_csv
from hybrid_des.studies.sweep.rows import PARTIAL, journal

TO_SWITCH = "{between: [gpu0, =s], bandwidth: 1 GB/s}, {between: [gpu1, =s], bandwidth: 1 GB/s}"
WIRED = MINIMAL + f"parallel: {{pipeline: 2}}\ncluster: {{gpus_per_node: 2, topology: links, links: [{TO_SWITCH}]}}\n"
ROWS = "name,workload.forward,measured.step_time_s\n=1+1,1,12\n@b,2,1\n"
CASES = {
    "sweep.csv": ([], MINIMAL + "sweep: [{name: ['=1+1', '@b', '-c']}]\n"),
    "validation.csv": (["validate", "--jobs", "1"], MINIMAL + "sweep: {file: rows.csv}\n"),
}


@pytest.mark.parametrize("file", CASES)
def test_no_cell_of_a_table_is_a_formula(ran, write, tmp_path, file):
    command, text = CASES[file]
    write(ROWS, "rows.csv")
    _, _ = ran(*command, write(text), "--out", tmp_path / "o")
    cells = [cell for row in csv.reader((tmp_path / "o" / file).read_text().splitlines()) for cell in row]
    assert [cell for cell in cells if cell.startswith(FORMULA)] == []
    assert [cell for cell in cells if cell.startswith("'=1+1")] != []


def test_a_journal_holds_the_cells_of_the_table(tmp_path):
    with journal(tmp_path) as keep:
        keep({"name": "=1+1", "seed": -1})
        assert (tmp_path / PARTIAL).read_text() == "name,seed\n'=1+1,-1\n"


@pytest.mark.usefixtures("unpainted")
def test_a_folder_is_compared_under_its_own_link_names(run, write, tmp_path):
    file = write(WIRED)
    run(file, "--out", tmp_path / "o", "--quiet")
    assert ",'=s" in (tmp_path / "o" / "timeline.csv").read_text()
    code, out, err = run("compare", tmp_path / "o", file)
    assert (code, err) == (0, [])
    assert "=s" not in out  # no link is in one of the runs only


def test_every_table_is_written_by_the_same_function():
    files = {file.relative_to(PACKAGE).as_posix(): file.read_text() for file in PACKAGE.rglob("*.py")}
    assert [name for name, text in files.items() if ".to_csv(" in text] == ["analysis/safe_csv.py"]


def test_numbers_below_zero_stay_numbers():
    table = pd.DataFrame({"a": [-1, 2], "b": pd.Series([-(2**70), "-x"], dtype=object), "c": ["x", None]})
    assert list(csv.reader(io.StringIO(write_csv(table)))) == [
        ["a", "b", "c"],
        ["-1", str(-(2**70)), "x"],
        ["2", "'-x", ""],
    ]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@a", "a=1", "'a", "", -1, None])
def test_a_cell_reads_back_as_it_was(text):
    assert read_cell(safe_cell(text)) == text
