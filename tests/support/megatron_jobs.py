"""Random small jobs of Megatron-LM, every value of which has a flag, and launch lines that are changed as users do."""

from collections.abc import Sequence
from random import Random
from typing import Any

from hybrid_des.interchange.frameworks.launch_line import flags_of
from hybrid_des.interchange.frameworks.megatron import read_megatron
from hybrid_des.scenario.composition import nested

GPU = "gb200"
SIZES = {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1408, "vocab": 32000, "sequence": 1024, "written": "megatron"}
EXPERTS = {"count": 8, "active": 2, "ffn": 704}


def megatron_job(rng: Random) -> dict[str, Any]:
    """A scenario as a mapping: dense or with experts, of random layout, schedule, sharding and recomputation."""
    model = SIZES | {
        "mlp": rng.choice(("gelu", "swiglu")),
        "attention": rng.choice(("flash", "flash", "plain")),
        "tied": rng.random() < 0.5,
    }
    sparse = rng.random() < 0.25
    parallel: dict[str, Any] = {axis: rng.choice((1, 2, 4)) for axis in ("tensor", "pipeline", "data")}
    parallel |= {
        "context": rng.choice((1, 1, 2)),
        "sequence": parallel["tensor"] > 1 and (sparse or rng.random() < 0.6),
    }
    pipelined = parallel["pipeline"] > 1
    sharding = rng.choice(("none", "zero-1", "zero-1") if pipelined else ("none", "zero-1", "zero-1", "zero-2"))
    holders = parallel["data"] * parallel["context"]
    if sparse and sharding != "zero-2":
        model |= {"experts": EXPERTS}
        parallel["expert"] = rng.choice([ranks for ranks in (1, 2, 4, 8) if holders % ranks == 0])
    schedule = {"microbatch_size": rng.choice((1, 2))}
    if pipelined:
        schedule |= rng.choice(({"kind": "interleaved-1f1b", "chunks": 2}, {"kind": "1f1b", "p2p": "blocking"}))
    overlap = rng.random() < 0.5
    gradients = {"codec": rng.choice(("fp32", "bf16")), "overlap": overlap, "pad": sharding == "zero-1"}
    if overlap and sharding != "zero-2":
        gradients["bucket_rule"] = "megatron"
    ranks = parallel["tensor"] * parallel["pipeline"] * holders
    return {
        "name": "scenario",
        "cluster": {"gpu": GPU, "nodes": -(-ranks // 8), "gpus_per_node": min(ranks, 8)},
        "model": model,
        "parallel": parallel,
        "batch": parallel["data"] * schedule["microbatch_size"] * rng.choice((4, 8)),
        "schedule": schedule,
        "precision": rng.choice(("bf16", "bf16", "fp8")),
        "recompute": rng.choice(("none", "selective", "full")),
        "sharding": sharding,
        "overlap": {"parameters": overlap and sharding != "none" and rng.random() < 0.7},
        "gradients": gradients,
    }


def read_back(line: str) -> dict[str, Any]:
    """What `init` reads from a line of flags, with the GPU, which none tells."""
    values = nested(read_megatron(line, "line").values)
    return {**values, "name": "scenario", "cluster": {**values["cluster"], "gpu": GPU}}


def changed_line(line: str, changes: Sequence[str]) -> str:
    """A line with the flags that advice changes: each replaced or added, and those to drop left out."""
    program, _, rest = line.partition(".py ")
    flags = flags_of(rest.split())
    for change in changes:
        if change.startswith("drop "):
            for flag in change.removeprefix("drop ").split(", "):
                del flags[flag]
        else:
            flags |= flags_of(change.split())
    return f"{program}.py {' '.join(' '.join([flag, *words]) for flag, words in flags.items())}"
