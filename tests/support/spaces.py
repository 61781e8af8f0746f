"""Random small spaces of plans, and random scenarios with a model, for searches."""

from random import Random
from typing import Any

from hybrid_des.pipeline import schedules
from hybrid_des.scenario.strict_yaml import Document
from hybrid_des.studies.plan_search.terms import settings_of

TINY = {"layers": 4, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1000, "sequence": 512}
WITH_EXPERTS = {**TINY, "experts": {"count": 4, "active": 2, "ffn": 256}}
CUSTOM = {"memory": "4 GB", "peak": "1 TFLOP/s", "bandwidth": "100 GB/s", "multiprocessors": 8}
EFFICIENCY = {"gemm": 0.5, "attention": 0.5, "memory": 0.5}


def of_workload(gpus: int = 4, **sections: Any) -> dict[str, Any]:
    """A scenario with the times of a whole model, as a mapping."""
    return {
        "cluster": {"gpu": {"memory": "4 GB"}, "nodes": max(1, gpus // 4), "gpus_per_node": min(gpus, 4)},
        "parallel": {"pipeline": 2, "data": gpus // 2},
        "schedule": {"kind": "gpipe", "microbatches": 8},
        "workload": {
            "per": "model", "forward": "12 ms", "backward": "24 ms", "activation": "4 MB", "parameters": 4e7,
            "memory": {"activation": "400 MB"},
        },
    } | sections  # fmt: skip


def of_model(gpus: int = 8, **sections: Any) -> dict[str, Any]:
    """A scenario with a tiny model, as a mapping."""
    return {
        "cluster": {"gpu": CUSTOM, "nodes": max(1, gpus // 4), "gpus_per_node": min(gpus, 4)},
        "efficiency": EFFICIENCY,
        "model": TINY,
        "parallel": {"data": gpus},
        "batch": 16,
        "schedule": {"kind": "1f1b"},
        "gradients": {"codec": "bf16"},
    } | sections


def settings(values: dict[str, Any], **block: Any) -> Any:
    """The settings of a search in a scenario given as a mapping."""
    return settings_of(Document({**values, "search": block}, "scenario"))


def random_space(rng: Random, kinds: list[str]) -> dict[str, Any]:
    """A scenario with a search over all layouts, some schedules, and what it does not state."""
    axes: list[Any] = ["parallel", {"schedule.kind": kinds}]
    if rng.random() < 0.5:
        values = of_workload(rng.choice((4, 8)))
        values["workload"]["forward"] = rng.choice(("12 ms", "3 ms", "40 ms"))
        values["workload"]["activation"] = rng.choice((0, "1 MB", "40 MB"))
        values["schedule"]["microbatches"] = rng.choice((4, 6, 8))
    else:
        values = of_model(rng.choice((4, 8)))
        if rng.random() < 0.3:
            values["model"] = WITH_EXPERTS
        values["parallel"] = {"data": 4, "sequence": rng.random() < 0.5}
        axes += [{"schedule.microbatch_size": [1, 2]}, {"parallel.context": [1]}]
        axes += [{"sharding": rng.sample(("none", "zero-1", "zero-2", "zero-3"), 2)}]
    values["cluster"] = {
        **values["cluster"],
        "topology": rng.choice(("nodes", "leaf-spine", "rails", "pcie", "mesh", "ring")),
        "sharing": rng.choice(("fifo", "fifo", "fair")),
        "infiniband": {"nics_per_node": rng.choice((1, 4)), "bandwidth": rng.choice(("1 GB/s", "25 GB/s"))},
    }
    if values["cluster"]["topology"] == "rails":
        values["cluster"]["infiniband"]["nics_per_node"] = 4
    overlap = rng.random() < 0.5
    values["gradients"] = {**values.get("gradients", {}), "overlap": overlap}
    memory = rng.choice((None, "700 MB", "1500 MB"))
    search = {"axes": axes, "top": rng.choice((1, 3)), "front": rng.random() < 0.3}
    return {**values, "search": search if memory is None else {**search, "memory": memory}}


def random_model(rng: Random) -> dict[str, Any]:
    """A scenario with a tiny model, layout, sharding and overlap at random, as a mapping."""
    p, d, t, c = rng.choice((1, 1, 2, 4)), rng.choice((1, 2, 4)), rng.choice((1, 2)), rng.choice((1, 1, 2))
    with_experts = rng.random() < 0.3
    sharding = rng.choice(("none", "zero-1", "zero-2", "zero-3"))
    once = sharding in ("none", "zero-1")
    kind = rng.choice(schedules.names() if p > 1 else ["1f1b", "zb-h1", "gpipe"])
    chunks = {"chunks": 2} if kind in ("interleaved-1f1b", "looped-bfs", "hanayo") else {}
    ahead, overlap = rng.random() < 0.5, rng.random() < 0.5
    values = of_model(
        8 if p * d * t * c <= 8 else p * d * t * c,
        model=WITH_EXPERTS if with_experts else TINY,
        parallel={"pipeline": p, "data": d, "tensor": t, "context": c, "sequence": rng.random() < 0.5},
        schedule={"kind": kind, "microbatches": 2 * max(p, 2), **chunks},
        recompute=rng.choice(("none", "selective", "full")),
        sharding=sharding,
        overlap={
            "weight_gradients": rng.random() < 0.5,
            **({} if sharding == "none" else {"parameters": ahead or (overlap and sharding == "zero-3")}),
        },
        gradients={
            "overlap": overlap,
            "codec": rng.choice(("fp32", "bf16", "fp16")),
            "fused": rng.random() < 0.5,
        },
        steps=rng.choice((1, 1, 2)),
        barrier=rng.random() < 0.8,
        tensor_traffic=rng.choice(("replay", "messages", "auto") if once or p > 1 else ("replay", "auto")),
    )
    del values["batch"]
    if with_experts:
        values["parallel"]["expert"] = rng.choice([e for e in (1, 2, 4) if d * c % e == 0])
    if once:
        values["gradients"] |= {"bucket": rng.choice(("none", "200 kB")), "bucket_rule": rng.choice(("stage", "ddp"))}
    values["cluster"] |= {"topology": rng.choice(("nodes", "leaf-spine")), "sharing": rng.choice(("fifo", "fair"))}
    return values
