"""Logs of reinforcement learning: each number is that of the lines it names, and a bad log is answered in one line."""

from pathlib import Path

import pytest
import yaml
from support.tables import from_table

from hybrid_des.errors import UsageError
from hybrid_des.interchange.loops import FRAMEWORKS, read_loop
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.loading import scenario_from

LOOPS = Path(__file__).with_name("loops")
EXPECTED = yaml.safe_load((LOOPS / "expected.yaml").read_text(encoding="utf-8"))
STEP = "step:{0} - response_length/mean:{1} - timing_s/gen:{2} - timing_s/update_actor:3.5 - timing_s/step:{3}\n"


def written(folder, text, name="run.log"):
    """A log."""
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def read(file, framework="verl", **more):
    return read_loop([file], framework, **more)


@pytest.mark.parametrize("name", EXPECTED)
def test_values_of_a_log_are_those_of_its_lines(name):
    wanted = EXPECTED[name]
    loop = read(LOOPS / name, wanted["framework"], fixed=wanted.get("fixed"))
    values, sources = loop.imported.values, loop.imported.sources
    assert {path: values.get(path) for path in wanted["values"]} == wanted["values"]
    assert [line for line in wanted["sources"] if line not in sources] == []
    assert sources[0].endswith(f"{name}: {wanted['steps']}")
    kind, seconds = wanted["measured"]
    assert loop.measured.kind == kind and loop.measured.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_log_is_a_whole_scenario(name):
    wanted = EXPECTED[name]
    fixed = wanted.get("fixed", {})
    values = dict(read(LOOPS / name, wanted["framework"], fixed=fixed).imported.values) | fixed
    rl = scenario_from({**nested(values | {"cluster.gpu": "h100"}), "name": "run"}).rl
    assert rl.colocated == ("rl.rollout.on" in values)
    assert rl.response.options.sigma > 0


def test_every_framework_has_a_log():
    assert {wanted["framework"] for wanted in EXPECTED.values()} == {*FRAMEWORKS}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_log_of_another_framework_is_named(name):
    own = EXPECTED[name]["framework"]
    for other in FRAMEWORKS.keys() - {own}:
        with pytest.raises(UsageError) as error:
            read(LOOPS / name, other)
        said = str(error.value)
        assert f"the log of {FRAMEWORKS[own].title}, not of {FRAMEWORKS[other].title}" in said
        assert f"--from-{own}" in said and "\n" not in said


def starts(content, form):
    """Where the lines begin that begin a step, and the end."""
    lines = content.decode().splitlines(keepends=True)
    seen, at, found = set(), 0, []
    for line in lines:
        match = (form.label or form.begins).search(line)
        if match and "val-core" not in line and (form.label is None or match[1] not in seen):
            seen |= {match[1]} if form.label else set()
            found.append(at)
        at += len(line.encode())
    return [*found, at]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_log_cut_anywhere_has_the_means_of_whole_steps(name, tmp_path):
    content, framework = (LOOPS / name).read_bytes(), EXPECTED[name]["framework"]
    first, second, *rest = starts(content, FRAMEWORKS[framework].form)

    def means(size):
        values = read(written(tmp_path, content[:size]), framework).imported.values
        return values["rl.response.mean"], values.get("rl.trainer.time"), values.get("rl.rest")

    of_whole_steps = {means(size) for size in (second, *rest)}
    assert len(of_whole_steps) >= 3
    assert {means(size) for size in range(second, len(content), 101)} <= of_whole_steps
    with pytest.raises(UsageError, match=r"run.log:?\d*: (no whole step of|cut before)"):
        means(first)


def test_a_step_that_was_cut_is_left_out(tmp_path):
    text = STEP.format(1, 100, 9, 20) + STEP.format(2, 200, 5, 10) + STEP.format(3, 900, 50, 90)[:-25]
    loop = read(written(tmp_path, text))
    assert loop.imported.values["rl.response.mean"] == 200
    assert f"{tmp_path}/run.log:3: cut in the middle of a step, which is left out" in loop.imported.assumed


def test_the_last_number_of_a_cut_line_is_not_read(tmp_path):
    text = STEP.format(1, 100, 9, 20) + STEP.format(2, 200, 5, 10) + STEP.format(3, 900, 50, 987).rstrip("7\n")
    assert read(written(tmp_path, text)).imported.values["rl.response.mean"] == 200


def test_the_only_step_of_a_log_counts(tmp_path):
    loop = read(written(tmp_path, STEP.format(1, 100, 9, 20)))
    assert loop.imported.values["rl.rest"] == "7.5 s"
    assert loop.imported.sources[0].endswith("one step; left out: none")


def test_what_a_log_does_not_say_is_asked_for(tmp_path):
    imported = read(written(tmp_path, STEP.format(1, 100, 9, 20))).imported
    unknown = {path for path, value in imported.values.items() if value == "UNKNOWN"}
    assert {"batch", "rl.prompt", "rl.response.max", "rl.response.sigma", "rl.updates"} <= unknown
    asked = [line for line in imported.unread if line.startswith("rl.prompt: ")]
    assert asked == ["rl.prompt: nothing in the log says the tokens of prompts; state it with --set rl.prompt=VALUE"]


def test_a_script_beside_a_log_has_its_settings(tmp_path):
    log = written(tmp_path, STEP.format(1, 100, 9, 20) * 3)
    script = written(
        tmp_path,
        "python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 \\\n"
        "  actor_rollout_ref.rollout.n=4 trainer.nnodes=1 trainer.n_gpus_per_node=8 data.max_response_length=512\n",
        "run.sh",
    )
    imported = read_loop([log, script], "verl").imported
    assert (imported.values["batch"], imported.values["rl.updates"]) == (64, 4)
    assert "rl.samples 4: actor_rollout_ref.rollout.n" in imported.sources


def test_one_step_off_waits_for_a_batch(tmp_path):
    settings = (
        "{'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 32}, 'rollout': {'n': 8, 'nnodes': 1,\n"
        " 'n_gpus_per_node': 4}}, 'data': {'train_batch_size': 64}, 'trainer': {'nnodes': 1, 'n_gpus_per_node': 4}}\n"
    )
    values = read(written(tmp_path, settings + STEP.format(1, 100, 9, 20) * 2)).imported.values
    assert (values["rl.ahead"], values["rl.barrier"], values["rl.updates"]) == (1, True, 2)
    assert (values["cluster.nodes"], values["cluster.gpus_per_node"], values["rl.rollout.nodes"]) == (2, 4, 1)


def test_version_one_has_an_allowance_and_no_barrier(tmp_path):
    settings = (
        "{'actor_rollout_ref': {'actor': {'ppo_mini_batch_size': 32}, 'rollout': {'n': 8, 'nnodes': 2,\n"
        " 'n_gpus_per_node': 8}}, 'data': {'train_batch_size': 64}, 'trainer': {'nnodes': 1, 'n_gpus_per_node': 8,\n"
        " 'v1': {'trainer_mode': 'separate_async', 'sampler': {'max_off_policy_threshold': 2}}}}\n"
    )
    values = read(written(tmp_path, settings + STEP.format(1, 100, 9, 20) * 2)).imported.values
    assert (values["rl.ahead"], values.get("rl.barrier"), values["rl.rollout.nodes"]) == (2, None, "1-2")


def test_a_stream_of_samples_has_no_time_of_generation(tmp_path):
    text = (LOOPS / "verl_async.log").read_text(encoding="utf-8")
    text = text.replace("'staleness_threshold': 0.5", "'staleness_threshold': 0")
    assert read(written(tmp_path, text)).measured.kind == "cycle"
    on_policy = text.replace("'trigger_parameter_sync_step': 4", "'trigger_parameter_sync_step': 1")
    assert read(written(tmp_path, on_policy)).measured.kind == "generation"


@from_table
def test_admission_and_running_requests_follow_the_settings(tmp_path, framework, change, values):
    log = {"verl": "verl_async.log", "nemo-rl": "nemo_rl.log", "slime": "slime.log"}[framework]
    text = (LOOPS / log).read_text(encoding="utf-8")
    for before, after in change:
        assert before in text
        text = text.replace(before, after)
    found = read(written(tmp_path, text), framework).imported.values
    assert {path: found.get(path) for path in values} == values


@from_table
def test_a_bad_log_is_answered_in_one_line(tmp_path, content, said):
    with pytest.raises(UsageError) as error:
        read(written(tmp_path, content.encode("latin-1")))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith(f"{tmp_path}/run.log")


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.log: No such file"):
        read(tmp_path / "none.log")
