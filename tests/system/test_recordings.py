"""Recordings of real pipelines: PyTorch runs stages that sleep, in four processes over gloo. Needs torch."""

import importlib.util
import os
import subprocess
import sys

import pandas as pd
import pytest
from support.paths import TESTS

from hybrid_des import load, simulate
from hybrid_des.measured.imports.importing import import_profile

RANKS = 4
ROUNDS = 3  # the fastest is compared: another program may take the processor meanwhile
SLEEP_S = 0.06

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def recorded(folder, *runs, ranks=RANKS, steps=1, rounds=1, sleep=SLEEP_S):
    """Record runs such as "1F1B:1:8:loop" into a folder per round."""
    folders = [folder / str(number) for number in range(rounds)]
    environment = {**os.environ, "WORLD_SIZE": str(ranks), "SLEEP_S": str(sleep), "PYTHONPATH": str(TESTS),
                   "RENDEZVOUS": str(folder / "rendezvous"), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    command = [sys.executable, str(TESTS / "support" / "recording_worker.py"), str(steps), ",".join(map(str, folders))]
    processes = [
        subprocess.Popen([*command, *runs], env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    for process in processes:
        errors = process.communicate(timeout=500)[1]
        assert process.returncode == 0, errors
    return folders


def span(path):
    table = pd.read_csv(path)
    return table.end_s.max() - table.start_s.min()


def fastest(folders, name):
    return min((folder / f"{name}.csv" for folder in folders), key=span)


@pytest.mark.slow
def test_ops_of_a_schedule_are_recorded_in_its_order(tmp_path):
    (folder,) = recorded(tmp_path, "1F1B:1:3:loop", "ZBVZeroBubble:2:4:v", ranks=2, steps=2, sleep=0.005)
    table = pd.read_csv(folder / "1F1B_1.csv")
    assert table.columns.tolist() == ["step", "pipeline_rank", "chunk", "kind", "microbatch", "start_s", "end_s"]
    assert sorted(set(table.step)) == [0, 1]  # the warm-up is left out
    ops = (table.kind + table.microbatch.astype(str))[table.step == 1]
    assert " ".join(ops[table.pipeline_rank == 0]) == "F0 F1 B0 F2 B1 B2"
    assert " ".join(ops[table.pipeline_rank == 1]) == "F0 B0 F1 B1 F2 B2"
    assert import_profile(folder / "1F1B_1.csv").figures["schedule"] == "1f1b"
    figures = import_profile(folder / "ZBVZeroBubble_2.csv").figures
    assert (figures["schedule"], figures["chunks"], figures["microbatches"]) == ("zb-v", 2, 4)


@pytest.mark.slow
def test_other_schedules_follow_from_two_recordings(tmp_path):
    """From 1F1B at one chunk and interleaved at two: within 4 % of the fastest of three runs, in the right order."""
    others = {"GPipe_1": ("gpipe", 1, "loop"), "LoopedBFS_2": ("looped-bfs", 2, "loop"),
              "ZBVZeroBubble_2": ("zb-v", 2, "v")}  # fmt: skip
    runs = [f"{name.replace('_', ':')}:8:{shape}" for name, (_, _, shape) in others.items()]
    folders = recorded(tmp_path, "1F1B:1:8:loop", "Interleaved1F1B:2:8:loop", *runs, rounds=ROUNDS)
    base, chunked = (fastest(folders, name) for name in ("1F1B_1", "Interleaved1F1B_2"))
    import_profile(base, overheads_from=[chunked]).write(tmp_path / "out")
    measured, predicted = [], []
    for name, (kind, chunks, _) in others.items():
        changes = [f"schedule.kind={kind}", f"schedule.chunks={chunks}", "workload.timing=mean"]
        predicted.append(simulate(load(tmp_path / "out" / "scenario.yaml", changes)).summary["pipeline_time_s"])
        measured.append(span(fastest(folders, name)))
    assert predicted == pytest.approx(measured, rel=0.04)
    assert sorted(predicted, reverse=True) == predicted and sorted(measured, reverse=True) == measured


@pytest.mark.slow
def test_a_recorded_dualpipe_v_takes_its_own_step(tmp_path):
    """What the forward of a pair gives is sent after its backward too: sent at once, the step is 4 % too short."""
    (folder,) = recorded(tmp_path, "DualPipeV:2:8:v")
    imported = import_profile(folder / "DualPipeV_2.csv")
    assert imported.figures["schedule"] == "dualpipe-v"
    assert imported.simulated == pytest.approx(imported.measured, rel=0.02)
