"""Documents of unequal length in launch lines of Megatron-LM, in and out."""

import shlex

import pytest

from hybrid_des.interchange.frameworks import megatron
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN, scenario_file
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.export import to_mapping
from hybrid_des.scenario.loading import scenario_from

LOGNORMAL = {"kind": "lognormal", "mean": 1024, "sigma": 1.5, "min": 128, "max": 8192}
MOCK = (  # of examples/dynamic_context_parallel/benchmark_dcp.sh
    '{"mode":"distribution","type":"lognormal","format":"thd","min_seq_len":128,"max_seq_len":8192,'
    '"mean_seq_len":1024,"lognormal_sigma":1.5}'
)
SIZES = (
    "torchrun --nnodes 2 --nproc-per-node 4 pretrain_gpt.py --num-layers 12 --hidden-size 2048 --ffn-hidden-size 8192 "
    "--num-attention-heads 16 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 131072 --bf16 "
    "--context-parallel-size 4 --micro-batch-size 1 --global-batch-size 16 "
)


@pytest.fixture
def documents(write):
    """A small job whose documents are packed so, for which every value has a flag."""

    def build(packing, lengths=None):
        lengths = lengths or {"kind": "file", "file": str(write("900\n1200\n", "lengths.csv"))}
        return scenario_from({
            "cluster": {"gpu": "gb200", "nodes": 2, "gpus_per_node": 4}, "model": "llama3.1-8b",
            "parallel": {"context": 4, "data": 2}, "batch": 16, "schedule": {"microbatch_size": 1},
            "precision": "bf16", "gradients": {"codec": "fp32"}, "data": {"lengths": lengths, **packing},
        })  # fmt: skip

    return build


@pytest.mark.parametrize("lengths", [None, LOGNORMAL], ids=["file", "lognormal"])
@pytest.mark.parametrize("packing", [
    {"packing": "greedy", "tokens": 8192}, {"packing": "dynamic-context", "tokens_per_rank": 2048},
    {"packing": "dynamic-context", "tokens_per_rank": 1024, "least": 2},
])  # fmt: skip
def test_packed_documents_are_read_back(documents, packing, lengths):
    scenario = documents(packing, lengths)
    launch = megatron(scenario)
    assert (launch.unsaid, launch.refused) == ((), ())
    line = " ".join([launch.program, *launch.flags])
    values = nested(read_megatron(line, "line").values)
    values["cluster"]["gpu"] = "gb200"
    again = scenario_from({**values, "name": "scenario"})
    assert to_mapping(again)["data"] == to_mapping(scenario)["data"]
    assert again.batch == scenario.batch
    assert megatron(again) == launch
    assert read_megatron(line, "line").unread == ()
    assert shlex.split(launch.text.replace("\\\n", " "))[-len(shlex.split(launch.flags[-1])) :]


def test_the_published_benchmark_is_read():
    mock = f"--use-varlen-dataset --varlen-mock-dataset-config-json {shlex.quote(MOCK)}"
    packed = "--sequence-packing-scheduler {} --max-seqlen-per-dp-cp-rank 2048 --calculate-per-token-loss"
    fixed = read_megatron(f"{SIZES} {mock} {packed.format('dp_balanced')}", "line")
    dynamic = f"{SIZES} {mock} --dynamic-context-parallel {packed.format('default_dynamic_cp')}"
    assert (fixed.unread, fixed.refused) == ((), ())
    both = [nested(fixed.values)["data"], nested(read_megatron(dynamic, "line").values)["data"]]
    assert both[0] == {"packing": "greedy", "tokens": 8192, "lengths": LOGNORMAL}
    assert both[1] == {"packing": "dynamic-context", "tokens_per_rank": 2048, "lengths": LOGNORMAL}


def test_lengths_that_a_line_does_not_say_are_unknown():
    line = read_megatron(f"{SIZES} --sequence-packing-scheduler dp_balanced", "line")
    text, unknown = scenario_file("mine", line, ["cluster.gpu=h100"])
    assert "data.lengths.kind" in unknown
    assert "UNKNOWN" in text
    text, unknown = scenario_file("mine", line, ["cluster.gpu=h100", "data.lengths.kind=fixed"])
    assert unknown == []


def test_lines_without_packing_have_no_documents():
    assert not [path for path in read_megatron(SIZES, "line").values if path.startswith("data")]


def test_lengths_that_no_flag_can_state_are_asked_for():
    flags = '--dynamic-context-parallel --varlen-mock-dataset-config-json \'{"mode":"distribution","type":"uniform"}\''
    found = read_megatron(f"{SIZES} {flags}", "line")
    assert found.values["data.lengths.kind"] == UNKNOWN
    assert any("expected a file with its path, or a lognormal distribution" in line for line in found.unread)


@pytest.mark.parametrize(("data", "said"), [
    ({"packing": "balanced"}, "data.packing: balanced"),
    ({"packing": "greedy", "tokens": 8190}, "data.tokens"),
    ({"packing": "greedy", "padded": True}, "data.padded"),
])  # fmt: skip
def test_what_no_flag_says_is_told(documents, data, said):
    assert any(line.startswith(said) for line in megatron(documents(data)).unsaid)
