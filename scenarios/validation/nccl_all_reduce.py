"""Rows of nccl_all_reduce.yaml from NVIDIA's tables of nccl-tests.

    python scenarios/validation/nccl_all_reduce.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/nccl_all_reduce.yaml --rows rows.csv --by split

RAW is written from systems/data/SYSTEM/comm/nccl/VERSION/nccl_perf.parquet of aiconfigurator-core (PyPI): columns
system, version (both from the path), op_name, nccl_dtype, num_gpus, message_size (elements), latency (ms). Rows of
all-reduces in 16 bits over 2, 4 and 8 GPUs are taken; a step that only reduces takes as long as its all-reduce.
"""

from conversion import Raw, Row, main

GPUS = {"a100_sxm": "a100-80gb", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "gb200": "gb200"}
BYTES = 2  # per element
COUNTS = ("2", "4", "8")
COLUMNS = (
    "name", "description", "split", "cluster.gpu", "parallel.data", "workload.parameters", "measured.step_time_s",
)  # fmt: skip


def converted(raw: Raw) -> Row | None:
    """One row as keys of a scenario; none for other collectives, types, GPUs and counts."""
    if (raw["op_name"], raw["nccl_dtype"]) != ("all_reduce", "half"):
        return None
    if raw["system"] not in GPUS or raw["num_gpus"] not in COUNTS:
        return None
    gpu, elements = GPUS[raw["system"]], int(raw["message_size"])
    return {
        "name": f"{raw['num_gpus']} x {gpu}, {elements * BYTES} B",
        "description": f"NCCL {raw['version']}",
        "split": "from 1 MiB" if elements * BYTES >= 2**20 else "below 1 MiB",
        "cluster.gpu": gpu,
        "parallel.data": raw["num_gpus"],
        "workload.parameters": elements,
        "measured.step_time_s": float(raw["latency"]) / 1000,
    }


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
