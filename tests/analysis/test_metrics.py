"""The summary, on runs written down by hand in whole picoseconds."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support import handmade, scenarios
from support.campaigns import TIMES
from support.handmade import uniform
from support.plans import plan_of
from support.scenarios import shared_nics

from hybrid_des.analysis import metrics
from hybrid_des.analysis.idle import USUAL, account, waits_for_slower
from hybrid_des.analysis.step_times import step_times, total
from hybrid_des.analysis.table import table as table_of
from hybrid_des.shortcuts.run import run as simulated

MS = 10**9


def accounts(run):
    return account(run.timeline, step_times(run.timeline))


def test_the_prototype_of_four_gpus():
    run = handmade.run(plan_of("1f1b", 2, 8), uniform(50 * MS, 80 * MS), data=2, reduction=40 * MS)
    summary = metrics.summary(run)
    assert summary["step_time_s"] == 1.210
    assert summary["pipeline_time_s"] == 1.170
    assert summary["bubble_ratio"] == pytest.approx(1 / 9, rel=1e-15)
    assert summary["speedup"] == pytest.approx(2 * 2 * 1.040 / 1.210, rel=1e-15)
    assert summary["efficiency"] == summary["speedup"] / 4
    assert summary["microbatches_per_s"] == pytest.approx(16 / 1.210)
    assert summary["peak_activations"] == [2, 1]
    # rank 1 waits 50 ms for its first forward, rank 0 idles (p−1)(F+B) = 130 ms for its first backward
    assert summary["idle_s"] == pytest.approx(
        {"dependency": 0.090, "pipeline_message": 0, "gradient_reduction": 0.040, "end_of_step": 0.040}
    )


def test_a_gap_is_split_at_the_producers_end():
    run = handmade.run(plan_of("gpipe", 2, 1), uniform(10, 20), delay=3)
    parts = accounts(run)
    # rank 1 waits for F until 10, its bytes until 13; rank 0 asks for B at 10, produced at 43, there at 46
    assert parts == {
        "busy": 60, "dependency": 10 + 33, "pipeline_message": 3 + 3, "gradient_reduction": 0, "end_of_step": 66 - 43,
    }  # fmt: skip


def test_a_rank_held_up_by_its_sends_waits_for_bytes():
    run = handmade.run(plan_of("gpipe", 1, 2), uniform(10, 20))
    table = run.timeline.ops
    for column in ("asked", "start", "end"):
        table[column][1:] += 4  # the rank was not free until 4 ps after its first op
    steps = run.timeline.steps
    for column in ("sent", "reduced", "end"):
        steps[column][:] += 4
    parts = accounts(run)
    assert parts["pipeline_message"] == 4
    assert sum(parts.values()) == 64


@settings(max_examples=20 * TIMES)
@given(
    kind=st.sampled_from(["gpipe", "1f1b"]),
    pipeline=st.integers(1, 4),
    microbatches=st.integers(1, 6),
    data=st.integers(1, 3),
    steps=st.integers(1, 3),
    times=st.tuples(*[st.integers(0, 10**12)] * 5),
)
def test_busy_and_idle_add_up_to_the_step(kind, pipeline, microbatches, data, steps, times):
    forward, backward, delay, reduction, optimizer = times
    run = handmade.run(
        plan_of(kind, pipeline, microbatches), uniform(forward, backward), delay=delay, data=data, steps=steps,
        reduction=reduction, optimizer=optimizer,
    )  # fmt: skip
    parts = accounts(run)
    assert sum(parts.values()) == run.duration * pipeline * data
    assert min(parts.values()) >= 0
    summary = metrics.summary(run)
    assert sum(summary["idle_s"].values(), summary["busy_s"]) == summary["step_time_s"]
    digit = math.ulp(summary["step_time_s"])
    assert abs(summary["busy_s"] - (microbatches * (forward + backward) + optimizer) / 1e12) <= 3 * digit
    json.dumps(summary, allow_nan=False)


@given(st.lists(st.integers(0, 10**13), min_size=5, max_size=5).filter(any), st.integers(1, 3000))
def test_seconds_add_up_in_any_order_to_the_last_digit(picoseconds, count):
    whole = metrics._seconds(sum(picoseconds), count)
    names = ("busy", *USUAL)
    parts = {name: metrics._seconds(value, count) for name, value in zip(names, picoseconds, strict=True)}
    found = metrics._consistent(whole, parts)
    assert sum(Fraction(value) for value in found.values()) == Fraction(whole)
    assert sum(found.values()) == sum(reversed(found.values())) == whole
    assert all(abs(found[name] - parts[name]) <= 3 * math.ulp(whole) for name in parts)


def test_times_of_an_hour_and_many_steps_do_not_overflow():
    run = handmade.run(plan_of("1f1b", 4, 8), uniform(3600 * 10**12, 3600 * 10**12), data=8, steps=20)
    assert metrics.summary(run)["step_time_s"] == 22 * 3600


def test_without_any_time_ratios_are_zero():
    summary = metrics.summary(handmade.run(plan_of("1f1b", 2, 2), uniform(0, 0)))
    for key in ("bubble_ratio", "exposed_communication_ratio", "speedup", "efficiency", "microbatches_per_s"):
        assert summary[key] == 0


def test_steps_without_a_barrier_count_the_rest_at_the_end():
    run = handmade.run(plan_of("1f1b", 2, 2), uniform(10, 10), steps=2)
    rows = run.timeline.steps
    late = (rows["rank"] == 1) & (rows["step"] == 1)
    rows["begin"][late] -= 5  # rank 1 was through 10 ps before rank 0 and goes on 5 ps early
    first = (run.timeline.ops["rank"] == 1) & (run.timeline.ops["step"] == 1)
    run.timeline.ops["asked"][first.nonzero()[0][0]] -= 5
    parts = accounts(run)
    assert sum(parts.values()) == 2 * run.duration
    assert metrics.summary(run)["step_time_s"] == run.duration / 2 / 1e12


def test_peaks_are_the_worst_replicas_and_whole_numbers_stay_whole():
    run = handmade.run(plan_of("1f1b", 2, 4), uniform(1, 1), data=2)
    run.peak_activations = [Fraction(2), Fraction(5, 2), Fraction(1), Fraction(1)]  # ranks 0 and 1 are stage 0
    run.peak_memory = [10, 90 * 10**9, 30, 20]
    summary = metrics.summary(run)
    assert summary["peak_activations"] == [2.5, 1]
    assert isinstance(summary["peak_activations"][1], int)
    assert summary["peak_memory_bytes"] == [90 * 10**9, 30]
    assert summary["out_of_memory"] is True


def test_messages_and_bytes_are_per_step():
    summary = metrics.summary(handmade.run(plan_of("1f1b", 3, 4), uniform(1, 1), steps=2, size=7))
    assert summary["messages"] == 2 * 2 * 4
    assert summary["bytes_pipeline"] == 7 * 16


def test_numerics_ride_along():
    run = handmade.run(plan_of("1f1b", 1, 1), uniform(1, 1))
    run.numerics = {"replica_difference": 0.0, "loss": [1.0]}
    assert metrics.summary(run)["loss"] == [1.0]


CASES = {
    "plain": {},
    "several steps": {"steps": 3},
    "without barrier": {"steps": 3, "barrier": False},
    "gpipe": {"schedule": {"kind": "gpipe", "microbatches": 6}},
    "one replica": {"parallel": {"pipeline": 4, "data": 1}},
    "one rank": {"parallel": {"pipeline": 1, "data": 1}},
    "only replicas": {"parallel": {"pipeline": 1, "data": 4}},
    "uneven": {"workload": {"forward": ["1 ms", "3 ms", "2 ms", "1 ms"], "backward": "3 ms", "optimizer": "1 ms"}},
    "replicas inside": {"parallel": {"pipeline": 4, "data": 2, "order": ["pipeline", "data", "tensor"]}},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_a_simulated_run_accounts_for_every_picosecond(changes):
    done = simulated(shared_nics(m=6, **changes))
    parts = accounts(done)
    assert step_times(done.timeline).total == done.timeline.duration == done.duration
    assert sum(parts.values()) == done.duration * done.scenario.parallel.ranks
    assert min(parts.values()) >= 0
    summary, rows = metrics.summary(done), table_of(done.timeline)
    assert sum(summary["idle_s"].values(), summary["busy_s"]) == summary["step_time_s"]
    compute = rows[rows.lane == "compute"]
    assert summary["busy_s"] * done.scenario.parallel.ranks * done.scenario.steps == pytest.approx(
        (compute.end_s - compute.start_s).sum()
    )
    first_links = rows[rows.hop == 0]
    assert len(first_links) == done.messages
    assert first_links[first_links.kind.isin(["activation", "gradient"])].bytes.sum() == done.bytes_pipeline
    assert table_of(simulated(done.scenario).timeline).to_csv() == rows.to_csv()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("bucket", ["none", "1 MB", "200 kB"])
def test_waits_for_a_slower_replica_do_not_depend_on_buckets(bucket, overlap):
    """Two micro-batches of 3 ms, on one of four replicas of 6 ms: the others wait 6 ms each, and then for bytes."""
    sections = {
        "cluster": {"nodes": 2, "gpus_per_node": 2}, "workload": {"parameters": 1e6},
        "gradients": {"bucket": bucket, "overlap": overlap},
    }  # fmt: skip
    equal, slower = (
        simulated(scenarios.scenario("1f1b", 1, 2, 4, **sections, slow=slow))
        for slow in ([], [{"gpu": 1, "factor": 0.5}])
    )
    assert waits_for_slower(equal.timeline) == 0
    assert waits_for_slower(slower.timeline) == 3 * 6 * 10**9


@pytest.mark.parametrize("more", [{}, {"sharding": "zero-1"}, {"workload": {"parameters": 1e9, "optimizer": "3 ms"}}])
@pytest.mark.parametrize("channels", [1, "auto"])
def test_the_exposed_share_does_not_move_with_the_bucket(channels, more):
    """Members of a ring over two nodes finish at different times: with one bucket, early ones wait for the others."""
    cluster = {"gpu": "h100", "nodes": 2, "gpus_per_node": 4}
    exposed, steps = [], []
    for bucket in ("none", "512 MiB", "128 MiB"):
        gradients = {"codec": "bf16", "channels": channels, "bucket": bucket}
        sections = {"cluster": cluster, "workload": {"parameters": 1e9}, **more, "gradients": gradients}
        summary = metrics.summary(simulated(scenarios.scenario("1f1b", 1, 2, 8, **sections)))
        steps.append(summary["step_time_s"])
        exposed.append(summary["exposed_communication_ratio"] * summary["step_time_s"])
        assert summary["idle_s"]["end_of_step"] < 1e-4
    for one, other in zip(exposed[1:], steps[1:], strict=True):
        assert one - exposed[0] == pytest.approx(other - steps[0], abs=1e-6)  # no more than the step itself grows


TIMES_OF_ROWS = st.integers(-(2**63), 2**63 - 1)


@given(arrays(np.int64, st.tuples(st.integers(0, 3), st.integers(1, 4)), elements=TIMES_OF_ROWS))
def test_a_total_never_wraps(times):
    assert total(times) == sum(times.ravel().tolist())
