"""The command `measure` with real PyTorch, over gloo: stages that sleep are found again. Needs torch."""

import importlib.util
import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from support.paths import TESTS

from hybrid_des import load, simulate

SLEEP_S = 0.06
STAGES = ["support.sleeping_stages:stages", "--shapes", "1x16"]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def measure(ranks, *options, sleep=SLEEP_S):
    """Run `measure` on so many processes; its outcome."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "SLEEP_S": str(sleep), "OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    command = [sys.executable, *torchrun, "hybrid_des", "measure", *map(str, options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.slow
def test_two_processes_measure_their_links_and_collectives(tmp_path):
    """Stopped after some rows, it goes on with the others."""
    outcome = measure(2, "--out", tmp_path / "node", "--repeats", 2, "--json")
    assert outcome.returncode == 0, outcome.stderr
    figures = json.loads(outcome.stdout)
    assert figures["files"] == ["machine.yaml"]
    rows = pd.read_csv(tmp_path / "node" / "collectives.csv")
    assert {*rows.collective} == {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-receive"}
    assert (rows.time_us > 0).all() and (rows.ranks == 2).all()
    noise = json.loads((tmp_path / "node" / "noise.json").read_text())
    assert noise["spread"]["collectives.csv"]["rows"] == len(rows) and len(noise["before"]["ranks"]) == 2
    rows.iloc[:-3].to_csv(tmp_path / "node" / "collectives.csv", index=False)
    assert measure(2, "--out", tmp_path / "node", "--repeats", 2).returncode == 0
    again = pd.read_csv(tmp_path / "node" / "collectives.csv")
    assert again.iloc[:-3].equals(rows.iloc[:-3]) and len(again) == len(rows)
    (tmp_path / "mine.yaml").write_text(
        "base: node\nparallel: {data: 2}\nworkload: {forward: 0, backward: 0, parameters: 1024}\n"
    )
    step = simulate(load(tmp_path / "mine.yaml")).summary["step_time_s"]
    reduced = again[(again.collective == "all-reduce") & (again.bytes == 4096)]
    assert step == pytest.approx(reduced.time_us.item() / 1e6, rel=1e-6)


@pytest.mark.slow
def test_a_wrong_command_is_one_line_from_rank_0(tmp_path):
    outcome = measure(2, *STAGES, "--pipeline", 4, "--out", tmp_path)
    said = [line for line in outcome.stderr.splitlines() if "--pipeline 4" in line]
    assert len(said) == 1 and "expected 4 processes, not 2: torchrun --nproc-per-node 4" in said[0]
    assert "hybrid_des/" not in outcome.stderr  # torchrun's own traceback alone


@pytest.mark.slow
def test_known_forwards_and_backwards_are_measured(tmp_path):
    """Four processes whose stages sleep: F, I and W within 5 %, and steps that were not used are predicted."""
    outcome = measure(4, *STAGES, "--pipeline", 4, "--chunks", "1,2", "--repeats", 2, "--out", tmp_path, "--json")
    assert outcome.returncode == 0, outcome.stderr
    for chunks, name in ((1, "durations.csv"), (2, "durations_2.csv")):
        ops = pd.read_csv(tmp_path / name).assign(seconds=lambda rows: rows.end_s - rows.start_s)
        ops["stage"] = ops.pipeline_rank + 4 * ops.chunk
        middle = ops.groupby(["stage", "kind"]).seconds.median() * chunks
        for (stage, kind), seconds in middle.items():
            known = 0 if (kind, stage) == ("I", 0) else SLEEP_S  # the input of the first stage needs no gradient
            assert seconds == pytest.approx(known, rel=0.05, abs=0.001)
    proofs = json.loads(outcome.stdout)["proof"]
    assert [proof["what"] for proof in proofs] == ["gpipe, chunks: 1", "looped-bfs, chunks: 2", "zb-v, chunks: 2"]
    for proof in proofs:
        assert proof["predicted_s"] == pytest.approx(proof["measured_s"], rel=0.05)


@pytest.mark.slow
def test_a_small_model_is_measured_and_its_step_predicted(tmp_path):
    (tmp_path / "tiny.yaml").write_text(
        "model: {layers: 1, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64, sequence: 16}\n"
        "schedule: {microbatch_size: 2}\n"
    )
    node, options = tmp_path / "node", ["--model", tmp_path / "tiny.yaml", "--tensor", "1,2", "--repeats", 2]
    outcome = measure(2, *options, "--rounds", 2, "--out", node, "--json")
    assert outcome.returncode == 0, outcome.stderr
    figures = json.loads(outcome.stdout)
    assert figures["files"] == ["machine.yaml", "step_1.yaml", "step_2.yaml"]
    assert [proof["what"] for proof in figures["proof"]] == [
        "a step of tiny, tensor: 1, data: 2", "a step of tiny, tensor: 2, data: 1"
    ]  # fmt: skip
    assert all(proof["predicted_s"] > 0 and proof["measured_s"] > 0 for proof in figures["proof"])
    rows = pd.read_csv(node / "operators.csv")
    assert {"gemm", "attention", "norms and residuals", "loss", "optimizer", "launch", "residual"} <= {*rows.operator}
    assert not rows.duplicated(["operator", "m", "n", "k", "heads", "bytes", "parameters"]).any()
    assert {*pd.read_csv(node / "overlap.csv").work} <= {"product", "memory"}
    model = load(node / "step_2.yaml")
    assert (model.parallel.tensor, float(model.efficiency.table.residual)) == (2, rows.seconds.iloc[-1])
