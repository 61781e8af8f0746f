"""What a software stack does by default: what it fuses, its attention and experts, its host, and gradients.

| `model.written` | blocks, loss | attention | products, router of experts | `efficiency.launch` |
|---|---|---|---|---|
| megatron | fused, fused | cudnn | per-expert, fused | 115 us |
| deepspeed | fused, eager | cudnn | per-expert, fused | 115 us |
| pytorch | eager, eager | flash-2 | fused, fused | 115 us |
| transformers | eager, eager | flash-2 | fused, eager | 115 us |
| compiled | fused, compiled | flash-2 | fused, fused | 115 us |
| jax | fused, compiled | cudnn | fused, fused | 0 |

Megatron-LM: fused norms, rotations and activations of TransformerEngine, and a call of cuBLAS for each expert
(general_grouped_gemm in its cpp_extensions). Megatron-DeepSpeed has Megatron-LM's fused kernels of 2021, whose loss is
a chain of operators of PyTorch in 32 bits (megatron/mpu/cross_entropy.py). PyTorch takes FlashAttention-2 for
scaled_dot_product_attention (docs.pytorch.org), and one kernel for all experts (torch._grouped_mm, in torchtitan's
models/moe); torch.compile joins what is between products (compiled). Hugging Face's transformers multiply experts so,
too, since release 5 (grouped_mm: get_correct_experts_implementation in modeling_utils.py; before it, and without
PyTorch 2.9, expert by expert), and choose them by operators of PyTorch (models/qwen3_moe, mixtral). XLA compiles a step
into one program, whose kernels are launched without Python, takes cuDNN's attention (openxla.org, "GPU architecture"),
and multiplies experts in one kernel (jax.lax.ragged_dot).

115 us per operator of a layer as `Layer.kernels` counts them, of which each is several kernels and autograd nodes of an
eager stack: layers of an A100's host take at least 3.0 to 3.9 ms for 13 operators of forward and 19 of backward (the 32
profiles of github.com/VIA-Research/vTrain: 95 to 120 us). Twelve steps of six sources that wait for their hosts ask for
110, with any of the sources left out for 102 to 110, by which that source is 2.5 to 7.4 % off (by 115, 2.5 to 9.0 %):
docs/background/accuracy_details.md. Models that are no transformers have no default: none was measured.

Context ranks that gather keys and values (`context_method: all-gather`) hold those of whole samples during attention.
Megatron-LM holds their gradients as well before it scatters them, 16 bits each (TransformerEngine,
AttnFuncWithCPAndKVAllGather in context_parallel.py). PyTorch passes gradients on instead, and sums them in 32 bits
(_templated_ring_attention_backward in torch/distributed/tensor/experimental/_context_parallel/_attention.py, whose
defaults are convert_to_f32 and ALL_GATHER). Per element of queries, these are their sum (4), and gradients of a block
and of the one before (2 + 2), which the kernel sums in 32 bits (4; Dao, arXiv 2307.08691). Per element of keys and
values, a joined copy (2), gradients of two blocks, of half of the keys each (2), and sums three times: held, joined to
be sent, and received (12).

With gradients, unless told otherwise, the framework of a stack does this.

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

TransformerEngine, Megatron-LM's in 8 and 4 bits, keeps inputs of products as it converted them; torchao keeps them in
16 bits and converts them again (torchao/float8/float8_linear.py), and JAX is taken to do the same.

Models of `kind: layers` and of a user's own kind, and a `workload`, have no framework.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.workload.models import kinds


class Stack(NamedTuple):
    """Defaults of a stack.

    Attributes:
        name: of its framework.
        overlaps: whether that reduces gradients during the backward.
        rule: its rule of buckets where gradients are reduced then.
        besides: who uses it otherwise.
        blocks, loss, attention, kernel, router, launch: as in the scenario.
        keeps_converted: whether products in few bits keep inputs as they converted them.
        interleaves: whether tensors have all samples of a micro-batch token by token, not one after the other.
        gathers: bytes of a backward that gathers keys and values, per element of a token's queries, of its keys and
            values, and of these for each context rank.
    """

    name: str
    overlaps: bool = False
    rule: str = "megatron"
    besides: str = ""
    blocks: str = "fused"
    loss: str = "fused"
    attention: str = "cudnn"
    kernel: str = "per-expert"
    router: str = "fused"
    launch: str = "115 us"
    keeps_converted: bool = True
    interleaves: bool = True
    gathers: tuple[int, int, int] = (0, 0, 4)


_PYTORCH = Stack("PyTorch", overlaps=True, rule="ddp", attention="flash-2", kernel="fused", keeps_converted=False,
                 interleaves=False, gathers=(12, 16, 2))  # fmt: skip
_EAGER = _PYTORCH._replace(blocks="eager", loss="eager")
STACKS: Mapping[str, Stack] = {
    "megatron": Stack("Megatron-LM", besides="; NeMo's recipes overlap"),
    "deepspeed": Stack("Megatron-DeepSpeed", loss="eager"),
    "pytorch": _EAGER,
    "transformers": _EAGER._replace(router="eager"),
    "compiled": _PYTORCH._replace(loss="compiled"),
    "jax": _PYTORCH._replace(name="JAX", loss="compiled", attention="cudnn", launch="0 us", gathers=(0, 0, 4)),
}  # by the value of `model.written`
LAYERED = ("zero-2", "zero-3")  # what FSDP shards
OF_TRANSFORMERS = ("transformer", "vision")  # kinds with the operators that were counted


def stack_of(model: object) -> Stack | None:
    """The stack of a model's values; None if it is none of ours, or no transformer."""
    if not isinstance(model, Mapping) or model.get("kind", kinds.DEFAULT) not in OF_TRANSFORMERS:
        return None
    written = model.get("written", "megatron")
    return STACKS.get(written) if isinstance(written, str) else None


def fill_as_stack(efficiency: dict[str, object], filled: dict[str, object]) -> None:
    """Complete `operators`, `experts` and `efficiency.launch` by what the model's stack does."""
    model = filled["model"]
    stack = stack_of(model)
    if stack is None or not isinstance(model, dict):
        return
    efficiency.setdefault("launch", stack.launch)
    given = filled.get("operators")
    if isinstance(given, dict) and given.get("attention") == "plain":
        model.setdefault("attention", "plain")
    own = _own(stack, "blocks", "loss")
    if model.get("attention", "flash") == "flash" and stack.attention in kernels_of(filled.get("cluster")):
        own["attention"] = stack.attention
    _fill_in(filled, "operators", own)
    if model.get("experts"):
        _fill_in(filled, "experts", _own(stack, "kernel", "router"))


def _own(stack: Stack, *keys: str) -> dict[str, str]:
    """Those of some values that are not Megatron-LM's, which are the defaults of keys."""
    return {key: getattr(stack, key) for key in keys if getattr(stack, key) != getattr(STACKS["megatron"], key)}


def _fill_in(filled: dict[str, object], name: str, own: Mapping[str, str]) -> None:
    section = filled.setdefault(name, {}) if own else None
    if isinstance(section, dict):
        section.update({**own, **section})


def misfits_of_attention(kernel: str | None, model: object, gpu: str, reached: float) -> Iterator[Problem]:
    """A kernel of attention whose rate is not known on a GPU, or that the model does not run.

    Args:
        kernel: as in `operators.attention`.
        model: the options of the model.
        gpu: the name of the GPU.
        reached: `efficiency.attention`.
    """
    if kernel is None or not hasattr(model, "attention"):
        return
    if (kernel == "plain") != (model.attention == "plain"):
        yield misfit(f"{kernel}, but `model.attention` is {model.attention}", "operators.attention", "model")
    elif kernel not in ("cudnn", "plain") and gpu in catalogue.names():
        part = catalogue.part(gpu)
        if kernel not in part.attention_kernels and reached in {one["attention"] for one in part.efficiency.values()}:
            known = ", ".join(["cudnn", "plain", *part.attention_kernels])
            message = f"what {kernel} reaches is not known on {gpu}; expected `efficiency.attention`, or one of {known}"
            yield misfit(message, "operators.attention")


def kernels_of(cluster: object) -> Mapping[str, float]:
    """Kernels of attention of which the catalogue has the share that they reach on a cluster's GPUs."""
    gpu = cluster.get("gpu") if isinstance(cluster, Mapping) else None
    return catalogue.part(gpu).attention_kernels if isinstance(gpu, str) and gpu in catalogue.names() else {}


def framework_of(model: object) -> Stack | None:
    """The stack whose framework reduces the gradients of a model, a section of a scenario or its values; None: none."""
    values = model if isinstance(model, Mapping) else {"kind": getattr(model, "kind", None)}
    kind = values.get("kind", kinds.DEFAULT)
    written = values.get("written") or getattr(getattr(model, "options", None), "written", None)
    if written is None and isinstance(kind, str) and kind in kinds.names():
        written = kinds.find(kind).facts["framework"]
    return STACKS.get(written) if isinstance(written, str) else None


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


def codec_of(framework: Stack, precision: object) -> str:
    """The codec in which a framework reduces gradients by default."""
    return "fp16" if framework.rule == "megatron" and precision == "fp16" else "fp32"


def splitting_rule(model: object, sharding: str) -> str:
    """The rule of buckets that are ready before a rank's last op ends; of a workload, by what shards its optimizer."""
    framework = framework_of(model)
    return framework.rule if framework is not None else "ddp" if sharding == "none" else "megatron"
