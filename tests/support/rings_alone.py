"""Random scenarios whose gradients go around long rings, mostly while nothing else uses their links."""

from random import Random
from typing import Any

# replicas, GPUs and adapters per node, channels: rings long enough to be taken alone (`collectives_alone.FEWEST`)
LONG = ((33, 1, 1, 1), (36, 4, 2, 1), (40, 8, 1, 1), (20, 4, 4, 2), (8, 8, 8, 5), (16, 4, 4, 4), (16, 8, 8, None))


def ring_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of 8 to 80 GPUs."""
    data, width, adapters, channels = rng.choice(LONG)
    pipeline = rng.choice((1, 1, 2))
    nodes = data // width * pipeline
    chunks = rng.choice((1, 1, 1, 2)) if pipeline > 1 else 1
    schedule = {"kind": "interleaved-1f1b", "chunks": 2} if chunks > 1 else {"kind": rng.choice(("1f1b", "gpipe"))}
    return {
        "cluster": {
            "nodes": nodes,
            "gpus_per_node": width,
            "nvlink": {"bandwidth": rng.choice(("4 GB/s", "40 GB/s")), "latency": rng.choice((0, "10 ns", "300 ns"))},
            "infiniband": {"bandwidth": rng.choice(("1 GB/s", "25 GB/s")), "latency": rng.choice(("10 ns", "2 us")),
                           "nics_per_node": adapters},
        },
        "parallel": {"pipeline": pipeline, "data": data, "order": ["tensor", "data", "pipeline"]},
        "schedule": {**schedule, "microbatches": 2 * pipeline},
        "workload": {"forward": rng.choice(("1 us", "7 us")), "backward": "50 us",
                     "activation": rng.choice((0, 1000, 100_000)), "parameters": data * rng.choice((200, 9000))},
        "gradients": {
            "algorithm": rng.choice(("ring", "ring", "nccl")), "channels": channels, "pad": True,
            "overlap": rng.random() < 0.5, **rng.choice(({}, {}, {"bucket": 4 * data * 100})),
        },
        "sharding": rng.choice(("none", "none", "zero-1")),
        "steps": rng.choice((1, 1, 2)),
        "record": "compute",
    }  # fmt: skip
