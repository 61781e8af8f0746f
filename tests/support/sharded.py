"""Scenarios of four replicas whose optimizer, gradients or weights are sharded over links of 1 GB/s."""

from hybrid_des import load
from support import scenarios

MS = 10**9  # picoseconds
GBPS = {"bandwidth": "1 GB/s", "latency": 0}
PARAMETERS = 10**6  # of a rank; among four ranks a ring needs 3 ms to scatter 4 bytes each, 1.5 ms to gather 2
SHARDED = ("zero-1", "zero-2", "zero-3")

MIXTURE = {
    "kind": "transformer", "layers": 4, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024, "sequence": 64,
    "experts": {"count": 8, "active": 2, "ffn": 512},
}  # fmt: skip


def scenario(sharding="none", kind="1f1b", p=1, m=2, d=4, ahead=None, **sections):
    base = {
        "cluster": {"nvlink": GBPS, "infiniband": GBPS},
        "workload": {"forward": "2 ms", "backward": "4 ms", "parameters": PARAMETERS},
        "sharding": sharding,
        "overlap": {} if ahead is None else {"parameters": ahead},
    }
    return scenarios.scenario(kind, p, m, d, **scenarios.merged(base, sections))


def waits(result, rank=0):
    rows = result.timeline.waits
    mine = rows["rank"] == rank
    return list(zip(rows["start"][mine].tolist(), rows["end"][mine].tolist(), strict=True))


GPT = {
    "kind": "transformer", "layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "mlp": "gelu", "vocab": 8192,
    "sequence": 1024,
}  # fmt: skip


def gpt(sharding="zero-3", model=GPT, **sections):
    parallel = {"data": 4, **sections.pop("parallel", {})}
    schedule = {"kind": "1f1b", "microbatches": 2, **sections.pop("schedule", {})}
    return load({"model": model, "parallel": parallel, "schedule": schedule, "sharding": sharding, **sections})
