"""Old names of commands and options: each does as the new form, and hints at it in one line."""

import json
from functools import cache

import pytest
from interchange.test_kineto import profiled
from support.nccl_logs import log

from hybrid_des.interface.cli import command_files, old_names
from hybrid_des.scenario import export

PAIRS = {
    "scenarios": (["scenarios", "--json"], ["init", "--json"]),
    "schema": (["schema"], ["docs", "--schema"]),
    "flags": (["flags", "A100", "--for", "torchtitan"], ["export", "A100", "--for", "torchtitan"]),
    "verify": (["verify", "PROTOTYPE", "--json"], ["schedules", "--verify", "PROTOTYPE", "--json"]),
    "calibrate": (["calibrate", "LOG", "--link"], ["measure", "--from", "LOG", "--link"]),
}


def hint(old):
    return f"`{old}` is now `{old_names.OLD[old].now}`; the old name works until 0.4"


@pytest.mark.parametrize("old", PAIRS)
def test_an_old_name_prints_what_the_new_one_does(run, write, scenarios, monkeypatch, old):
    monkeypatch.setattr(export, "json_schema", cache(export.json_schema))  # made once for both
    files = {name: scenarios / f"{file}.yaml" for name, file in (("A100", "a100_8x"), ("PROTOTYPE", "prototype_4gpu"))}
    files["LOG"] = write(log(), "n.txt")
    before, now = (run(*(files.get(word, word) for word in words)) for words in PAIRS[old])
    assert before[:2] == now[:2]
    assert before[0] == 0
    assert before[2] == [hint(old), *now[2]]


@pytest.mark.usefixtures("unpainted")
def test_replay_still_leaves_out_pauses(run, scenarios, tmp_path):
    """Its report has no pauses between ops; who was slow is the same in both."""
    file = scenarios / "durations" / "a100_8x_slow_gpu.csv"
    code, out, err = run("replay", file, "--json", "--out", tmp_path / "o")
    assert (code, err) == (0, [hint("replay"), f"wrote 5 files to {tmp_path / 'o'}"])
    replayed, imported = json.loads(out), json.loads(run("import", file, "--json")[1])
    assert replayed["error_percent"]["mean"] == pytest.approx(0.0989, abs=1e-4)
    assert [replayed[key] for key in ("slowdown", "culprit", "classes")] == [
        imported[key] for key in ("slowdown", "culprit", "classes")
    ]


def test_calibrate_still_reads_profiles(run, tmp_path):
    code, out, err = run("calibrate", "--from-profile", profiled(tmp_path / "t"), "--json")
    calibrated, imported = json.loads(out), json.loads(run("import", tmp_path / "t", "--json")[1])
    assert (code, err) == (0, [hint("calibrate --from-profile")])
    assert [(row["bytes"], row["time_us"]) for row in calibrated["table"]] == [(10**6, 250), (4 * 10**6, 1000)]
    assert (calibrated["gpu"], calibrated["efficiency"]) == (imported["gpu"], imported["reached"])
    code, out, err = run("calibrate", tmp_path / "t", "--from-profile", "--link", "--out", tmp_path / "link.csv")
    assert "gemm: 0.500" in out
    assert "500000," in (tmp_path / "link.csv").read_text()


@pytest.mark.parametrize("program", ["hta", "chakra"])
def test_an_old_option_writes_what_export_does(run, scenarios, tmp_path, program):
    file, old, new = scenarios / "a100_8x.yaml", tmp_path / "old", tmp_path / "new"
    code, out, err = run(file, f"--{program}", old, "--json")
    assert (code, err[0]) == (0, f"`--{program}` is now `export --for {program}`; the old name works until 0.4")
    assert json.loads(out)["name"] == "a100_8x"
    assert run("export", file, "--for", program, "--out", new)[2] == [err[1].replace(str(old), str(new))]
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (old, new)]
    assert contents[0] == contents[1]
    assert run(file, f"--{program}", old, "--quiet") == (0, "", [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scenarios", "a100_8x"], "unrecognized arguments: a100_8x"),
        (["schema", "more"], "docs: PAGE|KEY does not go with --schema"),
        (["flags", "none.yaml", "--for", "megatron"], "none.yaml: no such file"),
        (["verify"], "verify: SCENARIO is required"),
        (["calibrate"], "calibrate: FILE is required"),
        (["replay"], "the following arguments are required: FILE"),
        (["calibrate", "--from-profile", "none"], "none: "),
    ],
)
def test_a_mistake_is_one_line_after_the_hint(run, words, said):
    code, out, (first, line) = run(*words)
    assert (code, out) == (2, "")
    assert "; the old name works until 0.4" in first
    assert said in line


def test_help_lists_new_names_only(run):
    listed = run("--help")[1]
    assert not any(f"\n  {old} " in listed or f"--{old} " in listed for old in (*old_names.OLD, "hta", "chakra"))
    assert len(command_files.names()) == 21
    code, out, err = run("verify", "--help")
    assert (code, err) == (0, [hint("verify")])
    assert "--verify SCENARIO" in out
