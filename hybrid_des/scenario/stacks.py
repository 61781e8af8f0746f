"""What a software stack fuses, how it computes attention and experts, and what its host launches.

| `model.written` | blocks, loss | attention | products of experts | `efficiency.launch` |
|---|---|---|---|---|
| megatron | fused, fused | cudnn | per-expert | 115 us |
| deepspeed | fused, eager | cudnn | per-expert | 115 us |
| pytorch | eager, eager | flash-2 | fused | 115 us |
| compiled | fused, compiled | flash-2 | fused | 115 us |
| jax | fused, compiled | cudnn | fused | 0 |

Megatron-LM: fused norms, rotations and activations of TransformerEngine, and a call of cuBLAS for each expert
(general_grouped_gemm in its cpp_extensions). Megatron-DeepSpeed has Megatron-LM's fused kernels of 2021, whose loss is
a chain of operators of PyTorch in 32 bits (megatron/mpu/cross_entropy.py). PyTorch takes FlashAttention-2 for
scaled_dot_product_attention (docs.pytorch.org), and one kernel for all experts (torch._grouped_mm, in torchtitan's
models/moe); torch.compile joins what is between products (compiled). XLA compiles a step into one program, whose
kernels are launched without Python, takes cuDNN's attention (openxla.org, "GPU architecture"), and multiplies experts
in one kernel (jax.lax.ragged_dot).

115 us per operator of a layer as `Layer.kernels` counts them, of which each is several kernels and autograd nodes of an
eager stack: layers of an A100's host take at least 3.0 to 3.9 ms for 13 operators of forward and 19 of backward (the 32
profiles of github.com/VIA-Research/vTrain: 95 to 120 us). Twelve steps of six sources that wait for their hosts ask for
110, with any of the sources left out for 102 to 110, by which that source is 2.5 to 7.4 % off (by 115, 2.5 to 9.0 %):
docs/background/accuracy_details.md. Models that are no transformers have no default: none was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hybrid_des.cluster import gpus as catalogue
from hybrid_des.scenario.problem import Problem, misfit
from hybrid_des.workload.models import kinds


class Stack(NamedTuple):
    """Defaults of a stack, as in the scenario."""

    blocks: str = "fused"
    loss: str = "fused"
    attention: str = "cudnn"
    kernel: str = "per-expert"
    launch: str = "115 us"


STACKS: Mapping[str, Stack] = {
    "megatron": Stack(),
    "deepspeed": Stack(loss="eager"),
    "pytorch": Stack("eager", "eager", "flash-2", "fused"),
    "compiled": Stack("fused", "compiled", "flash-2", "fused"),
    "jax": Stack("fused", "compiled", "cudnn", "fused", "0 us"),
}
OF_TRANSFORMERS = ("transformer", "vision")  # kinds with the operators that were counted


def stack_of(model: object) -> Stack | None:
    """The stack of a model's values; None if it is none of ours, or no transformer."""
    if not isinstance(model, Mapping) or model.get("kind", kinds.DEFAULT) not in OF_TRANSFORMERS:
        return None
    written = model.get("written", "megatron")
    return STACKS.get(written) if isinstance(written, str) else None


def fill_as_stack(efficiency: dict[str, object], filled: dict[str, object]) -> None:
    """Complete `operators`, `experts` and `efficiency.launch` by what the model's stack does."""
    model, usual = filled["model"], STACKS["megatron"]
    stack = stack_of(model)
    if stack is None or not isinstance(model, dict):
        return
    efficiency.setdefault("launch", stack.launch)
    given = filled.get("operators")
    if isinstance(given, dict) and given.get("attention") == "plain":
        model.setdefault("attention", "plain")
    own = {key: getattr(stack, key) for key in ("blocks", "loss") if getattr(stack, key) != getattr(usual, key)}
    if model.get("attention", "flash") == "flash" and stack.attention in kernels_of(filled.get("cluster")):
        own["attention"] = stack.attention
    _fill_in(filled, "operators", own)
    if model.get("experts") and stack.kernel != usual.kernel:
        _fill_in(filled, "experts", {"kernel": stack.kernel})


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
