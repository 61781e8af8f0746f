"""Durations of ops from a file: a scenario that reads them runs as what was measured."""

import pandas as pd
import pytest
from support import scenarios
from support.scenarios import merged, plain

from hybrid_des import simulate
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.planning.planner import plan_of
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import load, scenario_from

JITTER = {"distribution": "lognormal", "sigma": 0.3}
SENT = {"activation": "1 MB", "parameters": 1e6, "optimizer": "1 ms"}
NO_TIMES = {"forward": 0, "backward": 0}


@pytest.mark.parametrize(
    ("kind", "options"),
    [("1f1b", {}), ("interleaved-1f1b", {"chunks": 2}), ("zb-h1", {}), ("gpipe", {}), ("zb-v", {"chunks": 2})],
)
def test_a_run_of_measured_durations_is_the_measured_run(kind, options, tmp_path):
    """Jitter makes durations, also of the optimizer, which is no op of the table: so the first step is compared."""
    measured = scenarios.scenario(kind, 4, 8, 2, workload=SENT, schedule=options, jitter=JITTER, steps=2)
    first = simulate(measured)
    table = first.timeline.query("lane == 'compute'")
    table.to_csv(tmp_path / "t.csv", index=False)
    again = {"workload": {**SENT, **NO_TIMES, "durations": str(tmp_path / "t.csv")}, "schedule": options, "steps": 2}
    second = simulate(scenarios.scenario(kind, 4, 8, 2, **again))
    names = ["rank", "step", "kind", "microbatch", "chunk"]
    both = [one.timeline.query("lane == 'compute' and kind != 'optimizer' and step == 0") for one in (first, second)]
    ends = [one.sort_values(names).end_s.tolist() for one in both]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)


SECONDS = {"F": 1.0, "B": 1.0, "I": 0.5, "W": 2.5}  # parts of a split backward take longer than a whole one


def mixed(kind, folder, took):
    """A run of a schedule that mixes whole and split backwards, by a table of its own ops."""
    options = {"fused": False}
    plan = plan_of(scenarios.scenario(kind, 2, 8, schedule=options))
    rows = [
        {"step": 0, "stage": rank, "chunk": op.chunk, "kind": op.kind, "microbatch": op.microbatch, "seconds": took(op)}
        for rank, op in plan.ops()
    ]
    pd.DataFrame(rows).to_csv(folder / "t.csv", index=False)
    durations = {**NO_TIMES, "durations": str(folder / "t.csv")}
    return plan, scenarios.scenario(kind, 2, 8, workload=durations, schedule=options)


@pytest.mark.parametrize("kind", ["dualpipe", "dualpipe-v"])
def test_mixed_whole_and_split_backwards_take_their_own_times(kind, tmp_path):
    plan, scenario = mixed(kind, tmp_path, lambda op: SECONDS[op.kind])
    assert {op.kind for _, op in plan.ops()} == {*"FBIW"}
    ops = simulate(scenario).run.timeline.ops
    kinds = [plan.programs[rank][i][0].kind for rank, i in zip(ops["rank"], ops["index"], strict=True)]
    assert (ops["end"] - ops["start"]).tolist() == [SECONDS[kind] * 10**12 for kind in kinds]


def test_whole_backwards_of_a_mixed_table_split_in_halves(tmp_path):
    _, scenario = mixed("dualpipe-v", tmp_path, lambda op: 1 + op.microbatch)
    split = scenarios.scenario("zb-v", 2, 8, workload={**NO_TIMES, "durations": scenario.workload.durations})
    rows = simulate(split).timeline
    whole = {(op.chunk, op.microbatch) for rank, op in plan_of(scenario).ops() if op.kind == "B" and rank == 0}
    assert 0 < len(whole) < 16
    for op in rows[(rows["rank"] == 0) & rows.kind.isin(["B", "W"])].itertuples():
        both = 1 + op.microbatch
        assert op.end_s - op.start_s == pytest.approx(both / 2 if (op.chunk, op.microbatch) in whole else both)


def table(replicas=1, microbatches=2, steps=(0,), ranks=True):
    return pd.DataFrame(
        [
            {"rank": d * 2 + s, "replica": d, "stage": s, "step": step, "kind": kind, "microbatch": m, "seconds": took}
            for step in steps for d in range(replicas) for s in range(2) for m in range(microbatches)
            for kind, took in (("F", 1 + m), ("B", 2 + s))
        ]
    ).drop(columns=["replica", "stage"] if ranks else ["rank"])  # fmt: skip


def reading(folder, rows, p=2, m=2, d=1, **sections):
    rows.to_csv(folder / "t.csv", index=False)
    order = {"parallel": {"order": ["tensor", "pipeline", "data"]}}
    base = {"workload": {**NO_TIMES, "durations": str(folder / "t.csv")}}
    return scenarios.scenario("gpipe", p, m, d, **merged(merged(base, order), sections))


@pytest.mark.parametrize("ranks", [True, False])
def test_ranks_and_replicas_with_stages_say_the_same(ranks, tmp_path):
    ops = simulate(reading(tmp_path, table(2, ranks=ranks), d=2)).timeline
    took = (ops.end_s - ops.start_s)[ops.kind.isin(["F", "B"])]
    assert sorted(took) == pytest.approx(sorted(table(2).seconds))


def test_slow_and_jitter_apply_to_durations_too(tmp_path):
    usual = simulate(reading(tmp_path, table())).timeline
    half = simulate(reading(tmp_path, table(), slow=[{"gpu": 1, "factor": 0.5}])).timeline
    took = [(one.end_s - one.start_s)[one["rank"] == 1].tolist() for one in (usual, half)]
    assert took[1] == pytest.approx([2 * time for time in took[0]])


def test_a_backward_without_parts_is_split_in_halves(tmp_path):
    one = simulate(reading(tmp_path, table(), schedule={"kind": "zb-h1"})).timeline
    took = (one.end_s - one.start_s).groupby([one["rank"], one.kind]).sum()
    assert took[1, "B"] == took[1, "W"] == 3


def test_steps_are_taken_in_ascending_order(tmp_path):
    rows = table(steps=(7, 2))
    rows.loc[rows.step == 7, "seconds"] *= 10
    one = simulate(reading(tmp_path, rows, steps=2)).timeline
    sums = (one.end_s - one.start_s).groupby(one.step).sum()
    assert sums[1] == 10 * sums[0]


@pytest.mark.parametrize(
    ("rows", "sections", "said"),
    [
        (table(), {"steps": 2}, "1 steps; the scenario has 2"),
        (table().iloc[:-1], {}, "no backward of micro-batch 1 on replica 0, pipeline rank 1, chunk 0, step 0"),
        (table(), {"m": 3}, "no forward of micro-batch 2 on replica 0, pipeline rank 0, chunk 0, step 0"),
        (table(), {"m": 1}, "row 4: there is no microbatch 1, only 0 … 0"),
        (table(2), {}, "row 10: there is no rank 2, only 0 … 1"),
        (table(2, ranks=False), {}, "row 10: there is no replica 1, only 0 … 0"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(rows, sections, said, tmp_path):
    with pytest.raises(UsageError) as error:
        simulate(reading(tmp_path, rows, **sections))
    assert str(error.value) == f"{tmp_path / 't.csv'}: {said}"


def test_times_come_from_one_place_only():
    given = {"durations": "t.csv", "forward": 1, "backward": 0, "weight": 1, "ends": {"forward": 1}}
    with pytest.raises(ScenarioError) as error:
        scenario_from(plain(workload=given))
    given = {line.split(": ")[1] for line in error.value.problems}
    assert given == {"workload.forward", "workload.weight", "workload.ends.forward"}


def test_the_path_starts_at_the_scenario(tmp_path):
    table().to_csv(tmp_path / "t.csv", index=False)
    text = "parallel: {pipeline: 2}\nschedule: {kind: gpipe, microbatches: 2}\nworkload: {durations: t.csv}\n"
    (tmp_path / "a.yaml").write_text(text)
    scenario = load(tmp_path / "a.yaml")
    assert scenario_from(to_mapping(scenario)) == scenario
    assert simulate(scenario).summary["step_time_s"] > 0
