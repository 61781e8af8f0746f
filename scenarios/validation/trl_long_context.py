"""Rows of trl_long_context.yaml from TRL's table of very long samples.

    python scenarios/validation/trl_long_context.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/trl_long_context.yaml --rows rows.csv

RAW has a row per published run: id (which begins with trl), model, gpus, cp, seq, step_s. Other runs, and the model
with experts, which PyTorch's operators do not have here, are left out.
"""

from conversion import Raw, Row, main

MODELS = ("qwen3-0.6b", "qwen3-8b", "qwen3-32b")
COLUMNS = ("name", "cluster.nodes", "model.base", "model.sequence", "parallel.context", "measured.step_time_s")


def converted(raw: Raw) -> Row | None:
    """One row as keys of a scenario; None if it is not TRL's, or of another model."""
    if not raw["id"].startswith("trl") or raw["model"] not in MODELS:
        return None
    values = raw["id"], int(raw["gpus"]) // 8, raw["model"], raw["seq"], raw["cp"], raw["step_s"]
    return dict(zip(COLUMNS, values, strict=True))


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
