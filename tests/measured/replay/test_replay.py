"""Replays of measured runs: of one of 64 GPUs, of our own timelines, and of tables with mistakes."""

import gzip
import json
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from support.paths import SHARED
from support.scenarios import instant
from support.tables import from_table

from hybrid_des import simulate
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.durations import Durations
from hybrid_des.measured.replay.replaying import replay
from hybrid_des.measured.replay.stragglers import Ideals, lengths
from hybrid_des.scenario.loading import load, scenario_from
from hybrid_des.shortcuts.run import run as simulated

S = 10**12
TRACE = SHARED / "profiles" / "trace-AR.parquet"
ORACLE = SHARED / "oracles" / "e8.yaml"
JITTER = {"distribution": "lognormal", "sigma": 0.3}


def timeline(scenario, folder, name="timeline.csv"):
    """The file of a run, times in full."""
    table = simulate(scenario).timeline
    table.to_csv(folder / name, index=False)
    return folder / name


@pytest.mark.slow
@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not part of the project")
def test_the_trace_of_64_gpus_is_met():
    replayed = replay(TRACE)
    assert replayed.trace.sizes == (4, 4, 1, 32)
    assert (replayed.trace.schedule, replayed.trace.assumed, len(replayed.steps)) == ("1f1b", False, 44)
    assert replayed.steps.error_percent.abs().mean() < 0.5
    assert abs(replayed.what_if.slowdown - 1.973) < 0.02
    culprit = replayed.culprit()
    assert (culprit["what"], culprit["replica"], culprit["stage"]) == ("worker", 0, 0)


@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not part of the project")
def test_classes_of_the_trace_are_those_of_its_authors():
    """They replay communication too, which is 1 % of this job."""
    theirs = json.loads((TRACE.parent / "result-AR.json").read_text())
    classes = replay(TRACE).classes
    for what, key in (("stage", "blocking_decompose_by_stage"), ("replica", "blocking_decompose_by_dp_rank")):
        ours = classes[classes.what == what].set_index(what).slowdown
        assert all(abs(ours[int(number)] - value) < 0.015 for number, value in theirs[key].items())


def test_the_slow_rank_of_the_oracle_is_named(tmp_path):
    """e8: 43.5 s, ideal by means 37.125 s, S = 1.171717; rank 2 is slow."""
    workload = {"forward": [1, 1, 1.5, 1], "backward": [2, 2, 3, 2]}
    replayed = replay(timeline(instant(workload=workload), tmp_path))
    assert replayed.steps.simulated_s.tolist() == replayed.steps.measured_s.tolist() == [43.5]
    assert (replayed.what_if.ideal_length == 37.125 * S).all()
    assert replayed.what_if.slowdown == pytest.approx(1.171717, abs=5e-7)
    assert replayed.culprit()["stage"] == 2


@pytest.mark.skipif(not ORACLE.exists(), reason="the oracle is not part of the project")
def test_the_file_of_the_oracle_gives_the_same():
    assert simulate(load(ORACLE)).summary["step_time_s"] == 43.5


SCHEDULES = [
    ("1f1b", {}), ("gpipe", {}), ("interleaved-1f1b", {"chunks": 2}), ("zb-h1", {}), ("looped-bfs", {"chunks": 2}),
    ("hanayo", {"chunks": 2}), ("zb-v", {"chunks": 2}), ("dualpipe-v", {"fused": False}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), SCHEDULES)
def test_our_own_timelines_replay_to_the_picosecond(kind, options, tmp_path):
    """Schedules are recognized by their order, even where another name has the same one."""
    scenario = instant(kind, 4, 8, 2, schedule=options, jitter=JITTER, steps=2)
    replayed = replay(timeline(scenario, tmp_path))
    assert replayed.steps.simulated_s.tolist() == pytest.approx(replayed.steps.measured_s.tolist(), rel=1e-14)
    assert replayed.trace.schedule is not None
    if kind not in ("looped-bfs", "zb-v"):
        assert replayed.trace.schedule == kind
    assert not replayed.trace.assumed
    # and longest paths are what the simulation gives
    assert replayed.what_if.measured.max(axis=1).tolist() == [round(time * S) for time in replayed.steps.simulated_s]


def test_classes_removed_and_alone_are_runs_of_their_own(tmp_path):
    """One slow worker: without it the step is that of the others, and alone it is as slow as all together."""
    replayed = replay(timeline(instant(d=3, slow=[{"gpu": 5, "factor": Fraction(1, 2)}]), tmp_path))
    ask = replayed.what_if
    assert ask.of(replica=2)[0] == pytest.approx(ask.slowdown)  # GPU 5: replica 2 of stage 1
    assert replayed.culprit() | {"slowdown": 0, "removed": 0, "kind": 0} == {
        "what": "worker", "replica": 2, "stage": 1, "kind": 0, "slowdown": 0, "removed": 0,
    }  # fmt: skip
    times = {kind: each.copy() for kind, each in ask.ideal.items()}
    for kind, measured in ask.times.items():
        times[kind][:, 2, 1] = measured[:, 2, 1]
    alone = lengths(ask.plan, times).max() / ask.ideal_length.max()
    assert ask.of(replica=2, stage=1)[0] == pytest.approx(alone)


def test_equal_ops_have_no_culprit(run, tmp_path):
    code, out, err = run("import", timeline(instant(), tmp_path))
    assert (code, err) == (0, [])
    assert "slowdown      1.000" in out
    assert "no straggler" in out


def test_a_slow_stage_of_all_replicas_is_named_as_one(run, tmp_path):
    file = timeline(instant(d=2, slow=[{"stage": 1, "factor": 0.5}]), tmp_path)
    code, out, err = run("import", file, "--json", "--out", tmp_path / "out")
    figures = json.loads(out)
    assert (code, [line.partition(" ")[0] for line in err]) == (0, ["wrote"])
    assert (figures["culprit"]["what"], figures["culprit"]["stage"]) == ("stage", 1)
    assert figures["worst_error_percent"] == pytest.approx(0, abs=1e-9)
    assert pd.read_csv(tmp_path / "out" / "classes.csv").slowdown.max() == pytest.approx(figures["slowdown"], rel=0.2)


def test_the_only_replica_or_stage_is_no_culprit(tmp_path):
    uneven = [row | {"seconds": row["seconds"] * (1 + 4 * (row["microbatch"] % 2))} for row in rows(microbatches=8)]
    two = replay(write_rows(tmp_path, uneven))
    assert two.what_if.slowdown > 1.1
    assert (two.culprit() or {}).get("what") != "replica"
    alone = replay(write_rows(tmp_path, [row for row in uneven if row["stage"] == 0]))
    assert alone.culprit() is None


def test_shares_beyond_the_loss_are_explained(run, tmp_path):
    table = timeline(instant(d=2, slow=[{"gpu": 3, "factor": 0.5}]), tmp_path)
    removed = replay(table).classes.removed
    assert removed.max() > 1.005
    assert removed.min() < -0.005
    out = run("import", table)[1]
    assert "by itself, all of the loss" in out
    assert "more than 100 %: the other ops are faster than the mean" in out
    assert "negative: faster than the mean" in out
    assert "-0.0 %" not in out
    even = run("import", timeline(instant(), tmp_path))[1]
    assert "negative:" not in even
    assert "more than 100 %" not in even


def rows(stages=2, replicas=1, microbatches=2, steps=(3,)):
    """A table without starts, forwards of 1 s and backwards of 2 s."""
    return [
        {"replica": d, "stage": s, "step": step, "kind": kind, "microbatch": m, "seconds": seconds}
        for step in steps for d in range(replicas) for s in range(stages) for m in range(microbatches)
        for kind, seconds in (("F", 1.0), ("B", 2.0))
    ]  # fmt: skip


def write_rows(folder, table):
    pd.DataFrame(table).to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def test_without_starts_the_schedule_is_assumed(run, ran, tmp_path):
    out, _ = ran("import", write_rows(tmp_path, rows()))
    assert "1f1b (assumed, as the table has no starts)" in out
    assert "simulated 9 s;" in out
    assert "schedule    gpipe\n" in run("import", tmp_path / "t.csv", "--schedule", "gpipe")[1]


def change(place, **values):
    def apply(table):
        table[place] = {**table[place], **values}
        return table

    return apply


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda t: t[:-1], "no backward of micro-batch 1 on replica 0, pipeline rank 1, chunk 0, step 3"),
        (lambda t: [*t, t[2]], "row 10: a second forward of micro-batch 1 there"),
        (change(2, seconds=-1), "row 4: seconds: expected a time from 0 to 1000000 s, found -1"),
        (change(2, seconds="x"), "row 4: seconds: expected a time from 0 to 1000000 s, found x"),
        (change(1, stage=-1), "row 3: stage: expected a whole number of at least 0, found -1"),
        (change(1, microbatch=0.5), "row 3: microbatch: expected a whole number of at least 0, found 0.5"),
        (change(1, microbatch=10**9), "8 rows cannot hold 1 replicas × 2 stages × 1 chunks × 1000000001 micro-batches"),
        (lambda t: [{k: v for k, v in row.items() if k != "seconds"} for row in t], "no column seconds; found replica"),
        (lambda t: [{**row, "kind": "send"} for row in t], "no forward or backward; expected kinds such as F, B"),
        (lambda t: [row for row in t if row["kind"] == "F"], "no backward in it"),
        (lambda t: [{**row, "kind": "FB"} for row in t], "fused pairs (FB) do not give the duration of each"),
    ],
)
def test_a_wrong_table_is_one_line(run, tmp_path, broken, said):
    code, out, err = run("import", write_rows(tmp_path, broken(rows())))
    assert (code, out, len(err)) == (2, "", 1)
    assert err[0].startswith(f"{tmp_path / 't.csv'}: {said}")


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"", "a.csv", "not a table: it is empty"),
        (b"\xff\xfe\x00", "b.csv", "not a table: not a text file in UTF-8"),
        (b"PAR1", "c.parquet", "not a table: Could not open Parquet"),
        (b"a,b\n1,2\n1,2,3\n", "d.csv", "not a table: line 3 has 3 cells, earlier ones 2"),
        (b"a,b\n1,2,3\n", "e.csv", "not a table: a line has more cells than the first"),
        (b"steps: 1\n", "a.yaml", "is a YAML file, such as a scenario; expected a CSV or Parquet table"),
        (None, "missing.csv", "cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_told(write, tmp_path, content, name, said):
    file = tmp_path / name if content is None else write(content, name)
    with pytest.raises(UsageError) as error:
        replay(file)
    assert str(error.value).startswith(f"{file}: {said}")


def test_an_order_that_cannot_run_is_told(refused, tmp_path):
    table = [{**row, "start_s": number} for number, row in enumerate(reversed(rows()))]
    assert "its order cannot be run: deadlock" in refused("import", write_rows(tmp_path, table))


def test_an_order_of_no_schedule_is_replayed_as_it_is(ran, tmp_path):
    (tmp_path / "order.csv").write_text("0F0,0F1,0F2,0B1,0B0,0B2\n1F0,1F1,1B1,1F2,1B0,1B2\n")
    order = {"schedule": {"kind": None, "file": str(tmp_path / "order.csv")}}
    file = timeline(instant("gpipe", 2, 3, **order), tmp_path)
    out, _ = ran("import", file)
    assert "schedule    its own order" in out
    assert "one step, reproduced within 0.00 %" in out


def test_what_if_counts_missing_ops_for_nothing(tmp_path):
    """DualPipe's ranks hold two chunks, of which each has half of the micro-batches."""
    one = simulated(instant("chimera", 4, 8))
    times = {kind: np.full((1, 1, 4, 2, 8), -1) for kind in "FB"}
    for rank, op in one.plan.ops():
        times[op.kind][0, 0, rank, op.chunk, op.microbatch] = S * (1 if op.kind == "F" else 2)
    ask = Ideals(one.plan, times)
    assert ask.slowdown == 1
    assert ask.measured.max() == one.timeline.ops["end"].max()


def test_what_if_takes_means_of_parts_apart_from_wholes():
    """DualPipe mixes whole and split backwards: equal ops of each kind leave nothing to gain."""
    one = simulated(instant("dualpipe", 2, 4, schedule={"fused": False}))
    seconds = {"F": 1, "B": 1, "I": 2, "W": 3}
    times = {kind: np.full((1, 1, 2, 2, 4), -1) for kind in "FBIW"}
    for rank, op in one.plan.ops():
        times[op.kind][0, 0, rank, op.chunk, op.microbatch] = S * seconds[op.kind]
    ask = Ideals(one.plan, Durations("", (0,), times).complete)
    assert ask.slowdown == 1
    assert {kind: round(ideal.max() / S) for kind, ideal in ask.ideal.items()} == seconds


TENSOR = {
    "model": {"base": "gpt2", "layers": 2},
    "parallel": {"tensor": 2, "pipeline": 2},
    "schedule": {"kind": "1f1b", "microbatches": 3},
    "jitter": JITTER,
    "fold": "off",
}


def test_our_own_timeline_of_tensor_ranks_is_replayed(tmp_path):
    file = timeline(scenario_from(TENSOR), tmp_path)
    ops = pd.read_csv(file).query("lane == 'compute' and kind in ('F', 'B')")
    assert ops["rank"].nunique() == 4
    replayed = replay(file)
    assert (replayed.trace.sizes, replayed.trace.schedule) == ((1, 2, 1, 3), "1f1b")
    longest = (ops.end_s - ops.start_s).groupby([ops.kind, ops.pipeline_rank, ops.microbatch]).max()
    for (kind, stage, microbatch), seconds in longest.items():
        assert replayed.trace.durations.times[kind][0, 0, int(stage), 0, int(microbatch)] == round(seconds * S)
    assert replayed.trace.measured[0] == pytest.approx(ops.end_s.max() - ops.start_s.min(), rel=1e-3)


def test_of_several_ranks_of_a_stage_the_slowest_counts(tmp_path):
    by_rank = [
        {**row, "rank": 2 * row["stage"] + k, "seconds": row["seconds"] * (1 + k)} for row in rows() for k in (0, 1)
    ]
    assert replay(write_rows(tmp_path, by_rank)).trace.durations.times["F"].max() == 2 * max(
        round(row["seconds"] * S) for row in rows() if row["kind"] == "F"
    )
    with pytest.raises(UsageError, match="row 10: a second forward of micro-batch 0"):
        replay(write_rows(tmp_path, [*by_rank[:8], by_rank[1], *by_rank[8:]]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@from_table
def test_json_is_told_from_a_table(write, value, said, pack):
    file = write(pack(json.dumps(value, indent=2).encode()), "trace.json")
    with pytest.raises(UsageError) as error:
        replay(file)
    assert str(error.value).startswith(f"{file}: {said}")
    assert str(error.value).endswith("expected CSV or Parquet with step, stage, kind, microbatch, seconds")
