"""What differs in a Llama as PyTorch's torchtitan writes it (torchtitan/models/llama3/model.py), or Hugging Face.

    queries ─┐                          gate ─► activation ─┐
    keys    ─┼─► rotation ─► copies ─► attention   up ──────┴─► × ─► down
    values  ─┘

Amounts are per token, as in `hybrid_des.workload.models.layer`; h is the hidden size.

Hugging Face's transformers (models/qwen3/modeling_qwen3.py, integrations/sdpa_attention.py) passes keys and values on
without copies (enable_gqa). Autograd keeps, of a norm, its input in 32 bits and the normalized one in 16; of the MLP,
the activation's result, which takes the place of a gradient, so that the most at a time is the same. The gradient of
the block's result exists besides, for the residual. A kernel that fuses a norm keeps its input in 16 bits (Liger's, in
github.com/linkedin/Liger-Kernel, ops/rms_norm.py).
"""

from dataclasses import replace

from hybrid_des.workload.models.amounts import ELEMENT, Kept
from hybrid_des.workload.models.layer import OPS, Layer, Module, Part, linear
from hybrid_des.workload.models.operations import Elementwise


def separate_heads(h: int, queries: int, keys: int, *, bias: bool, copies: bool = True) -> Part:
    """Three products instead of one, rotations of queries and keys, copies of keys and values for all query heads.

    Args:
        h: hidden size.
        queries: elements of a token's queries.
        keys: elements of its keys, and of its values.
        bias: whether products have biases.
        copies: whether keys and values are copied for all query heads.
    """
    names = {"queries": queries, "keys": keys, "values": keys}
    parts = [linear(name, h, width, "columns", bias=bias, shares=name != "queries") for name, width in names.items()]
    turned, more = queries + keys, queries - keys if copies else 0
    copied = 2 * ELEMENT * (queries + keys) if more else 0
    passes = (
        Elementwise("rotation", 2 * ELEMENT * turned, 2 * ELEMENT * turned, "tensor", eager=(20 * turned, 20 * turned)),
        Elementwise("copies of keys and values", copied, copied, "tensor"),
        Elementwise("sums of gradients", 0, 3 * ELEMENT * h, "sequence", eager=(0, 9 * ELEMENT * h)),
    )
    return sum(parts, Part()) + Part(passes, kept=Kept(tensor=2 * ELEMENT * more))


def checkpointed_experts(h: int, queries: int, keys: int, active: int, inner: int, *, normed: bool) -> Part:
    """What `checkpointed` is for a block with experts: none of their products is kept, for they are grouped ones.

    Kept are results of attention, queries and values; and what an exchange with experts on other ranks brought, which
    `layer_costs` knows.

    Args:
        h: hidden size.
        queries: elements of a token's queries.
        keys: elements of its keys, and of its values.
        active: experts of a token.
        inner: elements inside its experts.
        normed: whether queries and keys have norms.
    """
    experts = ("router", "routing", "experts up", "experts' activation", "experts down", "shared activation")
    ops = Module(
        OPS,
        ("norms and residuals", "query and key norms", "attention output", *experts),
        Kept(
            sequence=3 * ELEMENT * h,
            tensor=ELEMENT * (keys + (queries + keys if normed else 0)),
            received=ELEMENT * active * h,
            expert=ELEMENT * inner,
        ),
        summed=("attention output",),
        sums=Kept(sequence=ELEMENT * h),
        gathers=True,
        unconverted=experts,
    )
    return Part(modules=(ops,))


def with_results(layer: Layer) -> Layer:
    """A layer that keeps its experts' results too, which the router's weights multiply.

    The gradient of these weights needs them (Hugging Face transformers, integrations/moe.py; mlc-ai/pith-train,
    forward_stage5; torchtitan keeps inputs that they multiply instead, or results in 32 bits: models/moe/moe.py).
    Megatron-LM multiplies inside of the activation (weighted_bias_swiglu_impl), which keeps its input anyway.
    """
    more = Kept(sequence=layer.dispatched)
    again = (one._replace(kept=one.kept + more) if one.name in ("moe", OPS) else one for one in layer.modules)
    return replace(layer, kept=layer.kept + more, modules=tuple(again)) if layer.dispatched else layer


def checkpointed(h: int, queries: int, keys: int, ffn: int, *, gated: bool) -> Part:
    """What torchtitan's checkpointing by operators keeps and repeats (torchtitan/distributed/activation_checkpoint.py).

    Kept are results of attention, of every second product in order (queries, values, the first of the MLP, its last),
    and of reductions; the last one's result is needed by no backward, and dropped where a compiler sees that.
    """
    up, inner = ("MLP up",) if gated else (), (2 if gated else 1) * ffn
    passes = ("norms and residuals", "rotation", "copies of keys and values", "activation")
    ops = Module(
        OPS,
        (*passes, "keys", "attention output", *up),
        Kept(sequence=3 * ELEMENT * h, tensor=ELEMENT * (2 * queries - keys + inner)),
        summed=("attention output",),
        sums=Kept(sequence=ELEMENT * h),
        gathers=True,
        eager=Kept(sequence=ELEMENT * h),
    )
    return Part(modules=(ops,))


def eager_norms(h: int, norms: int, residuals: int, *, layer: bool) -> tuple[int, int]:
    """Bytes of root-mean-square norms and residuals where each operator of PyTorch is a kernel.

    A norm converts its input to 32 bits (6h read and written), squares it (8h), takes the mean (4h), multiplies by its
    root (8h), converts back (6h) and multiplies by the weight (4h); its backward moves 84h: 12 for the product with the
    weight, 6 and 6 for conversions, 24 for that with the root, 24 for the square and 12 where both meet. A residual
    moves 6h. A `layer` norm is one kernel in 32 bits (8h; its backward 20h), with a conversion before and after
    (6h each, forward and backward): docs.pytorch.org, "CUDA Ops that can autocast to float32".
    """
    forward, backward = (20, 32) if layer else (36, 84)
    return (forward * norms + 6 * residuals) * h, (backward * norms + 6 * residuals) * h
