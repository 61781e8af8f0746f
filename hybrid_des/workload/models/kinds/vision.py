"""Vision transformers (Dosovitskiy et al., arXiv 2010.11929): patches of an image are the tokens of an encoder.

    patches ─► block 0 ─► … ─► block L−1 ─► norm, classes of the first token

s = 1 + (image/patch)² tokens: one is learned, and the classes are computed from it. Blocks are those of the
transformer, not causal, with GELU, layer norms and biases. Counts of parameters and FLOP are those of torchvision.
"""

from fractions import Fraction

from hybrid_des.options import Count, Options
from hybrid_des.workload.models.amounts import ELEMENT, Kept, Parameters
from hybrid_des.workload.models.block import AttentionKind
from hybrid_des.workload.models.kinds.registration import ModelRefusal, kind
from hybrid_des.workload.models.kinds.transformer import Depth, Transformer, blocks
from hybrid_des.workload.models.layer import Model, Part, layer_of, linear, norm, weights

COLOURS = 3


class Vision(Options):
    """Sizes of a vision transformer."""

    layers: Depth
    """Number of blocks."""
    hidden: Count
    """Length of the vector of a token."""
    heads: Count
    """Attention heads."""
    ffn: Count
    """Width of the MLP."""
    patch: Count
    """Side of a patch, in pixels."""
    image: Count = 224
    """Side of an image, in pixels."""
    classes: Count = 1000
    """Number of classes."""
    attention: AttentionKind = "flash"
    """plain: score matrices are written to memory; flash: they are not."""


@kind("vision", summary="vision transformers", options=Vision, framework="pytorch")
def vision(options: Vision) -> Model:
    """Patches, blocks, and classes."""
    if options.hidden % options.heads:
        raise ModelRefusal("heads", f"hidden size {options.hidden} is not divisible by {options.heads} heads")
    if options.image % options.patch:
        raise ModelRefusal(
            "patch", f"an image of {options.image} pixels is not divisible into patches of {options.patch}"
        )
    h, patches = options.hidden, (options.image // options.patch) ** 2
    tokens, pixels = patches + 1, COLOURS * options.patch**2
    encoder = Transformer.model_construct(
        layers=options.layers, hidden=h, heads=options.heads, ffn=options.ffn, vocab=0, mlp="gelu", norm="layer",
        bias=True, sequence=tokens, causal=False, attention=options.attention,
    )  # fmt: skip
    first = linear("patches", pixels, h, "none", bias=True, rows=Fraction(patches, tokens))
    learned = weights(Parameters(replicated=h), Parameters(replicated=tokens * h))
    learned += Part(kept=Kept(sequence=ELEMENT * pixels))
    last = linear("classes", h, options.classes, "none", bias=True, rows=Fraction(1, tokens))
    return Model(
        tokens,
        (
            layer_of("patches", (first, learned), ELEMENT * h, "first"),
            *blocks([encoder] * options.layers),
            layer_of("classes", (norm("norm", h, encoder.norm_parameters), last), 0, "last"),
        ),
        "image",
    )
