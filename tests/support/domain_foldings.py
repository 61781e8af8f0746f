"""Random scenarios of several nodes whose ranks may do the same within each node, on channels of their own."""

from random import Random
from typing import Any

from support.foldings import ORDERS


def domain_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of 8 to 48 GPUs, with or without experts, whose replicas span nodes."""
    width = rng.choice((2, 4, 4, 8))
    pipeline, nodes = rng.choice((1, 1, 2, 3)), rng.choice((2, 2, 3, 4))
    nodes = min(nodes, 48 // (width * pipeline))
    data = width * max(2, nodes)
    experts = rng.random() < 0.6
    layout = {"pipeline": pipeline, "data": data, "order": rng.choice(ORDERS)}
    model: dict[str, Any] = {
        "layers": 2 * pipeline, "hidden": rng.choice((64, 96)), "heads": 8, "ffn": rng.choice((128, 192)),
        "vocab": rng.choice((128, 1000)), "sequence": rng.choice((64, 100)),
    }  # fmt: skip
    if experts:
        layout["expert"] = rng.choice([size for size in (2, 4, 8) if size <= width])
        model["experts"] = {"count": 8, "active": 2, "ffn": 64}
    algorithm = rng.choice(("nccl", "nccl", "ring", "ring", "hierarchical"))
    values: dict[str, Any] = {
        "cluster": {
            "gpu": rng.choice(("a100-80gb", "h100")), "nodes": pipeline * data // width, "gpus_per_node": width,
            "infiniband": {
                "bandwidth": rng.choice(("25 GB/s", "1 GB/s")),
                "nics_per_node": rng.choice([count for count in (1, 2, 4, 8) if count <= width]),
            },
            "sharing": rng.choice(("fifo", "fifo", "fair")), "topology": rng.choice(("nodes", "nodes", "rails")),
        },
        "model": model,
        "parallel": layout,
        "schedule": {"kind": "1f1b", "microbatches": rng.choice((1, 2)) * pipeline},
        "gradients": {
            "algorithm": algorithm, "overlap": rng.random() < 0.6, "codec": "bf16", "pad": rng.random() < 0.9,
            **({"bucket": rng.choice((20_000, 200_000))} if rng.random() < 0.5 else {}),
        },
        "sharding": rng.choice(("none", "zero-1")) if algorithm != "hierarchical" else "none",
        "steps": rng.choice((1, 2)),
        "barrier": rng.random() < 0.7,
    }  # fmt: skip
    if experts:
        values["experts"] = {"dispatcher": rng.choice(("all-to-all", "per-node"))}
        values["tensor_traffic"] = rng.choice(("messages", "messages", "replay"))
        if rng.random() < 0.2:
            values["experts"]["concentration"] = 2
    return values
