"""Sweeps: axes, cases, failed cases, where they run, and the journal of one that runs."""

import csv
import json
from concurrent.futures import Executor, Future

import pytest
from support import experiments
from support.campaigns import thinned
from support.sweeps import AXES, BASE, OWN, OWN_AXES, without_wall

from hybrid_des.errors import HybridDesError, ScenarioError
from hybrid_des.studies.pool import MOST_ITEMS, WorkersLostError
from hybrid_des.studies.sweep.axes import load_sweep
from hybrid_des.studies.sweep.page import write as write_sweep
from hybrid_des.studies.sweep.rows import PARTIAL, journal
from hybrid_des.studies.sweep.runner import jobs_for, sweep_rows


@pytest.fixture
def own(write, scratch):
    """A file with a user-defined schedule."""
    return write(OWN, "my_schedule.py")


def test_keys_of_an_item_vary_together_and_items_are_crossed(write):
    sweep = load_sweep(write(BASE + AXES))
    assert len(sweep) == 6
    assert sweep.paths == ["parallel.pipeline", "schedule.microbatches", "schedule.kind"]
    assert [tuple(case.values()) for case in sweep.cases()] == [
        (1, 2, "gpipe"), (1, 2, "dualpipe"), (2, 4, "gpipe"), (2, 4, "dualpipe"), (4, 3, "gpipe"), (4, 3, "dualpipe"),
    ]  # fmt: skip


def test_a_sweep_may_build_on_another_file_and_be_overridden(write):
    write(BASE, "below.yaml")
    file = write("base: below.yaml\nschedule: {microbatches: 8}\n" + AXES.replace("4, 3", "4, 6"), "above.yaml")
    rows = sweep_rows(load_sweep(file, ["workload.forward=30 ms", "sweep.1.schedule.kind=[1f1b]"]))
    m, p = [2, 4, 6], [1, 2, 4]
    assert [row["step_time_s"] for row in rows] == pytest.approx(
        [(m + p - 1) * 0.05 for m, p in zip(m, p, strict=True)], rel=1e-3
    )


def test_lists_are_swept_and_none_omits_the_key(write):
    axes = "parallel: {pipeline: 2}\nsweep:\n  - {workload.forward: [10 ms, [10 ms, 30 ms]]}\n  - {seed: [null, 3]}\n"
    rows = sweep_rows(load_sweep(write(BASE + axes)))
    assert [(row["workload.forward"], row["seed"]) for row in rows] == [
        ("10 ms", None), ("10 ms", 3), (["10 ms", "30 ms"], None), (["10 ms", "30 ms"], 3),
    ]  # fmt: skip
    assert rows[2]["busy_s"] > rows[0]["busy_s"] == rows[1]["busy_s"]


def test_none_takes_out_what_the_file_says(write):
    file = write(BASE.replace("20 ms}", "20 ms, recompute: 1}") + "sweep:\n  - {workload.recompute: [null, 1]}\n")
    times = [row["pipeline_time_s"] for row in sweep_rows(load_sweep(file))]
    assert times == [4 * 0.03, 4 * 0.04]


def test_swept_values_come_back_as_numbers(write):
    axes = "sweep:\n  - {workload.recompute: [0, 0.25]}\n  - {cluster.nvlink.bandwidth: [1e9, .inf]}\n"
    rows = sweep_rows(load_sweep(write(BASE + axes)))
    assert [list(row.values())[:2] for row in rows] == [[0, 10**9], [0, "inf"], [0.25, 10**9], [0.25, "inf"]]
    assert all("error" not in row for row in rows)
    json.dumps(rows, allow_nan=False)


def test_more_cases_than_can_be_meant_are_refused(write):
    axes = "".join(
        f"  - {{{path}: [{', '.join(map(str, range(1, 1001)))}]}}\n" for path in ("seed", "steps", "version")
    )
    with pytest.raises(ScenarioError, match="1000000000 cases; at most"):
        load_sweep(write(BASE + "sweep:\n" + axes))
    with pytest.raises(ScenarioError) as error:  # more than len() can tell
        load_sweep(write(BASE + "sweep:\n" + "  - {seed: [1, 2]}\n" * 500))
    assert error.value.problems[-1].endswith("more than 1e15 cases; at most 1000000")


def test_an_impossible_case_is_a_row_with_its_reason(run, write):
    code, out, err = run(write(BASE + AXES), "--json")
    rows = json.loads(out)
    assert (code, err, len(rows)) == (0, [], 6)
    assert ["error" in row for row in rows] == [False, True, False, False, False, True]
    assert rows[1] == {
        "parallel.pipeline": 1,
        "schedule.microbatches": 2,
        "schedule.kind": "dualpipe",
        "error": "dualpipe pairs rank r with rank p−1−r: pipeline must be even, not 1",
    }
    code, out, _ = run(write(BASE + AXES))
    assert "6 cases, 2 failed" in out
    assert "failed: dualpipe pairs rank r" in out


def test_a_mistake_in_a_case_names_the_case(write):
    rows = sweep_rows(load_sweep(write(BASE + "sweep:\n  - {schedule.kind: [gpipe, 1f2b]}\n")))
    assert rows[1]["error"].endswith('case schedule.kind="1f2b": schedule.kind: unknown "1f2b"; did you mean "1f1b"?')
    assert "a.yaml:3: " in rows[1]["error"]


def test_a_simulation_that_fails_is_a_row_too(write):
    memory = "on_oom: error\nsweep:\n  - {workload.memory.activation: [1 GB, 200 GB]}\n"
    rows = sweep_rows(load_sweep(write(BASE + memory)))
    assert rows[0]["out_of_memory"] is False
    assert rows[1]["error"].startswith("out of memory: rank 0 holds")


@pytest.mark.parametrize("option", ["--json", "--quiet", None])
def test_when_every_case_fails_the_exit_code_is_1(run, write, tmp_path, option):
    arguments = ["--set", "sweep.1.schedule.kind=[zbh]", *([option] if option else [])]
    code, out, err = run(write(BASE + AXES), *arguments, "--out", tmp_path / "o")
    assert code == 1
    assert len(err) == (1 if option else 0)
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["sweep.csv"]
    assert "zbh" in (out if option != "--quiet" else err[0])


@pytest.mark.parametrize("axes", ["", OWN_AXES], ids=["single run", "sweep"])
def test_a_user_defined_schedule_is_imported(run, write, own, axes):
    file = write(BASE.replace("1f1b", "one-by-one") + axes)
    assert run(file, "--import", own, "--quiet") == (0, "", [])


def test_small_sweeps_need_no_workers(write):
    assert jobs_for(load_sweep(write(BASE + AXES))) == 1


class Here(Executor):
    """An executor that runs everything at once in this process, and notes the sizes of batches."""

    def __init__(self):
        self.sizes = []

    def submit(self, function, cases):
        self.sizes.append(len(cases))
        done = Future()
        done.set_result(function(cases))
        return done


def test_batches_stay_small(write):
    here = Here()
    many = load_sweep(write(BASE + f"sweep:\n  - {{seed: [{', '.join(map(str, range(100)))}]}}\n"))
    rows = sweep_rows(many, executor=here)
    assert max(here.sizes) <= MOST_ITEMS
    assert [row["seed"] for row in rows] == list(range(100))


def test_a_long_batch_returns_what_it_has(write, monkeypatch):
    monkeypatch.setattr("hybrid_des.studies.pool.LONGEST_S", 0)
    here, sweep = Here(), load_sweep(write(BASE + AXES), ["sweep.1.schedule.kind=[gpipe, 1f1b, zb-h1, 1f1b-eager]"])
    assert without_wall(sweep_rows(sweep, executor=here)) == without_wall(sweep_rows(sweep))
    assert sorted(here.sizes) == [1] * 8 + [2] * 4


def test_rows_finished_before_the_executor_stops_are_kept(write):
    class Stops(Here):
        def submit(self, function, cases):
            if len(self.sizes) == 2:
                raise RuntimeError("stopped")
            return super().submit(function, cases)

    kept, sweep = {}, load_sweep(write(BASE + AXES), ["plot=none"])
    with pytest.raises(WorkersLostError, match="RuntimeError: stopped"):
        sweep_rows(sweep, executor=Stops(), finished=kept.__setitem__)
    assert sorted(kept) == [0, 1]
    assert kept[0]["schedule.kind"] == "gpipe"


def test_a_journal_holds_every_row_at_once(write, tmp_path):
    table = tmp_path / "o" / PARTIAL
    seen = []
    with journal(table.parent) as keep:

        def note(place, row):
            keep(row)
            seen.append(len(list(csv.DictReader(table.read_text().splitlines()))))

        sweep = load_sweep(write(BASE + AXES), ["sweep.1.schedule.kind=[dualpipe, gpipe]"])
        rows = sweep_rows(sweep, finished=note)
        text = table.read_text()
    assert seen == [1, 2, 3, 4, 5, 6]
    write_sweep(rows, sweep, tmp_path / "p")
    whole = list(csv.DictReader((tmp_path / "p" / "sweep.csv").read_text().splitlines()))
    partial = list(csv.DictReader(text.splitlines()))
    assert partial == [{name: row[name] for name in partial[0]} for row in whole]
    assert sorted(partial[0]) == sorted(whole[0])
    assert list((tmp_path / "o").iterdir()) == []


def test_a_journal_replaces_that_of_a_killed_sweep(tmp_path):
    (tmp_path / PARTIAL).write_text("seed\n1\n")
    with pytest.raises(KeyboardInterrupt), journal(tmp_path):
        raise KeyboardInterrupt
    assert (tmp_path / PARTIAL).read_text() == "seed\n1\n"
    with pytest.raises(KeyboardInterrupt), journal(tmp_path) as keep:
        keep({"seed": 2})
        raise KeyboardInterrupt
    assert (tmp_path / PARTIAL).read_text() == "seed\n2\n"
    with journal(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_to_import_that_fails_is_one_line(run, write):
    bad = write("1 / 0\n", "bad.py")
    code, _, err = run(write(BASE + AXES), "--import", bad)
    assert (code, len(err)) == (2, 1)
    with pytest.raises(HybridDesError, match="ZeroDivisionError"):
        sweep_rows(load_sweep(write(BASE + AXES), imports=[bad]))


@pytest.mark.parametrize(
    "experiment", thinned(experiments.FILES, slow=["recompute", "imbalanced", "tb_tw_ratio", "tc_sensitivity"])
)
def test_a_sweep_gives_the_published_figures(experiment):
    """On 2 ranks; tests/system does the larger ones with workers."""
    assert experiments.compare(experiment, ranks=(2,)) >= 18


def test_the_experiments_are_over_two_thousand_cases():
    assert sum(len(load_sweep(experiments.FOLDER / f"{file}.yaml")) for file in experiments.FILES.values()) == 2490
