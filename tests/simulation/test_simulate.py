"""The simulation against theory where theory is exact: integers, and `==`."""

import csv
import gc
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracle, scenarios
from support.campaigns import TIMES, thinned
from support.paths import GOLDEN, ROOT
from support.sizes import sizes

from hybrid_des.analysis.metrics import summary
from hybrid_des.collectives.registration import collective, find
from hybrid_des.errors import DeadlockError, OutOfMemoryError, PlanError, SimulationError, TooLongError
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.plan import Op, Plan, loop
from hybrid_des.planning.planner import plan_of
from hybrid_des.scenario.loading import load
from hybrid_des.shortcuts.run import run


def scenario(kind="1f1b", p=4, m=8, d=1, delay=0, **sections):
    """All GPUs of one node, on links that take no time but a latency."""
    free = {"cluster": {"nvlink": {"bandwidth": "inf", "latency": delay}}}
    return scenarios.scenario(kind, p, m, d, **scenarios.merged(free, sections))


def exact_rows():
    with (GOLDEN / "schedules.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["compare"] == "exact"]
    return {variant: [r for r in rows if r["variant"] == variant] for variant in sorted({r["variant"] for r in rows})}


EXACT = exact_rows()


# of similar schedules the one with fewer chunks is quick
LONG = [
    "interleaved_v4", "looped_bfs_v4", "looped_bfs_fifo_v4", "looped_bfs_fifo_v2", "hanayo_w2", "gpipe_lifo",
    "dualpipe_v_unfused", "eager_1f1b",
]  # fmt: skip


@pytest.mark.parametrize(
    "variant",
    thinned(EXACT, slow=LONG),
)
def test_reference_table_comes_out_of_simulated_time(variant):
    for row in EXACT[variant]:
        options = dict([row["options"].split(": ")]) if row["options"] else {}
        options = {key: False if value == "false" else value for key, value in options.items()}
        f, b, w, delay = (Fraction(row[key]) / 1000 for key in ("F", "B", "W", "T_C"))
        sizes = row["kind"], int(row["p"]), int(row["m"])
        schedule = {"chunks": int(row["chunks"]), **options}
        workload = {"forward": f, "backward": b + w, "weight": w}
        results = [
            summary(run(scenario(*sizes, delay=delay, schedule=schedule, workload={**workload, "memory": memory})))
            for memory in ({"weight_share": 1}, {"weight_share": 0})
        ]
        result = results[0]
        assert result["pipeline_time_s"] * 1000 == pytest.approx(float(row["pipeline_time"]), rel=1e-9), row
        assert result["span_s"] * 1000 == pytest.approx(float(row["span"]), rel=1e-9), row
        assert result["bubble_ratio"] == pytest.approx(float(row["bubble_ratio"]), abs=1e-9), row
        for result, after in zip(results, "WB", strict=True):
            assert max(result["peak_activations"]) == float(row[f"peak_if_freed_after_{after}"]), row


def times(ranks):
    return st.lists(st.integers(0, 10**6), min_size=ranks, max_size=ranks)


@pytest.mark.parametrize("kind", thinned(schedules.names(), slow=["zb-auto"]))
@settings(max_examples=8 * TIMES)
@given(data=st.data())
def test_every_schedule_equals_the_longest_path_on_idle_links(kind, data):
    p, m, chunks = data.draw(sizes(kind))
    forward, weight, inputs = (data.draw(times(p)) for _ in range(3))
    delay = data.draw(st.integers(0, 10**6))
    unit = Fraction(1, 10**12)
    workload = {
        "forward": [time * unit for time in forward],
        "backward": [(i + w) * unit for i, w in zip(inputs, weight, strict=True)],
        "weight": [time * unit for time in weight],
        "memory": {"weight_share": [Fraction(data.draw(st.integers(0, 10**6)), 10**6) for _ in range(p)]},
    }
    chosen = scenario(kind, p, m, delay=delay * unit, schedule={"chunks": chunks}, workload=workload)
    plan = plan_of(chosen)
    result = run(chosen, plan=plan)
    rows = result.timeline.ops
    found = {(r, i): (s, e) for r, i, s, e in zip(*(rows[c] for c in ("rank", "index", "start", "end")), strict=True)}
    timing = oracle.solve(plan, lambda kind, rank, chunk: result.costs.stages[rank, chunk].time(kind), delay)
    for rank, program in enumerate(plan.programs):
        for index in range(len(program)):
            assert found[rank, index] == (timing.start[rank][index], timing.end[rank][index])
    assert result.peak_activations == oracle.peaks(plan, workload["memory"]["weight_share"])


def test_prototype_of_four_gpus_as_the_report_should_have_said():
    figures = summary(run(load(ROOT / "scenarios/prototype_4gpu.yaml")))
    assert figures["step_time_s"] == 1.21
    assert figures["speedup"] == pytest.approx(4160 / 1210, rel=1e-12)
    assert figures["bubble_ratio"] == pytest.approx(1 / 9, rel=1e-12)
    assert figures["idle_s"]["gradient_reduction"] == pytest.approx(0.04, rel=1e-12)
    assert figures["exposed_communication_ratio"] == pytest.approx(40 / 1210)


@pytest.mark.parametrize(("codec", "payload", "scales"), [("int8", 2160, 288), ("fp16", 4320, 0), ("fp32", 8640, 0)])
def test_prototype_of_twelve_gpus(codec, payload, scales):
    figures = summary(run(load(ROOT / "scenarios/prototype_12gpu.yaml", [f"gradients.codec={codec}"])))
    assert figures["pipeline_time_s"] == 16
    assert figures["bubble_ratio"] == 0.25
    assert (figures["bytes_gradients"], figures["bytes_scales"]) == (payload, scales)


def test_twelve_gpus_start_where_the_table_of_expected_numbers_says():
    rows = run(load(ROOT / "scenarios/prototype_12gpu.yaml")).timeline.ops
    start = {(r, i): s // 10**12 for r, i, s in zip(rows["rank"], rows["index"], rows["start"], strict=True)}
    assert [start[stage, 0] for stage in range(3)] == [0, 1, 2]  # F0 on stage s at slot s
    assert start[2, 1] == 3  # B0 on the last stage


@pytest.mark.parametrize(("d", "milliseconds"), [(2, 20), (4, 30), (8, 35)])
def test_a_ring_step_carries_a_share_of_the_gradients(d, milliseconds):
    chosen = scenario(
        p=1, m=1, d=d, cluster={"nvlink": {"bandwidth": "1 GB/s", "latency": 0}}, workload={"parameters": 5e6}
    )
    assert run(chosen).duration == (3 + milliseconds) * 10**9


def test_compute_time_is_conserved_and_ops_never_overlap():
    result = run(scenario("zb-h1", p=4, m=9, d=2, delay="3 us", steps=3, workload={"optimizer": "7 us"}))
    rows = result.timeline.ops
    for rank in range(8):
        mine = rows["rank"] == rank
        start, end = rows["start"][mine], rows["end"][mine]
        assert (start[1:] >= end[:-1]).all()
        assert (end - start).sum() == 3 * (9 * 3 * 10**9 + 7 * 10**6)


def test_a_rank_goes_on_by_itself_without_a_barrier():
    together, alone = (run(scenario("zb-h2", m=8, steps=6, barrier=barrier)) for barrier in (True, False))
    assert together.duration == 6 * (8 * 3 + 3) * 10**9
    assert alone.duration == (6 * 8 * 3 + 3) * 10**9  # ranks start and end staggered: the steps close up
    assert summary(alone)["step_time_s"] == pytest.approx(alone.duration / 6e12, rel=1e-15)
    # 1F1B begins and ends on rank 0, so there a barrier costs nothing
    assert run(scenario(m=4, steps=3)).duration == run(scenario(m=4, steps=3, barrier=False)).duration


def test_a_run_repeated_is_identical():
    chosen = scenario(
        "1f1b",
        d=2,
        steps=2,
        cluster={"nvlink": {"bandwidth": "9 GB/s"}},
        workload={"activation": "3 MB", "parameters": 1e7},
    )
    first, second = (run(chosen).timeline for _ in range(2))
    for name in ("ops", "messages", "steps", "memory"):
        assert all(
            (a == b).all() for a, b in zip(getattr(first, name).values(), getattr(second, name).values(), strict=True)
        )


def test_blocking_senders_wait_until_their_messages_are_through():
    free = run(scenario("1f1b", p=2, m=2, delay="1 ms"))
    blocking = run(scenario("1f1b", p=2, m=2, delay="1 ms", schedule={"p2p": "blocking"}))
    # rank 0: F0 0–1, sent at 2; F1 2–3, sent at 4; B0 6–8; B1 10–12
    # rank 1: F0 2–3; B0 3–5, sent at 6; F1 6–7; B1 7–9, sent at 10
    assert blocking.duration == 12 * 10**9
    # rank 1: F0 2–3, B0 3–5, F1 5–6, B1 6–8; rank 0: B1 9–11
    assert free.duration == 11 * 10**9
    figures = summary(blocking)
    assert figures["idle_s"]["gradient_reduction"] == 0
    # rank 0 waits for two sends of its own and for the bytes of B0 and B1; rank 1 for the bytes of F0 and two sends
    assert figures["idle_s"]["pipeline_message"] == pytest.approx((4 + 3) / 2 * 1e-3, rel=1e-12)
    assert figures["busy_s"] + sum(figures["idle_s"].values()) == pytest.approx(0.012, rel=1e-15)


def test_passing_the_memory_limit_can_be_an_error():
    memory = {"per_parameter": "16 B", "activation": "1 GB"}
    workload = {"parameters": 1e9, "memory": memory}
    figures = summary(run(scenario(p=4, m=8, workload=workload)))
    assert figures["peak_memory_bytes"] == [16 * 10**9 + n * 10**9 for n in (4, 3, 2, 1)]
    assert not figures["out_of_memory"]
    small = {"gpu": {"memory": "19 GB"}}
    assert summary(run(scenario(p=4, m=8, workload=workload, cluster=small)))["out_of_memory"]
    with pytest.raises(OutOfMemoryError, match=r"rank 0 holds 20 GB; its GPU \(custom\) has 19 GB"):
        run(scenario(p=4, m=8, workload=workload, cluster=small, on_oom="error"))


def test_two_copies_of_a_model_reduce_between_them():
    result = run(scenario("chimera", p=4, m=4, workload={"parameters": 1000}))
    assert result.peak_memory == [32000] * 4
    assert result.bytes_gradients == 4 * (2 * 2 * 1 * 500 * 4)  # four stages, two holders: two messages of half each


def test_a_plan_that_deadlocks_names_each_stuck_rank_and_op():
    crossed = Plan.of(
        [[Op("F", 0), Op("B", 0), Op("F", 1), Op("B", 1)], [Op("F", 1), Op("B", 1), Op("F", 0), Op("B", 0)]],
        [loop(2, 1)],
        [0, 0],
    )
    with pytest.raises(DeadlockError) as error:
        run(scenario(p=2, m=2), plan=crossed)
    assert "rank 0 at action 1 (0B0)" in str(error.value)
    assert "rank 1 at action 0 (1F1)" in str(error.value)


def test_a_plan_with_an_op_missing_is_no_plan():
    with pytest.raises(PlanError, match="1B0 is missing"):
        run(scenario(p=2, m=1), plan=Plan.of([[Op("F", 0), Op("B", 0)], [Op("F", 0)]], [loop(2, 1)], [0]))


def right_in_small_groups(group, buffer):
    """A ring in groups as large as those in which a user's collective is tried; whether it was one."""
    if group.size > 4:
        return False
    entry = find("ring")
    yield from entry.build(group, buffer, *entry.arguments(None))
    return True


def test_a_collective_that_waits_forever_deadlocks(scratch):
    @collective("deaf", summary="receives a message that no member sends")
    def deaf(group, buffer):
        if not (yield from right_in_small_groups(group, buffer)):
            yield group.from_((group.me + 1) % group.size).receive()

    with pytest.raises(DeadlockError, match="rank 1, step 0: in the reduction of its gradients"):
        run(scenario(p=1, m=1, d=5, workload={"parameters": 10}, gradients={"algorithm": "deaf"}))


def test_a_collective_that_leaves_messages_unread_is_an_error(scratch):
    @collective("talkative", summary="sends a message that no member receives")
    def talkative(group, buffer):
        if not (yield from right_in_small_groups(group, buffer)):
            group.to((group.me + 1) % group.size).send(buffer.split(1).encode(0))

    with pytest.raises(SimulationError, match="5 messages were sent but never received"):
        run(scenario(p=1, m=1, d=5, workload={"parameters": 10}, gradients={"algorithm": "talkative"}))


def test_work_grows_linearly_with_micro_batches():
    few, many = (run(scenario(p=8, m=m)).events for m in (64, 512))
    assert many <= 8 * few


def test_a_step_of_months_is_an_error():
    slow = {"nvlink": {"bandwidth": "1 b/s", "latency": 0}}
    with pytest.raises(TooLongError, match=r"takes 1.6e\+13 s at 0.125 B/s; .* 0.125 B/s; was 0.125 Gb/s meant"):
        run(scenario(p=1, m=1, d=2, cluster=slow, workload={"parameters": 1e12}))


def test_runs_leave_the_garbage_collector_as_it_was():
    before = gc.get_threshold()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, [scenario(p=2, m=m) for m in range(1, 20)]))
    run(scenario())
    assert gc.get_threshold() == before
