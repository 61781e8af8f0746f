"""The command compare: what changed between two runs, and what each change did."""

from functools import partial

import pytest
from support.paths import GOLDEN, SCENARIOS
from support.tables import from_table

ORACLES = GOLDEN / "explain"


@pytest.fixture
def compared(printed):
    """The JSON of `compare`."""
    return partial(printed, "compare")


@pytest.fixture
def folder(run, tmp_path):
    """A folder that a run of an oracle was written to."""
    out = tmp_path / "e2"
    assert run(ORACLES / "e2.yaml", "--quiet", "--out", out)[0] == 0
    return out


def test_each_change_alone_is_as_worked_by_hand(compared):
    found = compared(ORACLES / "e2.yaml", ORACLES / "e9.yaml")
    assert (found["a"]["step_time_s"], found["b"]["step_time_s"], found["change_s"]) == (10.5, 11.0, 0.5)
    effects = {row["name"]: (row["in_a_s"], row["in_b_s"]) for row in found["effects"]}
    assert effects == {"rank 1": (1.0, 1.0), "nvlink bandwidth": (-0.5, -0.5)}
    assert found["interaction_s"] == 0
    assert found["bounds_s"] == [0.5, 0.5]
    assert found["ops"] == [{"rank": 1, "kind": "B", "rows": 2, "change_s": 1.0}]
    assert found["first_difference"] is None


def test_a_folder_is_compared_like_its_scenario(compared, folder):
    whole = compared(ORACLES / "e2.yaml", ORACLES / "e9.yaml")
    found = compared(folder, ORACLES / "e9.yaml")
    assert found["effects"] is None
    for key in ("change_s", "causes", "ops", "links", "ranks", "first_difference"):
        assert found[key] == whole[key]


def test_a_run_does_not_differ_from_itself(compared, folder):
    found = compared(folder, ORACLES / "e2.yaml")
    assert found["change_s"] == 0
    assert found["ops"] == found["links"] == found["ranks"] == []
    assert not any(found["unmatched"].values())


def test_a_batch_is_kept_as_its_ranks_are_regrouped(compared, tmp_path):
    text = """
    model: {{layers: 8, hidden: 256, heads: 8, ffn: 512, vocab: 1024, sequence: 256}}
    cluster: {{gpu: h100, gpus_per_node: 8}}
    schedule: {{kind: 1f1b}}
    batch: 32
    parallel: {}
    """
    for name, parallel in (("a", "{pipeline: 4, tensor: 2}"), ("b", "{data: 8}")):
        (tmp_path / f"{name}.yaml").write_text(text.format(parallel))
    found = compared(tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert [(row["name"], row["in_a_s"]) for row in found["effects"]] == [("parallel", found["change_s"])]


def test_with_changes_only_the_second_side(compared):
    found = compared(ORACLES / "e2.yaml", "--with", "workload.backward=3 s", "--set", "steps=2")
    assert found["a"]["name"] == "e2"
    assert found["b"]["name"] == "e2 with workload.backward=3 s"
    assert found["a"]["step_time_s"] == 10.5
    assert {row["name"] for row in found["effects"]} == {"node 0"}


def test_a_folder_cannot_be_changed(refused, folder):
    assert "a folder of results" in refused("compare", ORACLES / "e2.yaml", folder, "--with", "steps=2")


@pytest.mark.slow
def test_a_comparison_says_which_side_depends_on_ties(compared):
    found = compared(SCENARIOS / "contention_slower.yaml", "--with", "cluster.sharing=fair")
    assert round(found["ties"]["a"]["most_s"] * 1e3, 1) == 403.8
    assert found["ties"]["b"] is None


def test_changed_sections_are_exchanged_whole(compared):
    found = compared(SCENARIOS / "contention_slower.yaml", SCENARIOS / "contention_faster.yaml")
    assert [row["name"] for row in found["effects"]] == ["gradients"]
    assert found["effects"][0]["in_a_s"] == pytest.approx(found["change_s"])
    assert found["first_difference"]["place"].startswith("node")


@from_table
def test_a_change_is_named_as_whole_as_it_is(compared, write, change, name):
    base = f"base: {SCENARIOS / 'h100_2x8.yaml'}\nname: a\nschedule: {{microbatches: 8}}\n"
    one = write(base + "workload: {forward: 1 s}\n", "one.yaml")
    key, _, value = change.partition("=")
    nested = f"{{{key.split('.')[1]}: {value}}}" if "." in key else value
    same = "" if key.startswith("workload") else "workload: {forward: 1 s}\n"
    other = write(f"{base}{same}{key.split('.')[0]}: {nested}\n", "other.yaml")
    found = compared(one, other)
    assert [row["name"] for row in found["effects"]] == [name]
    assert found["effects"][0]["in_a_s"] == pytest.approx(found["change_s"], abs=1e-12)
    assert found["interaction_s"] == 0


@pytest.mark.parametrize(("limit", "code"), [("4%", 1), ("0.04", 1), ("5 %", 0), ("5%", 0)])
def test_a_regression_beyond_the_limit_is_an_exit_code(run, limit, code):
    found, _, errors = run("compare", ORACLES / "e2.yaml", ORACLES / "e9.yaml", "--max-regression", limit)
    assert found == code
    assert len(errors) == code


def test_both_runs_are_drawn_on_one_time_axis(run, tmp_path):
    assert run("compare", ORACLES / "e2.yaml", ORACLES / "e9.yaml", "--out", tmp_path)[0] == 0
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    assert (tmp_path / "comparison.svg").is_file()


def test_broken_files_of_a_folder_are_named(refused, folder):
    (folder / "summary.json").write_text("{}")
    assert "not the summary of a run" in refused("compare", folder, ORACLES / "e2.yaml")
