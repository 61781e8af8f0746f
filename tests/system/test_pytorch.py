"""Real PyTorch runs the orders that we simulate, and computes what one process computes. Needs torch."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import TESTS

from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import write_order
from hybrid_des.pipeline.plan import PlanRequest

RANKS, MICROBATCHES = 4, 8
WORKER = TESTS / "support" / "pytorch_worker.py"
ONCE_A_RANK = [kind for kind in schedules.names() if kind not in ("dualpipe", "chimera")]  # PyTorch wants a stage once

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def export(kind: str, folder: Path) -> Path:
    facts = schedules.find(kind).facts
    request = PlanRequest(
        RANKS,
        MICROBATCHES,
        facts["chunks"] or (2 if facts["many_chunks"] else 1),
        forward=(10,) * RANKS,
        input=(10,) * RANKS,
        weight=(10,) * RANKS,
    )
    path = folder / f"{kind}.csv"
    path.write_text(write_order(schedules.make_plan(kind, request)))
    return path


@pytest.mark.slow
def test_pytorch_computes_the_gradients_of_one_process(tmp_path):
    orders = [export(kind, tmp_path) for kind in ONCE_A_RANK]
    command = [sys.executable, str(WORKER)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(RANKS), str(tmp_path / "rendezvous"), *map(str, orders)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    for text, _ in outputs:
        rows = [line.split() for line in text.splitlines()]
        assert [row[0] for row in rows] == ONCE_A_RANK
        assert all(float(gradient) < 1e-12 and float(loss) < 1e-12 for _, gradient, loss in rows), text
