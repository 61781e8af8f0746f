"""Rows of fine_tuning.yaml from NVIDIA's performance summaries of Megatron-Bridge; those of MLPerf: mlperf_5_1_lora.py.

    python scenarios/validation/fine_tuning.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/fine_tuning.yaml --rows rows.csv

RAW has a row per published run: id (which begins with mlperf for those), model, task, gpu, gpus, precision, tp, pp, vp,
cp, gbs, seq, graphs, step_s. Runs of other models and on AMD's GPUs, whose shares of the peaks were fitted to nothing,
are left out. Adapters are beside queries, keys and values in Megatron-Bridge's recipe of this model, and beside the
output too in MLPerf's, whose rank is 16. Where samples are fewer than ranks, context ranks divide each.
"""

from conversion import Raw, Row, main

MODELS = {"llama3-70b": "llama3-70b", "llama2-70b": "llama2-70b"}
PRECISIONS = {"fp8": "fp8-current", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "bf16": "bf16"}
ATTENTION = "[queries, keys, values, output]"
RANK = 16


def converted(raw: Raw) -> Row | None:
    """One row of Megatron-Bridge as keys of a scenario; None if it is another model's, or MLPerf's."""
    return None if raw["id"].startswith("mlperf") else of_run(raw)


def of_run(raw: Raw) -> Row | None:
    """One row as keys of a scenario; None if it is another model's or an AMD GPU's."""
    if raw["model"] not in MODELS or raw["task"] not in ("lora", "sft") or raw["gpu"].startswith("mi"):
        return None
    mlperf, tuned = raw["id"].startswith("mlperf"), raw["task"] == "lora"
    gpus, batch, chunks = int(raw["gpus"]), int(raw["gbs"]), int(raw["vp"] or 1)
    tensor, pipeline, context = int(raw["tp"]), int(raw["pp"]), int(raw["cp"])
    context *= max(1, gpus // (tensor * pipeline * context * batch))
    per_node = min(gpus, 72 if gpus % 72 == 0 else 64) if raw["gpu"].startswith("gb") else 8
    on = ATTENTION if mlperf else "[queries, keys, values]"
    return {
        "name": raw["id"],
        "split": raw["task"],
        "release": "MLPerf 5.1" if mlperf else "26.06",
        "model.base": MODELS[raw["model"]],
        "model.sequence": raw["seq"],
        "model.frozen": "all" if tuned else "",
        "model.adapters": f"{{rank: {RANK}, on: {on}}}" if tuned else "",
        "cluster.gpu": raw["gpu"],
        "cluster.nodes": -(-gpus // per_node),
        "cluster.gpus_per_node": per_node,
        "precision": PRECISIONS[raw["precision"]],
        "batch": batch,
        "parallel.tensor": tensor,
        "parallel.sequence": str(tensor > 1).lower(),
        "parallel.pipeline": pipeline,
        "parallel.context": context,
        "parallel.data": gpus // (tensor * pipeline * context),
        "schedule.kind": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "schedule.chunks": chunks,
        "cuda_graphs": "layers" if raw["graphs"] else "none",
        "measured.step_time_s": raw["step_s"],
    }


COLUMNS = (
    "name", "split", "release", "model.base", "model.sequence", "model.frozen", "model.adapters", "cluster.gpu",
    "cluster.nodes", "cluster.gpus_per_node", "precision", "batch", "parallel.tensor", "parallel.sequence",
    "parallel.pipeline", "parallel.context", "parallel.data", "schedule.kind", "schedule.chunks", "cuda_graphs",
    "measured.step_time_s",
)  # fmt: skip


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
