"""The second half of a block: an MLP, a mixture of experts, or both side by side.

    MLP      h ─► up (and gate) ─► activation ─► down
    experts  router ─► dispatch ─► [latent down] ─► experts ─► [latent up] ─► combine, with experts that all tokens pass

Bytes of an activation: what it reads and writes, 4f and 8f (gelu, relu2) or 6f and 12f (swiglu, geglu) forward and
backward. Latent experts (NVIDIA, arXiv 2604.12374) work on vectors of their own length, which dispatch and combine
carry; both projections are outside of the experts, and every tensor rank has them whole.
"""

from fractions import Fraction

from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.block import Block
from hybrid_des.workload.models.layer import Module, Part, linear, offload, weights
from hybrid_des.workload.models.operations import Elementwise, Gemm
from hybrid_des.workload.models.sections import GATED, Experts

# bytes that forward and backward of routing read and write per element of a token's vectors, one for each expert: by
# Megatron-LM to put tokens in order and back; by Hugging Face's transformers to gather them (4), zero those of other
# ranks' experts (4), multiply results by weights (4), zero (4), put them back (4) and add them up (2). Its backward
# copies the gradient (2), scatters it into zeros (8), zeroes (4), forms gradients of results and weights (12), zeroes
# (4) and adds up (6): grouped_mm_experts_forward in integrations/moe.py, release 5
COPIED, COPIED_EAGERLY = (8, 8), (22, 36)


def second_half(options: Block) -> Part:
    """The MLP, the experts, or both; nothing for a block without."""
    experts = options.experts
    if experts is None:
        return mlp(options, options.ffn) if options.ffn else Part()
    h = options.hidden
    part = routed(options, experts)
    if experts.beside:
        part += mlp(options, experts.beside, "shared ")
    if experts.shared_gate:
        scaled = Elementwise("shared gating", 2 * ELEMENT * h, 3 * ELEMENT * h, "sequence")
        part += linear("shared gate", h, 1, "sequence", keeps=False) + Part((scaled,))
    if options.beside and options.ffn:
        part += mlp(options, options.ffn)
    elif not experts.beside:
        part += Part(kept=Kept(sequence=ELEMENT * h))  # the router's input
    names = tuple(one.name for one in part.operations)
    whole = Module("moe", names, part.kept - Kept(sequence=ELEMENT * h), unconverted=names, sends=True)
    return part + Part(modules=(whole,))


def mlp(options: Block, ffn: int, prefix: str = "") -> Part:
    """Two products around an activation; their input is counted."""
    h, up = options.hidden, up_width(options, ffn)
    inner = Kept(tensor=ELEMENT * (up + ffn))
    name = "shared_experts" if prefix else "mlp"
    halves = options.pytorch and options.mlp in GATED
    own = ("MLP gate",) if halves else ()
    operations = tuple(f"{prefix}{each}" for each in (*own, "MLP up", "activation", "MLP down"))
    gate = linear(f"{prefix}MLP gate", h, ffn, "columns", bias=options.bias) if halves else Part()
    return (
        gate
        + linear(f"{prefix}MLP up", h, ffn if halves else up, "columns", bias=options.bias, shares=halves)
        + Part((_activation(options, f"{prefix}activation", ffn),))
        + linear(f"{prefix}MLP down", ffn, h, "rows", bias=options.bias)
        + Part(kept=Kept(sequence=ELEMENT * h) + inner, transient=ELEMENT * (up + ffn))
        + Part(modules=(Module(name, operations, inner, unconverted=(*operations, "router")),))
    )


def routed(options: Block, experts: Experts) -> Part:
    """Router, copies of tokens in the order of their experts and back, and the routed experts."""
    h, ffn, up = options.hidden, experts.ffn, up_width(options, experts.ffn)
    count, active, length = experts.count, experts.active, experts.latent or h
    share = Fraction(active, count)
    inner = ELEMENT * active * (up + ffn)
    forward, backward = (size * active * length for size in (COPIED_EAGERLY if options.autograd else COPIED))
    products = (
        Elementwise("routing", forward, backward, "sequence", expert=True, kernels=6),
        Gemm("experts up", up, length, "columns", share, count, expert=True),
        _activation(options, "experts' activation", active * ffn, expert=True),
        Gemm("experts down", length, ffn, "rows", share, count, expert=True),
    )
    sizes = (up * length, up, length * ffn, length) if options.bias else (up * length, length * ffn)
    own = weights(*(Parameters(expert=count * size, idle=(count - active) * size) for size in sizes))  # grouped
    kept = Kept(received=ELEMENT * active * length, expert=inner)
    alone = not (experts.beside or (options.beside and options.ffn))  # with its input
    router = linear("router", h, count, "sequence", bias=experts.router_bias, keeps=alone)
    activated = Kept(expert=ELEMENT * active * ffn)
    again = Module("moe_act", ("experts' activation",), activated, unconverted=("experts down",))
    biases = Part((_biases_of_experts(active * length),) if options.bias else ())
    inside = Part(products, kept=kept, transient=inner, modules=(again,)) + biases + own
    inside += offload("expert_fc1", "experts up", received=active * length)
    inside += offload("moe_act", expert=active * up)
    inside += offload(
        "fused_group_mlp", "experts up", "experts down", received=active * length, expert=active * (up + ffn)
    )
    if experts.latent is None:
        return router + inside
    down = linear("latent down", h, length, "sequence", keeps=False)
    back = linear("latent up", length, h, "sequence") + Part(kept=Kept(sequence=ELEMENT * length))
    return router + down + inside + back


def _biases_of_experts(size: int) -> Elementwise:
    """Biases of the experts' results, `size` elements per token, added in 32 bits, expert by expert.

    A bias times the router's weight is written (4 bytes), added to the result (10), joined with those of other experts
    (8), and converted (6). The backward converts back and forth (12), joins (4), and forms gradients of biases and
    of the router's weights, a product and a sum each (24): NVIDIA/Megatron-LM, TEGroupedMLP._apply_bias in
    megatron/core/transformer/moe/experts.py. Those of the first product are added by the product.
    """
    return Elementwise("experts' biases", 28 * size, 40 * size, "sequence", expert=True, kernels=2, of_each=True)


def _activation(options: Block, name: str, ffn: int, *, expert: bool = False) -> Elementwise:
    gated = options.mlp in GATED
    forward = 6 if gated else 4
    eager = (10 * ffn, 18 * ffn) if gated else None  # the activation and the product with the gate
    return Elementwise(name, forward * ffn, 2 * forward * ffn, "tensor", expert, eager=eager)


def up_width(options: Block, ffn: int) -> int:
    """Width of the first product: a gated MLP has a gate in addition to the values."""
    return 2 * ffn if options.mlp in GATED else ffn
