"""The command `goodput`: report, summary, files, processes, sweeps."""

import json
import re
from operator import itemgetter
from pathlib import Path

import pandas as pd
import pytest

from hybrid_des import goodput, load
from hybrid_des.errors import UsageError
from hybrid_des.studies.goodput.summary import at_most, share_down
from hybrid_des.studies.goodput.work import best_interval
from hybrid_des.units import format_share

TEXT = Path(__file__).with_name("goodput.yaml").read_text(encoding="utf-8")
STEP, FAULTS = re.split(r"(?m)(?=^faults:)", TEXT)


def test_the_summary_says_what_it_promises(run, write):
    code, out, err = run("goodput", write(STEP + FAULTS), "--json")
    facts = json.loads(out)
    assert (code, err) == (0, [])
    assert facts["name"] == "weeks"
    assert facts["horizon_s"] == 20 * 86400 == facts["useful_s"] + sum(facts["lost_s"].values())
    assert facts["goodput"] == pytest.approx(facts["useful_s"] / facts["horizon_s"], rel=1e-12)
    assert facts["goodput"] < facts["ettr"] < 1
    assert list(facts["lost_s"]) == [
        "rework", "checkpoint", "detection", "repair", "swap", "restart", "flap", "slow", "jitter", "fewer_replicas",
    ]  # fmt: skip
    assert (facts["unknown"], facts["replications"], facts["healthy_step_s"]) == ([], 6, 15)
    low, high = facts["goodput_ci95"]
    spread = facts["goodput_percentiles"]
    assert low < facts["goodput"] < high
    assert list(spread) == ["p5", "p25", "p50", "p75", "p95"]
    assert list(spread.values()) == sorted(spread.values())
    assert sum(facts["failures_by_class"].values()) == pytest.approx(facts["failures"])
    assert facts["mtbf_s"] == pytest.approx(50 * 3600)
    assert facts["checkpoint_interval_s"] == 1800
    assert facts["best_interval_s"]["exact"] == pytest.approx(best_interval(2, 50 * 3600))


def test_what_is_not_given_is_unknown_and_no_zero(run, write):
    few = "faults: {horizon: 20 d, replications: 4, classes: [{what: node, mtbf: 200 h}], detect: 60 s}\n"
    file = write(STEP + few)
    facts = json.loads(run("goodput", file, "--json")[1])
    lost = facts["lost_s"]
    assert [cause for cause, seconds in lost.items() if seconds is None] == [
        "rework", "checkpoint", "repair", "swap", "restart",
    ]  # fmt: skip
    assert lost["detection"] > 0
    assert facts["unknown"] == ["faults.checkpoint", "faults.restart", "faults.spares"]
    assert facts["best_interval_s"] is facts["checkpoint_interval_s"] is facts["spares_availability"] is None
    report = run("goodput", file)[1]
    assert "goodput     at most " in report
    assert "restarting                                 unknown   faults.restart is not given" in report


def test_the_report_says_where_the_time_went(ran, write):
    out, _ = ran("goodput", write(STEP + FAULTS))
    enough = format_share(at_most(1, 5, share_down(200, 24)), 4)
    for part in (
        "20 d on 4 nodes, 6 replications; expected: one stop every 2.083 d",
        "of 6 replications",
        "useful steps",
        "waiting for a node to be repaired",
        "checkpoints every 30 min; best ",
        f"spares      1 in addition to 4 nodes, enough {enough} of the time",
        "15 s with all replicas",
        "with node of pipeline rank 0 at 0.5",
        "The step of each state is simulated exactly, and exact as long as states change between steps",
        "All replicas are treated as identical",
        "A flap stops the job for its whole length",
    ):
        assert part in out.replace("\n", " ") or part in out


def test_all_files_are_written_and_no_earlier_ones_left(run, write, tmp_path):
    folder = tmp_path / "out"
    short = "--set", "faults.horizon=5 d", "--set", "faults.replications=2"
    code, _, err = run("goodput", write(STEP + FAULTS), *short, "--out", folder)
    assert (code, err) == (0, [f"wrote 9 files to {folder}"])
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "goodput.html", "goodput.json", "goodput.png", "goodput.svg", "replications.csv", "failures.csv", "history.csv",
        "intervals.csv", "spares.csv",
    }  # fmt: skip
    facts = json.loads((folder / "goodput.json").read_text())
    assert pd.read_csv(folder / "replications.csv").goodput.mean() == pytest.approx(facts["goodput"])
    history = pd.read_csv(folder / "history.csv").groupby("replication")
    assert (history.end_s.max() == 5 * 86400).all()
    assert (history.start_s.min() == 0).all()
    few = "faults: {horizon: 2 d, replications: 1, classes: [{what: job, mtbf: 20 h}]}\n"
    code, _, err = run("goodput", write(STEP + few), "--out", folder)
    assert (code, err) == (0, [f"wrote 7 files to {folder}"])
    assert not (folder / "spares.csv").exists()
    assert not (folder / "intervals.csv").exists()


def test_a_sweep_has_the_columns_of_goodput(run, write):
    sweep = "sweep:\n  - {faults.spares.nodes: [0, 1]}\n  - {faults.checkpoint.every: [30 min, optimal]}\n"
    plot = "plot: {x: faults.checkpoint.every, y: goodput, hue: faults.spares.nodes}\n"
    file = write(STEP + FAULTS + sweep + plot)
    code, out, _ = run(file, "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["step_time_s"] for row in rows] == [15] * 4
    alone = [
        goodput(load(write(STEP + FAULTS, "b.yaml"), [f"faults.spares.nodes={n}"])).summary["goodput"] for n in (0, 1)
    ]
    assert [row["goodput"] for row in rows if row["faults.checkpoint.every"] == "30 min"] == alone
    assert rows[1]["checkpoint_interval_s"] == pytest.approx(rows[1]["best_interval_s"]["exact"], abs=1e-9)
    shown = run(file)[1].splitlines()
    assert shown[0].split()[-2:] == ["goodput", "ETTR"]
    assert shown[1].endswith(format_share(max(rows, key=itemgetter("goodput"))["ettr"], 2))  # the best is first


def test_a_long_checkpoint_is_a_warning_with_its_number(ran, write):
    long = FAULTS.replace("every: 30 min, mode: async, blocking: 2 s, write: 60 s", "every: 30 min, cost: 60 h")
    out, err = ran("goodput", write(STEP + long), "--json")
    assert err == [
        "warning: weeks: faults.checkpoint: one takes 216000 s, longer than the mean time between failures, 1.8e+05 s"
    ]
    assert json.loads(out)["goodput"] < 0.1


def test_tables_hold_every_failure_and_every_interval(write):
    weeks = goodput(load(write(STEP + FAULTS)))
    assert len(weeks.replications) == 6
    struck = weeks.failures.query("not spare").groupby("replication").size()
    assert struck.to_list() == weeks.replications.failures.to_list()
    assert set(weeks.failures["class"]) == {"node", "link", "slow"}
    assert set(weeks.history.phase) >= {"running", "detection", "swap", "restart", "flap"}
    assert weeks.history.query("phase == 'running'").step_time_s.notna().all()
    running = weeks.history.query("phase == 'running'")
    assert set(running.step_time_s) == {step.time / 1e12 for step in weeks.steps.known.values()} > {15}
    assert "<pre" in weeks._repr_html_()


def test_curves_hold_the_scenario_itself(write):
    weeks = goodput(load(write(STEP + FAULTS)))
    spares = weeks.over_spares()
    assert spares.spares.to_list() == [0, 1, 2, 3, 4]
    assert spares.goodput[1] == weeks.summary["goodput"]
    assert spares.goodput.is_monotonic_increasing
    intervals = weeks.over_intervals([1800, 36000])
    assert intervals.goodput[0] == weeks.summary["goodput"] > intervals.goodput[1]


def test_there_is_no_curve_over_what_is_not_known(write):
    few = "faults: {horizon: 2 d, replications: 1, classes: [{what: job, mtbf: 20 h}]}\n"
    weeks = goodput(load(write(STEP + few)))
    assert weeks.over_spares() is None
    assert weeks.over_intervals() is None


def test_a_scenario_without_faults_has_no_goodput(write):
    with pytest.raises(UsageError, match="goodput needs a section faults"):
        goodput(load(write(STEP)))
