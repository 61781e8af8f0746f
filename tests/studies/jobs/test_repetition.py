"""A job repeats its step until all have done their own steps: counted by hand from runs of fixed numbers of steps."""

from random import Random

import numpy as np
import pytest
from support import jobs
from support.campaigns import TIMES, thinned

from hybrid_des.simulation.jobs import links_of
from hybrid_des.simulation.run import JobRequest, run_jobs
from hybrid_des.studies.jobs.result import simulate_jobs

MOST_STEPS = 400


def together(pair, starts, steps=None):
    """Runs of a pair: repeating, or of these numbers of steps."""
    if steps is not None:
        pair = [one.model_copy(update={"steps": count}) for one, count in zip(pair, steps, strict=True)]
    links = links_of(pair[0], jobs.fabric_of_jobs(pair))
    return run_jobs([JobRequest(*one) for one in zip(pair, starts, strict=True)], links, repeat=steps is None)


def ends(run, start, first):
    """When each step has ended on the first or on the last rank, at times of the fabric."""
    rows = run.timeline.steps
    found = np.full(run.scenario.steps, np.iinfo(np.int64).max if first else 0)
    (np.minimum if first else np.maximum).at(found, rows["step"], rows["end"] + start)
    return found


def counted(pair, starts, alone):
    """How many steps each job takes, from a run of both that is long enough; None if that would take too many."""
    often = 4
    while True:
        steps = [max(one.steps, round(often * max(alone) / mine)) for one, mine in zip(pair, alone, strict=True)]
        if max(steps) > MOST_STEPS:
            return None
        runs = together(pair, starts, steps)
        last = [ends(run, start, first=False) for run, start in zip(runs, starts, strict=True)]
        done = [int(each[one.steps - 1]) for each, one in zip(last, pair, strict=True)]
        found = []
        for number, (one, run, start) in enumerate(zip(pair, runs, starts, strict=True)):
            asked = last[number] if one.barrier else ends(run, start, first=True)  # a barrier waits for the last rank
            enough = np.flatnonzero(asked[one.steps - 1 :] >= done[1 - number])
            found.append(int(enough[0]) + one.steps if len(enough) else 0)
        if all(found):
            return found
        often *= 2


@pytest.mark.parametrize("number", thinned(range(8 * TIMES), slow=[0, 2, 4, 7]))
def test_jobs_take_the_steps_counted_by_hand(number):
    rng = Random(number)
    pair = tuple(
        one.model_copy(update={"steps": rng.randint(1, 3), "barrier": rng.random() < 0.5})
        for one in jobs.on_shared_nodes(rng)
    )
    alone = [run.duration / one.steps for run, one in zip((jobs.run(one) for one in pair), pair, strict=True)]
    starts = [0, rng.choice((0, round(rng.random() * 3 * max(alone))))]
    steps = counted(pair, starts, alone)
    if steps is None:
        return
    repeated, fixed = together(pair, starts), together(pair, starts, steps)
    assert [one.scenario.steps for one in repeated] == steps
    assert [one.duration for one in repeated] == [one.duration for one in fixed]


CLUSTER = {
    "nodes": 2, "gpus_per_node": 4, "sharing": "fair", "nvlink": {"bandwidth": "300 GB/s", "latency": 0},
    "infiniband": {"bandwidth": "10 GB/s", "latency": 0, "nics_per_node": 1},
}  # fmt: skip


def uneven(**changes):
    """A job with many gradients in its first stage and few in its last one, and a job of short steps."""
    times = {"forward": "1 ms", "backward": "2 ms"}
    common = {"schedule": {"kind": "gpipe", "microbatches": 1}, "gradients": {"algorithm": "ring", "channels": 1}}
    long = {"per": "rank", **times, "activation": 0, "parameters": [500_000_000, 1000]}
    return {
        "cluster": CLUSTER,
        "jobs": {
            "a": {**common, "ranks": [0, 4, 1, 5], "parallel": {"pipeline": 2, "data": 2}, "workload": long, **changes},
            "b": {**common, "ranks": [2, 6], "parallel": {"data": 2}, "workload": {**times, "parameters": 50_000_000}},
        },
    }


def test_a_job_is_done_with_its_last_stage():
    """Alone, a takes 206 ms and b 23 ms; while both reduce, each has half of the adapter."""
    first, second = simulate_jobs(uneven()).runs
    assert (first.together.scenario.steps, second.together.scenario.steps) == (1, 9)
    assert first.slowdown == pytest.approx(1.854, abs=5e-4)
    assert second.slowdown == pytest.approx(1.850, abs=5e-4)


def test_without_a_barrier_the_last_rank_counts():
    first, second = simulate_jobs(uneven(barrier=False)).runs
    steps = first.together.timeline.steps
    own = steps["end"][steps["step"] == 0]
    assert own.min() < second.together.timeline.steps["end"].min() < own.max()
    assert second.together.timeline.steps["begin"].max() < own.max() <= second.together.duration


def test_a_job_that_does_not_repeat_is_done_too():
    values = uneven(steps=2, numerics={}, workload={"forward": "1 ms", "backward": "2 ms"})
    first, second = simulate_jobs(values).runs
    assert first.together.scenario.steps == 2
    done = first.together.timeline.steps["end"].max()
    assert second.together.timeline.steps["begin"].max() < done <= second.together.duration
