"""`init --from-verl` and its kin: a log becomes a scenario that says which number came from which line."""

import json
from pathlib import Path

import pytest
import yaml
from support.paths import TESTS

from hybrid_des.interchange.loops import FRAMEWORKS
from hybrid_des.interface.cli.commands.init import LOOPS
from hybrid_des.scenario.loading import load
from hybrid_des.studies.rl.calibration import generation_s
from hybrid_des.studies.rl.loop import run_loop

LOGS = TESTS / "interchange" / "loops"


def test_every_framework_is_an_option():
    assert {name: framework.title for name, framework in FRAMEWORKS.items()} == LOOPS


def test_a_log_becomes_a_scenario_that_names_its_lines(run, tmp_path):
    code, out, err = run("init", "mine", "--from-verl", LOGS / "verl.log", "--out", tmp_path)
    assert (code, out) == (0, f"{tmp_path}/mine.yaml: run it with hybrid-des {tmp_path}/mine.yaml\n")
    mean = "from the log: rl.response.mean 1,610 tokens: response_length/mean, lines 30 to 33, mean of 3 steps"
    assert mean in err and f"# {mean}" in (tmp_path / "mine.yaml").read_text().splitlines()
    assert "from the log: generation 122 s: timing_s/gen, lines 30 to 33, mean of 3 steps" in err
    scenario = load(tmp_path / "mine.yaml")
    share = scenario.rl.rollout[0].efficiency.reached
    assert f"from the log: rl.rollout.efficiency.reached {float(share)}: generation takes 122 s then" in err
    assert generation_s(run_loop(scenario)) == pytest.approx(122, rel=0.02)  # other draws of lengths
    assert (scenario.rl.samples, scenario.rl.updates, scenario.batch) == (8, 4, 256)
    assert (scenario.cluster.gpu.name, scenario.parallel.ranks) == ("h100", 16)


def test_what_is_missing_is_stated_in_the_same_command(run, tmp_path):
    arguments = ("init", "--from-nemo-rl", LOGS / "nemo_rl.log", "--out", tmp_path, "--json")
    facts = json.loads(run(*arguments)[1])
    assert facts["unknown"] == ["rl.response.sigma"]
    assert any(line.startswith("rl.response.sigma: nothing in the log says") for line in facts["not_understood"])
    facts = json.loads(run(*arguments, "--force", "--set", "rl.response.sigma=1", "--set", "cluster.gpu=h100")[1])
    assert (facts["unknown"], facts["not_understood"]) == ([], [])
    assert any(line.startswith("rl.trainer.time 156.7 s: policy_training + ") for line in facts["from_log"])
    assert load(facts["file"]).rl.response.options.sigma == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "reached: 1: state cluster.gpu with --set, of whose figures it is a share"),
        (["cluster.gpu=h100", "rl.response.mean=3900"], "reached: 1: no value from 0.062 to 4 makes"),
        (["cluster.gpu=h100", "rl.rollout.memory=1 %"], "reached: 1: the loop cannot be simulated"),
        (["cluster.gpu=h100", "rl.rollout.efficiency.reached=0.5"], None),
    ],
    ids=["no GPU", "out of reach", "no room", "stated"],
)  # fmt: skip
def test_the_share_of_engines_stays_where_it_is_not_told(run, tmp_path, settings, said):
    log = tmp_path / "run.log"
    log.write_text((LOGS / "nemo_rl.log").read_text().replace("generation: 1", "generation: 0.1"))
    stated = [word for one in ("rl.response.sigma=0.5", *settings) for word in ("--set", one)]
    facts = json.loads(run("init", "mine", "--from-nemo-rl", log, "--out", tmp_path, "--json", *stated)[1])
    told = [line for line in facts["assumed"] if line.startswith("rl.rollout.efficiency.reached")]
    assert told == [] if said is None else said in told[0]
    assert not any(line.startswith("rl.rollout.efficiency.reached") for line in facts["from_log"])


def test_a_script_can_stand_beside_a_log(run, tmp_path):
    log = tmp_path / "run.log"
    steps = [line for line in (LOGS / "verl.log").read_text().splitlines(keepends=True) if "step:" in line]
    log.write_text("".join(steps))
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_batch_size=128 \\\n"
        "  data.max_response_length=8192 actor_rollout_ref.actor.ppo_mini_batch_size=64 trainer.nnodes=1 \\\n"
        "  actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=8\n"
    )
    code, *_ = run("init", "mine", "--from-verl", log, "--from-verl", script, "--out", tmp_path)
    scenario = load(tmp_path / "mine.yaml")
    assert (code, scenario.batch, scenario.rl.updates, scenario.rl.samples) == (0, 256, 2, 4)


def test_one_log_at_a_time(refused):
    log = LOGS / "verl.log"
    assert "init: expected --from-verl alone, or with --from MODEL" in refused(
        "init", "mine", "--from-verl", log, "--from-job", log
    )
    assert "expected --from-verl alone" in refused("init", "mine", "--from-verl", log, "--from-trl", log)


@pytest.mark.parametrize("name", [path.name for path in sorted(Path(LOGS).glob("*.log"))])
def test_a_log_of_another_framework_is_refused(refused, name):
    own = yaml.safe_load((LOGS / "expected.yaml").read_text())[name]["framework"]
    other = "slime" if own != "slime" else "verl"
    said = refused("init", "mine", f"--from-{other}", LOGS / name)
    assert f"the log of {LOOPS[own]}, not of {LOOPS[other]}; give it with --from-{own}" in said
