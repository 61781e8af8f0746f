"""Random valid scenarios, small enough to run in milliseconds, with every figure that a recount needs given."""

from random import Random
from typing import Any

LOOPS = ("1f1b", "gpipe", "eager-1f1b", "zb-h1", "zb-h2", "zb-auto")
MANY_CHUNKS = ("interleaved-1f1b", "looped-bfs", "hanayo")
FOLDED = ("dualpipe-v", "v-half", "v-min", "zb-v")
TWO_WAY = ("chimera", "dualpipe")
ALGORITHMS = ("ring", "ring", "ring", "halving-doubling", "recursive-doubling", "double-binary-tree", "hierarchical",
              "parameter-server", "in-switch", "auto")  # fmt: skip


def scenario(rng: Random) -> dict[str, Any]:
    """A scenario as a mapping of plain values."""
    kind = rng.choice((*LOOPS, *LOOPS, *MANY_CHUNKS, *FOLDED, *TWO_WAY))
    p, m, chunks = _sizes(kind, rng)
    d = rng.choice((1, 1, 2, 2, 3, 4)) if p <= 4 else rng.choice((1, 2))
    schedule: dict[str, Any] = {"kind": kind, "microbatches": m}
    if kind in MANY_CHUNKS:
        schedule["chunks"] = chunks
    if kind in ("dualpipe", "dualpipe-v"):
        schedule |= rng.choice(({}, {"fused": False}, {"fused_time": rng.choice((0.5, 0.75, 1))}))
    if kind in ("gpipe", "looped-bfs") and rng.random() < 0.5:
        schedule["backward_order"] = rng.choice(("fifo", "lifo"))
    if kind == "1f1b" and rng.random() < 0.3:
        schedule["p2p"] = "blocking"
    values = {
        "cluster": cluster(p * d, rng),
        "parallel": {"pipeline": p, "data": d},
        "schedule": schedule,
        "workload": workload(p, rng),
        "steps": rng.choice((1, 1, 2, 3)),
        "barrier": rng.random() < 0.6,
    }
    if rng.random() < 0.4:
        values["parallel"]["order"] = rng.sample(("tensor", "data", "pipeline"), 3)
    if d > 1 or kind in TWO_WAY:
        values["gradients"] = gradients(d, values["cluster"], rng)
    return values


def _sizes(kind: str, rng: Random) -> tuple[int, int, int]:
    """Pipeline ranks, micro-batches and chunks that a schedule supports."""
    if kind in TWO_WAY:
        p = rng.choice((2, 4))
        return p, 2 * p + rng.choice((0, 2, 4)) if kind == "dualpipe" else p * rng.choice((1, 2)), 1
    p = rng.choice((1, 2, 2, 3, 4, 4, 5)) if kind in LOOPS else rng.choice((2, 2, 3, 4))
    chunks = rng.choice((2, 4) if kind == "hanayo" else (1, 2, 3)) if kind in MANY_CHUNKS else 1
    if kind in ("zb-h2", *FOLDED):
        return p, 2 * p + rng.randrange(4), 2
    if kind in ("hanayo", "interleaved-1f1b"):
        return p, p * rng.choice((1, 2)), chunks
    return p, rng.choice((1, p, p + 1, 2 * p, 2 * p + 1)), chunks


def cluster(ranks: int, rng: Random) -> dict[str, Any]:
    """A machine with room for the ranks."""
    per_node = rng.choice([n for n in (1, 2, 3, 4, 8) if n <= max(ranks, 1)])
    nodes = -(-ranks // per_node)
    topology = rng.choice(("nodes", "nodes", "nodes", "leaf-spine", "rails", "pcie", "ring", "mesh", "links"))
    values: dict[str, Any] = {
        "gpu": {"name": "custom", "memory": "80 GB"},
        "nodes": nodes,
        "gpus_per_node": per_node,
        "topology": topology,
        "sharing": rng.choice(("fifo", "fifo", "fair")),
        "infiniband": {**_link(rng), "nics_per_node": rng.choice([n for n in (1, 2, 4) if n <= per_node])},
    }
    if topology != "pcie":
        values["nvlink"] = {**_link(rng), "in_switch": rng.random() < 0.3}
    else:
        values |= {"pcie": _link(rng), "gpus_per_switch": rng.choice((1, 2, 4))}
    if topology == "leaf-spine":
        values |= {"leaf_size": rng.choice((1, 2)), "oversubscription": rng.choice((1, 2, 4))}
    if topology == "rails":
        values["cross_rail"] = rng.choice(("nvlink", "spine"))
    if topology == "nodes" and per_node == 4 and not values["nvlink"]["in_switch"]:
        values["topology"] = topology = "direct"
    if topology == "links":
        del values["infiniband"], values["nvlink"]
        values |= {"nodes": 1, "gpus_per_node": ranks, "links": _wires(ranks, rng)}
    elif topology in ("nodes", "leaf-spine") and rng.random() < 0.2:
        values["nodes"] = [{"count": 1, "speed": rng.choice((0.5, 2, 0.8))} for _ in range(nodes)]
    return values


def _link(rng: Random) -> dict[str, Any]:
    bandwidth = rng.choice(("inf", "1 GB/s", "3 GB/s", "10 GB/s", "25 GiB/s", "200 Gb/s", "123456789 B/s"))
    return {"bandwidth": bandwidth, "latency": rng.choice((0, "1 us", "7 us", "1 ms", "333 ns"))}


def _wires(ranks: int, rng: Random) -> list[dict[str, Any]]:
    """A random tree of wires, and a few more."""
    ends = [(rng.randrange(i), i) for i in range(1, ranks)]
    ends += [pair for pair in {(rng.randrange(i), i) for i in range(1, ranks)} - set(ends) if rng.random() < 0.5]
    if not ends:
        return [{"between": ["gpu0", "hub"], **_link(rng)}]
    return [{"between": [f"gpu{a}", f"gpu{b}"], **_link(rng)} for a, b in ends]


def workload(p: int, rng: Random) -> dict[str, Any]:
    """Times, sizes and memory."""

    def each(*pool: str | int | float) -> Any:
        return [rng.choice(pool) for _ in range(p)] if per == "rank" and rng.random() < 0.3 else rng.choice(pool)

    per = rng.choice(("rank", "rank", "rank", "model"))
    values: dict[str, Any] = {
        "per": per,
        "forward": each("12 ms", "6 ms", "1 ms", "7 us", "0.5 ms"),
        "backward": each("24 ms", "12 ms", "18 ms", "13 ms"),
        "optimizer": rng.choice((0, 0, each("1 ms", "2 ms", "5 us"))),
        "activation": each(0, "1 MB", "64 KiB", "12 MB", "1000001 B"),
        "parameters": each(0, 1000, "1e6", 999_999),
        "memory": {"per_parameter": rng.choice(("16 B", "2 B", 0)), "activation": each(0, "1 GB", "12 MB")},
    }
    if rng.random() < 0.5:
        values["weight"] = rng.choice(("6 ms", "40 %", "0 %", "100 %", "8 ms"))
    if rng.random() < 0.3:
        values["recompute"] = rng.choice((0, 0.5, 1, 0.25))
    if rng.random() < 0.3:
        values["ends"] = {"forward": rng.choice((0, "2 ms")), "backward": rng.choice((0, "3 ms"))}
    return values


def gradients(d: int, machine: dict[str, Any], rng: Random) -> dict[str, Any]:
    """A reduction."""
    values: dict[str, Any] = {
        "algorithm": rng.choice(ALGORITHMS),
        "codec": rng.choice(("fp32", "fp32", "fp64", "fp16", "bf16", "int8", "fp4", "top-k")),
        "overlap": rng.random() < 0.5,
        "bucket_rule": rng.choice(("stage", "stage", "ddp", "megatron")),
    }
    if rng.random() < 0.5:
        values["bucket"] = rng.choice(("100 kB", "1 MB", "333333 B"))
    if values["algorithm"] == "parameter-server" and rng.random() < 0.5:
        values["servers"] = rng.randint(1, d)
    if values["algorithm"] == "ring" and rng.random() < 0.6:
        values["channels"] = rng.choice((1, 1, 2, 3))
    return values
