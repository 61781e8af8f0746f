"""Rows of sparse_attention.yaml: DeepSeek-V4 Flash and GLM-5.2, from NVIDIA's summary and cards of Megatron-Bridge.

    python scenarios/validation/sparse_attention.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/sparse_attention.yaml --rows rows.csv

RAW has a row per published run: id, model, task, gpu, gpus, precision, tp, pp, cp, ep, gbs, mbs, seq, recompute, notes,
step_s. Runs of other models are left out. What a row leaves open is that of the recipe in Megatron-Bridge of the same
name (perf_recipes/deepseek/gb200/deepseek_v4.py of 26.08; recipes/glm/h100/glm5.py and gb200/glm5.py) and of the
command in its card: layouts of stages, recomputation, lengths, batches, the dispatcher.
"""

from conversion import Raw, Row, main

DOMAIN = {"gb200": 64, "gb300": 64}  # GPUs of an NVLink domain of 72 that recipes use
# every fourth layer has an indexer after the first three (config.json of zai-org/GLM-5.2, indexer_types)
KINDS = "{dense: {experts: none}, moe: {}, shared: {indexer: {heads: 32, size: 128, top: 2048, reused: true}}}"
PATTERN = "dense*3 (shared*3 moe)*18 shared*3"
STAGES = {
    11: [6, *[8] * 8, 4, 4], 13: [6, 4, *[8] * 6, *[4] * 5], 19: [6, *[4] * 18], 6: [14, 12, 12, 12, 12, 16],
}  # fmt: skip
OWN = {"deepseek-v4-flash": "deepseek-v4-flash", "glm5-2": "glm-5"}


def converted(raw: Raw) -> Row | None:
    """One row as keys of a scenario; None if it is another model's."""
    if raw["model"] not in OWN:
        return None
    glm, task = raw["model"] == "glm5-2", raw["task"]
    gpus, stages, context = int(raw["gpus"]), int(raw["pp"]), int(raw["cp"])
    per_node = min(DOMAIN.get(raw["gpu"], 8), gpus)
    tuned = task == "peft"
    functional = glm or "sft" in task
    nvl = raw["gpu"] in DOMAIN
    return {
        "name": raw["id"],
        "split": f"{'glm-5.2' if glm else raw['model']}{', functional' if functional else ''}",
        "model.base": OWN[raw["model"]],
        "model.kinds": KINDS if glm else "",
        "model.pattern": PATTERN if glm else "",
        "model.sequence": raw["seq"] or (2048 if tuned else 4096),
        "cluster.gpu": raw["gpu"],
        "cluster.nodes": -(-gpus // per_node),
        "cluster.gpus_per_node": per_node,
        "precision": raw["precision"],
        "batch": raw["gbs"] or 13,
        "schedule.microbatch_size": raw["mbs"] or 1,
        "parallel.pipeline": stages,
        "parallel.stages": str(STAGES[stages]) if glm else "",
        "parallel.context": context,
        "parallel.context_method": "all-gather" if context > 1 else "",
        "parallel.data": gpus // stages // context,
        "parallel.expert": raw["ep"],
        "parallel.expert_tensor": 1,
        "gradients.overlap": str(not functional).lower(),
        "overlap.parameters": str(not functional).lower(),
        "experts.dispatcher": "all-to-all" if glm and nvl else "per-node",
        "experts.library": "hybridep" if nvl and not glm else "",
        "recompute": "full" if glm else "[moe, mhc, mla_up_proj, layernorm]" if functional else "[mla_up_proj]",
        "cuda_graphs": "none" if functional else "full",
        "model.frozen": "all" if tuned else "",
        "model.adapters": "{rank: 8, on: [queries, keys, values, output]}" if tuned else "",
        "measured.step_time_s": raw["step_s"],
    }


COLUMNS = (
    "name", "split", "model.base", "model.kinds", "model.pattern", "model.sequence", "cluster.gpu", "cluster.nodes",
    "cluster.gpus_per_node", "precision", "batch", "schedule.microbatch_size", "parallel.pipeline", "parallel.stages",
    "parallel.context", "parallel.context_method", "parallel.data", "parallel.expert", "parallel.expert_tensor",
    "gradients.overlap", "overlap.parameters", "experts.dispatcher", "experts.library", "recompute", "cuda_graphs",
    "model.frozen", "model.adapters", "measured.step_time_s",
)  # fmt: skip


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
