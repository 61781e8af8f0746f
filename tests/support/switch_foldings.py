"""Random scenarios whose gradients pass switches that reduce, on one node or several: the nodes of a tree."""

from random import Random
from typing import Any

ORDERS = (["tensor", "data", "pipeline"], ["tensor", "pipeline", "data"])


def switched_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of 2 to 32 GPUs, on nodes that each have a switch."""
    width, pipeline = rng.choice((2, 4, 4, 8)), rng.choice((1, 1, 2))
    nodes = rng.choice((1, 2, 2, 3, 4)) * (pipeline if rng.random() < 0.5 else 1)
    data = nodes * width // pipeline
    size = rng.choice((2**14, 2**20, 2**21, 3 * 2**20, 2**22, 2**22))  # gradients, so that the tuner takes either
    values: dict[str, Any] = {
        "cluster": _cluster(rng, nodes, width),
        "parallel": {"pipeline": pipeline, "data": data, "order": rng.choice(ORDERS)},
        "schedule": {"kind": "1f1b", "microbatches": rng.choice((1, 2, 4))},
        "workload": {
            "forward": f"{rng.choice((0, 1, 20))} us",
            "backward": f"{rng.choice((2, 11, 40))} us",
            "activation": rng.choice((0, 1000, 2**20)),
            "parameters": size + rng.choice((0, 0, 0, 8)),
        },
        "gradients": {
            "algorithm": rng.choice(("nccl", "nccl", "nccl", "in-switch")) if nodes == pipeline else "nccl",
            "codec": rng.choice(("bf16", "fp32")),
            "overlap": rng.random() < 0.6,
            **({"bucket": rng.choice((2**18, 2**21, 2**22, 3 * 10**6))} if rng.random() < 0.5 else {}),
            **({"pad": True} if rng.random() < 0.2 else {}),
        },
        "steps": rng.choice((1, 1, 2)),
        "barrier": rng.random() < 0.7,
    }  # fmt: skip
    return values


def _cluster(rng: Random, nodes: int, width: int) -> dict[str, Any]:
    cluster = {
        "gpu": rng.choice(("h100", "b200")),
        "nodes": nodes,
        "gpus_per_node": width,
        "infiniband": {"nics_per_node": rng.choice((width, width, width, width, max(1, width // 2)))},
        "sharing": rng.choice(("fifo", "fair")),
        "topology": rng.choice(("nodes", "nodes", "rails", "rails", "leaf-spine")),
    }
    if rng.random() < 0.3:
        cluster["nvlink"] = {"bandwidth": "400 GB/s", "latency": rng.choice(("0 s", "2 us"))}
        cluster["infiniband"] |= {"bandwidth": "40 GB/s", "latency": rng.choice(("0 s", "2 us"))}
    if cluster["topology"] == "leaf-spine":
        cluster["leaf_size"] = rng.choice((1, 2))
    return cluster


def switched_layers(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of 4 to 64 GPUs whose tensor ranks exchange messages, perhaps with switches."""
    tensor, data, pipeline = rng.choice((4, 8, 8)), rng.choice((2, 2, 4)), rng.choice((1, 1, 2))
    width = rng.choice((4, 8)) if tensor < 8 else 8
    return {
        "cluster": {
            "gpu": rng.choice(("h100", "b200")),
            "nodes": -(-tensor * data * pipeline // width),
            "gpus_per_node": width,
            "sharing": rng.choice(("fifo", "fair")),
        },
        "model": {
            "layers": 2 * pipeline, "hidden": rng.choice((1024, 4096, 8192)), "heads": 16, "ffn": 8192, "vocab": 4096,
            "sequence": rng.choice((512, 1024, 4096)),
        },
        "parallel": {
            "tensor": tensor, "data": data, "pipeline": pipeline, "sequence": rng.random() < 0.2,
            "order": rng.choice(ORDERS),
        },
        "batch": rng.choice((1, 2)) * data * pipeline,
        "schedule": {"kind": "1f1b"},
        "gradients": {
            "algorithm": rng.choice(("ring", "nccl", "halving-doubling", "hierarchical")), "codec": "bf16",
            "overlap": rng.random() < 0.5, "pad": True, **({"bucket": "4 MB"} if rng.random() < 0.3 else {}),
        },
        "tensor_traffic": "messages",
    }  # fmt: skip
