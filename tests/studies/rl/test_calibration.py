"""The engine's share of its speed: a run's time is met by bisection over simulated ones."""

import pytest

from hybrid_des.scenario.loading import scenario_from
from hybrid_des.studies.rl.calibration import calibrated, generation_s, reached, with_share
from hybrid_des.studies.rl.figures import figures_of
from hybrid_des.studies.rl.loop import run_loop
from hybrid_des.studies.rl.record import LoopRecord, Sample, WeightSync
from hybrid_des.units import PICOSECONDS_PER_SECOND as S

LOOP = {
    "name": "loop",
    "cluster": {"gpu": "h100", "nodes": 1},
    "model": "llama3.1-8b",
    "parallel": {"data": 8},
    "sharding": "zero-3",
    "batch": 64,
    "rl": {
        "samples": 8,
        "prompt": 100,
        "response": {"kind": "lognormal", "mean": 500, "sigma": 1, "max": 2048},
        "rollout": {"on": "trainer", "tensor": 2},
        "sync": {"time": "2 s"},
        "trainer": {"time": "30 s"},
    },
}

APART = LOOP["rl"] | {"rollout": {"nodes": 1, "tensor": 2}, "ahead": 1, "trainer": {"time": "1 s"}}


def sample(batch, started, ended):
    times = {"begun": started, "started": started, "ended": ended, "ready": ended}
    rest = {"group": 0, "replica": 0, "prompt": 1, "response": 1, "version": 0, "last_version": 0, "age": 0}
    fate = "trained" if batch >= 0 else "queued"
    return Sample(**times, **rest, batch=batch, fate=fate, recomputed=0, discarded=0)


def record(samples, syncs):
    spans = tuple(WeightSync(end - S, end, version) for version, end in enumerate(syncs, start=1))
    return LoopRecord(syncs[-1], tuple(samples), (), (), spans, (), (1,), 0, 1)


def test_generation_is_from_first_sample_to_last_token():
    samples = [sample(0, 0, 90 * S), sample(1, 100 * S, 130 * S), sample(1, 105 * S, 150 * S), sample(-1, 0, 999 * S)]
    assert generation_s(record(samples, [95 * S])) == 50  # the first batch is left out
    assert generation_s(record(samples[:1], [95 * S])) == 90


@pytest.mark.parametrize("share", [0.3, 0.61, 1.0, 1.9])
def test_the_share_is_that_of_the_run(share):
    assert reached(7 + 100 / share, lambda value: 7 + 100 / value) == pytest.approx(share, rel=2e-3)


def test_a_time_out_of_reach_has_no_share():
    assert reached(1.0, lambda value: 20 + 100 / value) is None
    assert reached(1e9, lambda value: 20 + 100 / value) is None


def test_the_share_of_a_simulated_run_is_found_again():
    scenario = scenario_from(LOOP | {"steps": 2})
    seconds = generation_s(run_loop(with_share(scenario, 0.4)))
    assert calibrated(scenario, "generation", seconds).value == pytest.approx(0.4, rel=5e-3)
    slow = scenario_from(LOOP | {"steps": 4, "cluster": {"gpu": "h100", "nodes": 2}, "rl": APART})
    share = calibrated(slow, "cycle", figures_of(slow, run_loop(with_share(slow, 0.4))).cycle)
    assert share == (pytest.approx(0.4, rel=5e-3), False)


@pytest.mark.slow
def test_engines_on_several_nodes_get_longer_all_reduces():
    """All-reduces that take twice as long are found again, and nothing else of its engines changes."""
    cluster = {"gpu": "h100", "nodes": 3}
    apart = scenario_from(
        LOOP | {"steps": 2, "cluster": cluster, "rl": APART | {"rollout": {"nodes": "1-2", "tensor": 16}}}
    )
    half = with_share(apart, 0.5)
    assert (half.rl.rollout[0].efficiency.across, half.rl.rollout[0].efficiency.reached) == (2, 1)
    seconds = generation_s(run_loop(half))
    assert calibrated(apart, "generation", seconds).value == pytest.approx(0.5, rel=2e-2)


def test_an_engine_without_waits_has_a_least_share():
    quick = scenario_from(LOOP | {"cluster": {"gpu": "h100", "nodes": 2}, "rl": APART | {"trainer": {"time": "900 s"}}})
    assert calibrated(quick, "cycle", 902.0).is_least


@pytest.mark.parametrize(("kind", "seconds"), [("generation", 80.0), ("cycle", 112.0)])
def test_scenarios_are_simulated_with_the_share(kind, seconds):
    scenario = scenario_from(LOOP)

    def simulated(changed):
        taken = round(40 * S / changed.rl.rollout[0].efficiency.reached)
        ends = [(32 * S + taken) * number for number in (1, 2)]
        return record([sample(number, end - 32 * S - taken, end - 32 * S) for number, end in enumerate(ends)], ends)

    assert calibrated(scenario, kind, seconds, simulated).value == pytest.approx(0.5, rel=2e-3)
    assert scenario.rl.rollout[0].efficiency.reached == 1
    assert with_share(scenario, 0.5).rl.rollout[0].efficiency.reached == 0.5
