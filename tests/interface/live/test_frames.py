"""What a page is answered: the scenario with its changes as `simulate` sees it, its controls, and refusals."""

import json
import shlex
import signal
from types import SimpleNamespace

import pytest
from support.paths import SCENARIOS

from hybrid_des.errors import UsageError
from hybrid_des.interface.live.controls import controls_of
from hybrid_des.interface.live.frames import (
    FAST,
    LOOK_S,
    NewerRequest,
    Request,
    ServerState,
    answer,
    as_known,
    ended_by,
)
from hybrid_des.report.fact import Fact
from hybrid_des.report.page.document import PageRun, run_data
from hybrid_des.result import simulate
from hybrid_des.scenario.loading import load, read_scenario, scenario_of
from hybrid_des.studies.advice import advise

CHANGES = (
    {"cluster.nvlink.bandwidth": "2 GB/s"},
    {"schedule.kind": "zb-h1", "schedule.microbatches": "5"},
    {"parallel.pipeline": "2", "gradients.overlap": "true", "gradients.bucket": "25 MiB"},
    {"slow": '[{"gpu": 3, "factor": 0.5}]', "gradients.algorithm": "halving-doubling"},
)
LONG = {"schedule.microbatches": "200"}  # long enough to be looked at
MODULE = "hybrid_des.shortcuts.run"


@pytest.fixture
def state():
    return ServerState(SCENARIOS / "a100_8x.yaml")


def asked(state, file="a100_8x.yaml", want="frame", **changes):
    return answer(state, Request(number=1, want=want, file=file, changes=changes))


def state_of(name):
    return ServerState(SCENARIOS / f"{name}.yaml")


@pytest.fixture(scope="module")
def reasons():
    """What a page that asks why is answered, and the parts that it is sent early."""
    parts = []
    request = Request(number=3, file="a100_8x.yaml", want="why")
    return answer(state_of("a100_8x"), request, early=parts.append), parts


def undescribed(scenario):
    """A scenario without its description, in which a file's overrides are listed."""
    return scenario.model_copy(update={"description": ""})


def facts(summary):
    """A summary without what the machine's speed decides."""
    return {key: value for key, value in summary.items() if key != "wall_s"}


@pytest.mark.parametrize("changes", [{}, *CHANGES])
def test_a_frame_is_what_simulate_gives(state, changes):
    frame = asked(state, **changes)
    result = simulate(load(state.file, [f"{path}={value}" for path, value in changes.items()]))
    about, data = run_data(PageRun(result), FAST)
    assert facts(frame["summary"]) == facts(result.summary)
    assert (frame["run"], frame["data"]) == (about, data)
    assert json.loads(json.dumps(frame, allow_nan=False))["number"] == 1


@pytest.mark.parametrize("changes", CHANGES)
def test_a_saved_file_is_the_changed_scenario(state, tmp_path, changes):
    saved = asked(state, want="yaml", **changes)["yaml"]
    (tmp_path / "saved.yaml").write_text(saved, encoding="utf-8")
    expected = load(state.file, [f"{path}={value}" for path, value in changes.items()])
    assert undescribed(load(tmp_path / "saved.yaml")) == undescribed(expected)


def test_the_copied_command_simulates_the_same(state, run):
    frame = asked(state, **CHANGES[3])
    program, *arguments = shlex.split(frame["command"])
    code, out, _ = run(*arguments, "--json")
    assert (program, code) == ("hybrid-des", 0)
    assert facts(json.loads(out)) == facts(frame["summary"])


@pytest.mark.parametrize("name", ["a100_8x", "contention_slower", "llama3.1-8b_8"])
def test_a_value_sent_back_as_shown_changes_nothing(name):
    document = read_scenario(SCENARIOS / f"{name}.yaml")
    scenario = scenario_of(document)
    shown = controls_of(scenario, document)
    assert len(shown) > 20
    for control in shown:
        if control.path in ("schedule.microbatches", "batch") and "batch" in document.value:
            continue  # one follows from the other
        changed = scenario_of(read_scenario(SCENARIOS / f"{name}.yaml", [f"{control.path}={control.value}"]))
        assert undescribed(changed) == undescribed(scenario), control


def test_sliders_hold_their_values(state):
    controls = {control["path"]: control for control in asked(state)["controls"]}
    assert all(c["least"] <= c["number"] <= c["most"] or c["number"] == 0 for c in controls.values() if c["number"])
    bandwidth = controls["cluster.infiniband.bandwidth"]
    assert (bandwidth["kind"], bandwidth["number"], bandwidth["value"]) == ("bandwidth", 25e9, "25 GB/s")
    assert bandwidth["least"] <= 10e9 < 400e9 <= bandwidth["most"]
    assert "zb-h1" in controls["schedule.kind"]["choices"]
    assert "h100" in controls["cluster.gpu"]["choices"]
    assert controls["parallel.pipeline"]["kind"] == "whole"
    assert controls["gradients.overlap"]["kind"] == "flag"
    assert (controls["gradients.bucket"]["kind"], controls["gradients.bucket"]["value"]) == ("size", "none")
    assert (controls["workload.forward"]["kind"], controls["workload.parameters"]["kind"]) == ("time", "number")


def test_options_of_the_chosen_plugin_have_controls(state):
    frame = asked(state, **{"schedule.kind": "gpipe", "cluster.topology": "leaf-spine"})
    controls = {control["path"]: control for control in frame["controls"]}
    assert controls["schedule.backward_order"]["choices"] == ["fifo", "lifo"]
    assert controls["cluster.leaf_size"]["group"] == "Links"


def test_slow_parts_are_listed_as_the_file_states_them():
    frame = asked(ServerState(SCENARIOS / "slow_gpu_h100_2x8.yaml"), "slow_gpu_h100_2x8.yaml")
    assert frame["slow"] == [{"gpu": 3, "factor": 0.8}]


@pytest.mark.parametrize("file", ["a100_8x.yaml", "contention_faster.yaml", "llama3.1-8b_8.yaml"])
def test_idle_shares_have_colours_of_their_own(file):
    shares = asked(ServerState(SCENARIOS / file), file)["shares"]
    assert len({share["colour"] for share in shares}) == len(shares) > 2


def test_a_mistake_is_a_problem_and_not_an_end(state):
    assert asked(state, **{"parallel.pipeline": "x"})["problems"] == [
        '--set parallel.pipeline=x: parallel.pipeline: expected a whole number, found "x"'
    ]
    assert "did you mean" in asked(state, **{"schedule.knd": "gpipe"})["problems"][0]
    assert "no such file" in asked(state, "nowhere.yaml")["problems"][0]
    assert "problems" not in asked(state)


@pytest.mark.parametrize("path", ["../README.md", "/etc/passwd", "sub/../../README.md", "link.yaml", "a\0.yaml"])
def test_a_file_outside_the_folder_is_refused(tmp_path, path):
    (tmp_path / "a.yaml").write_text((SCENARIOS / "a100_8x.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.yaml").symlink_to(SCENARIOS / "h100_2x8.yaml")
    state = ServerState(tmp_path / "a.yaml")
    assert "outside of" in asked(state, path)["problems"][0]
    assert "problems" not in asked(state, "a.yaml")


@pytest.mark.parametrize("key", ["schedule.file", "workload.durations", "cluster.nvlink.table"])
def test_a_change_cannot_name_a_file_outside(tmp_path, key):
    (tmp_path / "a.yaml").write_text((SCENARIOS / "a100_8x.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "own.csv").write_text("")
    section, _, last = key.rpartition(".")
    for changes in ({key: "/etc/passwd"}, {key: "../x.csv"}, {section: f"{{{last}: /etc/passwd}}"}):
        assert "outside of" in asked(ServerState(tmp_path / "a.yaml"), "a.yaml", **changes)["problems"][0]
    assert "outside of" not in asked(ServerState(tmp_path / "a.yaml"), "a.yaml", **{key: "own.csv"})["problems"][0]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"number": "1"}', '{"number": 1, "more": 2}', '{"number": 1, "changes": {"seed": 1}}',
     '{"number": 1, "want": "files"}', '{"number": 1, "sizes": {"pipeline": 1000}}',
     json.dumps({"number": 1, "changes": {str(i): "" for i in range(1000)}})],
)  # fmt: skip
def test_what_no_page_would_send_is_refused(text):
    with pytest.raises(UsageError):
        Request.of(text)


def test_a_newer_request_ends_an_older_one(state, monkeypatch):
    monkeypatch.setattr("hybrid_des.simulation.watch.SHOWN_EVERY_S", 0)
    request = Request(number=1, file="a100_8x.yaml", changes=LONG)
    with pytest.raises(NewerRequest):
        answer(state, request, newer=lambda: True)
    assert "problems" not in answer(state, request, newer=lambda: False)


def test_a_simulation_has_a_budget():
    state = ServerState(SCENARIOS / "a100_8x.yaml", budget_s=1e-9)
    assert "budget of 1 ns is spent" in asked(state, **LONG)["problems"][0]


def test_the_command_lines_own_overrides_come_first():
    state = ServerState(SCENARIOS / "a100_8x.yaml", overrides=("steps=2",), imports=("mine.py",))
    frame = asked(state, barrier="false")
    assert frame["command"].endswith("--import mine.py --set steps=2 --set barrier=false")
    assert next(control["value"] for control in frame["controls"] if control["path"] == "steps") == "2"
    assert asked(state, "h100_2x8.yaml")["summary"]["name"] == "h100_2x8"


def test_why_gives_reasons_and_possible_values(state, reasons):
    given, _ = reasons
    assert list(given["why"]) == ["Time", "Main loss"]
    assert given["advice"]["label"] == "Change"
    assert given["possible"]["parallel.pipeline"] == ["1", "2", "3", "4"]
    assert "gpipe" in given["possible"]["schedule.kind"]
    assert "hanayo" in given["possible"]["schedule.kind"]  # with two chunks, as by default
    changes = {"schedule.kind": "interleaved-1f1b", "schedule.chunks": "1"}
    given = answer(state, Request(number=4, file="a100_8x.yaml", want="why", changes=changes))
    assert "hanayo" not in given["possible"]["schedule.kind"]  # which has no wave of one


OUT_OF_MEMORY = {"workload.memory.activation": "30 GB"}
SHARDED = {"gradients.bucket": "10 MB", "schedule.kind": "interleaved-1f1b", "schedule.chunks": "2"}


@pytest.mark.parametrize(
    "changes", [{}, pytest.param({"schedule.kind": "gpipe"}, marks=pytest.mark.slow), SHARDED, OUT_OF_MEMORY]
)
def test_a_page_that_applies_advice_has_the_step_it_promised(state, reasons, changes):
    """Of a page with changes of its own, too; another line of advice is then undone by undoing the changes."""
    given = asked(state, want="why", **changes) if changes else reasons[0]
    lines = given["advice"]["lines"]
    overrides = [f"{path}={value}" for path, value in changes.items()]
    advice = advise(state.file, overrides)
    assert [line["change"] for line in lines] == [line.change for line in advice.lines] and lines
    for line, expected in zip(lines, advice.lines, strict=True):
        kept = {path: value for path, value in changes.items() if path not in line["changes"]}
        frame = asked(state, **kept, **line["changes"])
        assert frame["summary"]["step_time_s"] == expected.step_s
        assert not frame["summary"]["out_of_memory"]


def test_advice_follows_reasons_and_possible_values(reasons):
    """A page need not wait for what takes longest."""
    whole, parts = reasons
    assert [sorted(part) for part in parts] == [["number", "why"], ["number", "possible"]]
    assert parts[0]["why"] == whole["why"] and parts[1]["possible"] == whole["possible"]


def test_where_no_setting_helps_a_page_says_so(state):
    advice = asked(state, want="why", **{"parallel.pipeline": "1", "parallel.data": "1"})["advice"]
    assert advice == {
        "label": "Change",
        "lines": [],
        "none": "None of the settings that were tried makes the step 2 % shorter.",
    }


def test_a_page_does_not_explain_what_takes_minutes():
    given = asked(state_of("llama3.1-405b_16k"), "llama3.1-405b_16k.yaml", want="why")
    assert given["why"] == {} and given["possible"]
    assert given["advice"]["none"].endswith("hybrid-des explain says why, and what to change")


def test_possible_values_are_those_that_simulate(scenarios):
    state = ServerState(scenarios / "prototype_4gpu.yaml")
    possible = answer(state, Request(number=1, file="prototype_4gpu.yaml", want="why"))["possible"]
    for path in ("parallel.pipeline", "parallel.data"):
        for value in map(str, range(1, 7)):
            changed = answer(state, Request(number=2, file="prototype_4gpu.yaml", changes={path: value}))
            assert ("summary" in changed) == (value in possible[path]), (path, value)


def test_a_newer_request_ends_the_search_for_reasons(scenarios):
    state = ServerState(scenarios / "llama3.1-8b_8.yaml")
    with pytest.raises(NewerRequest):
        answer(state, Request(number=1, file="llama3.1-8b_8.yaml", want="why"), lambda: True)


def test_problems_are_told_by_the_path_of_their_value(scenarios):
    state = ServerState(scenarios / "a100_8x.yaml")
    changes = {"parallel.pipeline": "x", "workload.forward": "3 GB"}
    fields = answer(state, Request(number=1, file="a100_8x.yaml", changes=changes))["fields"]
    assert fields["parallel.pipeline"] == 'expected a whole number, found "x"'
    assert fields["workload.forward"] == '"3 GB" is a size; expected a time such as 50 ms'
    assert "--set" not in str(fields)


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        ("2.887 s", "2.89 s"),
        ("12.39 s", "12.4 s"),
        ("0.6%", "0.6%"),
        ("90,806", "90,800"),
        ("8.52×", "8.52×"),
    ],
)
def test_figures_of_a_prediction_have_three_digits(figure, shown, scenarios):
    predicted = SimpleNamespace(summary={"experience": {}})
    assert as_known(Fact("", figure), predicted).value == shown
    assert as_known(Fact("", figure), SimpleNamespace(summary={})).value == figure


def test_a_look_that_interrupts_its_own_end_is_the_last(monkeypatch):
    """A further one would interrupt what the process does next, and end it."""
    set_to = []

    def set_timer(which, seconds, again=0.0):
        set_to.append(seconds)
        if set_to == [LOOK_S, 0]:
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(signal, "setitimer", set_timer)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(NewerRequest), ended_by(lambda: True):
        pass
    assert set_to == [LOOK_S, 0, 0]
    assert signal.getsignal(signal.SIGALRM) is before
