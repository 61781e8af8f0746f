"""Logs of NeMo-RL: in turns on the same GPUs, on GPUs of their own, and asynchronous.

Names: nemo_rl/algorithms/grpo.py, utils.py (print_performance_metrics), examples/configs/grpo_math_1B.yaml
(github.com/NVIDIA-NeMo/RL). A step prints "Training Results:", then a bullet per time. The console has the mean length
of responses, and of whole samples by its rates, but nothing of their spread; an asynchronous run has no mean either.
"""

import re
from typing import Any

from hybrid_des.interchange.loops import framework as of
from hybrid_des.interchange.loops.framework import Framework, Reading, Shape, Side
from hybrid_des.interchange.loops.steps import Form, bullets, mean_of

_PROMPTS, _SAMPLES = "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt"
_BATCH = "policy.train_global_batch_size"
_NEW, _ALL = "policy.generation.max_new_tokens", "policy.max_total_sequence_length"
_ASYNC, _COLOCATED = "grpo.async_grpo", "policy.generation.colocated"
_NODES, _PER_NODE = "cluster.num_nodes", "cluster.gpus_per_node"
_STAGES = "policy.megatron_cfg.pipeline_model_parallel_size"
_ENGINE_NODES, _ENGINES_PER_NODE = f"{_COLOCATED}.resources.num_nodes", f"{_COLOCATED}.resources.gpus_per_node"


def _shape(reading: Reading) -> Shape:
    prompts, samples, batch = (reading.whole(key) for key in (_PROMPTS, _SAMPLES, _BATCH))
    updates = max(1, round(prompts * samples / batch)) if prompts and samples and batch else None
    of.put_updates(reading, updates, "all samples of a step are there before it is trained", _PROMPTS, _SAMPLES, _BATCH)
    of.put_batch(reading, batch, _BATCH)
    _put_lengths(reading)
    is_async = reading.flag(f"{_ASYNC}.enabled")
    if is_async:
        _asynchronous(reading)
    apart = is_async or (f"{_COLOCATED}.enabled" in reading.settings and not reading.flag(f"{_COLOCATED}.enabled"))
    trainer, engines = _sides(reading, apart)
    of.put_sides(reading, trainer, engines, apart, (_NODES, _PER_NODE), (_ENGINE_NODES, _ENGINES_PER_NODE))
    return Shape(updates, trainer, apart, overlaps=is_async)


def _asynchronous(reading: Reading) -> None:
    reading.copy("rl.ahead", f"{_ASYNC}.max_trajectory_age_steps")
    flying, again = f"{_ASYNC}.in_flight_weight_updates", f"{_ASYNC}.recompute_kv_cache_after_weight_updates"
    running = "wait" if not reading.flag(flying) else "resume" if reading.flag(again) else "continue"
    reading.put("rl.sync.running", running, reading.where(flying, again))


def _sides(reading: Reading, apart: bool) -> tuple[Side | None, Side | None]:
    """GPUs of the trainer, and those that the cluster's total gives the engines."""
    nodes, per_node = reading.whole(_NODES), reading.whole(_PER_NODE)
    if not nodes or not per_node:
        return None, None
    if not apart:
        return Side(nodes, per_node), None
    theirs, each = reading.whole(_ENGINE_NODES), reading.whole(_ENGINES_PER_NODE)
    if nodes == 1 and each and each < per_node:
        return Side(1, per_node - each), Side(1, each)
    if theirs and theirs < nodes:
        return Side(nodes - theirs, per_node), Side(theirs, each or per_node)
    return None, None


def _change(reading: Reading, flat: dict[str, Any], shape: Shape) -> None:
    """The trainer's nodes, not those of both sides; packing."""
    if shape.trainer is not None:
        flat |= {_NODES: shape.trainer.nodes, _PER_NODE: shape.trainer.per_node}
    for packing, kind in (("sequence_packing", "greedy"), ("dynamic_batching", "balanced")):
        if reading.flag(f"policy.{packing}.enabled"):
            key = f"policy.{packing}.train_mb_tokens"
            of.put_packing(reading, kind, reading.whole(key), 1, key)
    stages = reading.whole(_STAGES) or 1
    if stages > 1 and reading.flag("policy.megatron_cfg.enabled") and reading.flag("policy.sequence_packing.enabled"):
        why = "all micro-batches of a pipeline have the same shape (nemo_rl/models/megatron/data.py)"
        reading.put("data.padded", "step", f"{reading.where(_STAGES)}: {why}")


def _put_lengths(reading: Reading) -> None:
    """Put the tokens of a prompt, those of a sample by two rates less the response, and what they leave to it."""
    tokens, samples, response = (mean_of(reading.steady.steps, [name]) for name in (*_RATES, _MEAN))
    if tokens is None or samples is None or response is None or tokens.value / samples.value <= response.value:
        return
    prompt = round(tokens.value / samples.value - response.value)
    source = f"{_RATES[0]} / {_RATES[1]} less {_MEAN}, lines {tokens.first} to {tokens.last}"
    reading.put("rl.prompt", prompt, source, f"{prompt} tokens")
    new, all_of_it = reading.whole(_NEW), reading.whole(_ALL)
    if new and all_of_it and new > all_of_it - prompt > 0:
        reading.put("rl.response.max", all_of_it - prompt, f"{reading.where(_ALL)}, less the prompt")


_MEAN, _RATES = "Mean Generation Length", ("E2E (Tokens/sec)", "E2E (Samples/sec)")
NEMO_RL = Framework(
    title="NeMo-RL",
    tool="nemo_rl",
    form=Form(bullets, begins=re.compile(r"Training Results:")),
    marks=re.compile(r"^\s*• Total step time: "),
    needed=("Total step time", "generation|exposed_generation", "policy_training"),
    phases={
        "Total step time": of.STEP,
        "generation": of.SAMPLES,
        "exposed_generation": of.SAMPLES,
        "policy_training": of.UPDATE,
        "value_training": of.UPDATE,
        "policy_and_reference_logprobs": of.PASS,
        "prepare_for_generation/total": of.SYNC,
        "weight_sync": of.SYNC,
        "checkpointing": of.OTHER,
        "Total validation time": of.OTHER,
    },
    lengths={of.MEAN: _MEAN},
    settings={
        "rl.samples": (_SAMPLES,),
        "rl.response.max": (_NEW, _ALL),
        "rl.rollout.tensor": ("policy.generation.vllm_cfg.tensor_parallel_size",),
        "rl.rollout.expert": ("policy.generation.vllm_cfg.expert_parallel_size",),
        "rl.rollout.concurrency": ("policy.generation.vllm_kwargs.max_num_seqs",),
        "rl.rollout.memory": ("policy.generation.vllm_cfg.gpu_memory_utilization",),
        "rl.rollout.precision": ("policy.generation.vllm_cfg.precision",),
    },
    defaults={},
    trainer=("policy.*", "cluster.*"),
    shape=_shape,
    change=_change,
)
