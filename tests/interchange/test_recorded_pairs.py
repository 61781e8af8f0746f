"""Pairs of a forward and a backward in recordings: what waits for one of the two is sent after both, or after it."""

import pandas as pd
import pytest

from hybrid_des import simulate
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.measured.replay.replaying import replay
from hybrid_des.pipeline.plan import PlanRequest
from hybrid_des.pipeline.schedules import make_plan

RANKS, MICROBATCHES = 4, 10
SECONDS = {"F": 0.060, "B": 0.120, "I": 0.060, "W": 0.060}
LATENCY = 0.001
PAUSE = 0.0005


def recorded(path, *, paired, names=SECONDS):
    """The ops of DualPipeV, by an own walk through its order; of a pair, the first op waits for its own input only.

    PyTorch's runtime computes a pair's forward, then its backward, each as soon as its own input is there, and sends
    what they give after both (`_add_send_recv` in torch/distributed/pipelining/schedules.py).
    """
    equal = (1,) * RANKS
    plan = make_plan("dualpipe-v", PlanRequest(RANKS, MICROBATCHES, 2, forward=equal, input=equal, weight=equal))
    programs = plan.programs if paired else [[(op,) for action in ops for op in action] for ops in plan.programs]
    done, free, at, rows = {}, [0.0] * RANKS, [0] * RANKS, []
    while any(at[rank] < len(programs[rank]) for rank in range(RANKS)):
        for rank in range(RANKS):
            while at[rank] < len(programs[rank]):
                action = programs[rank][at[rank]]
                needed = [[one for one in plan.needs(rank, op) if one[0] != rank] for op in action]
                if not all(one in done for each in needed for one in each):
                    break
                for number, (op, each) in enumerate(zip(action, needed, strict=True)):
                    first = PAUSE if not number and at[rank] else 0
                    start = max([free[rank] + first, *(done[one] + LATENCY for one in each)])
                    free[rank] = start + names[op.kind] / 2
                    rows.append((0, rank, op.chunk, op.kind, op.microbatch, start, free[rank]))
                done |= {(rank, op): free[rank] for op in action}
                at[rank] += 1
    columns = ["step", "pipeline_rank", "chunk", "kind", "microbatch", "start_s", "end_s"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("paired", [True, False])
def test_what_a_pair_gives_leaves_when_the_recording_says(paired, tmp_path):
    imported = import_profile(recorded(tmp_path / "run.csv", paired=paired))
    assert imported.figures["schedule"] == "dualpipe-v"
    assert imported.simulated == pytest.approx(imported.measured, rel=0.003)


@pytest.mark.parametrize("paired", [True, False])
def test_the_scenario_of_pairs_takes_the_imported_step(paired, tmp_path):
    imported = import_profile(recorded(tmp_path / "run.csv", paired=paired))
    imported.write(tmp_path / "out")
    again = simulate(tmp_path / "out" / "scenario.yaml").summary["pipeline_time_s"]
    assert [again] == pytest.approx(imported.simulated, abs=1e-9)


def test_replay_keeps_pairs_too(tmp_path):
    replayed = replay(recorded(tmp_path / "run.csv", paired=True), pauses=True)
    assert replayed.steps.error_percent.abs().max() < 0.3
