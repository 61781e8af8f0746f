"""Logs of TRL's GRPOTrainer: vLLM on the trainer's GPUs, or a server on others.

Names: trl/trainer/grpo_trainer.py, grpo_config.py (github.com/huggingface/trl), transformers/training_args.py. A dict
per logging step has lengths and `step_time`, the mean time of an optimizer step; no time of a phase is printed.
"""

import re
from typing import Any

from hybrid_des.interchange.jobs.tools import TOOLS
from hybrid_des.interchange.loops import framework as of
from hybrid_des.interchange.loops.framework import Framework, Reading, Shape, Side
from hybrid_des.interchange.loops.steps import Form, in_mapping

_SAMPLES, _EACH, _ACCUMULATION = "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"
_STEPS, _AGAIN, _MODE = "steps_per_generation", "num_iterations", "vllm_mode"
_RANKS = ("num_processes", "nproc_per_node", "world_size")


def _shape(reading: Reading) -> Shape:
    each, accumulated, ranks = reading.whole(_EACH), reading.whole(_ACCUMULATION), reading.whole(*_RANKS)
    passes = reading.whole(_STEPS) or accumulated
    updates = max(1, passes // accumulated) if accumulated and passes else None
    of.put_updates(reading, updates, "samples are generated for all of them at once", _STEPS, _ACCUMULATION)
    batch = each * accumulated * ranks if each and accumulated and ranks else None
    of.put_batch(reading, batch, _EACH, _ACCUMULATION, reading.key(*_RANKS))
    apart = reading.value(_MODE) == "server"
    per_node = min(ranks or 8, 8)
    trainer = Side(-(-ranks // per_node), per_node) if ranks else None
    engines = Side(1, _gpus(reading)) if apart and "tensor_parallel_size" in reading.settings else None
    theirs = ("tensor_parallel_size", "data_parallel_size")
    of.put_sides(reading, trainer, engines, apart, (reading.key(*_RANKS), _MODE), theirs)
    again = reading.whole(_AGAIN) or 1
    if again > 1:
        reading.assumed.append(f"rl.trainer: samples are trained once, where {_AGAIN} says {again} times")
    return Shape(updates, trainer, apart, logged=1 / ((updates or 1) * again))


def _gpus(reading: Reading) -> int:
    """GPUs of the server, by the command `trl vllm-serve`."""
    return (reading.whole("tensor_parallel_size") or 1) * (reading.whole("data_parallel_size") or 1)


def _change(reading: Reading, flat: dict[str, Any], shape: Shape) -> None:
    """Of all printed arguments, those that the trainer's table knows; its GPUs."""
    known = TOOLS["trainer"].keys
    for key in [key for key in flat if key not in known]:
        del flat[key]
    if shape.trainer is not None:
        flat |= {"num_machines": shape.trainer.nodes, "num_processes": shape.trainer.gpus}
    prompt, response = reading.whole("max_prompt_length"), reading.whole("max_completion_length")
    if prompt and response:
        reading.put("model.sequence", prompt + response, reading.where("max_prompt_length", "max_completion_length"))


TRL = Framework(
    title="TRL",
    tool="trainer",
    form=Form(in_mapping, begins=re.compile(r"\{.*'completions/mean_length'"), alone=True),
    marks=re.compile(r"\{.*'completions/mean_length'"),
    needed=("completions/mean_length",),
    phases={"step_time": of.STEP},
    lengths={
        of.MEAN: "completions/mean_length",
        of.LARGEST: "completions/max_length",
        of.SHARE: "completions/clipped_ratio",
    },
    settings={
        "rl.samples": (_SAMPLES,),
        "rl.response.max": ("max_completion_length",),
        "rl.rollout.tensor": ("vllm_tensor_parallel_size", "tensor_parallel_size"),
        "rl.rollout.data": ("data_parallel_size",),
        "rl.rollout.memory": ("vllm_gpu_memory_utilization", "gpu_memory_utilization"),
    },
    defaults={_SAMPLES: 8, _EACH: 8, _ACCUMULATION: 1, _AGAIN: 1, "max_completion_length": 256},
    trainer=("*",),
    shape=_shape,
    change=_change,
)
