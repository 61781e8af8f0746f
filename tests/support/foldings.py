"""Random scenarios whose replicas may do the same, and what a folded run and an unfolded one of them differ in."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from hybrid_des.analysis.table import table
from hybrid_des.errors import HybridDesError
from hybrid_des.result import Result, simulate
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts.expansion import expanded

OWN = ("ranks_simulated", "wall_s", "events", "shortcuts")  # keys of a summary that are about the simulation itself
ORDERS = (["tensor", "data", "pipeline"], ["tensor", "data", "pipeline"], ["tensor", "pipeline", "data"])
SCHEDULES = (
    "1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v", "dualpipe", "hanayo", "looped-bfs", "chimera",
)  # fmt: skip
ALL_REDUCES = (
    *["ring"] * 2, *["hierarchical"] * 2, "halving-doubling", "recursive-doubling", "parameter-server",
    "double-binary-tree",
)  # fmt: skip


def scenario_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario of 2 to 64 GPUs in 2 to 16 replicas."""
    if rng.random() < 0.2:
        return tied_values(rng)
    pipeline = rng.choice((1, 1, 2, 2, 3, 4))
    data = rng.choice((2, 3, 4, 4, 6, 8, 8, 8, 12, 16))
    width = rng.choice((1, 2, 2, 4, 8))
    ranks = pipeline * data
    nodes = -(-ranks // width) + rng.choice((0, 0, 0, 1))
    algorithm = rng.choice(ALL_REDUCES)
    values = {
        "cluster": _cluster(rng, nodes, width),
        "parallel": {"pipeline": pipeline, "data": data, "order": rng.choice(ORDERS)},
        "schedule": _schedule(rng, pipeline),
        "workload": {
            "forward": f"{rng.choice((0, 1, 1, 2, 7))} us",
            "backward": f"{rng.choice((2, 2, 4, 11))} us",
            "activation": rng.choice((0, 1000, 1000, 4096, 12345)),
            "parameters": rng.choice((1, 60, 960, 960, 7680, 10000, 9973)),
            "optimizer": f"{rng.choice((0, 0, 1))} us",
        },
        "gradients": {"algorithm": algorithm, "overlap": rng.random() < 0.5},
        "steps": rng.choice((1, 1, 2, 3)),
        "barrier": rng.random() < 0.7,
    }  # fmt: skip
    values["gradients"]["codec"] = rng.choice(("fp32", "bf16", "int8"))
    if rng.random() < 0.4:
        values["gradients"]["bucket"] = rng.choice((500, 4000, 20000))
    if rng.random() < 0.3:
        values["gradients"]["bucket_rule"] = rng.choice(("ddp", "megatron", "stage"))
    if rng.random() < 0.3:
        values["gradients"]["pad"] = True
    if algorithm in ("hierarchical", "double-binary-tree") and rng.random() < 0.7:
        values["gradients"]["pieces"] = rng.choice((1, 2, 3, 4))
    if algorithm == "parameter-server" and rng.random() < 0.2:
        values["gradients"]["servers"] = rng.randint(1, data)
    if algorithm == "halving-doubling" and rng.random() < 0.5:
        values["gradients"]["partner"] = "farthest"
    if algorithm == "ring" and rng.random() < 0.3:
        values["sharding"] = rng.choice(("zero-1", "zero-1", "zero-2", "zero-3"))
        if values["sharding"] != "none":
            values["overlap"] = {"parameters": rng.random() < 0.5}
            if pipeline == 1:
                values["gradients"].pop("bucket", None)
    return values


def tied_values(rng: Random) -> dict[str, Any]:
    """The sections of a random scenario in which many messages reach a link at the same time."""
    pipeline, data, width = rng.choice((1, 2, 4)), rng.choice((4, 8)), rng.choice((2, 4))
    topology = rng.choice(({"topology": "nodes"}, {"topology": "rails"}, {"topology": "leaf-spine", "leaf_size": 2}))
    return {
        "cluster": {
            "nodes": -(-pipeline * data // width),
            "gpus_per_node": width,
            "nvlink": {"bandwidth": "1 GB/s", "latency": rng.choice(("0 s", "1 us"))},
            "infiniband": {"bandwidth": "1 GB/s", "latency": "1 us", "nics_per_node": 1},
            **topology,
        },
        "parallel": {"pipeline": pipeline, "data": data, "order": rng.choice(ORDERS)},
        "schedule": {"kind": "1f1b", "microbatches": rng.choice((1, 2, 4))},
        "workload": {
            "forward": "1 us",
            "backward": rng.choice(("1 us", "2 us")),
            "activation": rng.choice((1000, 2000)),
            "parameters": 250 * data * rng.choice((1, 2)),
        },
        "gradients": {
            "algorithm": rng.choice(ALL_REDUCES[1:-1]),
            "overlap": rng.random() < 0.5,
            "bucket": rng.choice((1000 * data, 4000 * data)),
        },
        "steps": rng.choice((1, 2)),
        "barrier": rng.random() < 0.7,
    }


def paired_values(rng: Random) -> dict[str, Any]:
    """The same, where DualPipe's ranks hold two stages, whose rings often end at the same time."""
    values = scenario_values(rng)
    pipeline, gradients = values["parallel"].get("pipeline", 1), values["gradients"]
    if pipeline % 2 == 0:
        values["schedule"] = {"kind": "dualpipe", "microbatches": 2 * pipeline, "p2p": "blocking"}
    for key in ("pieces", "servers", "partner"):
        gradients.pop(key, None)
    gradients["algorithm"] = "ring"
    values["workload"]["optimizer"] = "0 us"
    return values


def _cluster(rng: Random, nodes: int, width: int) -> dict[str, Any]:
    nics = rng.choice([n for n in (1, 2, 4, 8) if n <= width])
    bandwidth = rng.choice(("1 GB/s", "1 GB/s", "2 GB/s", "3 GB/s", "inf"))
    cluster: dict[str, Any] = {
        "nodes": nodes,
        "gpus_per_node": width,
        "nvlink": {
            "bandwidth": rng.choice(("4 GB/s", "3 GB/s", "inf")),
            "latency": rng.choice(("0 s", "1 us", "300 ns")),
        },
        "infiniband": {"bandwidth": bandwidth, "latency": rng.choice(("0 s", "2 us", "1 us")), "nics_per_node": nics},
        "topology": rng.choice(
            ("nodes", "nodes", "rails", "rails", "leaf-spine", "leaf-spine", "pcie", "ring", "mesh", "links")
        ),
        "sharing": rng.choice(("fifo", "fifo", "fair")),
    }
    topology = cluster["topology"]
    if topology == "rails" and rng.random() < 0.4:
        cluster |= {"cross_rail": "spine", "oversubscription": rng.choice((1, 2))}
    elif topology == "leaf-spine":
        cluster |= {"leaf_size": rng.choice((1, 2, 3, 4)), "oversubscription": rng.choice((1, 2, 4))}
    elif topology == "pcie":
        cluster |= {"gpus_per_switch": rng.choice((1, 2, 4)), "pcie": {"bandwidth": "2 GB/s", "latency": "1 us"}}
    elif topology == "links":
        cluster["links"] = [
            {
                "between": [f"gpu{gpu}", rng.choice(("hub", "hub", f"switch{gpu // width}"))],
                "bandwidth": "2 GB/s",
                "latency": "1 us",
            }
            for gpu in range(nodes * width)
        ] + [{"between": [f"switch{node}", "hub"], "bandwidth": "3 GB/s"} for node in range(nodes)]
    elif rng.random() < 0.15 and nodes > 1:
        one, two = rng.randint(1, nodes - 1), None
        two = nodes - one
        cluster["nodes"] = [{"count": one}, {"count": two, "speed": rng.choice((1, 1, 0.5))}]
    return cluster


def _schedule(rng: Random, pipeline: int) -> dict[str, Any]:
    kind = rng.choice(SCHEDULES) if pipeline > 1 and rng.random() < 0.6 else "1f1b"
    schedule = {"kind": kind, "microbatches": rng.choice((1, 2, 3)) * 2 * pipeline}
    if kind in ("interleaved-1f1b", "looped-bfs"):
        schedule["chunks"] = 2
    if rng.random() < 0.2:
        schedule["p2p"] = "blocking"
    return schedule


def run_of(values: dict[str, Any], fold: str | int) -> Result:
    """Simulate a scenario under a fold."""
    return simulate(scenario_from({**values, "fold": fold}))


def both_of(values: dict[str, Any]) -> tuple[Result, Result] | None:
    """A run folded where it can be, and unfolded; None where the scenario is impossible."""
    try:
        whole = run_of(values, "off")
    except HybridDesError:
        return None
    return run_of(values, "auto"), whole


def differences(folded: Result, whole: Result) -> list[str]:
    """Keys of the summary that differ, and the number of timeline rows that only one of two runs has."""
    found = [key for key, value in whole.summary.items() if key not in OWN and folded.summary.get(key) != value]
    run = folded.run
    assert run.fold is not None
    pair = expanded(run.timeline, run.fold, run.fabric), whole.run.timeline
    if _digests(pair[0]) != _digests(pair[1]):
        mine, theirs = map(_rows, pair)
        if mine != theirs:
            only = sorted(map(str, (mine - theirs) + (theirs - mine)))
            found.append(f"{len(only)} rows of {theirs.total()}: {only[:4]}")
    return found


def _tables(timeline: Any) -> Iterator[pd.DataFrame]:
    yield table(timeline, exact=True)
    for name in ("steps", "reductions", "gathers", "waits", "memory"):
        yield pd.DataFrame({key: np.asarray(column) for key, column in getattr(timeline, name).items()})


def _digests(timeline: Any) -> list[bytes]:
    """Of all rows of each table, in no order: equal for equal rows, and found faster than these are counted."""
    return [np.sort(pd.util.hash_pandas_object(one, index=False).to_numpy()).tobytes() for one in _tables(timeline)]


def _rows(timeline: Any) -> Counter[tuple[Any, ...]]:
    rows: Counter[tuple[Any, ...]] = Counter()
    for number, frame in enumerate(_tables(timeline)):
        columns = [frame[name].astype(object).where(frame[name].notna(), -1).tolist() for name in frame]
        rows.update((number, *row) for row in zip(*columns, strict=True))
    return rows
