"""Random scenarios whose ops have exchanges with experts on streams, or compute in several pieces."""

from random import Random
from typing import Any

SCHEDULES = ("1f1b", "1f1b", "interleaved-1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "dualpipe")


def stretched_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of 4 to 64 GPUs."""
    pipeline, tensor = rng.choice((1, 2, 2, 4)), rng.choice((1, 1, 2))
    expert = rng.choice((2, 4))
    data = expert * rng.choice((1, 2, 4))
    kind = rng.choice(SCHEDULES) if pipeline > 1 else "1f1b"
    schedule: dict[str, Any] = {"kind": kind, "microbatches": 2 * pipeline * rng.choice((1, 2, 3))}
    if kind == "interleaved-1f1b":
        schedule["chunks"] = 2
    if kind in ("1f1b", "interleaved-1f1b"):  # without, streams are not used
        schedule["pairs"] = True
    streams = rng.random() < 0.8
    ranks = tensor * pipeline * data
    width = rng.choice([n for n in (2, 4, 8) if n >= tensor and ranks % n == 0])
    return {
        "cluster": {"gpu": "h100", "nodes": ranks // width, "gpus_per_node": width},
        "model": {
            "kind": "transformer", "layers": 2 * pipeline * rng.choice((1, 2)), "hidden": 256, "heads": 8, "ffn": 512,
            "vocab": rng.choice((512, 4096)), "sequence": rng.choice((128, 256)),
            "experts": {"count": 8, "active": 2, "ffn": 256, "dense_layers": rng.choice((0, 1))},
        },
        "parallel": {"pipeline": pipeline, "tensor": tensor, "data": data, "expert": expert, "sequence": tensor > 1},
        "schedule": schedule,
        "experts": {
            "streams": streams,
            "multiprocessors": rng.choice((0, 20, 40)),
            **({"delay_weight": rng.random() < 0.5} if streams else {}),
        },
        "gradients": {
            "algorithm": rng.choice(("ring", "ring", "halving-doubling", "hierarchical")),
            "overlap": rng.random() < 0.5, "codec": "bf16",
        },
        "sharding": rng.choice(("none", "none", "zero-1")),
        "tensor_traffic": rng.choice(("replay", "replay", "auto")),
        "steps": rng.choice((1, 1, 2, 3)),
        "barrier": rng.random() < 0.7,
    }  # fmt: skip
