"""Rows of megatron_bridge.yaml from NVIDIA's performance summaries of Megatron-Bridge, joined with its recipes.

    python scenarios/validation/megatron_bridge.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/megatron_bridge.yaml --rows rows.csv

RAW has a row per setting: model, gpu, gpus, precision (fp8cs: current scaling; fp8mx: MXFP8), gbs, mbs, sequence, sizes
of the axes, `fsdp` (1: Megatron FSDP), step_s, release, and what that release's recipe sets (an empty cell: its
default). `recipe_match` says whether the release has this very recipe: rows without it (`other-release`, `nearest`,
whose candidate is in `nearest_recipe`) are of a split of their own, and in no fit. Nodes of GB200 and GB300 are NVLink
domains, of which recipes use 64 GPUs. Gradients are reduced in 16 bits and parameters are gathered beside computation,
as the library's performance recipes do.
"""

import json
import re
from ast import literal_eval

from conversion import Raw, Row, main

MODELS = {
    "LLAMA3_8B": "llama3-8b", "LLAMA3_70B": "llama3-70b", "LLAMA3.1_405B": "llama3.1-405b",
    "DeepSeekV3": "deepseek-v3", "GPT OSS 120B": "gpt-oss-120b", "Kimi_K2": "kimi-k2",
    "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b",
}  # fmt: skip
PRECISIONS = {"fp8cs": "fp8-current", "fp8mx": "mxfp8", "bf16": "bf16", "nvfp4": "nvfp4"}
GRAPHS = {"full_iteration": "full", "transformer_engine": "layers", "local": "layers"}
FLEX = "flex"  # the dispatcher that leaves the exchange to DeepEP or HybridEP
LAYERS = {
    "LLAMA3_8B": 32, "LLAMA3_70B": 80, "LLAMA3.1_405B": 126, "DeepSeekV3": 61, "GPT OSS 120B": 36, "Kimi_K2": 61,
    "Qwen3_30B_a3B": 48, "Qwen3_235B_a22B": 94,
}  # fmt: skip
ENDS = ("LLAMA3_70B", "LLAMA3.1_405B", "Qwen3_235B_a22B")  # whose first and last stage have a layer less where uneven
DOMAIN = {"gb200": 64, "gb300": 64}  # GPUs of an NVLink domain of 72 that recipes use
COLUMNS = (
    "name", "split", "release", "model.base", "model.sequence", "cluster.gpu", "cluster.nodes", "cluster.gpus_per_node",
    "precision", "batch", "schedule.microbatch_size", "parallel.tensor", "parallel.sequence", "parallel.pipeline",
    "parallel.context", "parallel.data", "parallel.expert", "parallel.expert_tensor", "parallel.stages",
    "schedule.kind", "schedule.chunks", "sharding", "recompute", "recompute_layers", "overlap.tensor",
    "gradients.bucket_rule", "gradients.pad", "cuda_graphs", "experts.dispatcher", "experts.library",
    "model.predictions", "schedule.pairs", "experts.streams", "experts.delay_weight", "offload.activations",
    "measured.step_time_s",
)  # fmt: skip


def converted(raw: Raw) -> Row:
    """One row as keys of a scenario."""
    raw = {**raw, **_nearest(raw)}
    sizes = ("gpus", "gbs", "mbs", "sequence", "tensor", "pipeline", "context", "chunks")
    number = {key: int(raw[key]) for key in sizes}
    experts = int(raw["expert"])
    gpu, fsdp = raw["gpu"], raw["fsdp"] == "1"
    per_node = min(DOMAIN.get(gpu, 8), number["gpus"])
    replicas = number["gpus"] // (number["tensor"] * number["pipeline"] * number["context"])
    own = raw.get("recipe_match", "exact") == "exact"
    chunks = number["chunks"]
    stages = number["pipeline"] * chunks
    uneven = raw["model"] in ENDS and LAYERS[raw["model"]] % stages > 0
    sparse = raw["model"] not in ("LLAMA3_8B", "LLAMA3_70B", "LLAMA3.1_405B")
    even = "ends-1" if uneven else "balanced" if sparse and stages > 1 else "even"
    return {
        "name": " ".join([raw["model"], raw["gpu"], raw["gpus"], raw["precision"], f"v{chunks}"]),
        "split": f"{'experts' if sparse else 'dense'}{'' if own else ', other'}",
        "release": raw.get("release", ""),
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
        "cuda_graphs": _graphs(raw),
        "experts.dispatcher": _dispatcher(raw) if sparse else "",
        "experts.library": _library(raw) if sparse else "",
        "model.predictions": 1 if raw["model"] == "DeepSeekV3" else "",
        "schedule.pairs": _flag(raw, "overlap_moe_expert_parallel_comm"),
        "experts.streams": _flag(raw, "overlap_moe_expert_parallel_comm"),
        "experts.delay_weight": _flag(raw, "delay_wgrad_compute"),
        "offload.activations": _offloaded(raw),
        "measured.step_time_s": raw["step_s"],
    }


def _nearest(raw: Raw) -> dict[str, str]:
    """What the nearest recipe sets, for a row without one of its own."""
    if raw.get("recipe_match") != "nearest":
        return {}
    found = re.search(r"\{.*\}", raw["nearest_recipe"])
    return {key: str(value) for key, value in json.loads(found[0] if found else "{}").items()}


def _graphs(raw: Raw) -> str:
    """What CUDA graphs cover: all of it if their scope is the whole iteration."""
    whole = "full_iteration" in raw.get("cuda_graph_scope", "") and raw["cuda_graph_impl"] == "local"
    return "full" if whole else GRAPHS.get(raw["cuda_graph_impl"], "none")


def _offloaded(raw: Raw) -> float | str:
    """The share of layers whose activations are offloaded."""
    if raw.get("cpu_offloading") != "True":
        return ""
    return int(raw["cpu_offloading_num_layers"]) / LAYERS[raw["model"]]


def _stages(model: str, stages: int) -> str:
    """The library's layouts of models with 61 layers: equal stages, and what is left on the last one."""
    if model not in ("DeepSeekV3", "Kimi_K2") or stages == 1:
        return ""
    each = -(-61 // stages)
    return str([each] * (stages - 1) + [61 - each * (stages - 1)])


def _flag(raw: Raw, column: str) -> str:
    return "true" if raw[column] == "True" else ""


def _dispatcher(raw: Raw) -> str:
    """HybridEP and DeepEP send once per node, where the dispatcher is flex; the library's all-to-all does not."""
    kind = raw.get("moe_token_dispatcher_type") or (FLEX if raw["moe_flex_dispatcher_backend"] else "")
    return "per-node" if kind == FLEX else "all-to-all"


def _library(raw: Raw) -> str:
    """The library that sends tokens once per node."""
    return raw["moe_flex_dispatcher_backend"] if _dispatcher(raw) == "per-node" else ""


def _recompute(raw: Raw) -> str:
    """What the recipe recomputes: modules, by default the attention core and possibly none, or so many whole layers."""
    if raw["recompute_granularity"] == "selective":
        modules = literal_eval(raw["recompute_modules"] or "['core_attn']")
        return f"[{', '.join(modules)}]"
    return "full" if raw["recompute_granularity"] == "full" else "none"


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
