"""What a mixer is: a registered function from the options of a block to its products, parameters and activations.

    class Averages(Options):
        width: Count

    @mixer("averages", summary="running averages", options=Averages)
    def averages(block: Block, own: Averages) -> Part:
        h, w = block.hidden, own.width
        return (
            linear("averages in", h, w, "columns") + Part(kept=Kept(sequence=ELEMENT * h, tensor=ELEMENT * w))
            + Part((Elementwise("running averages", 4 * w, 6 * w, "tensor"),))
            + linear("averages out", w, h, "rows")
        )

All amounts are per token, as `hybrid_des.workload.models.operations` has them; tensor ranks gather the input of a
block's half, and sum its output. Norms and residuals are the block's. What a mixer sends to context ranks is stated by
its core (`Attention`). Sizes of built-in mixers are keys of the model (`latent`); a user's are `mixers.NAME`.
"""

from __future__ import annotations

from collections.abc import Callable

from hybrid_des.options import Options
from hybrid_des.registry import Registry
from hybrid_des.workload.models.layer import Part

Builder = Callable[..., Part]  # (options of the block[, its own]) → its part of the block
_REGISTRY: Registry[Builder] = Registry("mixer", "hybrid_des.workload.models.mixers", returns=Part)

names = _REGISTRY.names
find = _REGISTRY.__getitem__


def mixer(
    name: str, *, summary: str, sizes: str | None = None, options: type[Options] | None = None
) -> Callable[[Builder], Builder]:
    """Register a mixer.

    Args:
        name: value of a model's `mixer`.
        summary: one-line description.
        sizes: the key of the model with its sizes, which is required; None: it has none of its own.
        options: of a user's mixer: class of its options, the second argument of the function.
    """
    return _REGISTRY(name, options, summary=summary, sizes=sizes)
