"""Jobs on which advice is asked: good plans, which one move makes worse, and plans better than which there is much."""

from collections.abc import Iterator
from typing import Any

from hybrid_des.scenario.definition import Scenario
from support.paths import SCENARIOS

ZERO_1 = {
    "sharding": "zero-1",
    "gradients": {"overlap": True, "bucket_rule": "megatron", "pad": True},
    "overlap": {"parameters": True},
}


def of_megatron(base: str, nodes: int, batch: int, parallel: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A job of Megatron-LM with its distributed optimizer, by default on nodes of eight H100s, as a mapping."""
    plain = {"kind": "1f1b", "p2p": "blocking"} if parallel.get("pipeline", 1) > 1 else {"kind": "1f1b"}
    return {
        "cluster": {"gpu": "h100", "nodes": nodes},
        "model": {"base": base, "sequence": 4096, "written": "megatron"},
        "parallel": parallel,
        "batch": batch,
        "schedule": plain,
        **ZERO_1,
    } | sections


def virtual(chunks: int) -> dict[str, Any]:
    """An interleaved schedule."""
    return {"kind": "interleaved-1f1b", "chunks": chunks}


GOOD = {
    "quarter of a 7B": of_megatron(
        "llama2-7b", 1, 32, {"tensor": 2, "sequence": True, "pipeline": 2, "data": 2},
        model={"base": "llama2-7b", "layers": 8, "sequence": 4096}, schedule={"kind": "1f1b", "microbatch_size": 2},
    ),
    "7B, replicas": of_megatron(
        "llama2-7b", 1, 64, {"data": 8}, model={"base": "llama2-7b", "layers": 16, "sequence": 4096},
        schedule={"kind": "1f1b", "microbatch_size": 2},
    ),
    "7B, pipeline": of_megatron("llama2-7b", 1, 32, {"pipeline": 4, "data": 2}, schedule=virtual(4)),
    "7B on two nodes": of_megatron(
        "llama2-7b", 2, 64, {"tensor": 2, "sequence": True, "data": 8}, cluster={"gpu": "a100-80gb", "nodes": 2},
    ),
    "13B": of_megatron("llama2-13b", 4, 256, {"pipeline": 2, "data": 16}, schedule=virtual(20)),
    "70B": of_megatron("llama2-70b", 16, 512, {"tensor": 4, "sequence": True, "pipeline": 8, "data": 4}),
    "Mixtral": of_megatron(
        "mixtral-8x7b", 2, 64, {"data": 16, "expert": 8},
        model={"base": "mixtral-8x7b", "layers": 4, "written": "megatron"},
    ),
    "FSDP": {
        "cluster": {"gpu": "h100", "nodes": 1},
        "model": {"base": "llama3.1-8b", "written": "pytorch", "sequence": 4096},
        "parallel": {"data": 8}, "batch": 32, "schedule": {"kind": "1f1b", "microbatch_size": 2},
        "sharding": "zero-3", "gradients": {"overlap": True}, "overlap": {"parameters": True},
    },
    "GPT-2": {
        "cluster": {"gpu": "a100-40gb", "nodes": 1}, "model": "gpt2", "parallel": {"data": 8}, "batch": 256,
        "schedule": {"microbatch_size": 8}, "gradients": {"overlap": True, "bucket_rule": "megatron"},
    },
    "BERT": {
        "cluster": {"gpu": "a100-40gb", "nodes": 2}, "model": "bert-large", "parallel": {"data": 16}, "batch": 512,
        "schedule": {"microbatch_size": 16}, "gradients": {"overlap": True, "bucket_rule": "ddp"},
    },
    "vision": SCENARIOS / "vit-l_8.yaml",
    "70B, published": SCENARIOS / "llama3.1-70b_128.yaml",
}  # fmt: skip


def worsened(good: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    """Single moves that a good plan hardly gains by, with their settings; the batch stays."""
    parallel, schedule = good.parallel, good.schedule
    if good.recompute == "none":
        yield "recompute everything", {"recompute": "full"}
    if parallel.data % 2 == 0:
        tensor = {"parallel.tensor": 2 * parallel.tensor, "parallel.sequence": True}
        yield "twice as many tensor ranks", {**tensor, "parallel.data": parallel.data // 2}
    if schedule.microbatch_size % 2 == 0:
        yield "half a micro-batch", {"schedule.microbatch_size": schedule.microbatch_size // 2}
    if good.gradients.overlap:
        yield "no overlap", {"gradients.overlap": False, "overlap.parameters": None}
    if good.sharding != "none":
        yield "no sharding", {"sharding": "none", "overlap.parameters": None}
    if schedule.virtual:
        yield "no virtual stages", {"schedule.kind": "1f1b", "schedule.chunks": None}


SLOW_13B = of_megatron(  # as a launch script starts it
    "llama2-13b", 4, 256, {"tensor": 4, "sequence": True, "pipeline": 2, "data": 4},
    schedule={"kind": "1f1b", "p2p": "blocking", "microbatch_size": 1}, recompute="selective",
)  # fmt: skip
SLOW_70B = of_megatron(  # github.com/NVIDIA/Megatron-LM/issues/1031; its batch is not stated there
    "llama2-70b", 16, 512, {"tensor": 8, "sequence": True, "pipeline": 8, "data": 2},
    schedule={"kind": "1f1b", "p2p": "blocking", "microbatch_size": 1}, recompute="full",
)  # fmt: skip
