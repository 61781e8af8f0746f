"""The command line: data on stdout, messages on stderr, one line for a user's mistake, and the exit codes."""

import csv
import json
import os
import shlex
import signal

import pytest
from support.campaigns import thinned
from support.mistakes import as_said, cases
from support.paths import GOLDEN, SCENARIOS, TESTS
from support.scenarios import MINIMAL

import hybrid_des
from hybrid_des.interface.cli import command_files
from hybrid_des.interface.cli import main as cli
from hybrid_des.pipeline import schedules
from hybrid_des.pipeline.order_csv import read_order, write_order
from hybrid_des.studies.pool import cores


def test_a_scenario_gives_a_report(run, write):
    code, out, err = run(write(MINIMAL, "tiny.yaml"))
    assert (code, err) == (0, [])
    assert out.startswith("tiny")
    assert "\x1b" not in out


def test_json_is_the_summary_and_nothing_else(run, write, tmp_path):
    code, out, err = run(write(MINIMAL), "--json", "--set", "parallel.data=2", "--set", "name=two")
    summary = json.loads(out)
    assert (code, err, summary["name"], summary["ranks"]) == (0, [], "two", 2)
    code, out, err = run(write(MINIMAL), "--json", "--out", tmp_path / "o")
    assert json.loads(out)["ranks"] == 1
    assert err[-1].startswith("wrote ")


def test_quiet_is_quiet(run, write, tmp_path):
    assert run(write(MINIMAL), "--quiet", "--out", tmp_path / "o") == (0, "", [])
    assert (tmp_path / "o" / "summary.json").is_file()
    code, out, err = run(write(MINIMAL), "--quiet", "--json")
    assert (code, json.loads(out)["ranks"], err) == (0, 1, [])


def test_a_user_defined_schedule_is_imported_from_a_file(run, write, scratch):
    mine = write(
        "from hybrid_des.pipeline.schedules import make_plan, schedule\n"
        "@schedule('own-of-a-test', summary='mine', time='t', memory='m', source='me', chunks=1)\n"
        "def own(request):\n    return make_plan('gpipe', request)\n",
        "mine.py",
    )
    assert run(write(MINIMAL), "--set", "schedule.kind=own-of-a-test", "--quiet")[0] == 2
    assert run(write(MINIMAL), "--set", "schedule.kind=own-of-a-test", "--quiet", "--import", mine)[0] == 0
    assert "own-of-a-test" in run("schedules", "--import", mine)[1]


@pytest.mark.parametrize(("group", "case"), cases(TESTS / "interface" / "cli" / "mistakes.yaml"))
def test_a_mistake_is_one_line_and_exit_code_2(run, write, tmp_path, monkeypatch, group, case):
    for name, text in {**group["files"], **case.get("files", {})}.items():
        write(text.encode("utf-8", "surrogateescape"), name)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*map(in_repository, shlex.split(case["command"])))
    assert code == case.get("code", 2)
    assert out == "" if "--json" not in case["command"] else json.loads(out)["error"]["exit_code"] == code
    assert as_said(err, case["said"]), err


def in_repository(word):
    """A word of a command, with the scenarios of the repository and the ones worked by hand where they are."""
    folder, _, rest = word.partition("/")
    places = {"scenarios": SCENARIOS, "golden": GOLDEN}
    return places[folder] / rest if folder in places else word


@pytest.mark.parametrize("option", ["--jobs", "--import", "--out", ""])
def test_endless_words_are_one_line(run, write, option):
    endless = "9223372036854775807" if option == "--jobs" else "a" * 5000
    code, out, err = run(*([write(MINIMAL), option] if option else []), endless)
    assert (code, out, len(err)) == (2, "", 1), err
    said = f"--jobs: must be at most {4 * cores()}, 4 per core, not 92233"
    assert (said if option == "--jobs" else "File name too long") in err[0]


@pytest.mark.parametrize("content", [b"\0\1\2", b"\xff\xfe", b"", b"[" * 10_000, b"a: &a [1]\nb: [*a, *a]\n"])
def test_rubbish_is_one_line_and_exit_code_2(run, write, content):
    code, out, err = run(write(content))
    assert (code, out, len(err)) == (2, "", 1)


def test_every_mistake_is_its_own_line(run, write):
    code, out, err = run(write("steps: 0\nseed: -1\n" + MINIMAL))
    assert (code, out, len(err)) == (2, "", 2)


def test_out_that_cannot_be_written_leaves_nothing_behind(run, write, tmp_path):
    file = write(MINIMAL)
    before = sorted(tmp_path.rglob("*"))
    assert run(file, "--out", tmp_path / "a.yaml" / "b")[0] == 2
    assert run(file, "--out", tmp_path / "new" / "er", "--set", "steps=0")[0] == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused_before_the_run(run, write, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    code, _, err = run(write(MINIMAL), "--out", closed / "o")
    assert (code, len(err)) == (2, 1)


def test_a_simulation_that_fails_exits_with_1_and_writes_nothing(run, write, tmp_path):
    big = ["--set", "workload.memory.activation=200 GB"]
    code, out, err = run(write(MINIMAL), *big, "--set", "on_oom=error", "--out", tmp_path / "o")
    assert (code, out, len(err)) == (1, "", 1)
    assert not (tmp_path / "o").exists()
    code, out, err = run(write(MINIMAL), *big, "--json")
    assert (code, json.loads(out)["out_of_memory"], len(err)) == (0, True, 1)


def test_help_and_version(run):
    code, out, err = run("--help")
    assert (code, err) == (0, [])
    assert all(f"  {command}" in out for command in command_files.names())
    assert run("--version") == (0, f"hybrid-des {hybrid_des.__version__}\n", [])


@pytest.mark.parametrize("command", command_files.names())
def test_every_command_has_a_summary_of_one_line(run, command):
    assert command_files.summary(command)
    assert not command_files.summary(command).endswith(".")
    code, out, err = run(command, "--help")
    assert (code, err) == (0, [])
    assert command_files.summary(command) in " ".join(out.split())
    assert "--json" in out


def test_an_empty_out_writes_nothing_into_the_current_folder(run, write, tmp_path, monkeypatch):
    file = write(MINIMAL)
    monkeypatch.chdir(tmp_path)
    assert run(file, "--out", "")[0] == 2
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("width", [60, 80, 132])
def test_schedules_are_listed_with_what_they_cost(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = run("schedules")
    assert (code, err) == (0, [])
    assert [line.split()[0] for line in out.splitlines() if line[:1].strip()] == schedules.names()
    facts = schedules.find("gpipe").facts
    block = " ".join(next(text for text in out.split("\n\n") if text.startswith("gpipe")).split())
    assert all(facts[key] in block for key in ("summary", "time", "memory", "source"))
    assert max(map(len, out.splitlines())) <= width


def test_the_table_of_schedules_is_data_too(run, tmp_path):
    code, out, err = run("schedules", "--json", "--out", tmp_path / "table.csv")
    assert (code, err) == (0, [f"wrote {tmp_path / 'table.csv'}"])
    rows = json.loads(out)
    assert [row["name"] for row in rows] == schedules.names()
    assert rows == list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert rows[0].keys() == {"name", "summary", "time", "memory", "source"}


def test_a_schedules_grid_shows_idle_time(run):
    code, out, err = run("schedules", "1f1b", "--pipeline", "2", "--microbatches", "2")
    assert (code, err) == (0, [])
    assert [line.split() for line in out.splitlines()] == [
        ["rank", "0", "rank", "1"],
        ["0", "0F0", "·"],
        ["1", "0F1", "1F0"],
        ["2", "·", "1B0"],
        ["3", "·", "│"],
        ["4", "0B0", "1F1"],
        ["5", "│", "1B1"],
        ["6", "·", "│"],
        ["7", "0B1", "·"],
        ["8", "│", "·"],
    ]
    lifo = run("schedules", "gpipe", "--pipeline", "1", "--microbatches", "2", "--set", "schedule.backward_order=lifo")
    assert [line.split()[1] for line in lifo[1].splitlines()[1:]] == ["0F0", "0F1", "0B1", "│", "0B0", "│"]


@pytest.mark.parametrize("name", schedules.names())
def test_a_grid_holds_every_op_at_its_time(run, name):
    arguments = ("schedules", name, "--pipeline", "4", "--microbatches", "8", "--set", "workload.backward=2")
    grid, times = run(*arguments)[1].splitlines(), json.loads(run(*arguments, "--json")[1])
    cells = [line.split() for line in grid[1:]]
    ends = [max(op["end"] for op in ops) for ops in times["ranks"]]
    unit = max(ends) / len(cells)
    for rank, ops in enumerate(times["ranks"]):
        column = [row[1 + rank] for row in cells]
        for op in ops:
            first, last = round(op["start"] / unit), round(op["end"] / unit)
            assert column[first:last] == [op["op"], *["│"] * (last - first - 1)]
        busy = sum(op["end"] - op["start"] for op in ops)
        assert column.count("·") == round((max(ends) - busy) / unit)


@pytest.mark.parametrize("name", ["zb-h1", "dualpipe", "interleaved-1f1b"])
def test_a_written_order_is_a_schedule_again(run, write, tmp_path, name):
    assert run("schedules", name, "--out", tmp_path / "order.csv")[0] == 0
    plan = read_order((tmp_path / "order.csv").read_text(), "order.csv")
    assert plan.microbatches == 8
    assert write_order(plan) == (tmp_path / "order.csv").read_text()


def test_an_interrupt_disguised_as_another_error_is_an_interrupt(write, monkeypatch, capsys):
    def interrupted(_, **options):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("Invalid affine transformation matrix") from None

    monkeypatch.setattr("hybrid_des.result.simulate", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert cli.main([str(write(MINIMAL))]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr("hybrid_des.result.simulate", lambda _, **options: [][0])
    with pytest.raises(IndexError):  # a bug is no interrupt
        cli.main([str(write(MINIMAL))])


def test_a_name_is_any_text(run, refused, write, tmp_path, recwarn):
    for name in ('"$\\\\frac{$ a\\0b <b>&"', "日本語 a$b$"):
        code, _, err = run(write(f"name: {name}\n" + MINIMAL), "--quiet", "--out", tmp_path / "o")
        assert (code, err) == (0, []), name
    assert not recwarn
    assert "surrogate" in refused(write('name: "\\ud800"\n' + MINIMAL))


JSON = {
    "collective": ["ring", "--ranks", "2", "--max", "1 KiB"],
    "completion": ["bash"],
    "costs": ["A100"],
    "docs": ["--schema"],
    "export": ["A100", "--for", "megatron"],
    "gpus": [],
    "init": ["a100_8x"],
    "models": ["qwen3-8b"],
    "schedules": ["--verify", "PROTOTYPE"],
    "topology": ["A100", "--route", "0", "1"],
}


@pytest.mark.parametrize("command", thinned(sorted(JSON), slow=["docs"]))
def test_every_command_gives_json(ran, scenarios, tmp_path, monkeypatch, command):
    files = {"A100": scenarios / "a100_8x.yaml", "PROTOTYPE": scenarios / "prototype_4gpu.yaml"}
    monkeypatch.chdir(tmp_path)
    out, _ = ran(command, *(files.get(word, word) for word in JSON[command]), "--json")
    assert json.loads(out)


def test_a_topology_as_data_is_the_fabric(run, scenarios):
    data = json.loads(run("topology", scenarios / "a100_8x.yaml", "--route", "0", "3", "--json")[1])
    assert (data["gpus"], data["nodes"], len(data["links"])) == (8, 1, 32)
    assert data["links"][0] == {
        "link": "node0/gpu0/nvlink-out", "bandwidth_bytes_per_s": 300e9, "from": "gpu0", "to": "node0/nvswitch",
    }  # fmt: skip
    assert [route["links"] for route in data["routes"]] == [
        ["node0/gpu0/nvlink-out", "node0/gpu3/nvlink-in"],
        ["node0/gpu3/nvlink-out", "node0/gpu0/nvlink-in"],
    ]
