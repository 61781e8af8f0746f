"""Rows of nemotron_3.yaml from NVIDIA's performance summaries and verification cards of Megatron-Bridge.

    python scenarios/validation/nemotron_3.py RAW.csv > rows.csv
    hybrid-des validate scenarios/validation/nemotron_3.yaml --rows rows.csv

RAW has a row per published run: id, model, task, gpu, gpus, precision, tp, ep, gbs, mbs, seq, recompute, graphs, notes
(which begin with the release), step_s. Runs of other models and tasks are left out. Where a card leaves a setting open,
it is that of the release's recipe of the same name (src/megatron/bridge/perf_recipes/nemotronh).
"""

import re

from conversion import Raw, Row, main

MODELS = {
    "nemotron-3-nano-30b-a3b": "nano", "nemotron-3-super-120b-a12b": "super", "nemotron-3-ultra-550b-a55b": "ultra",
}  # fmt: skip
# blocks in 16 bits: prediction modules (recipes/nemotronh/nemotron_3_super.py, keep_mtp_spec_in_bf16); of Super in
# NVFP4 attention (perf_recipes/nemotronh/te_quant.cfg) and the last 14 blocks (nemotron_3_super_bf16_with_nvfp4_mixed
# in training/mixed_precision.py)
PREDICTIONS = {
    "kinds": "{a: {experts: none, quantised: false}, e: {mixer: none, quantised: false}}",
    "predictions": "{kinds: a e, passes: 2}",
}
NVFP4 = {
    "kinds": "{A: {quantised: false}, m: {mixer: mamba2, experts: none, quantised: false}, "
    "e: {mixer: none, quantised: false}}",
    "pattern": "(M E)*3 M A ((E M)*4 A)*2 ((E M)*5 A)*4 (E M)*2 (e m)*2 A (e m)*4 e",
    "predictions": "{kinds: A e, passes: 2}",
}
DOMAIN = {"gb200": 64, "gb300": 64}  # GPUs of an NVLink domain of 72 that recipes use
HYBRIDEP = {"nano": 16}  # multiprocessors of its kernels, where they are not 32
SHARDED = 64  # GPUs among which Ultra's weights are sharded: one domain; its optimizer, among all


def converted(raw: Raw) -> Row | None:
    """One row as keys of a scenario; None if it is another model's, or does not pre-train."""
    if raw["model"] not in MODELS or not raw["task"].startswith("pretrain"):
        return None
    gpus, tensor = int(raw["gpus"]), int(raw["tp"])
    per_node = min(DOMAIN.get(raw["gpu"], 8), gpus)
    ultra = MODELS[raw["model"]] == "ultra"
    release = re.match(r"NeMo ([\d.]+)", raw["notes"])
    blocks = {} if MODELS[raw["model"]] == "nano" else NVFP4 if raw["precision"] == "nvfp4" else PREDICTIONS
    return {
        "name": raw["id"],
        "split": MODELS[raw["model"]],
        "release": release[1] if release else "card",
        "model.base": raw["model"],
        "model.sequence": raw["seq"] or 8192,
        **{f"model.{key}": text for key, text in blocks.items()},
        "cluster.gpu": raw["gpu"],
        "cluster.nodes": gpus // per_node,
        "cluster.gpus_per_node": per_node,
        "precision": raw["precision"],
        "batch": raw["gbs"],
        "schedule.microbatch_size": raw["mbs"],
        "parallel.tensor": tensor,
        "parallel.sequence": str(tensor > 1).lower(),
        "parallel.data": gpus // tensor,
        "parallel.expert": raw["ep"],
        "parallel.expert_tensor": 1,
        "sharding": "zero-3" if ultra else "zero-1",
        "shards.ranks": SHARDED // tensor if ultra else "",
        "shards.outside": "zero-1" if ultra else "",
        "gradients.bucket_rule": "stage" if ultra else "megatron",
        "gradients.pad": str(not ultra).lower(),
        "recompute": _recompute(raw),
        "experts.router": "fused" if ultra else "eager",
        "experts.multiprocessors": HYBRIDEP.get(MODELS[raw["model"]], ""),
        "cuda_graphs": "none" if raw["graphs"] == "none" else "layers",
        "measured.step_time_s": raw["step_s"],
    }


def _recompute(raw: Raw) -> str:
    """The modules of the row; Super's in NVFP4 on B300 are only in its recipe (perf_recipes/nemotronh/b300)."""
    if (raw["gpu"], raw["precision"]) == ("b300", "nvfp4"):
        return "[moe_act, layernorm]"
    return f"[{raw['recompute']}]" if raw["recompute"] else "none"


COLUMNS = (
    "name", "split", "release", "model.base", "model.sequence", "model.kinds", "model.pattern", "model.predictions",
    "cluster.gpu", "cluster.nodes", "cluster.gpus_per_node",
    "precision", "batch", "schedule.microbatch_size", "parallel.tensor", "parallel.sequence", "parallel.data",
    "parallel.expert", "parallel.expert_tensor", "sharding", "shards.ranks", "shards.outside", "gradients.bucket_rule",
    "gradients.pad", "recompute", "experts.router", "experts.multiprocessors", "cuda_graphs", "measured.step_time_s",
)  # fmt: skip


if __name__ == "__main__":
    main(__doc__, COLUMNS, converted)
