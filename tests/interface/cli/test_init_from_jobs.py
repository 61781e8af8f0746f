"""`init --from-job`: what is read is said, and what a job leaves open is stated in the same command."""

import json

import pytest

from hybrid_des.scenario.loading import load

ZERO = '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}'
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture
def zero(tmp_path):
    """A configuration of DeepSpeed, which has no model and no number of GPUs."""
    file = tmp_path / "zero3.json"
    file.write_text(ZERO)
    return file


def test_what_a_program_calls_otherwise_is_said(run, tmp_path, zero):
    code, out, err = run("init", "mine", "--from-job", zero, "--out", tmp_path)
    assert code == 0 and "state what is UNKNOWN" in out
    assert "read: zero_optimization.stage: 3 is sharding zero-3" in err
    assert {"unknown: model.base", "unknown: parallel.data", "unknown: cluster.nodes"} <= {*err}


def test_a_name_may_end_as_its_file_does(run, tmp_path, zero):
    run("init", "mine.yaml", "--from-job", zero, "--out", tmp_path)
    assert [file.name for file in tmp_path.glob("mine*")] == ["mine.yaml"]


def test_a_named_model_keeps_stack_and_plan(run, tmp_path, zero):
    settings = ("--set", "model=llama2-7b", "--set", "cluster.nodes=2", "--set", "cluster.gpu=h100")
    code, out, _ = run("init", "mine", "--from-job", zero, *settings, "--json", "--out", tmp_path)
    facts = json.loads(out)
    scenario = load(tmp_path / "mine.yaml")
    assert (code, facts["unknown"], scenario.model.options.written) == (0, [], "transformers")
    assert (scenario.parallel.data, scenario.sharding, scenario.schedule.microbatch_size) == (16, "zero-3", 2)
    assert "zero_optimization.stage: 3 is sharding zero-3" in facts["read"]


def test_a_config_gives_the_model_of_a_job(run, tmp_path, zero):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    code, *_ = run(
        "init", "mine", "--from", config, "--from-job", zero, "--set", "cluster.nodes=1", "--out", tmp_path
    )  # fmt: skip
    scenario = load(tmp_path / "mine.yaml")
    assert (code, scenario.model.options.layers, scenario.sharding, scenario.parallel.data) == (0, 4, "zero-3", 8)


def test_a_config_gives_layers_that_flags_count_from(run, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG | {"num_hidden_layers": 7}))
    job = tmp_path / "job.yaml"
    job.write_text("MODEL_ARGS: {pipeline_model_parallel_size: 4, decoder_first_pipeline_num_layers: 1, bf16: true}\n")
    code, *_ = run(
        "init", "mine", "--from", config, "--from-job", job, "--set", "cluster.nodes=1", "--out", tmp_path
    )  # fmt: skip
    scenario = load(tmp_path / "mine.yaml")
    assert (code, scenario.parallel.stages, scenario.model.options.layers) == (0, (1, 2, 2, 2), 7)


def test_a_program_can_be_named(run, tmp_path, refused):
    job = tmp_path / "odd.yaml"
    job.write_text("gradient_accumulation_steps: 4\n")
    assert "odd.yaml: not recognised as a file of" in refused("init", "mine", "--from-job", job)
    assert 'unknown "deepsped"; did you mean "deepspeed"?' in refused(
        "init", "mine", "--from-job", job, "--tool", "deepsped"
    )
    code, *_ = run("init", "mine", "--from-job", job, "--tool", "deepspeed", "--out", tmp_path)
    assert code == 0 and "microbatches: 4" in (tmp_path / "mine.yaml").read_text()


def test_one_way_in_at_a_time(refused, zero):
    said = refused("init", "mine", "--from-job", zero, "--from-megatron", "--num-layers 4")
    assert "expected one of --from-megatron, --from-job, which reads scripts too, and --run" in said
