"""Slow GPUs, stages and links, jitter and noise in whole runs: figures worked out by hand, and closed forms."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from support import scenarios
from support.campaigns import thinned
from support.scenarios import merged, plain

from hybrid_des.analysis.metrics import summary
from hybrid_des.errors import UsageError
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.run import run

S = 10**12
instant = partial(scenarios.instant, "1f1b")


def step(scenario: Scenario) -> float:
    return summary(run(scenario))["step_time_s"]


def slow(*items, **more):
    return {"slow": list(items), **more}


@pytest.mark.parametrize("microbatches", [4, 7, 8])
@pytest.mark.parametrize("times_slower", [2, 3])
@pytest.mark.parametrize("stage", range(4))
def test_one_slow_stage_takes_what_the_formula_says(stage, times_slower, microbatches):
    """T = Σ_{i<s}(F+B) + m(f+b) + max(0, Σ_{i>s}(F+B) − (p−s−1)f), for m ≥ p and at least twice as slow."""
    p, forward, both = 4, times_slower, 3 * times_slower
    expected = 3 * stage + microbatches * both + max(0, 3 * (p - stage - 1) - (p - stage - 1) * forward)
    # a third is no decimal: the file says 1/3 as a fraction
    factor = Fraction(1, times_slower)
    for item in ({"stage": stage}, {"gpu": stage}, {"gpu": stage, "until": "1000 s"}):
        assert step(instant(p, microbatches, **slow({**item, "factor": factor}))) == expected


def test_the_slow_rank_of_the_oracle_as_a_slow_stage():
    """e8: rank 2 takes 1.5 and 3 instead of 1 and 2; 43.5 s."""
    assert step(instant(**slow({"stage": 2, "factor": Fraction(2, 3)}))) == 43.5
    assert step(instant(**slow({"gpu": 2, "factor": Fraction(2, 3)}))) == 43.5


def test_the_slow_link_of_the_oracle():
    """e10: a ring of 4, 4 GB, one link at a quarter of 1 GB/s: 2(n−1)·S/(n·slowest) = 24 s."""
    wires = [{"between": [f"gpu{i}", f"gpu{(i + 1) % 4}"], "bandwidth": "1 GB/s"} for i in range(4)]
    ring = {
        "cluster": {"topology": "links", "links": wires, "gpus_per_node": 4},
        "workload": {"forward": 0, "backward": 0, "parameters": 1e9},
        "gradients": {"algorithm": "ring", "codec": "fp32"},
    }
    known = [
        name for name in run(scenarios.scenario("gpipe", 1, 1, 4, **ring)).fabric.links if "1" in name and "2" in name
    ]
    for sharing in ("fifo", "fair"):
        one = merged(ring, {"cluster": {"sharing": sharing}})
        for more in ({}, {"until": "1000 s"}):
            items = [{"link": name, "factor": 0.25, **more} for name in known]
            assert step(scenarios.scenario("gpipe", 1, 1, 4, **one, slow=items)) == 24
        assert step(scenarios.scenario("gpipe", 1, 1, 4, **one)) == 6


def test_an_interval_is_integrated_over_the_op():
    """One op each way: F of 1 s from 0, B of 2 s; half speed from 0.5 to 1.5 makes F end at 1.5."""
    one = instant(1, 1, **slow({"gpu": 0, "factor": 0.5, "from": 0.5, "until": 1.5}))
    assert run(one).timeline.ops["end"].tolist() == [3 * S // 2, 7 * S // 2]
    late = instant(1, 1, **slow({"gpu": 0, "factor": 0.5, "from": "10 h", "until": "12 h"}))
    assert run(late).timeline.ops["end"].tolist() == [S, 3 * S]


def test_factors_of_node_gpu_and_stage_are_multiplied():
    items = [{"node": 0, "factor": 0.5}, {"gpu": 0, "factor": 0.5}, {"stage": 0, "factor": 0.5}]
    assert step(instant(1, 1, **slow(*items))) == 24
    assert step(instant(1, 1, **slow({"node": 0, "factor": 2}))) == 1.5


def test_slow_gpus_need_no_node_of_their_own():
    """A node at half speed is the same machine as one with all of its GPUs at half speed."""
    cluster = {"nodes": [{"count": 1}, {"count": 1, "speed": 0.5}], "gpus_per_node": 2}
    one = run(instant(4, 8, cluster=cluster))
    other = run(
        instant(4, 8, cluster={"nodes": 2, "gpus_per_node": 2}, **slow(*({"gpu": g, "factor": 0.5} for g in (2, 3))))
    )
    assert (one.timeline.ops["end"] == other.timeline.ops["end"]).all()


def test_both_stages_of_a_fused_pair_count_by_their_share():
    """DualPipe: of a pair, only the op of stage 1 takes three times as long."""
    given = {"forward": "1 s", "backward": "2 s"}
    one = run(scenarios.scenario("dualpipe", 4, 8, workload=given, **slow({"stage": 1, "factor": Fraction(1, 3)})))
    seconds = {"F": 1, "B": 2, "I": 1, "W": 1}
    ops, met = one.timeline.op_rows(), set()
    for index, rank, took in zip(ops["index"], ops["pipeline_rank"], ops["end"] - ops["start"], strict=True):
        pair = one.plan.programs[rank][index]
        stages = [one.plan.stage_of[rank, op.chunk] for op in pair]
        met.add((len(pair), 1 in stages))
        assert took == S * sum(seconds[op.kind] * (3 if s == 1 else 1) for op, s in zip(pair, stages, strict=True))
    assert met == {(1, True), (1, False), (2, True), (2, False)}


def test_a_stage_that_an_order_file_lacks_is_told(tmp_path):
    """How many chunks a file has is known when it is read."""
    (tmp_path / "order.csv").write_text("0F0,0B0\n")
    one = scenario_from(
        plain(schedule={"file": str(tmp_path / "order.csv"), "microbatches": 1}, **slow({"stage": 5, "factor": 0.5}))
    )
    with pytest.raises(UsageError, match="there is no stage 5; the schedule has stages 0 … 0"):
        run(one)


def test_buckets_leave_a_slow_op_later_too():
    """Overlapped buckets of one backward leave at the same shares of it."""
    usual = instant(1, 1, 2, workload={"parameters": 1e8}, gradients={"overlap": True, "bucket_rule": "ddp"})
    half = usual.model_copy(update={"slow": instant(1, 1, 2, **slow({"node": 0, "factor": 0.5})).slow})
    parted = usual.model_copy(
        update={"slow": instant(1, 1, 2, **slow({"node": 0, "factor": 0.5, "until": "99 s"})).slow}
    )
    starts = [run(one).timeline.reductions["start"] for one in (half, parted)]
    assert len(starts[0]) > 8
    assert abs(starts[0] - starts[1]).max() <= 1  # each rounds its parts in its own way
    assert (starts[0] > run(usual).timeline.reductions["start"]).all()


def test_a_flap_delays_the_pipeline_by_its_length():
    """One message of 1 s between two stages, cut off for 3 s: F, message, F."""
    node = {"nvlink": {"bandwidth": "1 GB/s", "latency": 0}}
    usual = instant(2, 1, cluster=node, workload={"activation": "1 GB"})
    cut = usual.model_copy(
        update={
            "slow": instant(
                2, 1, **slow({"link": "node0/gpu0/nvlink-out", "flap": "3 s", "from": "1.5 s"}), cluster=node
            ).slow
        }
    )
    assert step(cut) == step(usual) + 3


# closed forms: n replicas of one op each, which wait for each other at the end of the step


def steps_of(replicas, jitter, steps):
    """Step times in units of the op, one rank per replica."""
    one = scenarios.scenario(
        "gpipe", 1, 1, replicas, workload={"forward": "1 s", "backward": 0}, jitter=jitter, steps=steps, seed=5
    )
    rows = run(one).timeline.steps
    ends, begins = (rows[name].reshape(-1, replicas) for name in ("end", "begin"))
    return (ends.max(axis=1) - begins.min(axis=1)) / S


HARMONIC = {8: 2.717857, 64: 4.743891, 1024: 7.509176}
NORMAL = {8: 1.423600, 64: 2.343733, 1024: 3.248240}
LOGNORMAL = {8: 1.149399, 64: 1.259104, 1024: 1.377741}


def agrees(times, expected, floor=0.0):
    return abs(times.mean() - expected) < 4 * times.std() / math.sqrt(len(times)) + floor


@pytest.mark.parametrize("ranks", thinned([8, 64, 1024], slow=[1024]))
def test_the_slowest_of_many_takes_what_theory_says(ranks):
    steps = max(8, 4000 // ranks)
    assert agrees(steps_of(ranks, {"distribution": "exponential"}, steps), HARMONIC[ranks])
    normal = steps_of(ranks, {"distribution": "normal", "sigma": 0.05, "level": "rank-step"}, steps)
    assert agrees((normal - 1) / 0.05, NORMAL[ranks])
    assert agrees(steps_of(ranks, {"distribution": "lognormal", "sigma": 0.1}, steps), LOGNORMAL[ranks])
    largest = ranks / (ranks + 1)  # the expected maximum of `ranks` numbers between 0 and 1
    assert agrees(steps_of(ranks, {"distribution": "uniform", "spread": 0.5}, steps), 0.5 + largest)


@pytest.mark.slow
def test_a_thousand_ranks_wait_for_the_rarely_slow_one():
    """1 + x(1 − (1−q)^n) with q = 0.001, x = 0.5, n = 1024."""
    times = steps_of(1024, {"distribution": "bernoulli", "p": 0.001, "factor": 1.5}, 20)
    assert set(times) <= {1.0, 1.5}
    assert agrees(times, 1.320514)


def test_levels_share_their_factors():
    def factors(level):
        rows = run(
            instant(2, 4, 2, steps=2, jitter={"distribution": "uniform", "spread": 0.5, "level": level})
        ).timeline
        ops = rows.op_rows()
        took = (ops["end"] - ops["start"]) / S / np.where(ops["kind"] == 0, 1, 2)
        return {
            rank: {s: set(took[(ops["rank"] == rank) & (ops["step"] == s)].round(9)) for s in (0, 1)}
            for rank in range(4)
        }

    assert all(len(each) == 8 for steps in factors("op").values() for each in steps.values())
    assert all(len(each) == 1 for steps in factors("rank-step").values() for each in steps.values())
    assert all(steps[0] != steps[1] for steps in factors("rank-step").values())
    persistent = factors("rank")
    assert all(steps[0] == steps[1] for steps in persistent.values())
    assert len({next(iter(steps[0])) for steps in persistent.values()}) == 4


def durations(scenario):
    """(kind, rank, step, micro-batch) → picoseconds."""
    ops = run(scenario).timeline.op_rows()
    keys = zip(*(ops[name].tolist() for name in ("kind", "rank", "step", "microbatch")), strict=True)
    return dict(zip(keys, (ops["end"] - ops["start"]).tolist(), strict=True))


def test_one_thing_more_changes_no_other_draw():
    jitter = {"distribution": "lognormal", "sigma": 0.1}
    usual = durations(instant(4, 4, jitter=jitter, seed=3))
    assert usual == durations(instant(4, 4, jitter=jitter, seed=3))
    assert usual != durations(instant(4, 4, jitter=jitter, seed=4))
    more_steps = durations(instant(4, 4, jitter=jitter, seed=3, steps=3))
    assert usual.items() <= more_steps.items()
    other_schedule = durations(instant(4, 4, jitter=jitter, seed=3, schedule={"kind": "gpipe"}))
    assert usual == other_schedule
    more_replicas = durations(
        instant(4, 4, 2, jitter=jitter, seed=3, parallel={"order": ["tensor", "pipeline", "data"]})
    )
    assert usual.items() <= more_replicas.items()
    one_slow = durations(instant(4, 4, jitter=jitter, seed=3, **slow({"gpu": 1, "factor": 0.5, "until": "99 s"})))
    assert {key: time for key, time in usual.items() if key[1] != 1}.items() <= one_slow.items()
    twice = durations(instant(4, 4, jitter=[jitter, {**jitter, "level": "rank", "sigma": 0}], seed=3))
    assert twice == usual


def test_jitter_without_deviation_is_none():
    plain = run(instant(2, 4, 2)).timeline
    still = run(instant(2, 4, 2, jitter={"distribution": "normal", "sigma": 0})).timeline
    assert all((plain.ops[name] == still.ops[name]).all() for name in plain.ops)


def test_tensor_ranks_share_their_jitter_and_the_slowest_pace():
    model = {"base": "llama3.1-8b", "layers": 2}
    values = {
        "cluster": {"gpu": "h100", "gpus_per_node": 4},
        "parallel": {"tensor": 2, "pipeline": 2},
        "schedule": {"kind": "1f1b", "microbatches": 2},
        "model": model,
        "tensor_traffic": "replay",  # collectives inside ops
    }
    jitter = {"jitter": {"distribution": "lognormal", "sigma": 0.1}}
    slow = {"slow": [{"gpu": 1, "factor": 0.5}]}

    def took(**perturbed):
        ops = run(scenario_from({**values, **perturbed})).timeline.op_rows()
        return {rank: (ops["end"] - ops["start"])[ops["rank"] == rank] for rank in range(4)}

    plain, slowed, jittered, both = took(), took(**slow), took(**jitter), took(**slow, **jitter)
    assert (both[0] == both[1]).all() and (both[2] == both[3]).all()
    assert both[0] / slowed[0] == pytest.approx(jittered[0] / plain[0], rel=1e-9)  # of the whole op
    assert (1.8 * plain[0] < slowed[0]).all() and (slowed[0] <= 2 * plain[0]).all()  # of its computation


def test_noise_takes_its_share_in_every_period():
    """A tenth of every second: an op of 900 s takes 1000 s; phases differ from rank to rank."""
    noise = {"noise": {"period": "1 s", "detour": "100 ms"}}
    long = {"workload": {"forward": "900 s", "backward": 0}}
    assert step(scenarios.scenario("gpipe", 1, 1, 1, jitter=noise, **long)) == 1000
    short = {"workload": {"forward": "0.05 s", "backward": 0}}
    ends = run(scenarios.scenario("gpipe", 1, 1, 8, jitter=noise, **short)).timeline.ops["end"]
    assert len(set(ends.tolist())) > 1


def test_layers_beside_collectives_are_slowed_as_elsewhere():
    """Sharded weights: at a constant factor, an interval that never ends is the same as a slower node."""
    sharded = {"sharding": "zero-3", "workload": {"parameters": 1e9, "forward": "10 ms", "backward": "20 ms"}}
    half = [{"node": 0, "factor": 0.5}]
    permanent = run(scenarios.scenario("1f1b", 1, 4, 4, slow=half, **sharded)).timeline
    for_long = run(scenarios.scenario("1f1b", 1, 4, 4, slow=[{**half[0], "until": "1e5 s"}], **sharded)).timeline
    assert abs(permanent.ops["end"] - for_long.ops["end"]).max() <= 20  # a picosecond per layer
    assert (permanent.ops["end"] > run(scenarios.scenario("1f1b", 1, 4, 4, **sharded)).timeline.ops["end"]).all()


@pytest.mark.parametrize("factor", [Fraction(1, 3), Fraction(1, 1000), 3])
def test_layers_end_whatever_remains_of_a_picosecond(factor):
    sharded = {"sharding": "zero-3", "workload": {"parameters": 1e8, "forward": "10 us", "backward": "7 us"}}
    noisy = {"jitter": {"noise": {"period": "1 us", "detour": "77 ns"}}}
    item = {"node": 0, "factor": factor, "from": "5 us", "until": "1 s"}
    ends = run(scenarios.scenario("1f1b", 1, 3, 4, slow=[item], **sharded, **noisy)).timeline.ops["end"]
    assert ends.max() > 3 * 17 * 10**6
