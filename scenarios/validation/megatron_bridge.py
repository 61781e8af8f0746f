"""Rows of megatron_bridge.yaml from NVIDIA's performance summaries of Megatron-Bridge, joined with its recipes.

    python scenarios/validation/megatron_bridge.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/megatron_bridge.yaml --rows rows.csv

RAW has a row per setting: model, gpu, gpus, precision (fp8cs: current scaling; fp8mx: MXFP8), gbs, mbs, sequence, sizes
of the axes, `fsdp` (1: Megatron FSDP), step_s, and what the recipe sets (an empty cell: the library's default). Nodes
of GB200 and GB300 are NVLink domains, of which recipes use 64 GPUs. Gradients are reduced in 16 bits and parameters are
gathered beside computation, as the library's performance recipes do.
"""

from ast import literal_eval

from conversion import Raw, Row, main

MODELS = {
    "LLAMA3_8B": "llama3-8b", "LLAMA3_70B": "llama3-70b", "LLAMA3.1_405B": "llama3.1-405b",
    "DeepSeekV3": "deepseek-v3", "GPT OSS 120B": "gpt-oss-120b", "Kimi_K2": "kimi-k2",
    "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b",
}  # fmt: skip
PRECISIONS = {"fp8cs": "fp8", "fp8mx": "mxfp8", "bf16": "bf16", "nvfp4": "nvfp4"}
GRAPHS = {"full_iteration": "full", "transformer_engine": "layers", "local": "layers"}
LAUNCHES = "2.2 ms"  # of a layer with experts, where no graph covers the iteration
GEMM = {("h100", "fp8cs"): 0.565}  # those of other GPUs are their defaults
DOMAIN = {"gb200": 64, "gb300": 64}  # GPUs of an NVLink domain of 72 that recipes use
COLUMNS = (
    "name", "split", "model.base", "model.sequence", "cluster.gpu", "cluster.nodes", "cluster.gpus_per_node",
    "precision", "batch", "schedule.microbatch_size", "parallel.tensor", "parallel.sequence", "parallel.pipeline",
    "parallel.context", "parallel.data", "parallel.expert", "parallel.expert_tensor", "parallel.stages",
    "schedule.kind", "schedule.chunks", "sharding", "recompute", "recompute_layers", "overlap.tensor",
    "gradients.bucket_rule", "gradients.pad", "cuda_graphs", "experts.dispatcher", "efficiency.gemm",
    "efficiency.exchange_overhead", "efficiency.layer_overhead", "model.predictions", "schedule.pairs",
    "experts.streams", "experts.delay_weight", "measured.step_time_s",
)  # fmt: skip


def converted(raw: Raw) -> Row:
    """One row as keys of a scenario."""
    sizes = ("gpus", "gbs", "mbs", "sequence", "tensor", "pipeline", "context", "chunks")
    number = {key: int(raw[key]) for key in sizes}
    experts = int(raw["expert"])
    gpu, fsdp = raw["gpu"], raw["fsdp"] == "1"
    per_node = min(DOMAIN.get(gpu, 8), number["gpus"])
    replicas = number["gpus"] // (number["tensor"] * number["pipeline"] * number["context"])
    chunks, layers = number["chunks"], {"405B": 126, "70B": 80, "235B": 94}
    stages = number["pipeline"] * chunks
    uneven = any(key in raw["model"] and count % stages for key, count in layers.items())
    sparse = raw["model"] not in ("LLAMA3_8B", "LLAMA3_70B", "LLAMA3.1_405B")
    even = "ends-1" if uneven else "balanced" if sparse and stages > 1 else "even"
    return {
        "name": " ".join([raw["model"], raw["gpu"], raw["gpus"], raw["precision"], f"v{chunks}"]),
        "split": "experts" if sparse else "dense",
        "model.base": MODELS[raw["model"]],
        "model.sequence": number["sequence"],
        "cluster.gpu": gpu,
        "cluster.nodes": number["gpus"] // per_node,
        "cluster.gpus_per_node": per_node,
        "precision": PRECISIONS[raw["precision"]],
        "batch": number["gbs"],
        "schedule.microbatch_size": number["mbs"],
        "parallel.tensor": number["tensor"],
        "parallel.sequence": str(number["tensor"] > 1).lower(),
        "parallel.pipeline": number["pipeline"],
        "parallel.context": number["context"],
        "parallel.data": replicas,
        "parallel.expert": experts,
        "parallel.expert_tensor": 1 if experts > 1 else "",
        "parallel.stages": _stages(raw["model"], stages) or even,
        "schedule.kind": "interleaved-1f1b" if chunks > 1 else "1f1b",
        "schedule.chunks": chunks,
        "sharding": "zero-3" if fsdp else "zero-1",
        "recompute": _recompute(raw),
        "recompute_layers": raw["recompute_num_layers"] if raw["recompute_granularity"] == "full" else "",
        "overlap.tensor": 0 if raw["tp_comm_overlap"] == "False" else "",
        "gradients.bucket_rule": "stage" if fsdp else "megatron",
        "gradients.pad": str(not fsdp).lower(),
        "cuda_graphs": GRAPHS.get(raw["cuda_graph_impl"], "none"),
        "experts.dispatcher": _dispatcher(raw) if sparse else "",
        "efficiency.gemm": GEMM.get((gpu, raw["precision"]), ""),
        "efficiency.exchange_overhead": 0 if raw["cuda_graph_impl"] == "full_iteration" else "",
        "efficiency.layer_overhead": "" if raw["cuda_graph_impl"] == "full_iteration" or not sparse else LAUNCHES,
        "model.predictions": 1 if raw["model"] == "DeepSeekV3" else "",
        "schedule.pairs": _flag(raw, "overlap_moe_expert_parallel_comm"),
        "experts.streams": _flag(raw, "overlap_moe_expert_parallel_comm"),
        "experts.delay_weight": _flag(raw, "delay_wgrad_compute"),
        "measured.step_time_s": raw["step_s"],
    }


def _stages(model: str, stages: int) -> str:
    """The library's layouts of models with 61 layers: equal stages, and what is left on the last one."""
    if model not in ("DeepSeekV3", "Kimi_K2") or stages == 1:
        return ""
    each = -(-61 // stages)
    return str([each] * (stages - 1) + [61 - each * (stages - 1)])


def _flag(raw: Raw, column: str) -> str:
    return "true" if raw[column] == "True" else ""


def _dispatcher(raw: Raw) -> str:
    """HybridEP and DeepEP send once per node; without a backend, the library's all-to-all does."""
    return "per-node" if raw["moe_flex_dispatcher_backend"] else "all-to-all"


def _recompute(raw: Raw) -> str:
    """What the recipe recomputes: modules, by default the attention core and possibly none, or so many whole layers."""
    if raw["recompute_granularity"] == "selective":
        modules = literal_eval(raw["recompute_modules"] or "['core_attn']")
        return f"[{', '.join(modules)}]"
    return "full" if raw["recompute_granularity"] == "full" else "none"


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
