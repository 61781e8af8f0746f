"""Documents that vary a job's forwards as much as they were measured to vary give its slowdown.

The job of 64 GPUs from "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025): one slow
rank, and forwards that differ by micro-batch, alike on all stages. Its slowdown S is 1.973 there.
"""

import json

import numpy as np
import pandas as pd
import pytest
from support.counterfactuals import stragglers
from support.paths import SHARED

from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run

TRACE = SHARED / "profiles" / "trace-AR.parquet"
STEPS, MICROBATCHES = 3, 32


def job(sigma, slow=None):
    """As many ranks and micro-batches as the job has, without its four tensor ranks; eight layers per stage."""
    return scenario_from({
        "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 8},
        "model": {"base": "llama3.1-8b", "sequence": 8192, "vocab": 26000},  # so that its last stage takes 7 % more
        "parallel": {"pipeline": 4, "data": 4}, "schedule": {"kind": "1f1b", "microbatches": MICROBATCHES},
        "data": {"lengths": {"kind": "lognormal", "mean": 4096, "sigma": sigma}, "packing": "per-document"},
        "steps": STEPS, "record": "compute", **({"slow": [{"gpu": 0, "factor": slow}]} if slow else {}),
    })  # fmt: skip


def forwards(scenario, stage):
    lanes = parts_of(scenario).costs.lanes
    places = ((step, lane, number) for step in range(STEPS) for lane in range(4) for number in range(MICROBATCHES))
    return np.array([lanes.cost(*place, stage).time("F") for place in places], dtype=float)


def spread_like(wanted):
    """The sigma of lengths with which forwards have this coefficient of variation."""
    low, high = 0.001, 0.1
    for _ in range(10):
        sigma = (low + high) / 2
        times = forwards(job(sigma), 1)
        low, high = (sigma, high) if times.std() / times.mean() < wanted else (low, sigma)
    return sigma


@pytest.mark.slow
@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not part of the project")
def test_lengths_of_the_measured_variation_give_the_slowdown():
    table = pd.read_parquet(TRACE)
    ops = table[table.optype.isin(["forward-compute", "backward-compute"])]
    usual = ops[(ops.stage == 1) & (ops.optype == "forward-compute")].duration
    sigma = spread_like(usual.std() / usual.mean())
    last = ops[(ops.stage == 3) & (ops.optype == "forward-compute")].duration.mean() / usual.mean()
    assert forwards(job(sigma), 3).mean() / forwards(job(sigma), 1).mean() == pytest.approx(last, abs=0.01)
    first = ops[ops.stage == 0].groupby("dp_rank").duration.mean()
    base = run(job(sigma, slow=float(first[1:].mean() / first[0])))
    slowdown = base.timeline.duration / stragglers(base).ideal
    theirs = json.loads((TRACE.parent / "result-AR.json").read_text())["blocking_slowdown"]
    assert slowdown == pytest.approx(theirs, abs=0.03)
