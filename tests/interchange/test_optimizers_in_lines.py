"""Optimizers and groups that shard, as flags of Megatron-LM: what is read is what was written."""

import pytest

from hybrid_des.interchange.frameworks import megatron, torchtitan
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN
from hybrid_des.scenario.composition import nested
from hybrid_des.scenario.loading import load, scenario_from

RUN = (
    "torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 2048 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 "
)
FSDP = (
    "--use-megatron-fsdp --no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor "
    "--untie-embeddings-and-output-weights --data-parallel-sharding-strategy "
)


def read(flags):
    """The values of a line, and the lines that are said of it."""
    found = read_megatron(RUN + flags, "line")
    scenario_from({**nested({**found.values, "cluster.gpu": "h100"}), "name": "line"})
    return found


def again(launch):
    """The scenario of a written line."""
    values = nested(read_megatron(f"{launch.program} {' '.join(launch.flags)}", "line").values)
    return scenario_from({**values, "cluster": {**values["cluster"], "gpu": "h100"}, "name": "line"})


@pytest.mark.parametrize(
    ("flags", "kind", "muon"),
    [
        ("--optimizer lion", "lion", None),
        ("--optimizer muon --muon-num-ns-steps 7 --muon-use-syrk", "muon",
         {"iterations": 7, "symmetric": True, "layout": "duplicated"}),
        ("--optimizer muon --muon-tp-mode layer_sharded --muon-no-split-qkv", "muon",
         {"layout": "layer-sharded", "joined": True}),
        ("--optimizer muon --muon-tp-mode blockwise", "muon", {"layout": "blockwise"}),
        ("--optimizer dist_muon", "muon", {}),
    ],
)  # fmt: skip
def test_an_optimizer_is_read(flags, kind, muon):
    found = read(flags)
    assert (found.values["optimizer.kind"], found.values.get("optimizer.muon")) == (kind, muon)
    assert not [line for line in (*found.unmodelled, *found.unread) if "--optimizer" in line or "muon" in line]


def test_dist_muon_divides_matrices_among_replicas():
    assert read("--optimizer dist_muon").values["sharding"] == "zero-1"
    assert read("--optimizer muon").values["sharding"] == "none"


def test_the_default_of_muons_layout_is_said_to_have_changed():
    changed = "the default of --muon-tp-mode since August 2026; before, it was blockwise"
    said = f"optimizer.muon.layout: duplicated: {changed}"
    assert said in read("--optimizer muon --tensor-model-parallel-size 2").assumed
    assert said not in read("--optimizer muon --tensor-model-parallel-size 2 --muon-tp-mode duplicated").assumed
    assert said not in read("--optimizer muon").assumed


def test_an_unknown_layout_of_matrices_is_named():
    striped = read_megatron(f"{RUN} --optimizer muon --muon-tp-mode striped", "line")
    assert striped.values["optimizer.muon"]["layout"] == UNKNOWN
    assert any('unknown "striped"' in line for line in striped.unread)
    divided = read("--optimizer dist_muon --muon-tp-mode distributed --tensor-model-parallel-size 2")
    assert any(line.startswith("--muon-tp-mode distributed") for line in divided.unmodelled)


def test_a_copy_in_fp32_takes_the_bits_that_weights_lack():
    aware = "--use-distributed-optimizer --use-precision-aware-optimizer "
    assert read(aware).values["optimizer.state"] == {"master": "remainder"}
    for whole in ("--no-store-param-remainders", "--optimizer-cpu-offload"):
        assert "optimizer.state" not in read(aware + whole).values


@pytest.mark.parametrize(
    ("flags", "sharding", "shards"),
    [
        ("optim_grads_params --num-distributed-optimizer-instances 4", "zero-3", {"ranks": 8}),
        ("optim_grads --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy no_shard", "zero-2",
         {"ranks": 16}),
        ("optim_grads_params --num-distributed-optimizer-instances 4 --outer-dp-sharding-strategy optim", "zero-3",
         {"ranks": 8, "outside": "zero-1"}),
        ("optim_grads_params --pipeline-model-parallel-size 2", "zero-3", {"reshard": True}),
        ("optim_grads_params", "zero-3", {}),
    ],
)  # fmt: skip
def test_groups_that_shard_are_read(flags, sharding, shards):
    found = read(FSDP + flags)
    given = {path.removeprefix("shards."): value for path, value in found.values.items() if path.startswith("shards.")}
    assert (found.values["sharding"], given) == (sharding, shards)
    assert not [line for line in found.unmodelled if "instances" in line]


def test_instances_of_the_distributed_optimizer_alone_have_no_equal():
    found = read("--use-distributed-optimizer --num-distributed-optimizer-instances 4")
    assert any(line.startswith("--num-distributed-optimizer-instances") for line in found.unmodelled)
    found = read_megatron(f"{RUN} {FSDP} optim_grads --num-distributed-optimizer-instances 5", "line")
    assert found.values["shards.ranks"] == UNKNOWN
    assert any("32 data and context ranks cannot form 5 groups" in line for line in found.unread)


CHANGES = [
    {"optimizer": {"kind": "lion"}},
    {"optimizer": {"kind": "sgd", "state": {"first": "none"}}},
    {"optimizer": {"kind": "muon", "muon": {"layout": "distributed", "iterations": 3, "symmetric": True}}},
    {"optimizer": {"kind": "muon", "muon": {"layout": "layer-wise", "joined": True}}, "sharding": "zero-1"},
    {"optimizer": {"state": {"first": "bf16", "second": "bf16"}}, "sharding": "zero-1"},
    {"optimizer": {"state": {"master": "remainder", "first": "fp8"}}, "sharding": "zero-1"},
    {"sharding": "zero-3", "shards": {"ranks": 8}},
    {"sharding": "zero-2", "shards": {"ranks": 4, "outside": "zero-1"}},
    {"sharding": "zero-3", "shards": {"reshard": False}},
    {
        "sharding": "zero-3",
        "shards": {"ranks": 2, "reshard": True},
        "parallel": {"pipeline": 2, "data": 8},
        "schedule": {"kind": "1f1b", "p2p": "blocking"},
    },
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change)[:60])
def test_what_is_written_is_read(change):
    written = load({
        "model": {"layers": 12, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "sequence": 2048,
                  "written": "megatron"},
        "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 8},
        "parallel": {"data": 16}, "batch": 64, "name": "line", **change,
    })  # fmt: skip
    launch = megatron(written)
    assert not [line for line in launch.unsaid if "optimizer" in line or "shard" in line]
    assert not [line for line in launch.refused if "instances" in line]
    read = again(launch)
    for section in ("sharding", "shards"):
        assert getattr(read, section) == getattr(written, section)
    assert read.optimizer.iterations(read.sharding) == written.optimizer.iterations(written.sharding)
    for of in ("kind", "state_bytes", "beside_matrices"):
        assert getattr(read.optimizer, of) == getattr(written.optimizer, of)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ({"kind": "adam-8bit"}, "optimizer.kind: adam-8bit"),
        ({"kind": "signum"}, "optimizer.kind: signum"),
        ({"state": {"second": "8-bit"}}, "optimizer.state: {'second': '8-bit'}"),
        ({"state": 8}, "optimizer.state: 8 B"),
        ({}, ""),
    ],
)
def test_what_no_flag_says_is_listed(optimizer, said):
    written = load({
        "model": "llama3.1-8b", "cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": 8},
        "parallel": {"data": 8}, "batch": 8, "optimizer": optimizer,
    })  # fmt: skip
    assert [line for line in megatron(written).unsaid if "optimizer" in line] == ([said] if said else [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"optimizer": {"kind": "muon"}}, "optimizer.kind: muon: a configuration has Adam"),
        ({"optimizer": {"state": {"first": "bf16"}}}, "optimizer.state"),
        ({"sharding": "zero-3", "shards": {"ranks": 4, "outside": "zero-1"}}, "shards.outside: zero-1"),
    ],
)
def test_what_no_flag_of_torchtitan_says_is_listed(change, said):
    plain = {
        "model": {"base": "llama3-8b", "written": "pytorch"}, "cluster": {"gpu": "h100", "nodes": 1},
        "parallel": {"data": 8}, "batch": 8,
    }  # fmt: skip
    assert any(line.startswith(said) for line in torchtitan(load({**plain, **change})).unsaid)
    assert not any(line.startswith(said) for line in torchtitan(load(plain)).unsaid)


def test_settings_of_muon_that_take_no_time_are_without_effect():
    flags = "--muon-momentum 0.95 --muon-scale-mode spectral --muon-extra-scale-factor 0.2 --muon-use-nesterov"
    found = read(f"--optimizer muon --muon-fp32-matmul-prec medium {flags}")
    assert not [line for line in found.unread if "muon" in line]
    assert len([line for line in found.idle if "muon" in line]) == 5
