"""Two jobs on one link against closed forms and published examples, exactly.

The jobs have two ranks each, on the GPUs 0 and 2, and 1 and 3, of two nodes with one adapter each. A rank sends its
gradients to the other in one message (`recursive-doubling`): every adapter carries one transfer per job and step.
"""

from fractions import Fraction

import numpy as np
import pytest
from support.scenarios import scenario

from hybrid_des.cluster.fabric import placed
from hybrid_des.cluster.purposes import PURPOSES, REDUCTION
from hybrid_des.pipeline.plan import Op
from hybrid_des.planning.gradients import DONE, Bucket, ReplicaGroup
from hybrid_des.planning.planner import parts_of_programs
from hybrid_des.planning.program import (
    BARRIER,
    COMPUTE,
    Begin,
    Call,
    Collective,
    Compute,
    End,
    Join,
    Mark,
    Program,
    Start,
    block_of,
)
from hybrid_des.planning.wiring import fabric_of
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.jobs import links_of
from hybrid_des.simulation.run import JobRequest, run_jobs

S = 10**12  # picoseconds
GPUS = ([0, 2], [1, 3])
GROUP = (REDUCTION.name, 0, 0)


def job(compute, transfer, gpus, steps, sharing, priority=0, others=(0,)):
    """A job that computes, then transfers, in seconds, at 1 GB/s."""
    one = scenario(
        p=1, m=1, d=2, steps=steps,
        cluster={"nodes": 2, "gpus_per_node": 2, "sharing": sharing,
                 "infiniband": {"nics_per_node": 1, "bandwidth": "1 GB/s", "latency": 0}},
        workload={"forward": 0, "backward": compute, "parameters": Fraction(transfer) * 10**9 / 4},
        gradients={"algorithm": "recursive-doubling", "codec": "fp32"},
    )  # fmt: skip
    placed_one = one.placed(gpus)
    return placed_one.model_copy(update={"cluster": placed_one.cluster.urgent(priority, [*others, priority])})


def step_times(runs):
    """The duration of every step of each job, in seconds."""
    found = []
    for one in runs:
        steps = one.timeline.steps
        ends = [Fraction(int(steps["end"][steps["step"] == i].max()), S) for i in range(one.scenario.steps)]
        found.append([float(end - before) for before, end in zip([Fraction(0), *ends], ends, strict=False)])
    return found


def together(jobs, starts=(0, 0), repeat=False, parts=None):
    links = links_of(jobs[0], fabric_of(jobs[0].placed(range(4))))
    starts = [round(start * S) for start in starts]
    asked = [
        JobRequest(one, start, (parts or {}).get(n)) for n, (one, start) in enumerate(zip(jobs, starts, strict=True))
    ]
    return run_jobs(asked, links, repeat=repeat)


def alike(compute, transfer, sharing, shift=0, steps=6):
    """Two equal jobs."""
    jobs = [job(compute, transfer, gpus, steps, sharing) for gpus in GPUS]
    assert step_times([run(one) for one in jobs]) == [[float(compute + transfer)] * steps] * 2
    return step_times(together(jobs, (0, shift)))


@pytest.mark.parametrize(("compute", "transfer", "shift"), [("1", "0.5", "0"), ("2", "1", "0.25"), ("3", "2", "1.5")])
def test_fair_sharing_prolongs_equal_jobs_for_ever(compute, transfer, shift):
    c, m, s = map(Fraction, (compute, transfer, shift))
    first, second = alike(c, m, "fair", s, 8)
    assert first[:-1] == second[:-1] == [float(c + 2 * m - s)] * 7


@pytest.mark.parametrize(("compute", "transfer"), [("1", "0.5"), ("2", "2"), ("1", "3")])
def test_whole_transfers_in_turn_pull_equal_jobs_apart(compute, transfer):
    c, m = Fraction(compute), Fraction(transfer)
    first, second = alike(c, m, "fifo")
    settled = float(c + m if m <= c else 2 * m)
    assert first[2:] == second[2:] == [settled] * 4
    assert (first[0], second[0]) == (float(c + m), float(c + 2 * m))


def test_the_model_of_sharing_decides_the_verdict():
    assert {sharing: alike(Fraction(1), Fraction("0.5"), sharing)[0][3] for sharing in ("fifo", "fair")} == {
        "fifo": 1.5, "fair": 2.0,
    }  # fmt: skip


def utilisation(sharing, priorities=(0, 0), steps=24):
    """The share of the time for which the GPUs of Crux's example compute, over whole cycles of both jobs."""
    figures = ((2, 2), (1, 1))
    jobs = [
        job(*map(Fraction, one), gpus, steps, sharing, priority, priorities)
        for one, gpus, priority in zip(figures, GPUS, priorities, strict=True)
    ]
    window = slice(4, 16)
    periods = [np.mean(steps[window]) for steps in step_times(together(jobs, repeat=True))]
    return float(np.mean([compute / period for (compute, _), period in zip(figures, periods, strict=True)]))


@pytest.mark.parametrize(
    ("sharing", "priorities", "percent"),
    [("priority-fair", (1, 0), 37.5), ("priority-fair", (0, 1), 125 / 3), ("fair", (0, 0), 40)],
)
def test_the_first_example_of_crux(sharing, priorities, percent):
    """Cao et al., SIGCOMM 2024: which of two jobs goes first decides how much their GPUs compute."""
    assert 100 * utilisation(sharing, priorities) == pytest.approx(percent, rel=1e-9)


def halfway(compute, transfer, gpus, steps, priority):
    """A job whose transfer begins when half of the step's computing is done."""
    one = job(compute, transfer, gpus, steps, "priority-fair", priority, (0, 1))
    half, wait = Compute(compute * S // 2), Join(PURPOSES.index(REDUCTION))
    op = block_of((0,), Begin(), half, Start(GROUP, 0), half, wait, End())
    rest = block_of((), Mark(), Mark(), Mark(last=True), Collective(BARRIER, None))
    program = Program({COMPUTE: (Call(block_of((), Mark())), Call(op, 0, (Op("F", 0),)), Call(rest))})
    group = ReplicaGroup(0, 0, (0, 1), (0, 0), [Bucket(transfer * 10**9 // 4, DONE)])
    return one, program, group


@pytest.mark.parametrize(("first", "idle"), [(0, 7), (1, 6)])
def test_the_second_example_of_crux(first, idle):
    """Computing 4 and 2 s, transfers of 1 and 3 s that begin halfway: idle seconds of the second job's GPUs in 13 s."""
    made = [
        halfway(compute, transfer, gpus, 6, int(first == number))
        for number, (compute, transfer, gpus) in enumerate(((4, 1, GPUS[0]), (2, 3, GPUS[1])))
    ]
    fabric = fabric_of(made[0][0].placed(range(4)))
    parts = {
        number: parts_of_programs(one, [program], [group], placed(fabric, one.cluster.placement))
        for number, (one, program, group) in enumerate(made)
    }
    second = together([one for one, _, _ in made], parts=parts)[1]
    waits = second.timeline.exchanges
    mine = waits["rank"] == 0
    waited = np.minimum(waits["end"][mine], 13 * S) - np.minimum(waits["free"][mine], 13 * S)
    assert int(np.maximum(waited, 0).sum()) == idle * S
