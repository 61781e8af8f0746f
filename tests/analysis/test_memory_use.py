"""What fills the fullest GPU: its parts sum to the peak, which is what the run recorded, at the time that is named."""

import json

import pytest
from support.paths import SCENARIOS
from support.scenarios import values as small
from support.verdicts import of_model

from hybrid_des.analysis.losses import step_alone
from hybrid_des.analysis.memory_use import memory_use
from hybrid_des.report.memory_text import render_memory
from hybrid_des.scenario.loading import load, scenario_from

RUNS = {
    "given": small("1f1b", 4, 8, workload={"memory": {"activation": "1 GB"}}),
    "split backwards": of_model(parallel={"pipeline": 4}, schedule={"kind": "zb-h1", "microbatches": 8}),
    "fused pairs": of_model(parallel={"pipeline": 2}, schedule={"kind": "dualpipe", "microbatches": 8}),
    "chunks": of_model(parallel={"pipeline": 2}, schedule={"kind": "interleaved-1f1b", "chunks": 2, "microbatches": 4}),
    "sharded": of_model(parallel={"data": 4}, sharding="zero-3"),
    "two steps": of_model(parallel={"pipeline": 2}, steps=2, recompute="full"),
}


@pytest.mark.parametrize("name", RUNS)
def test_parts_sum_to_the_recorded_peak(name):
    run = step_alone(scenario_from(RUNS[name]))
    use, rows = memory_use(run), run.timeline.memory
    assert sum(use.parts.values()) == use.peak.held == max(run.peak_memory)
    mine = rows["rank"] == use.peak.rank
    first = rows["time"][mine][rows["bytes"][mine].argmax()]
    assert use.at_s == int(first) / 1e12
    assert use.least == rows["bytes"][mine].min() <= use.peak.held
    assert 0 < use.nearly_full <= 1
    if name != "given":
        kept = sum(layer.bytes for layer in use.layers)
        assert kept == pytest.approx(use.parts["activations"], abs=len(use.layers))


def test_one_f_one_b_holds_a_micro_batch_per_stage():
    """Rank 0 of four begins its fourth forward after three, and holds four; 1 GB of each, and 2 GB of states."""
    run = step_alone(load(SCENARIOS / "a100_8x.yaml"))
    use = memory_use(run)
    assert (use.pipeline_rank, use.during, use.held, use.at_s) == (0, "F3", 4, 0.15)
    assert use.parts == {"parameters, gradients and optimizer": 2_000_000_000, "activations": 4 * 1_200_000_000}


def test_layers_of_a_stage_are_told_apart():
    """The only GPU keeps four blocks and the ends of the model, one micro-batch at a time."""
    use = memory_use(step_alone(scenario_from(of_model())))
    assert {layer.name: layer.layers for layer in use.layers} == {"block": 4, "logits": 1}
    block, ends = use.layers
    assert use.held == 1
    assert (block.bytes, ends.bytes) == (4 * block.each, ends.each)
    assert block.bytes + ends.bytes == use.parts["activations"]


def test_a_pair_holds_one_micro_batch_and_a_layer_more():
    """Its forward keeps what its backward has freed: one micro-batch of four blocks, and a fifth block."""
    use = memory_use(step_alone(scenario_from(of_model(schedule={"kind": "1f1b", "microbatches": 4, "pairs": True}))))
    assert (use.during, use.held) == ("F1+B0", 1)
    each = {layer.name: layer.each for layer in use.layers}
    assert use.parts["activations"] == 4 * each["block"] + max(each["block"], each["logits"])


def test_the_text_names_tensors_and_time():
    run = step_alone(load({"cluster": {"gpu": "a100-40gb"}, "model": "llama2-7b", "parallel": {"pipeline": 4},
                           "schedule": {"kind": "1f1b", "microbatches": 4}}))  # fmt: skip
    text = render_memory("job", memory_use(run))
    lines = text.splitlines()
    assert lines[0].startswith("job: the fullest GPU (rank 0, pipeline rank 0) holds ")
    assert lines[0].endswith(" GB too much") and " of 40 GB, " in lines[0]
    assert " GB  activations of 4 micro-batches " in text and " GB  optimizer state " in text
    assert "8 layers, each 539 MB per micro-batch" in text
    assert "as the forward of micro-batch 3 begins; within 5 % of that for " in " ".join(text.split())
    assert max(map(len, lines)) <= 100


def test_the_command_says_it_as_text_and_as_json(run):
    file = SCENARIOS / "a100_8x.yaml"
    code, out, _ = run("explain", file, "--memory")
    assert code == 0
    assert out.startswith("a100_8x: the fullest GPU (rank 0, pipeline rank 0) holds 6.8 of 80 GB, 73.2 GB left")
    _, out, _ = run("explain", file, "--memory", "--json")
    found = json.loads(out)
    assert found["memory"]["peak_bytes"] == sum(found["memory"]["parts_bytes"].values()) == 6_800_000_000
    assert (found["name"], found["memory"]["fits"]) == ("a100_8x", True)
