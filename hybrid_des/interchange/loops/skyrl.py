"""Logs of SkyRL: in turns on the same GPUs, on GPUs of their own, and fully asynchronous.

Names: skyrl/train/trainer.py, fully_async_trainer.py, utils/utils.py (Timer), utils/tracking.py (ConsoleLogger),
generators/utils.py, config/ppo_base_config.yaml (github.com/NovaSky-AI/SkyRL). Times are lines `Finished: 'generate',
time cost: 48.80s`; lengths are in the log only with `trainer.logger=console`.
"""

import re
from typing import Any

from hybrid_des.interchange.loops import framework as of
from hybrid_des.interchange.loops.framework import Framework, Reading, Shape, Side
from hybrid_des.interchange.loops.steps import Form, finished

_BATCH, _MINI, _SAMPLES = "trainer.train_batch_size", "trainer.policy_mini_batch_size", "generator.n_samples_per_prompt"
_COLOCATED, _STALE = "trainer.placement.colocate_all", "trainer.fully_async.max_staleness_steps"
_WORKERS = "trainer.fully_async.num_parallel_generation_workers"
_NODES, _PER_NODE = "trainer.placement.policy_num_nodes", "trainer.placement.policy_num_gpus_per_node"
_NUMBER = ("generator.num_inference_engines", "generator.inference_engine.num_engines")
_RANKS = ("tensor", "pipeline", "data")
_WAIT = "wait_for_generation_buffer"


def _ranks(kind: str) -> tuple[str, str]:
    """The setting of ranks of an engine, by its older and its newer name."""
    return f"generator.inference_engine_{kind}_parallel_size", f"generator.inference_engine.{kind}_parallel_size"


def _shape(reading: Reading) -> Shape:
    batch, mini, samples = (reading.whole(key) for key in (_BATCH, _MINI, _SAMPLES))
    is_async = any(step.has([_WAIT]) for step in reading.steady.steps)
    updates = 1 if is_async else max(1, round(batch / mini)) if batch and mini else None
    if is_async:
        _asynchronous(reading, mini)
    else:
        of.put_updates(reading, updates, of.WHOLE_BATCH, _BATCH, _MINI)
    of.put_batch(reading, mini and samples and mini * samples, _MINI, _SAMPLES)
    nodes, per_node, engines = reading.whole(_NODES), reading.whole(_PER_NODE), reading.whole(*_NUMBER)
    apart = is_async or (_COLOCATED in reading.settings and not reading.flag(_COLOCATED))
    gpus = engines or 0
    for kind in _RANKS:
        gpus *= reading.whole(*_ranks(kind)) or 1
    each = min(gpus, per_node or 8) or 1
    theirs = Side(-(-gpus // each), each) if gpus else None
    trainer = Side(nodes, per_node) if nodes and per_node else None
    of.put_sides(reading, trainer, theirs, apart, (_NODES, _PER_NODE), _NUMBER[:1])
    return Shape(updates, trainer, apart, overlaps=is_async)


def _asynchronous(reading: Reading, mini: int | None) -> None:
    reading.put("rl.updates", 1, "weights are sent after each mini-batch")
    reading.copy("rl.ahead", _STALE)
    reading.put("rl.sync.running", "continue", "pausing keeps keys and values, by default")
    workers, ahead = reading.whole(_WORKERS), reading.values.get("rl.ahead")
    if workers and mini and ahead is not None and workers < mini * (ahead + 1):
        reading.assumed.append(
            f"rl.ahead: {ahead}: {workers} generation workers may hold fewer groups; they are not described here"
        )


def _change(reading: Reading, flat: dict[str, Any], shape: Shape) -> None:
    """Leave out the other strategy's section."""
    megatron = flat.get("trainer.strategy") == "megatron"
    other = f"trainer.policy.{'fsdp_config' if megatron else 'megatron_config'}."
    for key in [key for key in flat if key.startswith(other)]:
        del flat[key]


SKYRL = Framework(
    title="SkyRL",
    tool="skyrl",
    form=Form(finished, begins=re.compile(r"Started: 'step'")),
    marks=re.compile(r"Finished: '(step|generate|policy_train|train_critic_and_policy)', time cost: "),
    needed=("step", f"generate|{_WAIT}", "policy_train|train_critic_and_policy"),
    phases={
        "step": of.STEP,
        "generate": of.SAMPLES,
        _WAIT: of.SAMPLES,
        "train_critic_and_policy": of.UPDATE,
        "fwd_logprobs_values_reward": of.PASS,
        "sync_weights": of.SYNC,
        "sync_weights_to_inference_engines": of.SYNC,
        "eval": of.OTHER,
        "save_checkpoints": of.OTHER,
        "save_hf_model": of.OTHER,
    },
    lengths={
        of.MEAN: "generate/avg_num_tokens",
        of.LARGEST: "generate/max_num_tokens",
        of.DEVIATION: "generate/std_num_tokens",
    },
    settings={
        "rl.samples": (_SAMPLES,),
        "rl.response.max": ("generator.sampling_params.max_generate_length",),
        "rl.rollout.tensor": _ranks("tensor"),
        "rl.rollout.data": _ranks("data"),
        "rl.rollout.expert": _ranks("expert"),
        "rl.rollout.concurrency": ("generator.max_num_seqs", "generator.inference_engine.max_num_seqs"),
        "rl.rollout.memory": ("generator.gpu_memory_utilization", "generator.inference_engine.gpu_memory_utilization"),
    },
    defaults={_SAMPLES: 5, _STALE: 4},
    trainer=("trainer.policy.*", "trainer.placement.policy_*", "trainer.*_size*", "trainer.strategy",
             "trainer.gradient_checkpointing", "trainer.bf16", "trainer.max_prompt_length", _SAMPLES,
             "generator.sampling_params.max_generate_length"),
    shape=_shape,
    change=_change,
)  # fmt: skip
