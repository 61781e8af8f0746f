"""Logs of verl: in turns on the same GPUs, one step off, and asynchronous by either of its trainers.

Names: verl/trainer/ppo/ray_trainer.py, metric_utils.py, verl/trainer/config/ppo_trainer.yaml, rollout/rollout.yaml;
verl/experimental/fully_async_policy/fully_async_trainer.py, detach_utils.py (github.com/verl-project/verl). A line
`step:12 - name:value - …` of the console logger has all numbers between two weight syncs. A fully asynchronous run sums
times over its local updates, and prints those of the engines in another line of the same number.
"""

import re
from typing import Any

from hybrid_des.interchange.loops import framework as of
from hybrid_des.interchange.loops.framework import Framework, Reading, Shape, Side
from hybrid_des.interchange.loops.steps import Form, after_colons

_ROLLOUT, _ACTOR, _ASYNC = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "async_training"
_MINI, _SAMPLES, _BATCH = f"{_ACTOR}.ppo_mini_batch_size", f"{_ROLLOUT}.n", "data.train_batch_size"
_TRIGGER, _REQUIRED = f"{_ASYNC}.trigger_parameter_sync_step", f"{_ASYNC}.require_batches"
_THRESHOLD = f"{_ASYNC}.staleness_threshold"
_MODE, _STALE = "trainer.v1.trainer_mode", "trainer.v1.sampler.max_off_policy_threshold"
_NODES, _PER_NODE = "trainer.nnodes", "trainer.n_gpus_per_node"
_ENGINE_NODES = ("rollout.nnodes", f"{_ROLLOUT}.nnodes")
_ENGINES_PER_NODE = ("rollout.n_gpus_per_node", f"{_ROLLOUT}.n_gpus_per_node", _PER_NODE)


def _shape(reading: Reading) -> Shape:
    mini, samples = reading.whole(_MINI), reading.whole(_SAMPLES)
    is_async = _TRIGGER in reading.settings or _THRESHOLD in reading.settings
    updates = _asynchronous(reading) if is_async else _batches(reading, mini)
    nodes, per_node = reading.whole(_NODES), reading.whole(_PER_NODE)
    theirs = reading.whole(*_ENGINE_NODES, least=0)
    apart = is_async or bool(theirs)
    trainer = Side(nodes, per_node) if nodes and per_node else None
    engines = Side(theirs, reading.whole(*_ENGINES_PER_NODE) or 1) if theirs else None
    if apart and not is_async:
        _ahead(reading)
    elif reading.value(_MODE) == "colocate_async":
        reading.assumed.append(
            "rl.ahead: 0: samples that colocate_async begins before an update are not described here"
        )
    of.put_batch(reading, mini and samples and mini * samples, _MINI, _SAMPLES)
    named = (reading.key(*_ENGINE_NODES), reading.key(*_ENGINES_PER_NODE))
    of.put_sides(reading, trainer, engines, apart, (_NODES, _PER_NODE), named)
    streams = bool(updates) and reading.values["rl.take"] < updates  # trained before all of a batch is there
    return Shape(updates, trainer, apart, overlaps=apart and (streams or reading.values.get("rl.ahead", 0) > 0))


def _ahead(reading: Reading) -> None:
    """The allowance of engines on GPUs of their own: one step off, or that of the sampler of version 1."""
    if reading.value(_MODE) == "separate_async":
        reading.copy("rl.ahead", _STALE)
        return
    reading.put(
        "rl.ahead", 1, f"{reading.where(reading.key(*_ENGINE_NODES))}: one step off: engines work for the next step"
    )
    reading.values["rl.barrier"] = True


def _batches(reading: Reading, mini: int | None) -> int | None:
    """Optimizer steps of a batch where all of it is generated first."""
    batch = reading.whole(_BATCH)
    updates = max(1, round(batch / mini)) if batch and mini else None
    of.put_updates(reading, updates, of.WHOLE_BATCH, _BATCH, _MINI)
    return updates


def _asynchronous(reading: Reading) -> int:
    """Optimizer steps between two syncs of a fully asynchronous run, and its allowance."""
    trigger, required = reading.whole(_TRIGGER) or 1, reading.whole(_REQUIRED) or 1
    reading.put("rl.updates", trigger * required, reading.where(_TRIGGER, _REQUIRED))
    reading.put("rl.take", required, reading.where(_REQUIRED))
    reading.copy("rl.ahead", _THRESHOLD)
    partial = f"{_ASYNC}.partial_rollout"
    reading.put("rl.sync.running", "resume" if reading.flag(partial) else "wait", reading.where(partial))
    return trigger * required


def _change(reading: Reading, flat: dict[str, Any], shape: Shape) -> None:
    """Leave out the other engine's section, and pack as the trainer does."""
    megatron = flat.get(f"{_ACTOR}.strategy", flat.get("model_engine")) == "megatron"
    other = f"{_ACTOR}.{'fsdp_config' if megatron else 'megatron'}."
    for key in [key for key in flat if key.startswith(other)]:
        del flat[key]
    if reading.flag(f"{_ACTOR}.use_dynamic_bsz"):
        key = f"{_ACTOR}.ppo_max_token_len_per_gpu"
        context = f"{_ACTOR}.megatron.context_parallel_size" if megatron else f"{_ACTOR}.ulysses_sequence_parallel_size"
        of.put_packing(reading, "balanced", reading.whole(key), reading.whole(context) or 1, key, context)


VERL = Framework(
    title="verl",
    tool="verl",
    form=Form(after_colons, label=re.compile(r"\bstep:(\d+) - ")),
    marks=re.compile(r"\bstep:\d+ - .*\btiming_s/(gen|step):"),
    needed=("timing_s/step", "timing_s/gen", "timing_s/update_actor"),
    phases={
        "timing_s/step": of.STEP,
        "timing_s/gen": of.SAMPLES,
        "timing_s/generate_sequences": of.ENGINES,
        "timing_s/update_actor": of.UPDATE,
        "timing_s/update_critic": of.UPDATE,
        "timing_s/old_log_prob": of.PASS,
        "timing_s/ref": of.PASS,
        "timing_s/values": of.PASS,
        "timing_s/update_weights": of.SYNC,
        "timing_s/param_sync": of.SYNC,
        "timing_s/timing_s/param_sync": of.SYNC,  # its timer is named with the prefix
        "timing_s/sync_rollout_weights": of.SYNC,
        "timing_s/testing": of.OTHER,
        "timing_s/save_checkpoint": of.OTHER,
    },
    lengths={
        of.MEAN: "response_length/mean",
        of.LARGEST: "response_length/max",
        of.SHARE: "response_length/clip_ratio",
        of.PROMPT: "prompt_length/mean",
    },
    settings={
        "rl.samples": (_SAMPLES,),
        "rl.response.max": ("data.max_response_length", f"{_ROLLOUT}.response_length"),
        "rl.rollout.tensor": (f"{_ROLLOUT}.tensor_model_parallel_size",),
        "rl.rollout.data": (f"{_ROLLOUT}.data_parallel_size",),
        "rl.rollout.expert": (f"{_ROLLOUT}.expert_parallel_size",),
        "rl.rollout.concurrency": (f"{_ROLLOUT}.max_num_seqs",),
        "rl.rollout.memory": (f"{_ROLLOUT}.gpu_memory_utilization",),
        "rl.rollout.precision": (f"{_ROLLOUT}.quantization",),
    },
    defaults={_SAMPLES: 1, _STALE: 1, _REQUIRED: 1, _THRESHOLD: 0.1, f"{_ASYNC}.partial_rollout": True},
    trainer=(
        f"{_ACTOR}.*", "actor_rollout_ref.model.*", "trainer.nnodes", "trainer.n_gpus_per_node", _SAMPLES,
        "data.max_prompt_length", "data.max_response_length", "model_engine",
    ),
    shape=_shape,
    change=_change,
)  # fmt: skip
