"""The command costs: tables with their formulas, rows as JSON and CSV, and mistakes."""

import json

import pandas as pd
import pytest
from support.scenarios import MINIMAL

from hybrid_des import costs, load

MODEL = """\
model: {base: llama3.1-8b, layers: 4}
cluster: {gpu: h100}
parallel: {tensor: 4, pipeline: 2, sequence: true}
schedule: {kind: 1f1b, microbatches: 4}
"""


def test_stages_have_a_line_and_columns_their_formula(run, write):
    code, out, err = run("costs", write(MODEL))
    table, words = out.split("\n\n")
    assert (code, err) == (0, [])
    heads = table.splitlines()[0].split()
    names = "stage layers forward input weight tensor message params state kept peak"
    assert heads == names.split()
    assert [line.split()[:2] for line in table.splitlines()[2:]] == [["0", "3"], ["1", "3"]]
    assert [line.split()[0] for line in words.splitlines() if line[0] != " "] == heads[2:]
    assert f"989 TFLOP/s · {float(load(write(MODEL)).efficiency.gemm):.2f}" in words
    assert max(map(len, out.splitlines())) <= 80


def test_layers_that_are_alike_are_told_once(ran, write):
    out, _ = ran("costs", write(MODEL), "--layers", "--set", "recompute=full")
    assert "block 0 … block 3, 4 identical layers (stages 0 … 1)" in out
    assert out.count("MLP up: product 4,096 → 28,672, by columns") == 1
    assert out.count("again: recompute full") == 1
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("layers", [False, True])
def test_rows_are_those_of_the_function(run, write, tmp_path, layers):
    file, target = write(MODEL), tmp_path / "costs.csv"
    code, out, err = run("costs", file, "--json", "--out", target, *(["--layers"] if layers else []))
    frame = costs(load(file), layers=layers)
    assert (code, err) == (0, [f"wrote {target}"])
    assert [list(row) for row in json.loads(out)] == [list(frame)] * len(frame)
    assert json.loads(out)[0]["forward_s"] == pytest.approx(frame.forward_s[0], rel=1e-9)
    assert pd.read_csv(target).forward_s.tolist() == frame.forward_s.tolist()


def test_a_workload_says_which_number_was_given(ran, write):
    out, _ = ran("costs", write(MINIMAL))
    assert "workload.memory.activation of a micro-batch: not given" in out
