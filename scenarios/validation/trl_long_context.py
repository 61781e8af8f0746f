"""Rows of trl_long_context.yaml from TRL's table of very long samples.

    python scenarios/validation/trl_long_context.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/trl_long_context.yaml --rows rows.csv

RAW has a row per published run: id (which begins with trl), model, gpus, cp, seq, step_s, memory_gb (10⁹ bytes, as
TRL's own benchmarks print it). Other runs, and the model with experts, which PyTorch's operators do not have here, are
left out. The 32B has its states on hosts, and tiles its MLP, as the pull request says of such models.
"""

from conversion import Raw, Row, main

MODELS = ("qwen3-0.6b", "qwen3-8b", "qwen3-32b")
COLUMNS = (
    "name", "cluster.nodes", "model.base", "model.sequence", "parallel.context", "offload.optimizer",
    "offload.parameters", "operators.mlp_tile", "measured.step_time_s", "measured.peak_memory_bytes",
)  # fmt: skip
LARGEST, TILE = "qwen3-32b", 16384
GB = 10**9


def converted(raw: Raw) -> Row | None:
    """One row as keys of a scenario; None if it is not TRL's, or of another model."""
    if not raw["id"].startswith("trl") or raw["model"] not in MODELS:
        return None
    hosts = int(raw["model"] == LARGEST)
    layout = raw["id"], int(raw["gpus"]) // 8, raw["model"], raw["seq"], raw["cp"], hosts, hosts, TILE if hosts else ""
    memory = round(float(raw["memory_gb"]) * GB) if raw["memory_gb"] else ""
    return dict(zip(COLUMNS, (*layout, raw["step_s"], memory), strict=True))


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
