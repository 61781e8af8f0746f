"""Random scenarios of models whose tensor and context ranks may do the same."""

from random import Random
from typing import Any

from support.foldings import ALL_REDUCES, ORDERS, SCHEDULES


def model_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of 2 to 64 GPUs that share layers."""
    tensor, context = rng.choice((1, 2, 2, 4, 8)), rng.choice((1, 1, 1, 2, 4))
    if tensor * context == 1:
        tensor = 2
    pipeline, data = rng.choice((1, 2, 2, 4)), rng.choice((1, 2, 4, 8))
    data = max(1, min(data, 64 // (tensor * context * pipeline)))
    width = rng.choice([n for n in (2, 4, 8, 8) if n >= rng.choice((1, tensor))] or [8])
    experts = rng.random() < 0.2
    chunks = rng.choice((1, 1, 2))
    kind = rng.choice(SCHEDULES) if pipeline > 1 and rng.random() < 0.3 else "1f1b"
    schedule: dict[str, Any] = {"kind": kind, "microbatches": rng.choice((1, 2)) * 2 * pipeline}
    if kind in ("interleaved-1f1b", "looped-bfs"):
        schedule["chunks"] = 2
    elif chunks == 2 and pipeline > 1 and kind == "1f1b":
        schedule |= {"kind": "interleaved-1f1b", "chunks": 2}
    values: dict[str, Any] = {
        "cluster": _cluster(rng, -(-tensor * context * pipeline * data // width), width),
        "model": {
            "layers": 16, "hidden": 256, "heads": 8, "ffn": 512, "vocab": rng.choice((1024, 1000)), "sequence": 256,
            **({"experts": {"count": 8, "active": 2, "ffn": 128}} if experts else {}),
        },
        "parallel": {
            "tensor": tensor, "context": context, "pipeline": pipeline, "data": data, "order": rng.choice(ORDERS),
            "sequence": rng.random() < 0.5, "context_method": rng.choice(("ring", "all-gather")),
        },
        "schedule": schedule,
        "gradients": {"algorithm": rng.choice(ALL_REDUCES), "overlap": rng.random() < 0.5, "codec": "bf16"},
        "tensor_traffic": rng.choice(("auto", "replay")),
        "steps": rng.choice((1, 1, 2)),
        "barrier": rng.random() < 0.7,
    }  # fmt: skip
    if rng.random() < 0.5:
        values["gradients"]["pad"] = True
    if rng.random() < 0.3:
        values["gradients"]["bucket"] = rng.choice((100_000, 1_000_000))
    if values["gradients"]["algorithm"] == "ring" and rng.random() < 0.4:
        values["sharding"] = rng.choice(("zero-1", "zero-1", "zero-3"))
        values["overlap"] = {"parameters": rng.random() < 0.5}
        if pipeline == 1:
            values["gradients"].pop("bucket", None)
    return values


def spanning_values(rng: Random) -> dict[str, Any]:
    """The sections of a small random scenario under `fair` whose tensor ranks span nodes and send messages."""
    tensor, pipeline = rng.choice((2, 4, 4, 4, 8)), rng.choice((1, 2, 2, 3))
    data = rng.choice([n for n in (1, 2, 2, 2, 4, 4, 8) if n == 1 or n * tensor * pipeline <= 24])
    width = rng.choice([n for n in (1, 2, 2, 4) if n < tensor])
    kind = rng.choice(SCHEDULES) if pipeline > 1 and rng.random() < 0.7 else "1f1b"
    schedule: dict[str, Any] = {"kind": kind, "microbatches": 2 * pipeline}
    if kind in ("interleaved-1f1b", "looped-bfs", "hanayo"):
        schedule["chunks"] = 2
    cluster = _cluster(rng, -(-tensor * pipeline * data // width), width)
    cluster |= {"sharing": "fair", "topology": rng.choice(("nodes", "rails", "leaf-spine", "leaf-spine", "pcie"))}
    if cluster["topology"] == "leaf-spine":
        cluster |= {"leaf_size": rng.choice((1, 2)), "oversubscription": rng.choice((1, 2, 4))}
    else:
        cluster = {key: value for key, value in cluster.items() if key not in ("leaf_size", "oversubscription")}
    return {
        "cluster": cluster,
        "model": {
            "layers": 2 * pipeline * rng.choice((1, 1, 1, 1, 3)), "hidden": rng.choice((64, 96)), "heads": 8,
            "ffn": rng.choice((128, 1000)), "vocab": rng.choice((128, 1000)), "sequence": rng.choice((64, 100)),
        },
        "parallel": {
            "tensor": tensor, "pipeline": pipeline, "data": data, "order": rng.choice(ORDERS),
            "sequence": rng.random() < 0.5,
        },
        "schedule": schedule,
        "gradients": {
            "algorithm": rng.choice(ALL_REDUCES), "overlap": rng.random() < 0.5, "codec": "bf16",
            "pad": rng.random() < 0.7,
        },
        "tensor_traffic": rng.choice(("auto", "messages", "messages")),
        "barrier": rng.random() < 0.7,
    }  # fmt: skip


def _cluster(rng: Random, nodes: int, width: int) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "gpu": "h100",
        "nodes": nodes,
        "gpus_per_node": width,
        "infiniband": {"bandwidth": rng.choice(("25 GB/s", "1 GB/s")), "nics_per_node": rng.choice((1, 2, width))},
        "topology": rng.choice(("nodes", "nodes", "nodes", "rails", "leaf-spine", "pcie")),
        "sharing": rng.choice(("fifo", "fifo", "fair")),
    }
    if cluster["topology"] == "leaf-spine":
        cluster |= {"leaf_size": rng.choice((1, 2)), "oversubscription": rng.choice((1, 4))}
    return cluster
