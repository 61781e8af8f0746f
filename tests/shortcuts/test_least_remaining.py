"""The least time that a run still takes: no run ends before it, and runs without contention end just then."""

from collections import Counter
from math import inf
from random import Random

import pytest
from support import spaces
from support.campaigns import TIMES, thinned
from support.domain_foldings import domain_values
from support.folded_causes import KINDS
from support.scenarios import scenario

from hybrid_des import collectives
from hybrid_des.engine import clock
from hybrid_des.errors import HybridDesError
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.least_remaining import LeastRemaining, RingTimes, least_remaining
from hybrid_des.shortcuts.run import run
from hybrid_des.simulation.outcome import Run
from hybrid_des.simulation.watch import Watch

DRAWN = {**KINDS, "domain": domain_values, "model of a space": spaces.random_model}
BATCHES = 10 * TIMES  # of random scenarios
SHARINGS = ("fifo", "fair", "priority", "priority-fair")
ALGORITHMS = [
    *(("none", name) for name in collectives.algorithms() if name not in ("measured", "in-switch")),
    *(("zero-1", name) for name in collectives.algorithms() if name == "auto" or collectives.phases_of(name)),
]
NODE, NODES = {"gpus_per_node": 4}, {"gpus_per_node": 1, "nodes": 4}
RINGS = [("ring", NODE), ("ring", NODES), ("nccl", NODE), ("nccl", NODES), ("hierarchical", NODES)]
BETWEEN = {
    "infiniband": {"bandwidth": "2 GB/s", "latency": "5 us"},
    "nvlink": {"bandwidth": "8 GB/s", "latency": "1 us"},
}
SMALL = {"activation": "1 MB", "parameters": 1e6, "optimizer": "100 us"}


class Looks(Watch):
    """Notes all bounds of a run, and never ends it."""

    def __init__(self, least: LeastRemaining) -> None:
        super().__init__(latest=inf, least=least)
        self.bounds = [least.run]

    def ends_by(self, now, gpus):
        self.bounds.append(super().ends_by(now, gpus))
        return now


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Runs of a few events are looked at, too."""
    monkeypatch.setattr(clock, "BEAT", 16)


def watched(one) -> tuple[Run, list[int]] | None:
    """A run and its bounds, that of its beginning first; None if none is known or the scenario is impossible."""
    try:
        parts = parts_of(one)
        least = least_remaining(one, parts)
        looks = None if least is None else Looks(least)
        return None if looks is None else (run(one, parts=parts, watch=looks, fold_from=2), looks.bounds)
    except HybridDesError:
        return None


def end_of(result: Run) -> int:
    return int(result.timeline.steps["end"].max())


@pytest.mark.parametrize("batch", thinned(range(BATCHES), slow=range(1, BATCHES)))
def test_no_random_run_ends_before_its_bounds(batch):
    reached = Counter()
    for kind, draw in DRAWN.items():
        for seed in (batch, BATCHES + batch) if batch else (batch,):
            found = watched(scenario_from(draw(Random(seed))))
            if found is not None:
                assert max(found[1]) <= end_of(found[0]), (kind, seed)
                reached[kind] += 1
    assert len(reached) >= len(DRAWN) // 2


@pytest.mark.parametrize("sharing", thinned(SHARINGS, slow=SHARINGS[2:]))
@pytest.mark.parametrize("overlap", thinned([True, False], slow=[False]))
@pytest.mark.parametrize(("sharding", "algorithm"), ALGORITHMS)
def test_no_algorithm_ends_before_its_bounds(algorithm, sharding, overlap, sharing):
    found = watched(
        scenario(
            "1f1b",
            2,
            4,
            4,
            cluster={"gpus_per_node": 4, "nodes": 2, "sharing": sharing, **BETWEEN},
            parallel={"order": ["tensor", "pipeline", "data"]},
            workload=SMALL,
            sharding=sharding,
            gradients={"algorithm": algorithm, "overlap": overlap, "bucket": "500 kB"},
        )
    )
    assert max(found[1]) <= end_of(found[0])


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_a_pipeline_without_contention_takes_its_bound(kind, p2p):
    result, bounds = watched(
        scenario(kind, 4, 8, schedule={"p2p": p2p}, workload={"activation": "1 MB"}, cluster=BETWEEN)
    )
    assert bounds[0] == end_of(result)
    assert len(bounds) > 5
    assert bounds[-1] > result.duration / 2


@pytest.mark.parametrize(("kind", "cluster"), RINGS)
@pytest.mark.parametrize("sharding", ["none", "zero-1"])
@pytest.mark.parametrize("steps", [1, 3])
def test_buckets_around_idle_rings_take_their_bound(kind, sharding, cluster, steps):
    result, bounds = watched(
        scenario(
            "1f1b",
            1,
            2,
            4,
            cluster={**BETWEEN, **cluster},
            workload={**SMALL, "parameters": 2**20},
            sharding=sharding,
            steps=steps,
            barrier=True,
            gradients={"algorithm": kind, "bucket": "512 KiB", "codec": "bf16"},
        )
    )
    assert result.parts.reductions.choices.keys() <= {"ring, LL", "ring, LL128", "ring, Simple"}
    assert bounds[0] == end_of(result)
    assert max(bounds) == bounds[0]


def test_a_bound_keeps_what_a_collective_has_taken():
    """Nothing but a ring takes time, so what is known at its beginning is known until it ends."""
    ring = {"algorithm": "ring", "codec": "bf16"}
    workload = {**SMALL, "forward": 0, "backward": 0, "optimizer": 0, "parameters": 2**20}
    result, bounds = watched(scenario("1f1b", 1, 1, 64, workload=workload, cluster=BETWEEN, gradients=ring))
    assert len(bounds) > 5
    assert set(bounds) == {end_of(result)}


def test_a_bound_that_is_too_high_is_found(monkeypatch):
    hop = RingTimes._hop
    monkeypatch.setattr(RingTimes, "_hop", lambda self, *of: tuple(1 + time for time in hop(self, *of)))
    one = scenario("1f1b", 1, 2, 4, workload=SMALL, gradients={"algorithm": "ring", "bucket": "400 kB"})
    result, bounds = watched(one)
    assert bounds[0] > end_of(result)


@pytest.mark.parametrize(
    "sections",
    [
        {"steps": 2},
        {"jitter": {"distribution": "lognormal", "sigma": 0.1}},
        {"slow": [{"gpu": 0, "factor": 0.5}]},
        {"gradients": {"every": 2}, "steps": 2},
    ],
    ids=lambda sections: next(iter(sections)),
)
def test_nothing_is_known_of_what_varies(sections):
    one = scenario("1f1b", 2, 4, 2, **{"barrier": False, **sections})
    assert least_remaining(one, parts_of(one)) is None
