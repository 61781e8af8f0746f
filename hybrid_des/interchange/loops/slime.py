"""Logs of slime: in turns on the same GPUs, and on GPUs of their own, in turns or one step off.

Names: slime/utils/train_metric_utils.py, slime/utils/timer.py, slime/ray/rollout.py, slime/utils/arguments.py
(github.com/THUDM/slime). Engines and trainer each print a line `perf 3: {…}` per rollout; a rollout has all samples
between two weight syncs, unless `--update-weights-interval` makes it several.
"""

import re
from typing import Any

from hybrid_des.interchange.frameworks.megatron import FLAGS
from hybrid_des.interchange.jobs.tools import TOOLS
from hybrid_des.interchange.loops import framework as of
from hybrid_des.interchange.loops.framework import Framework, Reading, Shape, Side
from hybrid_des.interchange.loops.steps import Form, in_mapping, mean_of

_PROMPTS, _SAMPLES, _BATCH = "rollout_batch_size", "n_samples_per_prompt", "global_batch_size"
_STEPS = "num_steps_per_rollout"
_NODES, _PER_NODE, _ENGINES, _EACH = (
    "actor_num_nodes", "actor_num_gpus_per_node", "rollout_num_gpus", "rollout_num_gpus_per_engine",
)  # fmt: skip


def _shape(reading: Reading) -> Shape:
    prompts, samples, batch = (reading.whole(key) for key in (_PROMPTS, _SAMPLES, _BATCH))
    updates = reading.whole(_STEPS)
    if prompts and samples and batch:
        updates = max(1, round(prompts * samples / batch))
    elif prompts and samples and updates:
        batch = prompts * samples // updates
    keys = (_PROMPTS, _SAMPLES, _BATCH, _STEPS)
    of.put_updates(reading, updates, "a rollout is generated before it is trained", *keys)
    of.put_batch(reading, batch, _BATCH)
    nodes, per_node, gpus = reading.whole(_NODES), reading.whole(_PER_NODE), reading.whole(_ENGINES)
    apart = not reading.flag("colocate")
    trainer = Side(nodes, per_node) if nodes and per_node else None
    engines = Side(-(-gpus // min(gpus, 8)), min(gpus, 8)) if gpus else None
    overlaps = apart and _is_one_step_off(reading)
    if (interval := reading.whole("update_weights_interval") or 1) > 1:
        reading.put("rl.sync.every", interval, reading.where("update_weights_interval"))
    of.put_sides(reading, trainer, engines, apart, (_NODES, _PER_NODE), (_ENGINES,))
    return Shape(updates, trainer, apart, overlaps=overlaps)


def _is_one_step_off(reading: Reading) -> bool:
    """Whether a rollout is generated while the one before is trained: the trainer waits less than it takes."""
    waited = mean_of(reading.steady.steps, ["perf/train_wait_time"])
    took = mean_of(reading.steady.steps, ["perf/rollout_time"])
    if waited is None or took is None or waited.value >= took.value:
        return False
    reading.put("rl.ahead", 1, f"{waited} is less than perf/rollout_time: train_async.py generates the next rollout")
    reading.values["rl.barrier"] = True
    return True


def _change(reading: Reading, flat: dict[str, Any], shape: Shape) -> None:
    """Of Megatron-LM's printed arguments, those that a launch line would have."""
    printed = "data_parallel_size" in flat  # no flag: all arguments are there, with their defaults
    known = {flag[2:].replace("-", "_") for flag in FLAGS} | TOOLS["slime"].keys.keys()
    for key in [key for key in flat if flat[key] is None or (printed and key not in known)]:
        del flat[key]
    if reading.flag("use_dynamic_batch_size"):
        key, context = "max_tokens_per_gpu", "context_parallel_size"
        of.put_packing(reading, "balanced", reading.whole(key), reading.whole(context) or 1, key, context)


SLIME = Framework(
    title="slime",
    tool="slime",
    form=Form(in_mapping, label=re.compile(r"\b(?:perf|rollout) (\d+): \{")),
    marks=re.compile(r"\bperf \d+: \{.*'perf/"),
    needed=("perf/actor_train_time|perf/train_time", "perf/rollout_time|perf/train_wait_time"),
    phases={
        "perf/step_time": of.STEP,
        "perf/train_wait_time": of.SAMPLES,
        "perf/rollout_time": of.ENGINES,
        "perf/actor_train_time": of.UPDATE,
        "perf/critic_train_time": of.UPDATE,
        "perf/log_probs_time": of.PASS,
        "perf/ref_log_probs_time": of.PASS,
        "perf/update_weights_time": of.SYNC,
        "perf/sleep_time": of.SWITCH,
        "perf/wake_up_time": of.SWITCH,
        "perf/save_model_time": of.OTHER,
    },
    lengths={
        of.MEAN: "rollout/response_len/mean",
        of.LARGEST: "rollout/response_len/max",
        of.SHARE: "rollout/truncated_ratio",
    },
    settings={
        "rl.samples": (_SAMPLES,),
        "rl.response.max": ("rollout_max_response_len",),
        "rl.rollout.tensor": (_EACH,),
        "rl.rollout.expert": ("sglang_expert_parallel_size", "sglang_ep_size"),
        "rl.rollout.concurrency": ("sglang_max_running_requests", "sglang_server_concurrency"),
        "rl.rollout.memory": ("sglang_mem_fraction_static",),
    },
    defaults={_SAMPLES: 1, _EACH: 1, "sglang_server_concurrency": 512},
    trainer=("*",),
    shape=_shape,
    change=_change,
    inside=True,
)
