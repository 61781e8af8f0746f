"""Rows of nccl.yaml from NVIDIA's tables of nccl-tests.

    python scenarios/validation/nccl.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/nccl.yaml --rows rows.csv --by split

RAW is written from systems/data/SYSTEM/comm/nccl/VERSION/nccl_perf.parquet of aiconfigurator-core (PyPI): columns
system, version (both from the path), op_name, nccl_dtype, num_gpus, message_size (elements), latency (ms). Rows in 16
bits over 2, 4 and 8 GPUs are taken.

`cluster.nccl` says by which release's rules a table was measured. That shows in its all-to-alls, which leave LL at
16 KiB per peer since release 2.29 and at 512 KiB before (hybrid_des/collectives/tuning.py). The version in the path is
not it: the program that measured (ai-dynamo/aiconfigurator, collector/collect_nccl.py) writes PyTorch's NCCL beside the
times of nccl-tests, which has its own (GB200's table of "2.23" is older than that GPU's support).
"""

from conversion import Raw, Row, main

GPUS = {
    "a100_sxm": "a100-80gb", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300",
}  # fmt: skip
NAMES = {
    "all_reduce": "nccl", "all_gather": "nccl-all-gather", "reduce_scatter": "nccl-reduce-scatter",
    "alltoall": "nccl-all-to-all",
}  # fmt: skip
BYTES = 2  # per element
COUNTS = ("2", "4", "8")
BEFORE = {
    ("a100_sxm", "2.27.3"), ("h100_sxm", "2.23"), ("h200_sxm", "2.23"), ("b200_sxm", "2.27.5"), ("b200_sxm", "2.28.9"),
}  # fmt: skip
COLUMNS = (
    "name", "release", "split", "cluster.gpu", "cluster.nccl", "parallel.data", "collective.name", "collective.bytes",
    "measured.collective_time_s",
)  # fmt: skip


def converted(raw: Raw) -> Row | None:
    """One row as keys of a scenario; none for other collectives, types, GPUs and counts."""
    if raw["op_name"] not in NAMES or raw["nccl_dtype"] != "half":
        return None
    if raw["system"] not in GPUS or raw["num_gpus"] not in COUNTS:
        return None
    gpu, size, name = GPUS[raw["system"]], int(raw["message_size"]) * BYTES, NAMES[raw["op_name"]]
    return {
        "name": f"{name}, {raw['num_gpus']} x {gpu}, {size} B, NCCL {raw['version']}",
        "release": f"NCCL {raw['version']}",
        "split": "from 1 MiB" if size >= 2**20 else "below 1 MiB",
        "cluster.gpu": gpu,
        "cluster.nccl": "2.28.9" if (raw["system"], raw["version"]) in BEFORE else "2.29.2",
        "parallel.data": raw["num_gpus"],
        "collective.name": name,
        "collective.bytes": size,
        "measured.collective_time_s": float(raw["latency"]) / 1000,
    }


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
