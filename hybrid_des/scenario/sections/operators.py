"""The sections that say which operators are joined into kernels, and what the optimizer keeps."""

from __future__ import annotations

from typing import Annotated, Literal

from hybrid_des.options import Bytes, Section, choice


class Operators(Section):
    """Operators between products: norms, rotations, activations, losses. Each kernel reads and writes memory."""

    blocks: Annotated[Literal["fused", "eager"], choice("fused", "eager")] = "fused"
    """Of blocks: fused as by Megatron-LM or torch.compile, or eager, each a kernel of its own, as PyTorch runs them."""
    loss: Annotated[
        Literal["fused", "compiled", "eager", "chunked"], choice("fused", "compiled", "eager", "chunked")
    ] = "fused"
    """Of the loss: fused as by Megatron-LM, compiled by torch.compile, or eager; copies of the logits differ.

    chunked: as compiled, for some tokens after the other, so that hardly any logits exist at a time."""
    logits: Annotated[Literal["sharded", "gathered"], choice("sharded", "gathered")] = "sharded"
    """Of tensor ranks: each has its part of the vocabulary, or all of it, gathered before the loss.

    As in PyTorch without `loss_parallel` (torch/distributed/tensor/parallel)."""


class Optimizer(Section):
    """What the optimizer keeps."""

    state: Bytes = 12
    """Bytes per parameter of a model: a copy of the weights and Adam's two moments of 32 bits.

    8: the moments only; 4: moments of 16 bits, as PyTorch's Adam has them for parameters of 16 bits."""
