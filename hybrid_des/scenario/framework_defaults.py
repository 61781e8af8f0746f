"""What a model's framework does with gradients unless told otherwise.

| | sums in | reduced | buckets where they are reduced during the backward |
|---|---|---|---|
| Megatron-LM | fp32; fp16 with fp16 | after the backward | `megatron`, padded by its distributed optimizer |
| PyTorch | fp32 | during it | `ddp`; FSDP, layer by layer, in a pipeline when a stage's last backward ends (`stage`) |

Megatron-LM: `--overlap-grad-reduce` is off (megatron/core/distributed/distributed_data_parallel_config.py); with bf16
it turns on `--accumulate-allreduce-grads-in-fp32` unless there is `--grad-reduce-in-bf16`, with fp16 it does not
(validate_args in megatron/training/arguments.py). Recipes of NeMo and of Megatron Bridge overlap where there are
several replicas and a distributed optimizer (nemo/lightning/pytorch/callbacks/megatron_comm_overlap.py).

PyTorch: DistributedDataParallel reduces during the backward (docs.pytorch.org/docs/stable/notes/ddp); under autocast
parameters, and so gradients, are in fp32; torchtitan's mixed_precision_reduce is float32 (its config/job_config.py).
A stage's FSDP modules reduce in perform_reduce_grad (torch/distributed/pipelining/stage.py).

Megatron-DeepSpeed reduces as Megatron-LM (DeepSpeed's overlap_comm is off: deepspeed.ai/docs/config-json). In JAX,
XLA's latency-hiding scheduler starts a reduction when its gradients are known (openxla.org, "GPU performance"), in the
32 bits of the weights (MaxText's weight_dtype); buckets are taken to be PyTorch's.

Models of `kind: layers` and of a user's own kind, and a `workload`, have no framework.
"""

from collections.abc import Mapping
from typing import NamedTuple

from hybrid_des.workload.models import kinds

LAYERED = ("zero-2", "zero-3")  # what FSDP shards


class Framework(NamedTuple):
    """A framework.

    Attributes:
        name: what it is called.
        overlaps: whether it reduces gradients during the backward.
        rule: its rule of buckets where gradients are reduced then.
        besides: who uses it otherwise.
    """

    name: str
    overlaps: bool
    rule: str
    besides: str = ""


FRAMEWORKS = {
    "megatron": Framework("Megatron-LM", overlaps=False, rule="megatron", besides="; NeMo's recipes overlap"),
    "deepspeed": Framework("Megatron-DeepSpeed", overlaps=False, rule="megatron"),
    "pytorch": Framework("PyTorch", overlaps=True, rule="ddp"),
    "compiled": Framework("PyTorch", overlaps=True, rule="ddp"),
    "jax": Framework("JAX", overlaps=True, rule="ddp"),
}  # by the value of `model.written`


def framework_of(model: object) -> Framework | None:
    """The framework of a model, which is a section of a scenario or the values of one; None if it has none."""
    values = model if isinstance(model, Mapping) else {"kind": getattr(model, "kind", None)}
    kind = values.get("kind", kinds.DEFAULT)
    written = values.get("written") or getattr(getattr(model, "options", None), "written", None)
    if written is None and isinstance(kind, str) and kind in kinds.names():
        written = kinds.find(kind).facts["framework"]
    return FRAMEWORKS.get(written) if isinstance(written, str) else None


def fill_as_framework(gradients: dict[str, object], scenario: Mapping[str, object]) -> None:
    """Complete a model's `gradients` by what its framework does."""
    framework, sharding = framework_of(scenario.get("model")), scenario.get("sharding", "none")
    if framework is None:
        return
    overlap = scenario.get("overlap")
    waits = isinstance(overlap, Mapping) and overlap.get("parameters") is False and sharding == "zero-3"
    if framework.overlaps and not waits:
        gradients.setdefault("overlap", True)
    gradients.setdefault("codec", codec_of(framework, scenario.get("precision", "bf16")))
    if gradients.get("overlap") is True and sharding not in LAYERED and "bucket_rule" not in gradients:
        gradients["bucket_rule"] = framework.rule
        if framework.rule == "megatron" and sharding == "zero-1":
            gradients.setdefault("pad", True)


def codec_of(framework: Framework, precision: object) -> str:
    """The codec in which a framework reduces gradients by default."""
    return "fp16" if framework.rule == "megatron" and precision == "fp16" else "fp32"


def splitting_rule(model: object, sharding: str) -> str:
    """The rule of buckets that are ready before a rank's last op ends; of a workload, by what shards its optimizer."""
    framework = framework_of(model)
    return framework.rule if framework is not None else "ddp" if sharding == "none" else "megatron"
