"""Sequences and documents of a million tokens and more, as people train them."""

import json

import pytest
from support import spaces
from support.scenarios import merged

from hybrid_des import simulate
from hybrid_des.errors import ScenarioError, SimulationError
from hybrid_des.options import LONGEST
from hybrid_des.scenario.loading import load

MILLION = 2**20


def long(sequence, **sections):
    values = spaces.of_model(8, model={**spaces.TINY, "sequence": sequence}, parallel={"data": 1, "context": 8})
    return merged(values, {"batch": 1, **sections})


def step(sequence, **sections):
    return simulate(long(sequence, **sections)).summary


def test_attention_grows_with_the_square_of_the_length():
    """Whatever is linear in the length cancels: t(4L) − 2 t(2L) has 8 L² of attention, t(2L) − 2 t(L) has 2 L²."""
    one, two, four = (step(length * MILLION)["step_time_s"] for length in (1, 2, 4))
    assert (four - 2 * two) / (two - 2 * one) == pytest.approx(4, rel=0.01)


def test_the_longest_sequence_is_named():
    assert load(long(LONGEST)).model.network.tokens == LONGEST == 2**27
    with pytest.raises(ScenarioError, match=f"model.sequence: must be at most {LONGEST}, not {LONGEST + 1}"):
        load(long(LONGEST + 1))


def test_a_million_positions_become_a_file_that_runs(run, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": MILLION,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run("init", "long", "--from", tmp_path / "config.json", "--out", tmp_path)[0] == 0
    code, out, _ = run(tmp_path / "long.yaml")
    assert code == 0 and "1 sequence of 1,048,576 tokens per micro-batch" in out


@pytest.mark.parametrize(
    "lengths",
    [
        {"kind": "fixed", "length": 3 * MILLION},
        {"kind": "lognormal", "mean": 2 * MILLION, "sigma": 0.5, "max": 4 * MILLION},
        {"kind": "histogram", "values": [MILLION, 2 * MILLION + 2, 4 * MILLION], "weights": [1, 1, 1]},
        {"kind": "file", "file": "lengths.csv"},
    ],
)
def test_documents_may_have_millions_of_tokens(lengths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.csv").write_text("length\n1048576\n4194304\n3000000\n")
    data = {"lengths": lengths, "packing": "greedy", "tokens": 4 * MILLION}
    found = step(4 * MILLION, data=data, batch=4)
    assert found["step_time_s"] > 0 and found["data"]["tokens"] >= 4 * MILLION // 2


def test_documents_beyond_64_bits_are_one_line():
    lengths = {"kind": "uniform", "min": LONGEST // 2, "max": LONGEST}
    with pytest.raises(ScenarioError, match=r"schedule.microbatch_size: 1000 documents of up to .* \(at most"):
        load(long(LONGEST, data={"lengths": lengths}, batch=3000, schedule={"microbatch_size": 1000}))
    model = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "sequence": LONGEST}
    alone = {"cluster": {"gpu": "h100", "gpus_per_node": 1}, "model": model, "data": {"lengths": lengths}}
    with pytest.raises(SimulationError, match="takes more than 20 hours"):
        simulate({**alone, "batch": 192, "schedule": {"kind": "1f1b", "microbatch_size": 64}})
